"""Collects a program's registrations for an operator: rules, kernels, effects, and their files and libraries.

    custom_op and triton_op     torch's definition: functions, dtypes for autocast, disabled kernels
    torch.library's registries  rules for fake tensors and dispatch classes, effects, symmetric memory
    the dispatcher              kernels registered from Python (`dispatch_probe`) and from C++ (`libraries`)

Each part says whether its code is traced into graphs, or only called by compiled code at run time.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from fxpool.torch_compat.operators import dispatch_probe, libraries
from fxpool.torch_compat.operators.dispatch_probe import NotFoundError
from fxpool.torch_compat.operators.operators import is_builtin, overload_name, packet_name, triton_kernels_of

__all__ = ["NotFoundError", "Part", "Registration", "foreign_functions", "overridden", "registration"]

_TORCH_ROOT = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

# torch's own wrappers contain functions of the standard library, too.
_NOT_FOREIGN = frozenset(("torch", "torchgen", "functorch", *sys.stdlib_module_names))
# Kernels for these keys compute: their code is not traced into graphs.
_COMPUTE = frozenset(("CPU", "CUDA", "HIP", "XPU", "MPS", "HPU", "MTIA", "PrivateUse1"))


# Kernels for these keys run before tracing reaches plain operators.
_ABOVE = ("Autograd", "Autocast", "FuncTorch", "ADInplaceOrView")


class Part(NamedTuple):
    """One registration. `runs_later`: compiled code calls it, but does not contain it.

    `before_autograd`: AOTAutograd uses it, and the graphs that it makes do not need it again.
    """

    value: Any
    runs_later: bool = False
    before_autograd: bool = False


class Registration:
    """`files` contain Python code, `libraries` compiled code; `parts` are the registrations by purpose.

    `home` is the torch module whose import defines the operator, if there is one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[str] = []
        self.libraries: list[str] = []
        self.home: str | None = None
        self.parts: dict[str, Part] = {}

    @property
    def is_known(self) -> bool:
        """Whether the origin of the operator is known."""
        return bool(
            self.files or self.libraries or self.home or any(callable(part.value) for part in self.parts.values())
        )


def registration(target: Any) -> Registration:
    """Return the registrations for an operator (an overload or a packet) from outside torch.

    Raises NotFoundError: a kernel's code or library cannot be found.
    """
    overloads = [target] if isinstance(target, OpOverload) else [getattr(target, n) for n in target.overloads()]
    result = Registration(overload_name(target) if isinstance(target, OpOverload) else packet_name(target))
    files: set[str] = set()
    needed: set[str] = set()
    for overload in overloads:
        qualified = overload.name()
        before = f"{qualified} " if len(overloads) > 1 else ""
        result.parts[f"{before}schema"] = Part(str(overload._schema))
        result.parts[f"{before}tags"] = Part(sorted(str(tag) for tag in overload.tags))
        definition = _custom_op(qualified.split(".")[0])
        if definition is not None:
            result.parts.update({f"{before}{name}": part for name, part in _parts_of(definition)})
        result.parts.update({f"{before}{name}": part for name, part in _registry_parts(qualified)})
        for key, kernel in getattr(overload, "py_kernels", {}).items():
            result.parts[f"{before}Python kernel for {_key_name(key)}"] = Part(kernel)
        for key, function, others in dispatch_probe.python_kernels(overload):
            above = key.startswith(_ABOVE) and _of_torch(function)
            part = Part((function, others), key in _COMPUTE or _computes(function), above)
            result.parts[f"{before}kernel for {key}"] = part
        sources = dispatch_probe.foreign_sources(overload)
        if sources:
            needed |= set(libraries.that_contain(sources, qualified))
        files.add(defined := dispatch_probe.defined_at(overload))
        result.home = _home(definition) or _home_at(defined) or result.home
    for position, kernel in enumerate(triton_kernels_of(target)):
        result.parts[f"Triton kernel {position}"] = Part(kernel)
    for part in result.parts.values():
        files |= set(_files_of(part.value))
    result.files = sorted(os.path.abspath(path) for path in files if _is_users_file(path))
    result.libraries = sorted(needed)
    return result


def overridden() -> Iterator[tuple[str, Part]]:
    """Yield (name, kernel) of a program's Python registrations for operators of torch itself."""
    for library in _users_libraries():
        theirs = False
        for entry in sorted(library._op_impls):
            namespace, name, key = (*entry.split("/"), "", "")[:3]
            packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
            overload = getattr(packet, name.partition(".")[2] or "default", None)
            if not isinstance(overload, OpOverload):
                continue
            for probed, function, others in dispatch_probe.python_kernels(overload):
                if not _of_torch(function) or _holds_foreign(function):
                    theirs = True
                    yield f"{overload_name(overload)} for {key or probed} at {probed}", Part((function, others))
        if not theirs:
            _verdicts[library] = len(library._op_impls), False


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
    namespace, name, key = (*next(iter(library._op_impls)).split("/"), "", "")[:3]
    packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
    overload = getattr(packet, name.partition(".")[2] or "default", None)
    if not isinstance(overload, OpOverload) or not is_builtin(overload):
        return False
    # Operators that torch itself defines and implements with `torch.library`'s functions count as torch's.
    by_functions = dispatch_probe.defined_at(overload).startswith(_TORCH_ROOT)
    return any(
        not path.startswith(_TORCH_ROOT) or (path == _TORCH_ROOT + "library.py" and not by_functions)
        for path in dispatch_probe.python_places(overload, key)
    )


