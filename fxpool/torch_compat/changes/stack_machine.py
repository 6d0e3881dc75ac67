"""Follows the stack of compiled code that makes literals and displays of containers, without running it.

Of jumps, only those of ``a if condition else b`` are followed: after others nothing on the stack is known.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = [
    "NAMED",
    "UNKNOWN",
    "Built",
    "Either",
    "Function",
    "Stack",
    "Symbol",
    "instructions",
    "written_to",
]

_IS_3_11, _IS_3_12 = sys.version_info >= (3, 11), sys.version_info >= (3, 12)
#: Instruction -> how many bits of its argument come after the index of a name.
NAMED = {"LOAD_NAME": 0, "LOAD_ATTR": int(_IS_3_12), "LOAD_METHOD": 0, "LOAD_GLOBAL": int(_IS_3_11)}
# Bits of MAKE_FUNCTION's or SET_FUNCTION_ATTRIBUTE's argument, by what they set.
_PARTS = {1: "__defaults__", 2: "__kwdefaults__"}
_SUBSCRIPTION = 26  # the operation of BINARY_OP that is a subscription, in Python 3.14


class _Unknown:
    """A value that is neither a literal nor a name."""


UNKNOWN = _Unknown()


class Symbol(NamedTuple):
    """A name with attributes, as ``torch.float32``."""

    path: str


class Built(NamedTuple):
    """The call of a name with one argument, as ``frozenset([1, 2])``."""

    function: Symbol
    argument: Any


class Either(NamedTuple):
    """One of two values: ``first if condition else second``."""

    condition: Any
    first: Any
    second: Any


class Function:
    """A function, with those of its defaults that are known."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


def instructions(code: types.CodeType) -> Iterator[tuple[str, int]]:
    """Yield (name, argument) of each instruction; `dis` takes ten times as long."""
    for _, name, argument in _with_offsets(code):
        yield name, argument


def _with_offsets(code: types.CodeType) -> Iterator[tuple[int, str, int]]:
    high = offset = 0
    content = code.co_code
    for opcode, low in zip(content[::2], content[1::2], strict=True):
        if opcode == _EXTENDED:
            high = (high | low) << 8
        elif opcode != _CACHE:
            yield offset, _NAMES[opcode], high | low
            high = 0
        offset += 2


_NAMES, _EXTENDED, _CACHE = dis.opname, dis.EXTENDED_ARG, dis.opmap.get("CACHE", -1)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _argument(content: bytes, index: int) -> int:
    """Return the argument of the instruction at an index, with its extensions."""
    argument, shift = content[2 * index + 1], 8
    while index and content[2 * index - 2] == _EXTENDED:
        index -= 1
        argument |= content[2 * index + 1] << shift
        shift += 8
    return argument


def written_to(code: types.CodeType, methods: frozenset[str]) -> Iterator[str]:
    """Yield the last names of containers of which code sets or deletes an item, or calls one of `methods`."""
    content = code.co_code
    operations = content[::2]
    for opcode, keys in _WRITES.items():
        for index in _positions(operations, opcode):
            container = index - 1
            for _ in range(keys):
                container = _ahead_of(content, container)
            while container > 0 and _is_subscription(content, container):
                container = _ahead_of(content, container - 1)
            if name := _name_at(code, content, container):
                yield name
    if not methods.isdisjoint(code.co_names):
        for opcode in _OF_METHODS:
            for index in _positions(operations, opcode):
                if _name_at(code, content, index) in methods and (
                    name := _name_at(code, content, _before(content, index))
                ):
                    yield name


# Instruction -> how many values, such as a key, come after the container. Python 3.12 has one for slices.
_WRITES = {
    dis.opmap[name]: keys
    for name, keys in (("STORE_SUBSCR", 1), ("DELETE_SUBSCR", 1), ("STORE_SLICE", 2))
    if name in dis.opmap
}
# From Python 3.12 on, LOAD_METHOD is in no code: its number does not fit into a byte.
_OF_METHODS = tuple(dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if dis.opmap.get(name, 256) < 256)


def _positions(operations: bytes, opcode: int) -> Iterator[int]:
    index = operations.find(opcode)
    while index >= 0:
        yield index
        index = operations.find(opcode, index + 1)


