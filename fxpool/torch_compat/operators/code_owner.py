"""Tells whose code a function, class or module is: torch's, of a library that torch uses, or the program's.

Code is told by where it was compiled (``co_filename``) and by the name it has in its own code object; ``__module__``
and ``__name__`` prove nothing, because `functools.wraps` copies them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

from fxpool import installed_packages

__all__ = [
    "CUSTOM_OPS",
    "C_CODE",
    "DATA",
    "MAIN",
    "OPERATOR_MODULES",
    "ROOTS",
    "cells_of",
    "function_home",
    "held_functions",
    "inductors_wrapper",
    "is_below",
    "is_below_torch",
    "is_file_of_torch",
    "is_known_file",
    "is_loaded_module",
    "is_own",
    "is_own_module",
    "is_tensor_method",
    "is_torchs_module",
    "operator_function",
    "tensor_attributes",
]  # fmt: skip

#: Names of the main script's module, which another process has for its own script. The second is multiprocessing's.
MAIN = ("__main__", "__mp_main__")
#: Directories of torch's files.
ROOTS = tuple(
    os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep
    for module in (torch, sys.modules.get("torchgen"), sys.modules.get("functorch"))
    if module is not None
)
_TORCH = ROOTS[0]
#: torch's file in which `torch.library.custom_op` registers operators.
CUSTOM_OPS = os.path.join(_TORCH, "_library", "custom_ops.py")
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SITE = ("site-packages" + os.sep, "dist-packages" + os.sep)
# Packages that torch's modules import names from, and this one, which replaces functions of torch while it compiles.
_PACKAGES = ("typing_extensions", "numpy", "sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec", "optree",
             "triton", "halide", "setuptools", "psutil", "fxpool", "einops", "yaml", "packaging", "tqdm",
             "pybind11_builtins")  # fmt: skip

# `ops_handler` generates its methods from text, so that nothing tells where they come from.
_WITH_GENERATED_METHODS = ("torch._inductor.virtualized", "torch._inductor.ops_handler")
#: Modules of functions in C that call operators. Each function is an attribute under its ``__name__``.
OPERATOR_MODULES = (
    "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "torch._C._sparse", "torch._C._nested",
    "torch._VF",
)  # fmt: skip
#: Types of plain data.
DATA = frozenset((bool, int, float, complex, str, bytes, list, dict, set, frozenset, tuple, type(None)))
#: Types of functions in C.
C_CODE = frozenset(
    (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
     types.ClassMethodDescriptorType, types.MemberDescriptorType, types.MethodWrapperType)
)  # fmt: skip


def is_own(value: Any) -> bool:
    """Return whether a function, class or other object in one of torch's places is torch's, or of a library it uses.

    Functions in the closure of one of torch's wrappers have to be torch's as well.
    """
    return _is_own(value, 0)


def _is_own(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        if not is_known_file(value.__code__.co_filename, value.__globals__):
            return False
        if value.__closure__ and depth <= 3:
            for inside in held_functions(value):
                if not _is_own(inside, depth + 1):
                    return False
        return True
    if kind in DATA or kind in C_CODE:
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
    if kind is types.ModuleType:
        return is_loaded_module(value)  # its functions are examined where they are used
    if isinstance(value, types.ModuleType):  # such as ``torch.ops.aten``
        return is_loaded_module(value) or (is_below_torch(kind) and all(map(is_own, _functions_in(value))))
    return _is_known_class(kind) and all(_is_own(inside, depth + 1) for inside in _functions_in(value))


def _functions_in(value: Any) -> list[types.FunctionType]:
    """Return the functions among an object's attributes, read without calling code of its class."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return [inside for inside in [*attributes.values()] if type(inside) is types.FunctionType]


def cells_of(function: types.FunctionType) -> list[Any]:
    """Return the values in a function's closure, without empty cells."""
    values: list[Any] = []
    for cell in function.__closure__ or ():
        try:  # thousands of times for a first key
            values.append(cell.cell_contents)
        except ValueError:  # it is empty
            continue
    return values


def held_functions(function: types.FunctionType) -> list[Any]:
    """Return the functions in a function's closure, also those in containers and objects there."""
    functions: list[Any] = []
    for content in cells_of(function):
        if type(content) not in _HOLDS_NOTHING:
            _add_held(content, 3, functions)
    return functions


def _add_held(content: Any, depth: int, functions: list[Any]) -> None:
    kind = type(content)
    if kind in _FUNCTIONS:
        functions.append(content)
    elif not depth or kind in _HOLDS_NOTHING:
        return
    elif kind in _CONTAINERS:
        for item in [*content.values()] if kind is dict else [*content]:
            _add_held(item, depth - 1, functions)
    elif kind.__module__.startswith("torch._inductor"):
        for item in [*getattr(content, "__dict__", {}).values()]:
            _add_held(item, depth - 1, functions)


_FUNCTIONS = frozenset((types.FunctionType, types.MethodType, functools.partial))
_CONTAINERS = frozenset((list, tuple, set, dict))
_HOLDS_NOTHING = frozenset((bool, int, float, str, bytes, type(None), type, torch.dtype))


