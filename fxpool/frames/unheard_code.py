"""Code of programs whose answers Dynamo may get without a call that `torch_compat.frames.untraced_calls` hears."""

from __future__ import annotations

import abc
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["ANSWERING", "is_answering", "is_librarys", "is_librarys_name", "remembered"]

#: A module with one of these names may have attributes that are not in its namespace.
ANSWERING = frozenset(("__getattr__",))
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch"))


def is_answering(module: types.ModuleType) -> bool:
    """Return whether a module may have attributes that are not in its namespace."""
    return type(module) is not types.ModuleType or not ANSWERING.isdisjoint(vars(module))


def remembered(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions of a class that Dynamo may run and whose answers Python remembers, with their names.

    These are ``__subclasshook__`` of an abstract class, and special methods and properties behind ``functools.cache``.
    """
    for base in cls.__mro__:
        for name, value in () if is_librarys(base) else vars(base).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            is_hook = name == "__subclasshook__" and isinstance(cls, abc.ABCMeta)
            is_run = name.startswith("__") or isinstance(value, property)
            if is_hook or (is_run and isinstance(function, functools._lru_cache_wrapper)):
                yield name, function


def is_librarys(value: Any) -> bool:
    """Return whether a class or function is of torch or Python's library."""
    return is_librarys_name(str(value.__module__))


def is_librarys_name(module: str) -> bool:
    """Return whether a module is torch's or of Python's library."""
    return module.partition(".")[0] in _LIBRARIES