def _before(content: bytes, index: int) -> int:
    """Return the index of the instruction before another one, -1 before the first."""
    index -= 1
    while index >= 0 and content[2 * index] in (_CACHE, _EXTENDED):
        index -= 1
    return index


def _name_at(code: types.CodeType, content: bytes, index: int) -> str:
    """Return the name that the instruction at an index loads, or ""."""
    shift = NAMED.get(_NAMES[content[2 * index]]) if index >= 0 else None
    return code.co_names[_argument(content, index) >> shift] if shift is not None else ""


def _ahead_of(content: bytes, last: int) -> int:
    """Return the index of the instruction before those of straight code whose value the one at `last` leaves.

    An instruction may load two values, as of two local variables in Python 3.13: then the value before theirs is the
    same instruction's, and the result is its index.
    """
    height = 0
    for index in range(last, -1, -1):
        opcode = content[2 * index]
        if opcode not in (_CACHE, _EXTENDED):
            height += _effect(_NAMES[opcode], _argument(content, index))
            if height >= 1:
                return index if height > 1 else _before(content, index)
    return -1


def _is_subscription(content: bytes, index: int) -> bool:
    name = _NAMES[content[2 * index]]
    return name == "BINARY_SUBSCR" or (name == "BINARY_OP" and _argument(content, index) == _SUBSCRIPTION)


def _effect(name: str, argument: int) -> int:
    opcode = dis.opmap.get(name)
    return 0 if opcode is None else _stack_effect(opcode, argument if opcode >= dis.HAVE_ARGUMENT else None)


