"""Finds code in torch's modules and classes that is not torch's: functions that a program put in place of torch's.

A worker has a fresh torch, with torch's functions only. So a graph may be traced in a worker only if the program's
process has the same ones. Code is told by where it was compiled (``co_filename``) and by the name it has in its own
code object; ``__module__`` and ``__name__`` prove nothing, because `functools.wraps` copies them.

Only modules are read that AOTAutograd or Inductor runs. Each namespace is examined once, and again if one of its values
is another object: comparing 24,000 of them takes 1 ms.
"""

from __future__ import annotations

import builtins
import functools
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

__all__ = ["Foreign", "foreign", "function_home", "is_file_of_torch", "is_own", "is_torchs_module"]

_ROOTS = tuple(
    os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep
    for module in (torch, sys.modules.get("torchgen"), sys.modules.get("functorch"))
    if module is not None
)
_TORCH = _ROOTS[0]
#: torch's file in which `torch.library.custom_op` registers operators.
CUSTOM_OPS = os.path.join(_TORCH, "_library", "custom_ops.py")
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SITE = ("site-packages" + os.sep, "dist-packages" + os.sep)
# Packages that torch's modules import names from, and this one, which replaces functions of torch while it compiles.
_PACKAGES = ("typing_extensions", "numpy", "sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec", "optree",
             "triton", "setuptools", "psutil", "fxpool", "einops", "yaml", "packaging", "tqdm",
             "pybind11_builtins")  # fmt: skip

#: Modules that run after AOTAutograd as well: while Inductor lowers a graph.
_OF_INDUCTOR = (
    "torch._inductor", "torch._ops", "torch._prims", "torch._prims_common", "torch._refs", "torch._decomp",
    "torch._meta_registrations", "torch._subclasses", "torch._higher_order_ops", "torch._library", "torch.fx",
    "torch.utils._pytree", "torch.utils._python_dispatch", "torch.utils._sympy", "torch.utils._mode_utils",
    "torch.backends", "torch._guards",
)  # fmt: skip
#: Modules that run only while AOTAutograd traces a graph.
_OF_AUTOGRAD = (
    "torch._tensor", "torch.functional", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft",
    "torch.sparse", "torch.nested", "torch.autograd", "torch._functorch", "torch.amp", "torch.overrides",
    "torch._jit_internal", "torch._linalg_utils", "torch._lowrank", "torch._numpy", "torch.nn.attention",
    "torch.distributed.tensor", "torch.distributed._functional_collectives", "torch.masked", "torch.compiler",
    "torch.utils.checkpoint", "torch.random",
)  # fmt: skip
# Of the module `torch`, names that tracing uses; programs often replace `torch.load` and the like, which it does not.
_NOT_TRACED = frozenset(
    ("load", "save", "compile", "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "typename",
     "set_printoptions", "set_default_device", "set_default_dtype", "set_num_threads", "use_deterministic_algorithms")
)  # fmt: skip
# Parts of these packages that no compile runs.
# `ops_handler` generates its methods from text, so that nothing tells where they come from; `compile_tasks` has the
# modules that Inductor generates. The others record compiles, store them, or run compiled code: programs wrap them to
# count or to trace.
_NEVER = ("torch.autograd.profiler", "torch.autograd.profiler_util", "torch.autograd.gradcheck",
          "torch.fx.experimental.migrate_gradual_types", "torch._inductor.compile_worker",
          "torch._inductor.ops_handler", "torch._inductor.runtime.compile_tasks", "torch._inductor.codecache",
          "torch._inductor.debug", "torch._inductor.metrics", "torch._inductor.async_compile",
          "torch._inductor.output_code", "torch._inductor.cudagraph_trees",
          "torch._inductor.cudagraph_utils")  # fmt: skip
