"""Finds paths to the objects that a generated wrapper names, without importing Inductor's compiler.

Inductor's wrappers reach torch's operators through a namespace (``extern_kernels``) whose module imports the whole
compiler, though most objects that they take from it are functions of torch. `path_of` finds a name of the same object
in modules that any process with Dynamo has already imported; `plain_function` returns the text of a small function of
Inductor's that has no other dependencies.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch._C._nn

#: Modules of Inductor that a process with Dynamo has imported anyway.
LIGHT = frozenset({
    "torch._inductor", "torch._inductor.config", "torch._inductor.hooks", "torch._inductor.utils",
    "torch._inductor.metrics", "torch._inductor.exc", "torch._inductor.cudagraph_utils",
    "torch._inductor.runtime.runtime_utils", "torch._inductor.runtime.hints",
})  # fmt: skip
#: Prefixes of modules that import Inductor's compiler or a kernel compiler.
_HEAVY = ("torch._inductor", "triton", "pallas", "cutlass")

_HOMES = ("torch", "torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special", "torch._C._sparse",
          "torch.nn.functional")  # fmt: skip


def is_light(module: str) -> bool:
    """Return whether importing `module` leaves Inductor's compiler and kernel compilers unimported."""
    return module in LIGHT or not any(module == heavy or module.startswith(heavy + ".") for heavy in _HEAVY)


def resolve(module: str, name: str) -> Any:
    """Return the object that ``from module import name`` finds. Raises ImportError or AttributeError."""
    imported = __import__(module, fromlist=[name])
    return getattr(imported, name)


def extern_kernel(name: str) -> Any | None:
    """Return the function that Inductor's wrappers call as ``extern_kernels.<name>``, or None."""
    from torch._inductor.select_algorithm import extern_kernels

    return getattr(extern_kernels, name, None)


def path_of(value: Any) -> str | None:
    """Return a dotted path, beginning with ``torch``, to this very object; None if no path is known."""
    if isinstance(value, torch._ops.OpOverload):
        return _checked(f"torch.ops.{value.namespace}.{value._opname}.{value._overloadname}", value)
    if isinstance(value, torch._ops.OpOverloadPacket):
        return _checked("torch.ops." + value._qualified_op_name.replace("::", "."), value)
    name = getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    for home in _HOMES:
        path = _checked(f"{home}.{name}", value)
        if path is not None:
            return path
    return None


def _checked(path: str, value: Any) -> str | None:
    resolved: Any = torch
    for part in path.split(".")[1:]:
        if not part.isidentifier():
            return None
        resolved = getattr(resolved, part, None)
    return path if resolved is value else None


def called(node: ast.AST) -> tuple[str, str]:
    """Return (``name``, ``function``) of a call ``name.function(...)``; empty texts for any other node."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.value.id, node.func.attr
    return "", ""


def operators_in(tree: ast.AST) -> Iterator[str]:
    """Yield ``namespace::name`` of each operator that code reaches as ``torch.ops.namespace.name``, except aten's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            space = node.value
            if (
                isinstance(space.value, ast.Attribute)
                and space.value.attr == "ops"
                and isinstance(space.value.value, ast.Name)
                and space.value.value.id == "torch"
                and space.attr != "aten"
            ):
                yield f"{space.attr}::{node.attr}"


def is_registered(operator: str) -> bool:
    """Return whether this process knows an operator, ``namespace::name``."""
    namespace, _, name = operator.partition("::")
    return hasattr(getattr(torch.ops, namespace), name)


def register_torch_operators() -> None:
    """Register the operators that torch defines in Python for Inductor's use, by importing their module."""
    import torch._inductor.lowering  # noqa: F401


class PlainFunction:
    """A function as text: its definition, and the globals it reads, by name.

    `paths` are paths to objects (see `path_of`), `values` are numbers, text and similar, `functions` are plain
    functions, too.
    """

    def __init__(self, definition: ast.FunctionDef) -> None:
        self.definition = definition
        self.paths: dict[str, str] = {}
        self.values: dict[str, int | float | str | bool | None] = {}
        self.functions: dict[str, PlainFunction] = {}


def plain_function(value: Any, depth: int = 0) -> PlainFunction | None:
    """Return `value` as text that can be moved to another module; None if it needs more than torch and plain data."""
    if not isinstance(value, types.FunctionType) or value.__closure__ or depth > 3:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    function = PlainFunction(definition)
    _drop_annotations(definition)
    local = {a.arg for a in ast.walk(definition) if isinstance(a, ast.arg)}
    local |= {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    local.add(definition.name)
    if any(isinstance(n, (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)) for n in ast.walk(definition)):
        return None
    for name in {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)} - local:
        if name in value.__globals__:
            if not _add(function, name, value.__globals__[name], depth):
                return None
        elif not hasattr(builtins, name):
            return None
    return function


def _drop_annotations(definition: ast.FunctionDef) -> None:
    """Remove annotations: they are evaluated at the definition, and name types that are not needed otherwise."""
    definition.returns = None
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            node.annotation = None


def _add(into: PlainFunction, name: str, value: Any, depth: int) -> bool:
    if value is torch:
        into.paths[name] = "torch"
    elif isinstance(value, (int, float, str, bool, type(None))):
        into.values[name] = value
    elif (path := _namespace(value)) is not None:  # namespaces are modules to Python
        into.paths[name] = path
    elif isinstance(value, types.ModuleType):
        return False
    elif (path := path_of(value)) is not None:
        into.paths[name] = path
    elif (function := plain_function(value, depth + 1)) is not None:
        into.functions[name] = function
    else:
        return False
    return True


def _namespace(value: Any) -> str | None:
    """Return the path of ``aten`` and similar namespaces, which Inductor's modules keep as globals; else None."""
    name = getattr(value, "name", None)
    if isinstance(value, torch._ops._OpNamespace) and isinstance(name, str):
        return _checked(f"torch.ops.{name}", value)
    return None
