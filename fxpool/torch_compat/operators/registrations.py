"""Collects a program's registrations for an operator: rules, kernels, effects, and their files and libraries.

    custom_op and triton_op     torch's definition: functions, dtypes for autocast, disabled kernels
    torch.library's registries  rules for fake tensors and dispatch classes, effects, symmetric memory
    the dispatcher              kernels registered from Python (`dispatch_probe`) and from C++ (`libraries`)

Kernels that only compute are not parts: compiled code calls them in the program's process.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from fxpool.torch_compat.operators import code_owner, dispatch_probe, libraries
from fxpool.torch_compat.operators.dispatch_probe import NotFoundError
from fxpool.torch_compat.operators.operators import (
    custom_op,
    is_builtin,
    overload_name,
    overloads_of,
    packet_name,
    triton_kernels_of,
)

__all__ = ["NotFoundError", "Part", "Registration", "module_of_file", "overridden", "overridden_in_cpp",
           "registration"]  # fmt: skip

_TORCH_ROOT = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# torch's own code that registers kernels around a program's functions.
_MACHINERY = (os.path.join(_TORCH_ROOT, "_library", ""), os.path.join(_TORCH_ROOT, "library.py"))

# Kernels for these keys compute: their code is not traced into graphs.
_COMPUTE = frozenset(("CPU", "CUDA", "HIP", "XPU", "MPS", "HPU", "MTIA", "PrivateUse1"))
# Kernels for these keys run before tracing reaches plain operators.
_ABOVE = ("Autograd", "Autocast", "FuncTorch", "ADInplaceOrView", "CompositeImplicit")
# Kernels in C++ for these keys give the shapes of results, and nothing else is read of them.
_SHAPES = ("Meta", "CompositeExplicit")


class Part(NamedTuple):
    """One registration: functions and plain data. `traced_only`: AOTAutograd uses it, later graphs do not."""

    value: Any
    traced_only: bool = False


class Registration:
    """`files` contain Python code, `libraries` compiled code; `parts` are the registrations by purpose.

    `traced_in_cpp` are dispatch keys for which C++ code is traced into graphs. `home` is the torch module whose import
    defines the operator, if there is one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[str] = []
        self.libraries: list[str] = []
        self.traced_in_cpp: list[str] = []
        self.home: str | None = None
        self.parts: dict[str, Part] = {}
        self.folds = False

    @property
    def is_known(self) -> bool:
        """Whether the origin of the operator is known."""
        return bool(self.files or self.libraries or self.home or self.parts.keys() - {"schema", "tags"})


def registration(target: Any) -> Registration:
    """Return the registrations for an operator (an overload or a packet) from outside torch.

    Raises NotFoundError: a kernel's code or library cannot be found.
    """
    overloads = overloads_of(target)
    result = Registration(overload_name(target) if isinstance(target, OpOverload) else packet_name(target))
    files: set[str] = set()
    needed: set[str] = set()
    for overload in overloads:
        before = f"{overload.name()} " if len(overloads) > 1 else ""
        for name, part in _parts(overload, files, needed, result):
            result.parts[f"{before}{name}"] = part
    for position, kernel in enumerate(triton_kernels_of(target)):
        result.parts[f"Triton kernel {position}"] = Part(kernel)
    result.files = sorted(os.path.abspath(path) for path in files if _is_users_file(path))
    result.libraries = sorted(needed)
    return result


def _parts(overload: OpOverload, files: set[str], needed: set[str], result: Registration) -> Iterator[tuple[str, Part]]:
    """Yield (purpose, part) of one overload; add its files, libraries and C++ kernels to the others."""
    qualified = overload.name()
    yield "schema", Part(str(overload._schema))
    yield "tags", Part(tuple(sorted(str(tag) for tag in overload.tags)))
    # Inductor evaluates such operators of constants while it compiles.
    result.folds |= torch.Tag.pointwise in overload.tags
    definition = custom_op(overload)
    found = list(_registry_parts(qualified, in_definition=definition is not None))
    if definition is not None:
        found += _parts_of(definition)
        files.update(_files_of((definition._init_fn, *getattr(definition, "_backend_fns", {}).values())))
    found += [
        (f"Python kernel for {_key_name(key)}", Part(_opened(kernel)))
        for key, kernel in getattr(overload, "py_kernels", {}).items()
    ]
    for key, kind, function, others in dispatch_probe.python_kernels(overload):
        files.update(_files_of(function))
        if (key in _COMPUTE and kind == "kernel") or (definition is not None and _is_machinery(function)):
            continue
        if function.__code__.co_name != "meta_kernel" or not _is_machinery(function):  # calls the fake implementation
            extra = tuple(sorted(others.items()))
            above = key.startswith(_ABOVE) or kind == "math kernel"
            found.append((f"kernel for {key}", Part((_opened(function), extra), traced_only=above)))
    if sources := dispatch_probe.foreign_sources(overload):
        needed.update(libraries.that_contain(set(sources.values()), qualified))
        result.traced_in_cpp += [key for key in sources if key not in _COMPUTE and not key.startswith(_SHAPES)]
    defined = dispatch_probe.defined_at(overload)
    files.add(defined)
    result.home = _home(definition) or (_home_at(defined) if definition is None else None) or result.home
    for name, part in found:
        files.update(_files_of(part.value))
        yield name, part