# Names in `compile_fx` that begin a compile or the lowering of a graph: programs wrap them to count compiles.
_BEGINS = frozenset(
    ("compile_fx", "compile_fx_aot", "compile_fx_inner", "_compile_fx_inner", "_compile_fx_main",
     "_maybe_wrap_and_compile_fx_main", "compile_fx_forward", "compile_fx_backward", "fx_codegen_and_compile",
     "GraphLowering", "cudagraphify", "cudagraphify_impl")
)  # fmt: skip
_WITH_GENERATED_METHODS = ("torch._inductor.virtualized", "torch._inductor.ops_handler")
# Attributes of a class or a module that no code of its body made.
_OF_EVERY_CLASS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__", "__slots__",
     "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl",
     "__loader__", "__spec__", "__builtins__")
)  # fmt: skip
_DATA = frozenset((bool, int, float, complex, str, bytes, list, dict, set, frozenset, tuple, type(None)))
_C_CODE = frozenset(
    (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
     types.ClassMethodDescriptorType, types.MemberDescriptorType, types.MethodWrapperType)
)  # fmt: skip


class Foreign(NamedTuple):
    """Code of a program in one of torch's places. `traced_only`: only AOTAutograd runs it, Inductor does not."""

    name: str
    value: Any
    traced_only: bool


class _Namespace:
    """One module or class, with the values that were examined and the foreign ones among them."""

    def __init__(self, name: str, attributes: Mapping[str, Any], wanted: Callable[[str, Any], bool]) -> None:
        self.name, self._attributes, self._wanted = name, attributes, wanted
        self.foreign: list[tuple[str, Any]] = []
        self._size = -1
        self._values: Any = ()
        self._get: Callable[[Any], Any] = _nothing

    def changed(self, own: set[int]) -> bool:
        """Return whether another value was put in; examine the values then.

        `own` collects the ids of values that are torch's: modules of torch import the same ones.
        """
        try:
            if len(self._attributes) == self._size and self._get(self._attributes) == self._values:
                return False
        except Exception:  # a name is gone, or objects that cannot be compared
            pass
        code = {
            name: value
            for name, value in [*self._attributes.items()]
            if (type(value) not in _DATA or value is None) and name not in _OF_EVERY_CLASS
        }
        self._size = len(self._attributes)
        self._get = operator.itemgetter(*code) if code else _nothing
        self._values = self._get(self._attributes)
        self.foreign = [
            (name, value)
            for name, value in code.items()
            if not _is_plainly_own(name, value)
            and (self._is_foreign(name, value, own) or self._is_anothers(name, value))
        ]
        return True

    def _is_foreign(self, name: str, value: Any, own: set[int]) -> bool:
        if id(value) in own:
            return False
        if is_own(value):
            own.add(id(value))
            return False
        return self._wanted(name, value)

    def _is_anothers(self, name: str, value: Any) -> bool:
        """Return whether torch's source defines a function under `name`, and `value` is one with another name."""
        if type(value) is not types.FunctionType:
            return False
        # The code of a wrapper has another name than the wrapper, which torch sets to that of the function inside.
        given = value.__name__ if value.__closure__ else value.__code__.co_name
        if given in (name, "<lambda>"):
            return False
        module = sys.modules.get(self.name.removesuffix(".Tensor"))
        return module is not None and given in vars(module) and _defines(module, name)


def _nothing(attributes: Any) -> Any:
    return ()


def _is_plainly_own(name: str, value: Any) -> bool:
    """Return whether a value is a function of torch's files under its own name, as most are, or in C."""
    kind = type(value)
    if kind is not types.FunctionType:
        return kind in _C_CODE
    code = value.__code__
    return value.__closure__ is None and code.co_name == name and code.co_filename.startswith(_ROOTS)


class _Examined:
    """The namespaces of the loaded modules, by the number of modules that were loaded when they were listed."""

    def __init__(self) -> None:
        self.modules: dict[str, types.ModuleType] = {}
        self.spaces: list[tuple[_Namespace, bool]] = []
        self.loaded = 0


_examined = _Examined()


def foreign(*, after_autograd: bool = False) -> list[Foreign]:
    """Return the program's code in torch's places, sorted; usually none.

    `after_autograd`: leave out code that only AOTAutograd runs.
    """
    _list_new_modules()
    by_name: dict[str, Foreign] = {}  # threads may have listed a module twice
    own: set[int] = set()
    for space, traced_only in list(_examined.spaces):
        space.changed(own)
        if space.foreign and not (traced_only and after_autograd):
            for name, value in space.foreign:
                by_name[f"{space.name}.{name}"] = Foreign(f"{space.name}.{name}", value, traced_only)
    return [by_name[name] for name in sorted(by_name)]


