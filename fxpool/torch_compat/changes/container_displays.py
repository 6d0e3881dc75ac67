"""Compares containers of torch's modules with the displays in its source that made them.

A display may name other objects, as ``{torch.half: torch.float32}`` does: these are looked up in the module. Values
that it computes are unknown, and only have to be torch's code or plain data.
"""

from __future__ import annotations

import ast
import builtins
import collections
import itertools
import operator
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils._ordered_set import OrderedSet

from fxpool.torch_compat.changes.assigned_literals import PLAIN, Template
from fxpool.torch_compat.operators import code_owner, operator_tables, operators

__all__ = ["CONTAINERS", "MUTABLE", "Contents", "are_same", "differs", "flat", "has_foreign_code", "scopes"]

#: Types of the containers that are compared.
CONTAINERS = (list, dict, set, frozenset, tuple, OrderedSet, collections.OrderedDict, collections.defaultdict)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
_SETS = (set, frozenset)
#: Those of them that can change.
MUTABLE = (list, dict, set, OrderedSet, collections.OrderedDict, collections.defaultdict)
_MISSING = object()

Scopes = Sequence[Mapping[str, Any]]


class _UntoldError(Exception):
    """A part of a display can't be looked up."""


def scopes(module: types.ModuleType, owner: object) -> Scopes:
    """Return where the names in a display of a module, or of `owner`, a class in it, are looked up."""
    return [vars(owner), vars(module), vars(builtins)] if isinstance(owner, type) else [vars(module), vars(builtins)]


def differs(template: Template, value: Any, names: Scopes) -> bool:
    """Return whether a value is not what its display makes; False if a part of the display can't be looked up."""
    try:
        return not _matches(template, value, names)
    except _UntoldError:
        return False


def _matches(template: Template, value: Any, names: Scopes) -> bool:
    if isinstance(template, str):
        return type(value) in PLAIN and repr(value) == template
    kind, *items = template
    if kind == "?":
        return code_owner.is_own(value)
    if kind == "name":
        return _is_same(_named(items[0], names), value)
    if kind == "if":
        condition, first, second = items
        if condition[0] != "name":
            return _matches(first, value, names) or _matches(second, value, names)
        return _matches(first if _named(condition[1], names) else second, value, names)
    if kind == "call":
        made = _named(items[0], names)
        if made not in CONTAINERS or made is dict:
            raise _UntoldError
        return type(value) is made and _matches_made(items[1], value, names)
    if kind == "dict":
        return type(value) is dict and _has_pairs(items, value, names)
    if kind == "set":
        return type(value) in _SETS and _has_items(items, value, names)
    return type(value) is {"list": list, "tuple": tuple}[kind] and _are_items(items, [*value], names)


def _matches_made(template: Template, value: Any, names: Scopes) -> bool:
    """Compare a container with the display that its constructor was called with."""
    kind, *items = template
    if kind == "dict":
        if type(value) not in _MAPPINGS:
            raise _UntoldError
        return _has_pairs(items, value, names)
    if type(value) in _MAPPINGS:  # of pairs, or a default
        raise _UntoldError
    is_set = kind == "set" or type(value) in _SETS
    return _has_items(items, value, names) if is_set else _are_items(items, [*value], names)


def _are_items(templates: list[Template], values: list[Any], names: Scopes) -> bool:
    return len(templates) == len(values) and all(
        _matches(template, value, names) for template, value in zip(templates, values, strict=True)
    )


def _has_items(templates: list[Template], value: Any, names: Scopes) -> bool:
    expected = [_expected(template, names) for template in templates]
    return len(set(expected)) == len(value) and all(item in value for item in expected)


def _has_pairs(templates: list[Template], value: Mapping[Any, Any], names: Scopes) -> bool:
    pairs = {_expected(key, names): one for key, one in zip(templates[::2], templates[1::2], strict=True)}
    # `eval` adds the last one to a dictionary of names.
    now = [pair for pair in list(value.items()) if pair[0] != "__builtins__" or pair[1] is not vars(builtins)]
    return len(pairs) == len(now) and all(
        type(key) is type(expected) and key == expected and _matches(template, one, names)
        for (expected, template), (key, one) in zip(pairs.items(), now, strict=True)
    )