def overridden() -> Iterator[tuple[str, Part]]:
    """Yield (name, kernel) of a program's Python registrations for operators of torch itself."""
    for library in _users_libraries():
        theirs = False
        for entry in sorted(library._op_impls):
            overload, key = _implemented(entry)
            if overload is None:
                continue
            for probed, _, function, others in dispatch_probe.python_kernels(overload):
                if not code_owner.is_own(function):
                    theirs = True
                    value = (_opened(function), tuple(sorted(others.items())))
                    yield f"{overload_name(overload)} for {key or probed} at {probed}", Part(value)
        if not theirs:
            _verdicts[library] = len(library._op_impls), False


def overridden_in_cpp(*, after_autograd: bool) -> list[tuple[str, str, str]]:
    """Return (operator of torch, key, library) of kernels in C++ from outside torch that a compile runs."""
    return [
        (operator, key, library)
        for operator, key, library in libraries.overridden()
        if key not in _COMPUTE and (key.startswith(_SHAPES) or not after_autograd)
    ]


_verdicts: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()


def _users_libraries() -> list[Any]:
    """Return live `torch.library.Library` objects from outside torch that change torch's operators.

    torch keeps no list of them, but each has a finalizer, which `weakref` lists.
    """
    from torch._library.custom_ops import OPDEF_TO_LIB
    from torch.library import _del_library

    own = set(map(id, OPDEF_TO_LIB.values()))
    of_users = []
    # A copy: listing the pairs allocates, which may run finalizers, and these remove themselves from the registry.
    for finalizer, info in weakref.finalize._registry.copy().items():  # type: ignore[attr-defined]
        if info.func is not _del_library:
            continue
        library = finalizer.peek()
        library = library[0] if library is not None else None
        if library is None or not library._op_impls or id(library) in own:
            continue
        known = _verdicts.get(library)
        if known is None or known[0] != len(library._op_impls):
            known = _verdicts[library] = len(library._op_impls), _is_users_library(library)
        if known[1]:
            of_users.append(library)
    return of_users


def _is_users_library(library: Any) -> bool:
    """Return whether a library for torch's operators was made outside torch, or by `torch.library` for a program."""
    overload, key = _implemented(next(iter(library._op_impls)))
    if overload is None or not is_builtin(overload):
        return False
    # Operators that torch itself defines and implements with `torch.library`'s functions count as torch's.
    by_functions = dispatch_probe.defined_at(overload).startswith(_TORCH_ROOT)
    return any(
        not path.startswith(_TORCH_ROOT) or (path == _TORCH_ROOT + "library.py" and not by_functions)
        for path in dispatch_probe.python_places(overload, key)
    )


def _implemented(entry: str) -> tuple[OpOverload | None, str]:
    """Return the operator and the dispatch key of an entry in a library's list: ``aten/sin.default/CPU``."""
    namespace, name, key = (*entry.split("/"), "", "")[:3]
    packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
    overload = getattr(packet, name.partition(".")[2] or "default", None)
    return (overload if isinstance(overload, OpOverload) else None), key


def _home(definition: Any | None) -> str | None:
    """Return the torch module with the function of one of torch's own ``custom_op`` operators, else None."""
    function = getattr(definition, "_init_fn", None)
    return _home_at(function.__code__.co_filename) if isinstance(function, types.FunctionType) else None


def _home_at(path: str) -> str | None:
    path = os.path.abspath(path) if path else ""
    return module_of_file(path) if path.startswith(_TORCH_ROOT) else None


def _parts_of(definition: Any) -> Iterator[tuple[str, Part]]:
    """Yield the parts that `custom_op` and the decorators of its result store."""
    for name in ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn"):
        function = getattr(definition, name, None)
        if callable(function):
            yield name, Part(_opened(function), traced_only=name != "_abstract_fn")
    for name in ("_autocast_dtype", "_autocast_cuda_dtype", "_autocast_cpu_dtype"):  # 2.13; 2.11 has the others
        dtype = getattr(definition, name, None)
        if dtype:
            value = tuple(sorted(dtype.items())) if isinstance(dtype, dict) else dtype
            yield name, Part(value, traced_only=True)
    disabled = getattr(definition, "_disabled_kernel", None)
    if disabled:
        yield "_disabled_kernel", Part(tuple(sorted(map(str, disabled))))
    for cls, function in getattr(definition, "_torch_dispatch_fns", {}).items():
        if callable(function):
            yield f"_torch_dispatch_fns[{cls.__qualname__}]", Part(_opened(function))


