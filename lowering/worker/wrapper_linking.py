"""Links a graph's wrapper: turns Inductor's generated module into a code object that loads without a compiler.

The generated text imports half of Inductor to name a few functions of torch, and contains every kernel's source to have
it compiled. The linker keeps only the parts that a call needs. It removes unused imports, benchmarks and sample inputs;
replaces kernels by functions of the entry's libraries; and imports functions of torch from the modules that define
them. Line numbers stay those of the generated text, so that tracebacks show it. Code that the linker does not recognise
is kept with torch's loader, and is listed in `LinkedWrapper.unlinked`.
"""

from __future__ import annotations

import ast
import marshal
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fxpool.torch_compat.cpp import cpp_wrappers, source_kernels
from fxpool.torch_compat.dynamo import process_groups
from fxpool.torch_compat.inductor import import_paths, output_code
from fxpool.torch_compat.inductor.output_code import LinkedWrapper

#: The names that Inductor reads from a loaded wrapper.
_ROOTS = frozenset({"call", "runner", "recursively_apply_fns"})
_LIBRARY = "_fxpool_library"
_BUILT = "_fxpool_built"
_TRITON = "_fxpool_triton"
_EXTERN = "_fxpool_extern_"
_SELECT = "torch._inductor.select_algorithm"
_NAMED_DEVICE = re.compile(r"cuda:\d+")
# Inductor writes devices in operators' arguments as calls of `device`: a text that looks like one is the program's.
_OPERATORS = "torch.ops."
# Functions that generated code calls with a CUDA device's index.
_OF_DEVICE = frozenset({"torch.cuda._DeviceGuard", "torch.cuda.set_device", "torch.cuda.device", "get_raw_stream"})


def link(
    source: str,
    name: str,
    kernels: Mapping[str, str],
    triton: Mapping[str, str] | None = None,
    indices: Sequence[int] = (),
    built: Mapping[str, str] | None = None,
) -> LinkedWrapper:
    """Link the generated module `source`. `kernels` and `triton` map digests to the functions of the libraries.

    `built` does so for libraries of one source each. `indices` are the indices of the graph's devices, in the graph's
    order; without them the text already has numbers in that order.

    Raises:
        SyntaxError: the text is not valid Python.
    """
    module = ast.parse(source)
    module.body = [statement for statement in module.body if not _is_for_people(statement)]
    numbers = {index: number for number, index in enumerate(indices)}
    linker = _Linker(kernels, triton or {}, numbers, built or {}, _constants(module))
    module = linker.visit(module)
    module.body = _reachable(module.body)
    module.body = linker.definitions() + module.body
    unlinked = _light_imports(module)
    unlinked += [f"extern:{kernel}" for kernel in sorted(linker.unresolved)]
    if compiled := sorted({f"async_compile.{call}" for call in _calls_of(module, "async_compile")} - _HOUSEKEEPING):
        # Calls that compile need the imports they use: one reason is enough.
        unlinked = [reason for reason in unlinked if not reason.startswith(_OF_COMPILING)] + compiled
    ast.fix_missing_locations(module)
    return LinkedWrapper(
        name,
        marshal.dumps(compile(module, name, "exec", dont_inherit=True)),
        linker.taken[_LIBRARY],
        linker.taken[_TRITON],
        sorted(set(import_paths.operators_in(module))),
        unlinked,
        sorted(linker.devices),
        linker.taken[_BUILT],
    )


def _constants(module: ast.Module) -> dict[str, Any]:
    """Return the module's constants that are assigned once, by name."""
    found: dict[str, Any] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            found |= {one.id: statement.value.value for one in statement.targets if isinstance(one, ast.Name)}
    return found