def _expected(template: Template, names: Scopes) -> Any:
    """Return the object that a part of a display makes."""
    if isinstance(template, str):
        try:
            return ast.literal_eval(template)
        except ValueError:  # inf and nan
            raise _UntoldError from None
    if template[0] == "name":
        return _named(template[1], names)
    if template[0] == "tuple":
        return tuple(_expected(item, names) for item in template[1:])
    raise _UntoldError


def _named(path: str, names: Scopes) -> Any:
    first, *rest = path.split(".")
    found = next((scope[first] for scope in names if first in scope), _MISSING)
    try:
        for name in rest:
            found = getattr(found, name)
    except (AttributeError, RuntimeError):  # torch.ops raises the second one for some names
        raise _UntoldError from None
    if found is _MISSING:
        raise _UntoldError
    return found


def _is_same(expected: Any, value: Any) -> bool:
    """Return whether two objects are the same; each access makes a new object of a method, and data may be equal."""
    if expected is value:
        return True
    return type(expected) is type(value) and type(value) in _EQUAL_IF_SAME and bool(expected == value)


_EQUAL_IF_SAME = PLAIN | {types.MethodType, types.BuiltinMethodType, types.MethodWrapperType}


class Contents:
    """The objects in some containers and in the containers inside them, compared by identity.

    All of them are listed at once: 2,000 containers hold 11,000 objects.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.containers = [inner for value in values for inner in _nested(value)]
        self._mappings = [container for container in self.containers if type(container) in _MAPPINGS]
        self._lengths, self._objects = self._now()

    def are_unchanged(self) -> bool:
        """Return whether each container has the same objects in the same order."""
        lengths, objects = self._now()
        return lengths == self._lengths and are_same(objects, self._objects)

    def _now(self) -> tuple[list[int], list[Any]]:
        values = [mapping.values() for mapping in self._mappings]
        return [*map(len, self.containers)], [*itertools.chain.from_iterable((*self.containers, *values))]


def are_same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two sequences have the same objects."""
    return len(values) == len(others) and all(map(operator.is_, values, others))


def _nested(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield a container and those in it that can change."""
    kind = type(value)
    if kind not in CONTAINERS or not depth:
        return
    if kind not in (tuple, frozenset):
        yield value
    if kind not in (set, frozenset, OrderedSet):
        for item in [*value.values()] if kind in _MAPPINGS else [*value]:
            yield from _nested(item, depth - 1)


def flat(value: Any, depth: int = 4) -> Any:
    """Return the parts of a container as tuples, those of sets in an order that is the same in each process."""
    kind = type(value)
    if kind not in CONTAINERS or not depth:
        return value
    if kind in _MAPPINGS:
        return tuple((flat(key, depth - 1), flat(item, depth - 1)) for key, item in [*value.items()])
    items = [flat(item, depth - 1) for item in [*value]]
    return tuple(sorted(items, key=operator_tables.key_text) if kind in _SETS else items)


def has_foreign_code(value: Any, depth: int = 4) -> bool:
    """Return whether a container has code of the program's, but for entries whose keys are the program's as well."""
    kind = type(value)
    if kind not in CONTAINERS:
        return (callable(value) or kind in _WRAPPED) and not code_owner.is_own(value)
    if not depth:
        return False
    if kind in _MAPPINGS:
        pairs = [*value.items()]
        return any(has_foreign_code(item, depth - 1) for key, item in pairs if not _is_foreign_key(key))
    return any(has_foreign_code(item, depth - 1) for item in [*value])


_WRAPPED = (staticmethod, classmethod, property)


def _is_foreign_key(key: Any) -> bool:
    if operators.is_higher_order(key):
        return not operators.is_torchs_higher_order(key)
    if operators.is_overload(key) or operators.is_packet(key):
        return not operators.is_builtin(key)
    return not code_owner.is_own(key)