def _home(definition: Any | None) -> str | None:
    """Return the torch module with the function of one of torch's own ``custom_op`` operators, else None."""
    function = getattr(definition, "_init_fn", None)
    return _home_at(function.__code__.co_filename) if isinstance(function, types.FunctionType) else None


def _home_at(path: str) -> str | None:
    path = os.path.abspath(path) if path else ""
    return module_of_file(path) if path.startswith(_TORCH_ROOT) else None


def _custom_op(qualified: str) -> Any | None:
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(qualified)


def _parts_of(definition: Any) -> Iterator[tuple[str, Part]]:
    """Yield the parts that `custom_op` and the decorators of its result store."""
    for name in ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn"):
        function = getattr(definition, name, None)
        if callable(function):
            yield name, Part(function, before_autograd=name != "_abstract_fn")
    for name in ("_autocast_dtype", "_autocast_cuda_dtype", "_autocast_cpu_dtype"):  # 2.13; 2.11 has the others
        dtype = getattr(definition, name, None)
        if dtype:
            yield name, Part(dtype, before_autograd=True)
    disabled = getattr(definition, "_disabled_kernel", None)
    if disabled:
        yield "_disabled_kernel", Part(sorted(map(str, disabled)))
    if callable(definition._init_fn):
        yield "_init_fn", Part(definition._init_fn, runs_later=True)
    for key, function in getattr(definition, "_backend_fns", {}).items():
        if callable(function):
            yield f"_backend_fns[{key}]", Part(function, runs_later=True)
    for cls, function in getattr(definition, "_torch_dispatch_fns", {}).items():
        if callable(function):
            yield f"_torch_dispatch_fns[{cls.__qualname__}]", Part(function)


def _registry_parts(qualified: str) -> Iterator[tuple[str, Part]]:
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
            if callable(function):
                yield f"fake implementation {position}", Part(function)
        for cls, rule in getattr(getattr(entry, "torch_dispatch_rules", None), "_data", {}).items():
            yield f"rule for {cls.__qualname__}", Part(rule)
        effect = getattr(getattr(entry, "effect", None), "effect", None)
        if effect is not None:
            yield "effect", Part(str(effect))
        memory = getattr(getattr(entry, "symm_mem_args", None), "_symm_mem_args", None)
        if memory:
            yield "symmetric memory", Part(sorted(memory))


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


def _of_torch(function: types.FunctionType) -> bool:
    return str(function.__globals__.get("__name__", "")).partition(".")[0] in _NOT_FOREIGN


def _computes(function: types.FunctionType) -> bool:
    """Return whether a kernel is `custom_op`'s wrapper of an implementation, which no graph traces into."""
    return _of_torch(function) and function.__code__.co_name == "backend_impl"


def _holds_foreign(value: Any) -> bool:
    return any(True for _ in foreign_functions(value, set()))


def foreign_functions(value: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """Yield functions from outside torch in a value, and in torch's closures and classes that it leads to."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        if not _of_torch(value):
            yield value
            return
        for cell in value.__closure__ or ():
            try:
                yield from foreign_functions(cell.cell_contents, seen)
            except ValueError:
                continue  # empty
    elif isinstance(value, type) and value.__module__.startswith("torch."):
        for attribute in vars(value).values():
            yield from foreign_functions(getattr(attribute, "__func__", attribute), seen)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from foreign_functions(item, seen)
    elif isinstance(value, dict):
        for item in value.values():
            yield from foreign_functions(item, seen)
    elif hasattr(value, "_backward_fn") and hasattr(value, "_setup_context_fn"):
        yield from foreign_functions((value._backward_fn, value._setup_context_fn), seen)
    elif hasattr(value, "func") and hasattr(value, "keywords"):
        yield from foreign_functions((value.func, value.args, value.keywords), seen)


def _files_of(value: Any) -> Iterator[str]:
    """Yield the files that the Python code of a part was read from."""
    for function in foreign_functions(getattr(value, "__func__", value), set()):
        yield function.__code__.co_filename


def _is_users_file(path: str) -> bool:
    return bool(path) and not os.path.abspath(path).startswith(_TORCH_ROOT) and os.path.exists(path)


def module_of_file(path: str) -> str | None:
    """Return the importable name of the module loaded from `path`; None for a script or an anonymous module."""
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and os.path.abspath(file) == path:
            return name
    return None