class Stack:
    """The known values on the stack, the topmost last. Other values are UNKNOWN."""

    def __init__(self, code: types.CodeType) -> None:
        self._code = code
        self._values: list[Any] = []
        # Conditions with whether they hold in the first branch; ends of expressions with their first branches.
        self._conditions: list[tuple[Any, bool]] = []
        self._of_branches: list[tuple[int, Any, bool, Any]] = []

    def follow(self) -> Iterator[tuple[str, int]]:
        """Yield (name, argument) of each instruction of the code before it takes effect on the stack."""
        content = self._code.co_code
        jumps = not _JUMPS.isdisjoint(content[::2])
        arrivals = set(dis.findlabels(content)) if jumps else ()  # type: ignore[arg-type]  # bytes, by its docs
        before = ""
        for offset, name, argument in _with_offsets(self._code):
            if offset in arrivals and before != "JUMP_FORWARD":  # else the second branch begins
                self._arrive(offset)
            yield name, argument
            if name == "JUMP_FORWARD":
                if self._values and self._conditions:
                    self._of_branches.append((offset + 2 + 2 * argument, *self._conditions.pop(), self._values.pop()))
            elif not self._push(name, argument):
                self._forget(name, argument)
            before = name

    def _arrive(self, offset: int) -> None:
        """Follow the end of expressions with branches."""
        is_known = False
        while self._of_branches and self._of_branches[-1][0] == offset:
            _, condition, holds, value = self._of_branches.pop()
            self._values[-1:] = [_either(condition, holds, value, other) for other in self._values[-1:]]
            is_known = True
        if not is_known:
            self._values[-1:] = [UNKNOWN for _ in self._values[-1:]]

    def at(self, depth: int) -> Any:
        """Return the value below `depth` others."""
        return self._values[-1 - depth] if depth < len(self._values) else UNKNOWN

    def _pop(self, count: int) -> list[Any]:
        """Take values off the stack, the lowest first; below its known part they are unknown."""
        return [self._values.pop() if self._values else UNKNOWN for _ in range(count)][::-1]

    def _push(self, name: str, argument: int) -> bool:
        """Follow an instruction that makes literals, displays or names; return False for any other."""
        values = self._values
        if name == "LOAD_CONST":
            values.append(self._code.co_consts[argument])
        elif name == "LOAD_SMALL_INT":
            values.append(argument)
        elif name in ("NOP", "RESUME", "NOT_TAKEN", "PRECALL", "KW_NAMES", "TO_BOOL"):
            pass
        elif name == "LOAD_NAME" or (name == "LOAD_GLOBAL" and not (_IS_3_11 and argument & 1)):
            values.append(Symbol(self._code.co_names[argument >> NAMED[name]]))
        elif name == "LOAD_ATTR" and not (_IS_3_12 and argument & 1):
            (owner,) = self._pop(1)
            path = f"{owner.path}.{self._code.co_names[argument >> NAMED[name]]}" if isinstance(owner, Symbol) else ""
            values.append(Symbol(path) if path else UNKNOWN)
        elif name in ("CALL", "CALL_FUNCTION"):
            given = self._pop(argument)
            called = [part for part in self._pop(1 + (name == "CALL")) if isinstance(part, Symbol)]
            values.append(Built(called[0], *given) if len(called) == len(given) == 1 else UNKNOWN)
        elif name in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"):
            values.append(_built(name, self._pop(argument)))
        elif name == "BUILD_MAP":
            parts = self._pop(2 * argument)
            values.append(_mapped(parts[::2], parts[1::2]))
        elif name == "BUILD_CONST_KEY_MAP":
            (keys,) = self._pop(1)
            values.append(_mapped(keys, self._pop(argument)))
        elif name in ("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE") and argument == 1:
            into, more = self._pop(2)
            values.append(_extended(into, more))
        elif name in ("LIST_APPEND", "SET_ADD") and argument == 1:
            into, item = self._pop(2)
            values.append(_extended(into, [item] if name == "LIST_APPEND" else _built("BUILD_SET", [item])))
        elif name == "MAP_ADD" and argument == 1:
            into, key, value = self._pop(3)
            values.append(_extended(into, _mapped([key], [value])))
        elif name == "MAKE_FUNCTION":
            self._pop(1 if _IS_3_11 else 2)
            flags = [flag for flag in (8, 4, 2, 1) if sys.version_info < (3, 13) and argument & flag]
            held = {flag: self._pop(1)[0] for flag in flags}
            values.append(Function({_PARTS[flag]: value for flag, value in held.items() if flag in _PARTS}))
        elif name == "SET_FUNCTION_ATTRIBUTE":
            value, function = self._pop(2)
            if isinstance(function, Function) and argument in _PARTS:
                function.values[_PARTS[argument]] = value
            values.append(function)
        else:
            return False
        return True

    def _forget(self, name: str, argument: int) -> None:
        """Follow another instruction: it may take off the stack as much as its effect lets it."""
        opcode = dis.opmap.get(name)
        if name.startswith(("POP_JUMP_IF", "POP_JUMP_FORWARD_IF")):
            self._conditions.append((self._pop(1)[0] if name.endswith(("TRUE", "FALSE")) else UNKNOWN, "FALSE" in name))
            return
        if opcode is None or opcode in dis.hasjrel or opcode in dis.hasjabs:
            for known in (self._values, self._of_branches, self._conditions):
                known.clear()
            return
        effect = _effect(name, argument)
        pushed = max(effect, 1) if name not in _TAKE_ONLY else 0
        self._pop(pushed - effect)
        self._values.extend([UNKNOWN] * pushed)


_stack_effect = functools.cache(dis.stack_effect)
_TAKE_ONLY = frozenset(
    ("POP_TOP", "STORE_NAME", "STORE_GLOBAL", "STORE_FAST", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR",
     "DELETE_SUBSCR", "DELETE_ATTR")
)  # fmt: skip


def _either(condition: Any, holds: bool, value: Any, other: Any) -> Any:
    if value is UNKNOWN or other is UNKNOWN:
        return UNKNOWN
    return Either(condition, value, other) if holds else Either(condition, other, value)


def _built(name: str, parts: list[Any]) -> Any:
    if name == "BUILD_SET" and UNKNOWN in parts:
        return UNKNOWN
    try:
        return {"BUILD_TUPLE": tuple, "BUILD_LIST": list, "BUILD_SET": set}[name](parts)
    except TypeError:
        return UNKNOWN


def _mapped(keys: Any, values: list[Any]) -> Any:
    if keys is UNKNOWN or UNKNOWN in keys:
        return UNKNOWN
    try:
        return dict(zip(keys, values, strict=True))
    except (TypeError, ValueError):
        return UNKNOWN


def _extended(into: Any, more: Any) -> Any:
    if type(into) is list and type(more) in (list, tuple):
        return [*into, *more]
    if type(into) is set and type(more) in (set, frozenset):
        return into | more
    if type(into) is dict and type(more) is dict:
        return into | more
    return UNKNOWN
