"""Reads literals from compiled code: the constants that the body of a module or class assigns, and defaults."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Assigned", "assigned", "class_bodies", "instructions", "literals", "text"]

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = (list, dict, set)


def text(value: Any) -> str | None:
    """Return plain data as text that differs if the value does, short; None for other values."""
    whole = _text(value)
    return whole if whole is None or len(whole) < 64 else hashlib.sha256(whole.encode(errors="replace")).hexdigest()


def _text(value: Any) -> str | None:
    kind = type(value)
    if kind in _PLAIN:
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
    """Names that functions of a module assign: global variables, and attributes of any object."""

    variables: set[str]
    attributes: set[str]


def assigned(code: types.CodeType) -> Assigned:
    """Return the names that a module's code, functions included, assigns later."""
    found = Assigned(set(), set())
    for inner in _all(code):
        operations = inner.co_code[::2]
        if _STORE_ATTR in operations or _STORE_GLOBAL in operations:
            for name, number in instructions(inner):
                if name == "STORE_ATTR":
                    found.attributes.add(inner.co_names[number])
                elif name == "STORE_GLOBAL":
                    found.variables.add(inner.co_names[number])
    return found


_STORE_ATTR, _STORE_GLOBAL = dis.opmap["STORE_ATTR"], dis.opmap["STORE_GLOBAL"]


def _all(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all(constant)


def instructions(code: types.CodeType) -> Iterator[tuple[str, int]]:
    """Yield (name, argument) of each instruction; `dis` takes ten times as long."""
    high = 0
    content = code.co_code
    for opcode, low in zip(content[::2], content[1::2], strict=True):
        if opcode == dis.EXTENDED_ARG:
            high = (high | low) << 8
            continue
        yield dis.opname[opcode], high | low
        high = 0


class _Unknown:
    """A value on the stack that is not a literal."""


class _Function:
    """A function on the stack, with those of its defaults that are literals."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


def literals(code: types.CodeType) -> dict[str, str]:
    """Return the names that the body of a module or class assigns a literal to, once, with its value as text.

    Defaults of functions are named ``function.__defaults__`` and ``function.__kwdefaults__``; empty containers are
    left out, as they are filled later.
    """
    found: dict[str, str] = {}
    times: dict[str, int] = {}
    containers: set[str] = set()
    read: set[str] = set()  # containers that the body goes on to fill are among them
    stack: list[Any] = []
    for name, argument in instructions(code):
        if name in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME"):
            target = code.co_names[argument]
            times[target] = times.get(target, 0) + 1
            value = stack.pop() if stack and name != "DELETE_NAME" else _Unknown
            if isinstance(value, _Function):
                parts = {f"{target}.{part}": text(one) for part, one in value.values.items()}
                found.update((part, one) for part, one in parts.items() if one is not None)
            elif not (isinstance(value, _CONTAINERS) and not value) and (one := text(value)) is not None:
                found[target] = one
                if isinstance(value, _CONTAINERS):
                    containers.add(target)
        elif name == "LOAD_NAME":
            read.add(code.co_names[argument])
            stack.append(_Unknown)
        elif not _push(name, argument, code, stack):
            _forget(name, argument, stack)
    filled = containers & read
    found = {name: value for name, value in found.items() if times[name.partition(".")[0]] == 1 and name not in filled}
    for body in class_bodies(code):
        found |= {f"{body.co_name}.{name}": value for name, value in literals(body).items()}
    return {name: value for name, value in found.items() if _is_constant(name.rpartition(".")[2], value)}


def class_bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the bodies of the classes that a module or class defines."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and "__qualname__" in constant.co_names[:4]:
            yield constant


def _is_constant(name: str, value: str) -> bool:
    """Return whether a name is meant to stay as it is: flags in lower case are state, which `switches` captures."""
    if name.startswith("__") or name.endswith("_doc"):
        return name in _PARTS.values()
    return value not in ("None", "True", "False") or name.isupper()


def _push(name: str, argument: int, code: types.CodeType, stack: list[Any]) -> bool:
    """Follow an instruction that makes literals; return False for any other."""
    if name == "LOAD_CONST":
        stack.append(code.co_consts[argument])
    elif name == "LOAD_SMALL_INT":
        stack.append(argument)
    elif name in ("CACHE", "NOP", "RESUME", "NOT_TAKEN"):
        pass
    elif name in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"):
        parts = _pop(stack, argument)
        known = _Unknown not in map(type, parts) and all(part is not _Unknown for part in parts)
        stack.append(_built(name, parts) if known else _Unknown)
    elif name == "BUILD_MAP":
        parts = _pop(stack, 2 * argument)
        stack.append(_mapped(parts[::2], parts[1::2]))
    elif name == "BUILD_CONST_KEY_MAP":
        keys, values = stack.pop() if stack else (), _pop(stack, argument)
        stack.append(_mapped(keys, values))
    elif name in ("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE") and argument == 1:
        more, into = _pop(stack, 1)[0], _pop(stack, 1)[0]
        stack.append(_extended(into, more))
    elif name == "MAP_ADD" and argument == 1:
        value, key, into = _pop(stack, 1)[0], _pop(stack, 1)[0], _pop(stack, 1)[0]
        stack.append(_extended(into, _mapped([key], [value])))
    elif name == "MAKE_FUNCTION":
        _pop(stack, 2 if sys.version_info < (3, 11) else 1)
        held = {flag: _pop(stack, 1)[0] for flag in (8, 4, 2, 1) if sys.version_info < (3, 13) and argument & flag}
        stack.append(_Function({_PARTS[flag]: value for flag, value in held.items() if flag in _PARTS}))
    elif name == "SET_FUNCTION_ATTRIBUTE":
        function, value = _pop(stack, 1)[0], _pop(stack, 1)[0]
        if isinstance(function, _Function) and argument in _PARTS:
            function.values[_PARTS[argument]] = value
        stack.append(function)
    else:
        return False
    return True


_PARTS = {1: "__defaults__", 2: "__kwdefaults__"}


def _pop(stack: list[Any], count: int) -> list[Any]:
    """Take values off the stack, the lowest first; below its known part they are unknown."""
    taken = [stack.pop() if stack else _Unknown for _ in range(count)]
    return taken[::-1]


def _built(name: str, parts: list[Any]) -> Any:
    try:
        return {"BUILD_TUPLE": tuple, "BUILD_LIST": list, "BUILD_SET": set}[name](parts)
    except TypeError:
        return _Unknown


def _mapped(keys: Any, values: list[Any]) -> Any:
    if keys is _Unknown or any(part is _Unknown for part in (*keys, *values)):
        return _Unknown
    try:
        return dict(zip(keys, values, strict=True))
    except (TypeError, ValueError):
        return _Unknown


def _extended(into: Any, more: Any) -> Any:
    if type(into) is list and type(more) in (list, tuple):
        return [*into, *more]
    if type(into) is set and type(more) in (set, frozenset):
        return into | more
    if type(into) is dict and type(more) is dict:
        return into | more
    return _Unknown


def _forget(name: str, argument: int, stack: list[Any]) -> None:
    """Follow an instruction that makes no literal: what it may take off the stack is unknown afterwards."""
    opcode = dis.opmap.get(name)
    if opcode is None or opcode in dis.hasjrel or opcode in dis.hasjabs:
        stack.clear()
        return
    effect = _stack_effect(opcode, argument if opcode >= dis.HAVE_ARGUMENT else None)
    pushed = max(effect, 1) if name not in ("POP_TOP",) else 0
    _pop(stack, pushed - effect)
    stack.extend([_Unknown] * pushed)


_stack_effect = functools.cache(dis.stack_effect)
