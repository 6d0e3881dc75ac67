"""Texts of what guards leave out of an object: its keys, its slots, the value of an object in C."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import enum
import functools
import hashlib
import os
import re
import sys
import types
from collections.abc import Set
from typing import Any

import torch

from fxpool.frames.code_digests import code_digest
from fxpool.torch_compat.frames import unguarded_facts

__all__ = [
    "CONTAINERS", "HEAP_TYPE", "OF_TORCH", "PLAIN", "NoDescriptionError", "claimed_class", "class_name",
    "context_texts", "elements_text", "is_empty", "keys_text", "name_of", "own_attributes", "slots_of", "text_in_c",
]  # fmt: skip

#: Types of plain values.
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)))
#: Types of torch's plain values.
OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
#: Types of containers with guards on what is in them.
CONTAINERS = (list, dict, set, types.MappingProxyType)
#: Flag of a class that is made by a class statement, and may be changed.
HEAP_TYPE = 1 << 9
# Classes in C whose objects say nothing by their text, or whose content guards have.
_WITHOUT_TEXT = (
    *CONTAINERS,
    tuple,
    frozenset,
    collections.deque,
    types.ModuleType,
    object,
    property,
    functools.partial,
)
_ZONES = ("datetime", "zoneinfo")  # modules whose zones run no code of the program's
# More of these objects than their texts say.
_WHOLE: dict[Any, Any] = {
    datetime.datetime: lambda one: (repr(one), _offset_of(one)),
    datetime.time: lambda one: (repr(one), _offset_of(one)),
    memoryview: lambda one: (one.tobytes(), one.format, one.shape),
    re.Pattern: lambda one: (one.pattern, one.flags),
    re.Match: lambda one: (one.re.pattern, one.re.flags, one.string, one.regs),
}
_SIZED: tuple[Any, ...] = (dict, list, tuple, set, frozenset, collections.deque)
_NUMBERS = (bool, int, float, complex)
# A class in C that is made in the same way, and may not.
_IMMUTABLE = 1 << 8


class NoDescriptionError(Exception):
    """No other process can tell whether it has the same object; the message names it."""


def claimed_class(value: Any) -> type | None:
    """Return the class that an object claims, which Dynamo asks for, if that is not simply its class."""
    cls = type(value)
    if isinstance(cls.__getattribute__, types.FunctionType):
        if getattr(value, "__dict__", None) is not own_attributes(value):
            raise NoDescriptionError(f"{name_of(value)}, whose attributes are computed")
    elif all("__class__" not in vars(base) for base in cls.__mro__[:-1]):
        return None
    claimed: type = value.__class__
    return claimed


def own_attributes(value: Any) -> Any:
    """Return the attributes that an object has itself, without running code of its class; None if it has slots."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def slots_of(value: Any) -> list[str]:
    """Return the names of slots that an object has a value in, without running code of its class."""
    found = []
    for base in type(value).__mro__:
        if base.__flags__ & HEAP_TYPE and "__slots__" in vars(base):
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):
                        member.__get__(value)
                        found.append(name)
    return sorted(found)


def text_in_c(value: Any) -> list[str]:
    """Return a digest of the text of an object of a class in C: Dynamo compares such objects without guards."""
    base: Any = next(one for one in type(value).__mro__ if _is_in_c(one) or one is dataclasses.Field)
    if base in _WITHOUT_TEXT:
        return []
    if hasattr(base, "__next__"):
        raise NoDescriptionError(f"how far an object of {base.__qualname__} has come")
    whole = _WHOLE.get(base)
    text = base.__repr__(value) if whole is None else repr(whole(value))
    if base.__module__ == "decimal":
        text += unguarded_facts.decimal_context()  # comparisons depend on it
    return [hashlib.blake2b(unguarded_facts.without_addresses(text).encode(), digest_size=8).hexdigest()]


def _offset_of(time: Any) -> Any:
    """Return how far a time is from UTC: the text of a zone has its name only, and comparisons ask for this."""
    return time.utcoffset() if type(time.tzinfo).__module__ in _ZONES else None


def _is_in_c(cls: type) -> bool:
    return not cls.__flags__ & HEAP_TYPE or bool(cls.__flags__ & _IMMUTABLE)


def context_texts(value: Any) -> list[str]:
    """Return what a context manager of a library switches, which Dynamo reads without guards."""
    attributes = own_attributes(value)
    if not hasattr(type(value), "__enter__") or not isinstance(attributes, dict):
        return []
    return [
        f"{name}={one!r}" for name, one in sorted(attributes.items()) if type(one) in PLAIN or isinstance(one, OF_TORCH)
    ]


def is_empty(value: Any) -> bool:
    """Return whether a value is an empty container, without running code of its class."""
    return any(isinstance(value, cls) and not cls.__len__(value) for cls in _SIZED)


def keys_text(value: dict[Any, Any], keys: Set[Any], looked_up: frozenset[str], in_order: bool) -> str:
    """Return a digest of keys of a dictionary. Of the names in a module, and of modules, those of `looked_up` count."""
    name = dict.get(value, "__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_of_module = module is not None and getattr(module, "__dict__", None) is value
    if is_of_module or value is sys.modules:
        texts = sorted(key for key in keys if isinstance(key, str) and key in looked_up)
    elif value is vars(os.environ).get("_data"):
        texts = []  # `record.environment` has those that are looked up, and Dynamo guards on a list of all
    else:
        texts = [_key(key) for key in dict.keys(value) if key in keys]  # Dynamo reads them in order without a guard
        texts = texts if in_order else sorted(texts)
    return hashlib.blake2b(repr(texts).encode(), digest_size=8).hexdigest()


def elements_text(value: Any) -> str:
    """Return the elements of a set: numbers in their order, others sorted, whose order is another in each process."""
    texts = [*map(_key, value)]
    return repr(texts if all(type(one) in _NUMBERS for one in value) else sorted(texts))


def _key(key: Any) -> str:
    """Return what stands for a key of a dictionary: its value, or the name of a class, function or module."""
    if type(key) is str:
        return unguarded_facts.stable_name(key)
    kind = type(key).__qualname__
    if type(key) in PLAIN or isinstance(key, OF_TORCH):
        return f"{kind} {key!r}"
    if type(key) in (tuple, frozenset):
        return f"{kind} {[*map(_key, key)] if type(key) is tuple else sorted(map(_key, key))}"
    if isinstance(key, type):
        return f"{kind} {class_name(key)}"
    if isinstance(key, types.FunctionType):
        return f"{kind} {key.__module__} {key.__qualname__} {code_digest(key.__code__)}"
    if isinstance(key, types.ModuleType):
        return f"{kind} {key.__name__}"
    if isinstance(key, enum.Enum):
        return f"{kind} {key.name}"
    return kind


def class_name(cls: Any) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def name_of(value: Any) -> str:
    is_named = isinstance(value, type) or type(value).__module__ == "builtins"
    name = getattr(value, "__qualname__", None) if is_named else None  # others may run code
    return (
        f"{getattr(value, '__module__', '')}.{name}"
        if isinstance(name, str)
        else f"an object of {type(value).__qualname__}"
    )
