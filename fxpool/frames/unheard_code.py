"""Code of programs whose answers Dynamo may get without a call that `torch_compat.frames.untraced_calls` hears."""

from __future__ import annotations

import abc
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from fxpool.frames.object_texts import CONTAINERS, HEAP_TYPE, PLAIN

__all__ = ["ANSWERING", "is_answering", "is_librarys", "is_librarys_name", "may_be_given", "remembered"]

#: A module with one of these names may have attributes that are not in its namespace.
ANSWERING = frozenset(("__getattr__",))
# Methods in C that are bound to an object, and objects without a state.
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_STATELESS = (types.ModuleType, type, type(None), bool, int, float, complex, str, bytes, tuple, frozenset)
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch"))


def is_answering(module: types.ModuleType) -> bool:
    """Return whether a module may have attributes that are not in its namespace."""
    return type(module) is not types.ModuleType or not ANSWERING.isdisjoint(vars(module))


def remembered(cls: type) -> Iterator[str]:
    """Yield the names of functions of a class that Dynamo may run, and whose answers Python or an object in C knows.

    These are ``__subclasshook__`` of an abstract class, functions behind ``functools.cache``, and special methods that
    are another object's method in C.
    """
    for base in cls.__mro__:
        for name, value in () if is_librarys(base) else vars(base).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            is_run = name.startswith("__") or isinstance(value, property) or issubclass(cls, enum.Enum)
            is_hook = name == "__subclasshook__" and isinstance(cls, abc.ABCMeta)
            if is_hook or (is_run and _has_state(function)):
                yield name


def _has_state(function: Any) -> bool:
    """Return whether a function in C has more than its arguments to go by."""
    if isinstance(function, _BOUND):
        return not isinstance(function.__self__, _STATELESS)
    return isinstance(function, functools._lru_cache_wrapper)


def may_be_given(value: Any) -> bool:
    """Return whether a library's module may have a value from the program: data, or code that is not a library's."""
    if isinstance(value, (type, types.FunctionType)):
        return not is_librarys_name(str(value.__module__))
    return type(value) in PLAIN or isinstance(value, (*CONTAINERS, tuple))


def is_librarys(value: Any) -> bool:
    """Return whether a class is of torch or Python's library, and the one that its module has under its name."""
    if not is_librarys_name(str(value.__module__)):
        return False
    if not value.__flags__ & HEAP_TYPE or "." in value.__qualname__:
        return True
    module = sys.modules.get(value.__module__)
    return module is not None and vars(module).get(value.__name__) is value


def is_librarys_name(module: str) -> bool:
    """Return whether a module is torch's or of Python's library."""
    return module.partition(".")[0] in _LIBRARIES
