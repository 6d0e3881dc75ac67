"""Facts of classes for their descriptions: which of them are Python's, and what others may have added to these."""

from __future__ import annotations

import _abc
import abc
import enum
import sys
import types
from typing import Any

from fxpool.frames.code_digests import code_digest
from fxpool.frames.object_texts import HEAP_TYPE
from fxpool.torch_compat.operators import code_owner

__all__ = ["OF_ENUMS", "code_in", "is_added", "is_pythons", "registered", "without_unions"]

#: Attributes that Python gives to a member of an enumeration.
OF_ENUMS = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"))
# Attributes that Python gives to each class.
_OF_CLASSES = frozenset(("__dict__", "__weakref__", "_abc_impl"))
# Modules of Python's whose classes do not change.
_OF_PYTHON = ("abc", "typing", "collections.abc", "enum")


def is_pythons(cls: type) -> bool:
    """Return whether a class is written in C, and so the same in each process with this Python and these libraries."""
    if not cls.__flags__ & HEAP_TYPE:
        return True
    module = sys.modules.get(cls.__module__) if cls.__module__ in _OF_PYTHON else None
    return module is not None and vars(module).get(cls.__name__) is cls


def code_in(cls: type) -> list[tuple[str, str]]:
    """Return the digests of methods of a class, which a program may have replaced; none of one in C."""
    if not cls.__flags__ & HEAP_TYPE:
        return []
    methods = ((name, getattr(value, "__func__", value)) for name, value in sorted(vars(cls).items()))
    return [(name, code_digest(one.__code__)) for name, one in methods if isinstance(one, types.FunctionType)]


def is_added(cls: type, name: str, value: Any) -> bool:
    """Return whether a program may have added an attribute to a class of Python's, or changed it.

    `code_in` has the code of Python's own functions.
    """
    function = getattr(value, "fget", getattr(value, "__func__", value))
    if name in _OF_CLASSES or getattr(value, "__objclass__", None) is cls:
        return False
    is_function = isinstance(function, types.FunctionType)
    return not is_function or not code_owner.is_file_of_library(function.__code__.co_filename)


def registered(cls: abc.ABCMeta) -> list[type]:
    """The classes registered as virtual subclasses of an abstract class, or of one of its subclasses."""
    found: dict[int, type] = {}
    left: list[Any] = [cls]
    seen: set[Any] = set()
    while left:
        one = left.pop()
        if one in seen or not isinstance(one, abc.ABCMeta):
            continue
        seen.add(one)
        others = [other for reference in _abc._get_dump(one)[0] if (other := reference()) is not None]
        found.update((id(other), other) for other in others)
        subclasses: list[Any] = type.__subclasses__(one)
        left += [*subclasses, *others]
    return [*found.values()]


def without_unions(name: str, value: Any) -> Any:
    """Return the table of an enumeration's members without those that ``|`` made of others, as tracing may have.

    Those that have attributes stay.
    """
    if name != "_value2member_map_" or not isinstance(value, dict):
        return value
    return {key: one for key, one in value.items() if not _is_union(one)}


def _is_union(value: Any) -> bool:
    if not isinstance(value, enum.Flag) or value._name_ in type(value)._member_map_:
        return False
    return vars(value).keys() <= OF_ENUMS
