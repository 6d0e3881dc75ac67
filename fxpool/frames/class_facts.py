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

__all__ = ["code_in", "is_pythons", "registered", "without_unions"]

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
    """Return the table of an enumeration's members without those that ``|`` made of others, as tracing may have."""
    if name != "_value2member_map_" or not isinstance(value, dict):
        return value
    return {
        key: one for key, one in value.items() if not isinstance(one, enum.Flag) or one._name_ in type(one)._member_map_
    }
