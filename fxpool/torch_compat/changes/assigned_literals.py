"""Reads from compiled code what the body of a module or class assigns: literals, displays of containers, defaults."""

from __future__ import annotations

import dis
import hashlib
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from fxpool.torch_compat.changes.stack_machine import (
    UNKNOWN,
    Built,
    Either,
    Function,
    Stack,
    Symbol,
    instructions,
    written_to,
)

__all__ = ["PLAIN", "Assigned", "Body", "Template", "assigned", "body", "class_bodies", "text"]

#: Types of plain data without parts.
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = (list, dict, set)
#: What a display is made of: the text of plain data; or ["name", path], ["?"] for a value that is not known,
#: ["list" or "tuple" or "set", *items], ["dict", *keys and values in turn], ["call", path, argument],
#: ["if", condition, value, other value].
Template = Any


def text(value: Any) -> str | None:
    """Return plain data as text that differs if the value does, short; None for other values."""
    whole = _text(value)
    return whole if whole is None or len(whole) < 64 else hashlib.sha256(whole.encode(errors="replace")).hexdigest()


def _text(value: Any) -> str | None:
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind is dict:
        items = [(_text(key), _text(item)) for key, item in list(value.items())]
        return None if any(None in item for item in items) else f"dict{items}"
    if kind in (list, tuple, set, frozenset):
        parts = [_text(item) for item in list(value)]
        if None in parts:
            return None
        return f"{kind.__name__}{sorted(map(str, parts)) if kind in (set, frozenset) else parts}"
    return None


class Assigned(NamedTuple):
    """Names that code assigns: `variables` and `attributes` by functions, and containers whose `contents` change."""

    variables: set[str]
    attributes: set[str]
    contents: set[str]


def assigned(code: types.CodeType) -> Assigned:
    """Return the names that a module's code, functions included, assigns later."""
    found = Assigned(set(), set(), set())
    for inner in _all(code):
        operations = inner.co_code[::2]
        if _STORE_ATTR in operations or _STORE_GLOBAL in operations:
            for name, number in instructions(inner):
                if name == "STORE_ATTR":
                    found.attributes.add(inner.co_names[number])
                elif name == "STORE_GLOBAL":
                    found.variables.add(inner.co_names[number])
        found.contents.update(written_to(inner, _MUTATORS))
    return found


_STORE_ATTR, _STORE_GLOBAL = dis.opmap["STORE_ATTR"], dis.opmap["STORE_GLOBAL"]
#: Methods that change a container.
_MUTATORS = frozenset(
    ("append", "appendleft", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse", "add",
     "discard", "update", "setdefault", "move_to_end", "intersection_update", "difference_update",
     "symmetric_difference_update")
)  # fmt: skip


def _all(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all(constant)


class Body(NamedTuple):
    """Names that the body of a module or class assigns once.

    `literals` has values as text, `displays` containers that are not literals. Defaults of functions are named
    ``function.__defaults__`` and ``function.__kwdefaults__``; names in a class begin with its name.
    """

    literals: dict[str, str]
    displays: dict[str, Template]


def body(code: types.CodeType) -> Body:
    """Return the literals and displays of a body; empty containers are left out, as they are filled later."""
    literals: dict[str, str] = {}
    displays: dict[str, Any] = {}
    times: dict[str, int] = {}
    stack = Stack(code)
    for name, argument in stack.follow():
        if name not in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME"):
            continue
        target = code.co_names[argument]
        times[target] = times.get(target, 0) + 1
        value = stack.at(0) if name != "DELETE_NAME" else UNKNOWN
        if isinstance(value, Function):
            parts = {f"{target}.{part}": text(one) for part, one in value.values.items()}
            literals.update((part, one) for part, one in parts.items() if one is not None)
        elif isinstance(value, _CONTAINERS) and not value:
            continue
        elif (one := text(value)) is not None:
            literals[target] = one
        elif isinstance(value, (*_CONTAINERS, tuple)):  # calls are among them
            displays[target] = value
    literals = {name: value for name, value in literals.items() if times[name.partition(".")[0]] == 1}
    once = {name: _template(value, times) for name, value in displays.items() if times[name] == 1}
    whole = Body(
        {name: value for name, value in literals.items() if _is_constant(name.rpartition(".")[2], value)},
        {name: template for name, template in once.items() if template[0] not in ("?", "name", "if")},
    )
    for inner in class_bodies(code):
        for of_all, of_class in zip(whole, body(inner), strict=True):
            of_all.update({f"{inner.co_name}.{name}": value for name, value in of_class.items()})
    return whole


def _template(value: Any, times: dict[str, int]) -> Template:
    kind = type(value)
    if kind is Symbol:
        return ["name", value.path] if times.get(value.path.partition(".")[0], 1) == 1 else ["?"]
    if kind is Built:
        function, argument = _template(value.function, times), _template(value.argument, times)
        is_container = type(argument) is list and argument[0] in ("list", "tuple", "set", "dict")
        return ["call", function[1], argument] if is_container and function[0] == "name" else ["?"]
    if kind is Either:
        return ["if", *(_template(part, times) for part in value)]
    if kind is dict:
        return ["dict", *(_template(part, times) for pair in value.items() for part in pair)]
    if kind in (list, tuple, set, frozenset):
        items = [_template(item, times) for item in value]
        return [kind.__name__, *(sorted(items, key=str) if kind in (set, frozenset) else items)]
    return repr(value) if kind in PLAIN else ["?"]


def class_bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the bodies of the classes that a module or class defines."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and "__qualname__" in constant.co_names[:4]:
            yield constant


_DEFAULTS = ("__defaults__", "__kwdefaults__")


def _is_constant(name: str, value: str) -> bool:
    """Return whether a name is meant to stay as it is: flags in lower case are state, which `global_state` captures."""
    if name.startswith("__") or name.endswith("_doc"):
        return name in _DEFAULTS
    return value not in ("None", "True", "False") or name.isupper()