def _registry_parts(qualified: str, *, in_definition: bool) -> Iterator[tuple[str, Part]]:
    """Yield rules for fake tensors and dispatch classes, effects and other parts that torch.library stores by name."""
    from torch._library.simple_registry import singleton

    for name in {qualified, qualified.removesuffix(".default")}:
        entry = singleton._data.get(name)
        if entry is None:
            continue
        holder = getattr(entry, "fake_impl", None)
        kernels = getattr(holder, "kernels", None) or [getattr(holder, "kernel", None)]
        for position, kernel in enumerate(kernels):
            function = _without_check(getattr(kernel, "func", None) or getattr(kernel, "fn", None))
            if callable(function) and not (in_definition and _is_machinery(function)):
                yield f"fake implementation {position}", Part(_opened(function))
        for cls, rule in getattr(getattr(entry, "torch_dispatch_rules", None), "_data", {}).items():
            yield f"rule for {cls.__qualname__}", Part(_opened(rule))
        effect = getattr(getattr(entry, "effect", None), "effect", None)
        if effect is not None:
            yield "effect", Part(str(effect))
        memory = getattr(getattr(entry, "symm_mem_args", None), "_symm_mem_args", None)
        if memory:
            yield "symmetric memory", Part(tuple(sorted(memory)))


def _without_check(rule: Any) -> Any:
    """Return a rule for fake tensors without torch's check of the module that it was registered from.

    The check applies to C++ operators; whether a rule has it depends on the frame that registers.
    """
    if getattr(rule, "__qualname__", "").startswith("_check_pystubs_once."):
        names = rule.__code__.co_freevars
        return rule.__closure__[names.index("func")].cell_contents if "func" in names else rule
    return rule


def _key_name(key: Any) -> str:
    """Return the name of a dispatch key, a dispatch mode or a tensor class."""
    return str(getattr(key, "name", None) or getattr(key, "__qualname__", None) or key)


def _is_machinery(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__code__.co_filename.startswith(_MACHINERY)


def _opened(value: Any) -> Any:
    """Return what torch's wrapper of a registration holds of the program's, with the wrapper's name.

    The operator, its library and key sets are left out. A function of torch is named: torch
    registers some for its operators. Any other value is returned as it is.
    """
    if not _is_machinery(value):
        is_torchs = isinstance(value, types.FunctionType) and code_owner.is_file_of_torch(value.__code__.co_filename)
        return f"torch's {value.__module__}.{value.__qualname__}" if is_torchs and code_owner.is_own(value) else value
    return (f"torch's {value.__qualname__}", *_held(value, set()))


def _held(function: types.FunctionType, seen: set[int]) -> Iterator[Any]:
    """Yield the program's values that a wrapper of torch's holds, and functions that these wrappers made for it."""
    for content in code_owner.cells_of(function):
        if id(content) in seen or isinstance(content, (OpOverload, torch.library.Library, torch._C.DispatchKeySet)):
            continue
        seen.add(id(content))
        if hasattr(content, "_backward_fn") and hasattr(content, "_setup_context_fn"):
            yield from (content._backward_fn, content._setup_context_fn)
        elif isinstance(content, type) and code_owner.is_below_torch(content):  # an autograd function made for it
            for attribute in vars(content).values():
                inner = getattr(attribute, "__func__", attribute)
                if _is_machinery(inner):
                    yield from _held(inner, seen)
        elif isinstance(content, dict):
            yield from map(_opened, content.values())
        elif _is_machinery(content):
            yield from _held(content, seen)
        else:
            yield _opened(content)


def _files_of(value: Any) -> Iterator[str]:
    """Yield the files that the Python code of a part was read from."""
    if isinstance(value, tuple):
        for item in value:
            yield from _files_of(item)
    elif isinstance(value, functools.partial):
        yield from _files_of((value.func, *value.args))
    else:
        function = getattr(value, "__func__", value)
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, types.FunctionType):
            yield function.__code__.co_filename
            if code_owner.is_file_of_torch(function.__code__.co_filename):
                yield from _files_of(tuple(code_owner.held_functions(function)))


def _is_users_file(path: str) -> bool:
    return bool(path) and not os.path.abspath(path).startswith(_TORCH_ROOT) and _exists(path)


def _exists(path: str) -> bool:
    """Return whether a path is a file, or lies in one: an archive of modules."""
    above = path
    while above and not os.path.lexists(above):
        above = os.path.dirname(above)
    return above == path or os.path.isfile(above)


def module_of_file(path: str) -> str | None:
    """Return the importable name of the module loaded from `path`; None for a script or an anonymous module."""
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        if file and name not in code_owner.MAIN and os.path.abspath(file) == path:
            return name
    return None
