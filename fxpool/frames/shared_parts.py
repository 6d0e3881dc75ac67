"""Finds the parts of functions and classes that others may share: descriptions of two equal ones are the same.

Code may compare a class or a function with another by identity, ask for a class's bases, or write to a variable that
another function reads. Each part gets a number, which says whether it was met before.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from typing import Any

from fxpool.frames import unheard_code

__all__ = ["parts_of"]

# Attributes of classes that no traced code comes to, or that differ between processes.
_PASSED_OVER = frozenset(("__dict__", "__orig_bases__", "__parameters__", "__weakref__", "_abc_impl"))
_GENERIC = (types.UnionType, types.GenericAlias)
# Containers with more are not looked into, and no more parts are listed.
_SMALL, _MOST = 32, 512


def parts_of(value: Any) -> list[Any]:
    """Return the functions, classes and cells that a function, class, member or union leads to, itself included.

    Of classes on the way the bases are listed, and not their attributes.
    """
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    own = {id(base) for base in value.__mro__} if isinstance(value, type) else set()
    left: list[Any] = [value]
    while left and len(found) < _MOST:
        one = left.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if _is_part(one):
            found[id(one)] = one
        left += one.__mro__ if isinstance(one, type) and id(one) not in own else _inside(one)
    return [*found.values()]


def _is_part(value: Any) -> bool:
    if isinstance(value, type):
        return not unheard_code.is_librarys(value)
    if type(value) is object:  # code asks for it by identity
        return True
    return isinstance(value, (types.CellType, functools._lru_cache_wrapper)) or _is_programs(value)


def _is_programs(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not unheard_code.is_librarys_name(str(value.__module__))


def _inside(value: Any) -> list[Any]:
    if isinstance(value, type):
        bases = [base for base in value.__mro__ if not unheard_code.is_librarys(base)]
        if not bases or bases[0] is not value:
            return []
        return [*bases, *(one for name, one in vars(value).items() if name not in _PASSED_OVER)]
    if isinstance(value, types.FunctionType):
        if not _is_programs(value):
            return []
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        annotations = value.__annotations__ if isinstance(value.__annotations__, dict) else {}
        return [*(value.__closure__ or ()), *defaults, *value.__dict__.values(), *annotations.values()]
    if isinstance(value, functools._lru_cache_wrapper):
        return [*vars(value).values()]
    if isinstance(value, dataclasses.Field):
        return [value.type, value.default, value.default_factory]
    if isinstance(value, types.CellType):
        try:
            return [value.cell_contents]
        except ValueError:  # it is empty
            return []
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, (classmethod, staticmethod, types.MethodType)):
        return [value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, _GENERIC):
        return [*value.__args__]
    if isinstance(value, enum.Enum):
        return [*vars(value).values()]
    if type(value) in (tuple, list) and len(value) <= _SMALL:
        return [*value]
    if type(value) is dict and len(value) <= _SMALL:
        return [*value, *value.values()]
    return []