def examined_modules() -> Iterator[tuple[str, types.ModuleType, bool]]:
    """Yield (name, module, traced only) of torch's loaded modules whose code counts, without `torch` itself."""
    _list_new_modules()
    for name, module in [*_examined.modules.items()]:
        if (traced := _is_traced_only(name)) is not None:
            yield name, module, traced


def _is_traced_only(name: str) -> bool | None:
    """Return whether only AOTAutograd runs a module's code; None if no compile does."""
    if _is_below(name, _NEVER):
        return None
    return False if _is_below(name, _OF_INDUCTOR) else True if _is_below(name, _OF_AUTOGRAD) else None


def _list_new_modules() -> None:
    if len(sys.modules) == _examined.loaded:
        return
    for name, module in sys.modules.copy().items():
        if not name.startswith("torch") or _examined.modules.get(name) is module:
            continue
        _examined.modules[name] = module
        if name == "torch":
            _examined.spaces.append((_Namespace(name, vars(module), _is_traced), True))
        elif (traced_only := _is_traced_only(name)) is not None:
            _add(name, module, traced_only)
    _examined.loaded = len(sys.modules)


def _add(name: str, module: types.ModuleType, traced_only: bool) -> None:
    _examined.spaces.append((_Namespace(name, vars(module), functools.partial(_is_defined, module)), traced_only))
    for cls in [value for value in vars(module).values() if isinstance(value, type)]:
        is_tensor = cls is torch.Tensor and name == "torch._tensor"
        if is_tensor or vars(cls).get("__module__") == name:
            # Functions that a program adds to `torch.Tensor` change nothing of torch's.
            wanted = _overrides if is_tensor else functools.partial(_is_not_set, _SET.get(cls.__qualname__, ()))
            _examined.spaces.append((_Namespace(f"{name}.{cls.__qualname__}", vars(cls), wanted), traced_only))


def _is_not_set(may_be: tuple[str, ...], name: str, value: Any) -> bool:
    return name not in may_be


#: Class -> methods that may be any function. Programs wrap these to count compiles, and torch sets `forward` to the
#: code of the graph that it loaded last.
_SET = {
    "GraphLowering": ("__init__",),
    "_CodeOnlyModule": ("forward",),
    "_InProcessFxCompile": ("codegen_and_compile",),
}


def _is_traced(name: str, value: Any) -> bool:
    return name not in _NOT_TRACED and not isinstance(value, (type, types.ModuleType)) and name in _names_of_torch()


def _overrides(name: str, value: Any) -> bool:
    return hasattr(torch._C.TensorBase, name) or name in _names_in_source(sys.modules["torch._tensor"])


def _is_defined(module: types.ModuleType, name: str, value: Any) -> bool:
    """Return whether torch's module defines or imports a name itself, or the name hides a builtin."""
    if name in _BEGINS and module.__name__ == "torch._inductor.compile_fx":
        return False
    return name in _names_in_source(module) or hasattr(builtins, name)


@functools.cache
def _names_of_torch() -> frozenset[str]:
    return frozenset((*dir(torch._C._VariableFunctions), *torch.functional.__all__, *_names_in_source(torch)))


@functools.cache
def _names_in_source(module: types.ModuleType) -> frozenset[str]:
    """Return all words in a module's source: a name outside of them is an addition. Read only if there is one."""
    return frozenset(re.findall(r"\w+", _source(module)) or vars(module))


def _defines(module: types.ModuleType, name: str) -> bool:
    return f"\ndef {name}(" in _source(module)


def _source(module: types.ModuleType) -> str:
    try:
        with open(str(module.__file__), encoding="utf-8") as file:
            return file.read()
    except (OSError, TypeError, UnicodeDecodeError):
        return ""


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return name in packages or name.startswith(_below(packages))