def _is_for_people(statement: ast.stmt) -> bool:
    """Return whether a statement is a bare constant, such as text, or runs only if the module is the main program."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return True
    return isinstance(statement, ast.If) and "__main__" in ast.dump(statement.test)


class _Linker(ast.NodeTransformer):
    """Replaces calls that compile or import by names of the library and of torch."""

    def __init__(
        self,
        kernels: Mapping[str, str],
        triton: Mapping[str, str],
        numbers: Mapping[int, int],
        built: Mapping[str, str],
        constants: Mapping[str, Any],
    ) -> None:
        self._kernels, self._triton, self._numbers = kernels, triton, numbers
        self._built, self._constants = built, constants
        self.taken = {_LIBRARY: 0, _TRITON: 0, _BUILT: 0}
        self.unresolved: set[str] = set()
        self.devices: set[int] = set()
        self._texts: set[int] = set()  # by identity of nodes, which the module keeps
        self._resolved: dict[str, list[ast.stmt]] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        library, name = self._kernel(node)
        if name is None:
            self._place(node)
            return self.generic_visit(node)
        self.taken[library] += 1
        return ast.copy_location(ast.Attribute(ast.Name(library, ast.Load()), name, ast.Load()), node)

    def _place(self, node: ast.Call) -> None:
        """Replace a device's index by a name; note the texts that an operator takes."""
        called = ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        if called.startswith(_OPERATORS):
            self._texts.update(map(id, _constants_in([*node.args, *(keyword.value for keyword in node.keywords)])))
        elif called in _OF_DEVICE:
            node.args = [self._device(argument) for argument in node.args]
        elif called in ("device", "torch.device"):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(value, ast.Constant) and value.value == "cuda" for value in values):
                node.args = [self._device(argument) for argument in node.args]
                for keyword in node.keywords:
                    keyword.value = self._device(keyword.value)

    def _device(self, node: ast.expr) -> ast.expr:
        if not (isinstance(node, ast.Constant) and type(node.value) is int):
            return node
        return ast.copy_location(ast.Name(f"{output_code.DEVICE}{self._number(node.value)}", ast.Load()), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        if (group := process_groups.number_in_code(node.value)) is not None:
            return ast.copy_location(ast.Name(f"{output_code.GROUP}{group}", ast.Load()), node)
        if id(node) in self._texts or not _NAMED_DEVICE.fullmatch(node.value):
            return node
        number = self._number(int(node.value.removeprefix("cuda:")))
        return ast.copy_location(ast.Name(f"{output_code.DEVICE_NAME}{number}", ast.Load()), node)

    def _number(self, index: int) -> int:
        number = self._numbers.get(index, index)
        self.devices.add(number)
        return number

    def _kernel(self, node: ast.Call) -> tuple[str, str | None]:
        """Return (library, name in it) of the kernel that a call compiles; an empty library for any other call."""
        try:
            if self._built and (digest := self._built_digest(node)) is not None:
                return _BUILT, self._built.get(digest)
        except (ValueError, TypeError):
            return "", None
        owner, called = import_paths.called(node)
        if owner != "async_compile" or len(node.args) != 2:
            return "", None
        try:
            first, second = (ast.literal_eval(argument) for argument in node.args)
            if called == "cpp_pybinding" and not node.keywords:
                return _LIBRARY, self._kernels.get(output_code.kernel_digest(first, second))
            if called == "triton":
                return _TRITON, self._triton.get(output_code.kernel_digest([first], second))
        except (ValueError, TypeError, AttributeError):
            pass
        return "", None

    def _built_digest(self, node: ast.Call) -> str | None:
        """Return the digest of the library that a call builds, or None. Raises ValueError: known only at run time."""
        return cpp_wrappers.generated_digest(node, self._constants) or source_kernels.generated_digest(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not (isinstance(node.value, ast.Name) and node.value.id == "extern_kernels"):
            return self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or not self._resolve(node.attr):
            self.unresolved.add(node.attr)
            return node
        return ast.copy_location(ast.Name(_EXTERN + node.attr, ast.Load()), node)

    def _resolve(self, kernel: str) -> bool:
        if kernel not in self._resolved:
            value = import_paths.extern_kernel(kernel)
            definition = _definition(_EXTERN + kernel, value) if value is not None else None
            if definition is None:
                return False
            self._resolved[kernel] = definition
        return True

    def definitions(self) -> list[ast.stmt]:
        if not self._resolved:
            return []
        return [*ast.parse("import torch").body, *(s for statements in self._resolved.values() for s in statements)]


def _constants_in(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the constants in expressions, but not in the arguments of calls within them."""
    for node in nodes:
        if isinstance(node, ast.Constant):
            yield node
        elif not isinstance(node, ast.Call):
            yield from _constants_in(list(ast.iter_child_nodes(node)))


def _definition(name: str, value: Any) -> list[ast.stmt] | None:
    """Return statements that bind `name` to `value` if torch is imported; None if that needs Inductor's compiler."""
    path = import_paths.path_of(value)
    if path is not None:
        return ast.parse(f"{name} = {path}").body
    function = import_paths.plain_function(value)
    return _embedded(name, function) if function is not None else None


def _embedded(name: str, function: import_paths.PlainFunction) -> list[ast.stmt]:
    """Return a function nested in another, so that the names it reads are local."""
    body: list[ast.stmt] = []
    for local, path in function.paths.items():
        if local != path:
            body += ast.parse(f"{local} = {path}").body
    for local, value in function.values.items():
        body += ast.parse(f"{local} = {value!r}").body
    for local, other in function.functions.items():
        body += _embedded(local, other)
    body.append(_without_lines(function.definition))
    body += ast.parse(f"return {function.definition.name}").body
    maker = ast.parse(f"def {name}(): pass\n{name} = {name}()").body
    assert isinstance(maker[0], ast.FunctionDef)
    maker[0].body = body
    return maker


def _without_lines(statement: ast.stmt) -> ast.stmt:
    """Remove line numbers, which would be attributed to the wrong file."""
    for node in ast.walk(statement):
        for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
            if hasattr(node, name):
                setattr(node, name, 1 if "lineno" in name else 0)
    return statement


def _names_defined(statement: ast.stmt) -> set[str] | None:
    """Return the names that a statement defines; None if it may do anything else."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name} if not statement.decorator_list else None
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
        if any(isinstance(node, ast.Call) for node in ast.walk(statement.value)) and not _creates_compiler(statement):
            return None
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return None


def _creates_compiler(statement: ast.Assign) -> bool:
    return ast.unparse(statement.value) == "AsyncCompile()"


_OF_COMPILING = ("import:torch._inductor.async_compile", "import:torch._inductor.runtime", "import:triton")
_HOUSEKEEPING = frozenset({"async_compile.wait"})


def _is_housekeeping(statement: ast.stmt) -> bool:
    """Return whether a statement only manages ``async_compile``, which is useless if nothing is compiled."""
    return ast.unparse(statement) in ("async_compile.wait(globals())", "del async_compile")


def _reads(nodes: list[ast.stmt]) -> set[str]:
    return {n.id for s in nodes for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _reachable(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that the roots need, and those that may do more than define names."""
    if "async_compile" not in _reads([s for s in body if not _is_housekeeping(s)]):
        body = [statement for statement in body if not _is_housekeeping(statement)]
    defined = [_names_defined(statement) for statement in body]
    kept = [names is None or bool(names & _ROOTS) for names in defined]
    wanted = _reads([s for s, keep in zip(body, kept, strict=True) if keep])
    grown = True
    while grown:
        grown = False
        for number, names in enumerate(defined):
            if not kept[number] and names is not None and names & wanted:
                kept[number] = grown = True
                wanted |= _reads([body[number]])
    result = []
    for statement, keep in zip(body, kept, strict=True):
        if keep and isinstance(statement, (ast.Import, ast.ImportFrom)):
            used = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) in wanted | _ROOTS]
            statement.names = used
        if keep:
            result.append(statement)
    return result


def _light_imports(module: ast.Module) -> list[str]:
    """Replace imports of single functions from heavy modules by the functions. Returns the imports that had to stay."""
    stayed: list[str] = []
    body: list[ast.stmt] = []
    for statement in module.body:
        body.append(statement)
        if isinstance(statement, ast.Import):
            stayed += [f"import:{a.name}" for a in statement.names if not import_paths.is_light(a.name)]
        elif isinstance(statement, ast.ImportFrom) and not import_paths.is_light(statement.module or ""):
            body.pop()
            names = []
            for alias in statement.names:
                definition = _imported(statement.module or "", alias)
                if definition is None:
                    names.append(alias)
                else:
                    body += [*ast.parse("import torch").body, *definition]
            if names:
                statement.names = names
                body.append(statement)
                if statement.module != _SELECT:  # named kernel by kernel
                    stayed.append(f"import:{statement.module}")
    module.body = body
    return sorted(set(stayed))


def _imported(module: str, alias: ast.alias) -> list[ast.stmt] | None:
    try:
        value = import_paths.resolve(module, alias.name)
    except (ImportError, AttributeError):
        return None
    return _definition(alias.asname or alias.name, value)


def _calls_of(module: ast.Module, name: str) -> set[str]:
    calls = map(import_paths.called, ast.walk(module))
    return {called for owner, called in calls if owner == name}
