"""Finds constants of torch's modules and classes, and defaults of functions, that a program set to other values.

Constants are read from torch's compiled modules: names that are assigned once, a literal (a number, a text, a container
of them), and that no code of torch assigns again. This is done once per host, as it takes 0.5 s for 475 modules; to
compare 1,900 constants takes 20 ms for a process's first key and 0.5 ms for others.
"""

from __future__ import annotations

import copy
import dis
import enum
import functools
import hashlib
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from fxpool.installed import Kept
from fxpool.torch_compat.operators import own_code

__all__ = ["Change", "changed", "literals"]

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = (list, dict, set)
_QUESTION = ("constants of torch's modules",)


class Change(NamedTuple):
    """One changed constant, with its value as text. `traced_only` as in `own_code`, which finds code in its place."""

    name: str
    value: str
    traced_only: bool


class Module(msgspec.Struct, array_like=True):
    """The constants of one module's source. `stamp` identifies the file's content."""

    stamp: str
    constants: dict[str, str]


class Sources(msgspec.Struct):
    """The constants of torch's modules, and the names of attributes that its code assigns."""

    modules: dict[str, Module] = {}
    attributes: set[str] = set()


class _Row(NamedTuple):
    name: str
    get: Callable[[], Any]
    expected: str
    traced_only: bool


class _Listed:
    """The constants of all modules that were loaded when `loaded` were, and the last changes."""

    def __init__(self, loaded: int, rows: list[_Row]) -> None:
        self.loaded = loaded
        self.plain = [row for row in rows if not isinstance(row.get(), _CONTAINERS)]
        self.containers = [row for row in rows if isinstance(row.get(), _CONTAINERS)]
        self._last: tuple[list[Any], list[Any], list[Change]] = ([], [], [])

    def changed(self) -> list[Change]:
        values, contents = [row.get() for row in self.plain], [row.get() for row in self.containers]
        last, copies, found = self._last
        if len(last) != len(values) or not all(map(operator.is_, values, last)) or contents != copies:
            found = sorted(
                Change(row.name, now, row.traced_only)
                for row, value in zip((*self.plain, *self.containers), (*values, *contents), strict=True)
                if (now := text(value)) not in (None, row.expected)
            )
            self._last = values, copy.deepcopy(contents), found
        return found


_listed = _Listed(0, [])


def changed(answers: Kept | None, version: str) -> list[Change]:
    """Return the constants that are not as torch's source has them, sorted; usually none.

    `version` identifies the build of torch, for the answers in `answers`.
    """
    global _listed
    listed = _listed
    if listed.loaded != len(sys.modules):
        listed = _listed = _Listed(len(sys.modules), _rows(answers, version))
    return listed.changed()


def _rows(answers: Kept | None, version: str) -> list[_Row]:
    modules = {name: (module, traced) for name, module, traced in own_code.examined_modules() if _file(module)}
    known = _read(answers, version)
    stamps = {name: _stamp(module) for name, (module, _) in modules.items()}
    missing = [
        name for name, stamp in stamps.items() if name not in known.modules or known.modules[name].stamp != stamp
    ]
    for name in missing:
        known.modules[name] = Module(stamps[name], _constants(modules[name][0], known.attributes))
    if missing and answers is not None:
        answers.write(_QUESTION, (version,), {"modules": msgspec.json.encode(known, order="sorted").decode()})
    return [
        _Row(f"{name}.{place}", get, expected, traced)
        for name, (module, traced) in modules.items()
        for place, expected in known.modules[name].constants.items()
        if place.rpartition(".")[2] not in known.attributes and (get := _getter(module, place)) is not None
    ]


def _read(answers: Kept | None, version: str) -> Sources:
    answer = answers.read(_QUESTION, (version,)) if answers is not None else None
    try:
        return msgspec.json.decode((answer or {}).get("modules", "{}"), type=Sources)
    except msgspec.DecodeError:
        return Sources()


_MISSING = object()


def _getter(module: types.ModuleType, path: str) -> Callable[[], Any] | None:
    """Return a function that reads a constant; None if its class or function is not there any more."""
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = vars(owner).get(part) if hasattr(owner, "__dict__") else None
        owner = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
    if name in ("__defaults__", "__kwdefaults__"):
        is_defined = type(owner) is types.FunctionType and owner.__code__.co_name == outer[-1]  # else: a wrapper
        return functools.partial(getattr, owner, name) if is_defined else None
    if not isinstance(owner, (type, types.ModuleType)) or isinstance(owner, enum.EnumMeta):
        return None
    return functools.partial(vars(owner).get, name, _MISSING) if name in vars(owner) else None


def _file(module: types.ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else ""


def _stamp(module: types.ModuleType) -> str:
    try:
        status = os.stat(_file(module))
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _constants(module: types.ModuleType, attributes: set[str]) -> dict[str, str]:
    """Return the constants of a module's source; add the names of attributes that its code assigns to `attributes`."""
    try:
        code = module.__loader__.get_code(module.__name__)  # type: ignore[union-attr]
    except (ImportError, AttributeError, OSError, SyntaxError):
        return {}
    if code is None:
        return {}
    assigned: set[str] = set()
    for inner in _all(code):
        operations = inner.co_code[::2]
        if _STORE_ATTR in operations:
            attributes.update(inner.co_names[number] for name, number in _instructions(inner) if name == "STORE_ATTR")
        if _STORE_GLOBAL in operations:
            assigned.update(inner.co_names[number] for name, number in _instructions(inner) if name == "STORE_GLOBAL")
    return {name: value for name, value in literals(code).items() if name not in assigned}


_STORE_ATTR, _STORE_GLOBAL = dis.opmap["STORE_ATTR"], dis.opmap["STORE_GLOBAL"]


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


# ------------------------------------------------------------------------------------- compiled code


def _all(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all(constant)


def _instructions(code: types.CodeType) -> Iterator[tuple[str, int]]:
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
    for name, argument in _instructions(code):
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
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and "__qualname__" in constant.co_names[:4]:  # the body of a class
            found |= {f"{constant.co_name}.{name}": value for name, value in literals(constant).items()}
    return {name: value for name, value in found.items() if _is_constant(name.rpartition(".")[2], value)}


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