@functools.cache
def _below(packages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{package}." for package in packages)


# ------------------------------------------------------------------------------------- whose code


def is_own(value: Any) -> bool:
    """Return whether a function, class or other object in one of torch's places is torch's, or of a library it uses.

    Functions in the closure of one of torch's wrappers have to be torch's as well.
    """
    return _is_own(value, 0)


def _is_own(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        if not _is_known_file(value.__code__.co_filename, value.__globals__):
            return False
        return not value.__closure__ or depth > 3 or all(_is_own(inside, depth + 1) for inside in held_functions(value))
    if kind in _DATA or kind in _C_CODE:
        return True
    if isinstance(value, type):
        return _is_known_class(value)
    if kind in (staticmethod, classmethod):
        return _is_own(value.__func__, depth)
    if kind is types.MethodType:
        if type(value.__self__).__module__ in _WITH_GENERATED_METHODS:
            return True
        return _is_own(value.__func__, depth) and _is_own(value.__self__, depth + 1)
    if kind is property:
        return all(part is None or _is_own(part, depth) for part in (value.fget, value.fset, value.fdel))
    if kind is functools.partial:
        parts = (value.func, *value.args, *value.keywords.values())
        return all(_is_own(part, depth) for part in parts)
    if isinstance(value, types.ModuleType):
        return True  # its functions are examined where they are used
    return _is_known_class(kind) and all(_is_own(inside, depth + 1) for inside in _functions_in(value))


def _functions_in(value: Any) -> list[types.FunctionType]:
    """Return the functions among an object's attributes, read without calling code of its class."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return [inside for inside in [*attributes.values()] if type(inside) is types.FunctionType]


def held_functions(function: types.FunctionType) -> Iterator[Any]:
    """Yield functions in a function's closure, also those in containers and objects there."""
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            continue
        yield from _held(content, 3)


def _held(content: Any, depth: int) -> Iterator[Any]:
    kind = type(content)
    if kind in (types.FunctionType, types.MethodType, functools.partial):
        yield content
    elif kind in (list, tuple, set, dict):
        if depth:
            for item in [*content.values()] if kind is dict else [*content]:
                yield from _held(item, depth - 1)
    elif depth and kind.__module__.startswith("torch._inductor"):
        for item in [*getattr(content, "__dict__", {}).values()]:
            yield from _held(item, depth - 1)


def is_file_of_torch(path: str) -> bool:
    """Return whether a path, as in ``co_filename``, is below torch's directory."""
    return path.startswith(_TORCH)


def _is_known_file(path: str, names: Mapping[str, Any]) -> bool:
    if path.startswith(_ROOTS):
        return True
    if path.startswith("<"):
        return path.startswith("<frozen ") or _is_generated(names)
    return _is_library(path)


@functools.cache
def _is_library(path: str) -> bool:
    rest = path.removeprefix(_STDLIB) if path.startswith(_STDLIB) else ""
    if rest and not rest.startswith(_SITE):
        return True
    return any(f"{os.sep}{package}{end}" in path for package in _PACKAGES for end in (os.sep, ".py"))


def _is_generated(names: Mapping[str, Any]) -> bool:
    """Return whether code without a file, with these globals, was generated by a library for torch's code.

    dataclasses run it in torch's module, and torch's decorators for caching and namedtuple in a namespace with the
    function that they wrap.
    """
    home = str(names.get("__name__", ""))
    module = sys.modules.get(home)
    if module is not None:
        return vars(module) is names and _is_known_module(home)
    others = [value for name, value in names.items() if not name.startswith("__")]
    if home.startswith("namedtuple_"):
        return others == [tuple.__new__]
    wrapped = names.get("fn")
    return type(wrapped) is types.FunctionType and is_file_of_torch(wrapped.__code__.co_filename) and len(others) == 2


def _is_known_class(cls: type) -> bool:
    home = str(cls.__module__)
    return home == "builtins" or _is_known_module(home)


@functools.cache
def _is_known_module(name: str) -> bool:
    top = name.partition(".")[0]
    if top in ("torch", "torchgen", "functorch", *_PACKAGES, "builtins"):
        return True
    if top not in sys.stdlib_module_names:
        return False
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return origin is None or origin in ("built-in", "frozen") or _is_known_file(origin, {})


def is_below_torch(cls: type) -> bool:
    """Return whether a class claims to be torch's and has only torch's functions."""
    return str(cls.__module__).startswith("torch.") and all(map(is_own, vars(cls).values()))


def is_torchs_module(module: Any) -> bool:
    """Return whether an object is a module of torch: loaded under its name, from torch's directory."""
    if type(module) is not types.ModuleType and not _is_below(getattr(module, "__name__", ""), ("torch",)):
        return False
    name = str(getattr(module, "__name__", ""))
    if sys.modules.get(name) is not module or name.partition(".")[0] not in ("torch", "torchgen", "functorch"):
        return False
    file = getattr(module, "__file__", None)
    return file is None or os.path.abspath(file).startswith(_ROOTS)


def is_own_module(module: types.ModuleType) -> bool:
    """Return whether a module is torch's, the standard library's or of a library that torch uses."""
    return _is_known_module(str(module.__name__))


def function_home(function: Any) -> tuple[str, str] | None:
    """Return (module, name) under which torch's own module has this function or class; None for any other.

    A function in Python has to be compiled from torch's file. The name is looked up, and leads to the function.
    """
    module = sys.modules.get(str(getattr(function, "__module__", None) or "torch._C"))
    if module is None or not is_torchs_module(module) or not is_own(function):
        return None
    for name in (getattr(function, "__qualname__", ""), getattr(function, "__name__", "")):
        attribute: Any = module
        for part in str(name).split("."):
            attribute = getattr(attribute, part, None)
        if attribute is function:
            return module.__name__, str(name)
    return None


def inductors_wrapper(function: types.FunctionType) -> str:
    """Return which of Inductor's wrappers a function is (what `register_lowering` puts around a lowering), or "".

    It is known by its code: `functools.wraps` gives it the names of the function inside.
    """
    names, code = function.__globals__, function.__code__
    home = str(names.get("__name__", ""))
    module = sys.modules.get(home)
    if not home.startswith("torch._inductor.") or module is None or vars(module) is not names:
        return ""
    if not is_file_of_torch(code.co_filename):
        return ""
    return f"{home}:{code.co_firstlineno}:{code.co_name}" if function.__closure__ else ""


def operator_function(value: Any) -> str | None:
    """Return the name of a function in C that calls an operator (``torch.sin``, ``torch._C._nn.gelu``), else None."""
    if type(value) is types.MethodDescriptorType:
        return value.__name__ if value.__objclass__ is torch._C.TensorBase and _calls_operator(value.__name__) else None
    if type(value) is not types.BuiltinFunctionType:
        return None
    name = value.__name__
    homes = (torch._C._VariableFunctions, *(getattr(torch._C, one, None) for one in _OPERATORS))
    return name if any(getattr(home, name, None) is value for home in homes) and _calls_operator(name) else None


_OPERATORS = ("_nn", "_special", "_linalg", "_fft", "_sparse", "_nested")
# Functions of `torch` that make tensors from Python's values, which are not operators themselves.
_MAKERS = frozenset(("tensor", "as_tensor", "asarray", "sparse_coo_tensor", "sparse_csr_tensor"))


def _calls_operator(name: str) -> bool:
    return name in _operator_names() or name in _MAKERS


@functools.cache
def _operator_names() -> frozenset[str]:
    """Return the words in the names of torch's operators: ``linalg_norm`` is reached as ``torch._C._linalg``'s."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return frozenset(name.partition(".")[0] for namespace, _, name in names if namespace == "aten")


def tensor_attributes() -> list[str]:
    """Return the names of the attributes of tensors that are written in C."""
    return dir(torch._C.TensorBase)


def is_tensor_method(name: str) -> bool:
    """Return whether torch's own Python code defines an attribute of `torch.Tensor`."""
    value = vars(torch.Tensor).get(name)
    return value is not None and not name.startswith("_") and is_own(value)