def is_file_of_torch(path: str) -> bool:
    """Return whether a path, as in ``co_filename``, is below torch's directory."""
    return path.startswith(_TORCH)


def is_file_of_library(path: str) -> bool:
    """Return whether a path, as in ``co_filename``, is of torch or of Python's library, which keys cover."""
    in_library = path.startswith(_STDLIB) and not path.removeprefix(_STDLIB).startswith(_SITE)
    return path.startswith("<frozen ") or is_file_of_torch(path) or in_library


def is_known_file(path: str, names: Mapping[str, Any]) -> bool:
    """Return whether code is torch's, of Python's library or of a library that torch uses.

    `path` is its ``co_filename``, and `names` are its globals, which tell for code that was generated.
    """
    if path.startswith(ROOTS):
        return True
    if path.startswith("<"):
        return path.startswith("<frozen ") or _is_generated(names)
    return _is_library(path)


@functools.cache
def _is_library(path: str) -> bool:
    rest = path.removeprefix(_STDLIB) if path.startswith(_STDLIB) else ""
    if rest and not rest.startswith(_SITE):
        return True
    parts = path.split(os.sep)
    return any(
        part.removesuffix(".py") in _PACKAGES and is_installed(os.sep.join(parts[:i]), part.removesuffix(".py"))
        for i, part in enumerate(parts)
    )


@functools.cache
def is_installed(directory: str, package: str) -> bool:
    """Return whether a package in a directory is an installed one: a program's directory may have its name.

    Those that keys digest by content (`fxpool.installed_packages`), and this one, are wherever they were imported from.
    """
    if package in ("fxpool", *(one.name for one in installed_packages.PACKAGES)):
        loaded = getattr(sys.modules.get(package), "__file__", None)
        if loaded and os.path.dirname(os.path.abspath(loaded)) == os.path.join(directory, package):
            return True
    if f"{directory}{os.sep}".endswith((*_SITE, f".egg{os.sep}")):
        return True
    with contextlib.suppress(OSError):
        listed = [name.lower().replace("-", "_") for name in os.listdir(directory)]
        return any(name.startswith(package) and name.endswith((".dist_info", ".egg_info")) for name in listed)
    return False


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
    if top in ("torch", "torchgen", "functorch", "builtins", "pybind11_builtins"):
        return True
    if top not in sys.stdlib_module_names and top not in _PACKAGES:
        return False
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if origin is None:
        return top not in _PACKAGES
    return origin in ("built-in", "frozen") or is_known_file(origin, {})


def is_below(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module's name is one of `packages`, or below one."""
    return name in packages or name.startswith(_below(packages))


@functools.cache
def _below(packages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{package}." for package in packages)


def is_below_torch(cls: type) -> bool:
    """Return whether a class claims to be torch's and has only torch's functions."""
    return str(cls.__module__).startswith("torch.") and all(map(is_own, vars(cls).values()))


def is_torchs_module(module: Any) -> bool:
    """Return whether an object is a module of torch: loaded under its name, from torch's directory."""
    if type(module) is not types.ModuleType and not is_below(getattr(module, "__name__", ""), ("torch",)):
        return False
    name = str(getattr(module, "__name__", ""))
    if sys.modules.get(name) is not module or name.partition(".")[0] not in ("torch", "torchgen", "functorch"):
        return False
    file = getattr(module, "__file__", None)
    return file is None or os.path.abspath(file).startswith(ROOTS)


def is_loaded_module(module: types.ModuleType) -> bool:
    """Return whether a module is torch's or of a library that torch uses, and is the one that its name imports.

    Some of torch's modules have put an object in their place, which holds them; some of ``torch._C`` are only
    attributes.
    """
    name = vars(module).get("__name__")
    if type(name) is not str or not _is_known_module(name):
        return False
    loaded = sys.modules.get(name)
    if loaded is module or (isinstance(loaded, types.ModuleType) and vars(loaded).get("m") is module):
        return True
    return name.startswith("torch._C.") and vars(torch._C).get(name.removeprefix("torch._C.")) is module


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
    homes = (torch._C._VariableFunctions, *map(sys.modules.get, OPERATOR_MODULES))
    return name if any(getattr(home, name, None) is value for home in homes) and _calls_operator(name) else None


# Functions of `torch` that make tensors from Python's values, which are not operators themselves.
_MAKERS = frozenset(("tensor", "as_tensor", "asarray", "sparse_coo_tensor", "sparse_csr_tensor"))


# Methods that Python calls for its operators. Others call none of torch's: ``__index__`` reads a value.
_SPECIAL = re.compile(
    r"__[ri]?(add|sub|mul|div|truediv|floordiv|mod|matmul|pow|and|or|xor|lshift|rshift)__"
    r"|__(eq|ne|lt|le|gt|ge|neg|abs|invert)__"
)


def _calls_operator(name: str) -> bool:
    return name in _operator_names() or name in _MAKERS or _SPECIAL.fullmatch(name) is not None


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
    return type(value) not in DATA and not name.startswith("_") and is_own(value)
