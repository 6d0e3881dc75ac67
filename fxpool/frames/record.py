"""One frame as it is kept: Dynamo's byte code, its guards, and what tracing depended on besides them.

    make    from what Dynamo has just made of a frame
    fit     on the frame of another process: the guards are built on its objects, and everything is compared

Both go the same way: what a record says of a frame is what `fit` reads off it, also when it is made.

Names that Dynamo gave to globals of the frame's module are numbered in a record, and get new names in each process.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from fxpool.frames import byte_code, located
from fxpool.frames.identity import Describer, NoDescriptionError, code_digest, digests_of, names_of
from fxpool.torch_compat.frames import plain
from fxpool.torch_compat.frames.converting import Call
from fxpool.torch_compat.frames.guards import Guards, GuardsDifferError, build, builtins_of
from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["Fitted", "Record", "RefusedError", "UnfitError", "difference", "fit", "identity_of", "make", "rests"]

_OURS = re.compile(r"\b__fxpool_(\d+)_(\d+)\b")
#: Names under which code reads environment variables.
_ENVIRONMENT = frozenset(("environ", "environb", "getenv", "getenvb"))
_rests: weakref.WeakKeyDictionary[types.CodeType, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


class RefusedError(Exception):
    """This frame can't be kept. `reason` is counted; the message says more."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class UnfitError(Exception):
    """A record is of another frame than this one; the message names the first difference."""


class Record(msgspec.Struct, kw_only=True):
    """A frame. `said` are the texts of its guards, `names` the names that the objects which tracing passed have.

    `imports` are modules by the name that Dynamo gave them. `installed` are the other globals that it defined, by their
    number: ``["graph", key, name]`` is an entry of the cache, ``["rest", code]`` a function for the rest after a graph
    break, ``["builtins"]``, ``["module", name]`` and ``["named", module, name]`` what they say. `traced` is code that
    no description covers: (module, name, wrappers, digest). `scopes` are the modules of all traced code, each with the
    names that it has of those that the code mentions: a global that appears hides a builtin. `environment` is the
    digest of all environment variables, if the code mentions them.
    """

    guards: Guards
    code: list[Any]
    said: list[str] = []
    names: list[tuple[str, str]] = []
    looked_up: list[str] = []
    imports: dict[str, str] = {}
    installed: dict[int, list[Any]] = {}
    traced: list[tuple[str, str, int, str]] = []
    scopes: list[tuple[str, list[str]]] = []
    environment: str | None = None


class Fitted(NamedTuple):
    """A record on a frame: its byte code and guards, and the values of the globals that it needs, without graphs."""

    code: types.CodeType
    manager: Any
    defined: dict[str, Any]
    prefix: str
    said: list[str]
    names: list[tuple[str, str]]
    codes: set[str]


def make(call: Call, recorder: Recorder, entry_of: Callable[[Callable[..., Any]], tuple[str, str] | None]) -> Record:
    """Return the record of a frame that Dynamo has just traced. `entry_of` returns key and name of a graph's entry.

    Raises RefusedError.
    """
    if recorder.refusal or recorder.guards is None or recorder.code is None:
        raise RefusedError(*(recorder.refusal or ("no_code", "Dynamo made no code")))
    numbers: dict[str, int] = {}
    installed: dict[int, list[Any]] = {}
    used = set(_names(recorder.code)) | _globals_of(recorder.guards)
    for name in sorted(recorder.installed & used):
        number = numbers[name] = len(numbers)
        installed[number] = _installed(name, call, recorder, entry_of)
    renamed = {name: f"__fxpool_0_{number}" for name, number in numbers.items()}
    for row in installed.values():
        if row[0] == "rest":
            row[1] = _dumped(row[1], renamed)
    record = Record(
        guards=_renamed_guards(recorder.guards, renamed),
        code=_dumped(recorder.code, renamed),
        looked_up=sorted(names_of([call.code, *recorder.inlined])),
        imports=recorder.imports,
        installed=installed,
    )
    try:
        fitted = fit(record, call, compare=False)
    except UnfitError as error:
        raise RefusedError("own_guards", f"its own guards do not fit: {error}") from error
    except NoDescriptionError as error:
        raise RefusedError("object", f"no other process can tell whether it has the same: {error}") from error
    record.said, record.names = fitted.said, fitted.names
    record.traced = _traced(call, recorder, fitted.codes)
    looked_up = frozenset(record.looked_up)
    record.scopes = [(name, _there(name, looked_up)) for name in located.modules_of([call.code, *recorder.inlined])]
    if looked_up & _ENVIRONMENT:
        record.environment = _environment()
    for name, number in numbers.items():
        if name in recorder.resumed:
            _rests[recorder.resumed[name]] = f"{_origin(record)}.{number}"
    return record


def _installed(
    name: str, call: Call, recorder: Recorder, entry_of: Callable[[Callable[..., Any]], tuple[str, str] | None]
) -> list[Any]:
    if name in recorder.graphs:
        entry = entry_of(recorder.graphs[name])
        if entry is None:
            raise RefusedError("graph", "a graph is not in the cache, or its callable does more than run the entry")
        return ["graph", *entry]
    if name in recorder.resumed:
        if recorder.resumed[name].co_freevars:
            raise RefusedError("closure", "the rest after a graph break has variables of a closure")
        return ["rest", recorder.resumed[name]]
    value = call.names.get(name)
    if value is builtins_of(call.names):
        return ["builtins"]
    if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
        return ["module", value.__name__]
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and (
        _by_name(value.__module__, value.__qualname__) is value
    ):
        return ["named", value.__module__, value.__qualname__]
    raise RefusedError("global", f"Dynamo keeps an object of {type(value).__qualname__} for the code")


def _origin(record: Record) -> str:
    """A digest of a record."""
    return hashlib.blake2b(msgspec.msgpack.encode(record), digest_size=16).hexdigest()


def _traced(call: Call, recorder: Recorder, described: set[str]) -> list[tuple[str, str, int, str]]:
    found, nameless = [], []
    covered = described | digests_of(call.code)
    for code in dict.fromkeys(recorder.inlined):
        digest = code_digest(code)
        if digest in covered or code is call.code:
            continue
        place = located.place_of(code)
        if place is None:
            nameless.append(code)
            continue
        found.append((*place, digest))
        covered |= digests_of(code)
    for code in nameless:  # unless it is nested in code that has a name
        if code_digest(code) not in covered:
            where = f"{code.co_filename}:{code.co_firstlineno}"
            raise RefusedError("code", f"the code of {code.co_name} ({where}) has no name")
    return found


def fit(record: Record, call: Call, *, compare: bool = True) -> Fitted:
    """Return the record on a frame, if it is the same to Dynamo. Raises UnfitError.

    With `compare` false the record is new, and has yet to say what it depends on.
    """
    prefix = f"__fxpool_{next(_numbers)}_"
    ours = {f"__fxpool_0_{number}": f"{prefix}{number}" for number in record.installed}
    for alias, name in record.imports.items():
        module = sys.modules.get(name)
        if module is None or call.names.setdefault(alias, module) is not module:
            raise UnfitError(f"{alias} is not the module {name}")
    for module_name, name, depth, digest in record.traced:
        code = located.code_at(module_name, name, depth)
        if code is None or code_digest(code) != digest:
            raise UnfitError(f"the code of {module_name}.{name} changed")
    looked_up = frozenset(record.looked_up)
    if record.environment is not None and record.environment != _environment():
        raise UnfitError("the environment is another, which the code reads")
    for name, there in record.scopes:
        if _there(name, looked_up) != there:
            raise UnfitError(f"the module {name} has other names")
    defined = {f"{prefix}{number}": value for number, row in record.installed.items() for value in _value(row, call)}
    describer = Describer()
    call.names.update(defined)
    try:
        built = build(_renamed_guards(record.guards, ours), call.code, call.variables, call.names, describer.identity)
        said = sorted(_OURS.sub(r"__fxpool_0_\2", line) for line in built.said)
        names = [
            (_OURS.sub(r"__fxpool_0_\2", source), text)
            for source, value in sorted(built.objects.items())
            if (text := describer.names(value, looked_up))
        ]
    except GuardsDifferError as error:
        raise UnfitError(str(error)) from error
    except NoDescriptionError as error:
        if not compare:
            raise
        raise UnfitError(f"{error} can't be described") from error
    finally:
        for name in defined:
            del call.names[name]
    if compare:
        _compare(record.said, said, "a guard says")
        _compare(record.names, names, "there is")
    code = byte_code.renamed(byte_code.load(record.code), ours)
    return Fitted(code, built.manager, defined, prefix, said, names, describer.codes)


def identity_of(code: types.CodeType) -> str:
    """Return what stands for a function's code in its frame's key.

    The code of a function for the rest after a graph break has names that count in its process. In its place stands the
    record that it comes from.
    """
    return _rests.get(code) or code_digest(code)


def rests(record: Record, fitted: Fitted, call: Call) -> dict[str, types.FunctionType]:
    """Return the functions for the rest after each graph break, by the names of this process."""
    origin = _origin(record)
    ours = {f"__fxpool_0_{number}": f"{fitted.prefix}{number}" for number in record.installed}
    found = {}
    for number, row in record.installed.items():
        if row[0] == "rest":
            code = byte_code.renamed(byte_code.load(row[1]), ours)
            _rests[code] = f"{origin}.{number}"
            found[f"{fitted.prefix}{number}"] = types.FunctionType(code, call.names, code.co_name)
    return found


def difference(then: Record, now: Record) -> str | None:
    """Return the first difference of two records of one frame, or None."""
    for name in ("imports", "looked_up", "traced", "scopes", "environment", "said", "names", "installed"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            return f"{name} are {after!r:.300}; they were {before!r:.300}"
    if code_digest(byte_code.load(then.code)) != code_digest(byte_code.load(now.code)):
        return "the byte code is another"
    return None


def _compare(then: list[Any], now: list[Any], verb: str) -> None:
    if then != now:
        before, after = [one for one in then if one not in now], [one for one in now if one not in then]
        raise UnfitError(f"{verb} {(after or ['less'])[0]}; it was {(before or ['less'])[0]}")


def _there(module: str, names: frozenset[str]) -> list[str]:
    found = sys.modules.get(module)
    return sorted(names & vars(found).keys()) if found is not None else []


def _environment() -> str:
    return hashlib.blake2b(repr(sorted(os.environb.items())).encode(), digest_size=16).hexdigest()


def _value(row: list[Any], call: Call) -> list[Any]:
    """The value of a global that Dynamo defined, in a list; none for a graph and for the rest after a graph break."""
    kind, *parts = row
    if kind == "builtins":
        return [builtins_of(call.names)]
    if kind in ("module", "named"):
        found = sys.modules.get(parts[0]) if kind == "module" else _by_name(*parts)
        if found is None:
            raise UnfitError(f"there is no {'.'.join(parts)}")
        return [found]
    return []


def _by_name(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _names(code: types.CodeType) -> list[str]:
    nested = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _names(one)]
    return [*code.co_names, *nested]


def _dumped(code: types.CodeType, names: Mapping[str, str]) -> list[Any]:
    try:
        return byte_code.dump(byte_code.renamed(code, names))
    except plain.NotPlainError as error:
        raise RefusedError("code", f"the code of {code.co_name} holds {error}") from error


def _globals_of(guards: Guards) -> set[str]:
    """The globals that guards begin at."""
    found = {dict(fields)["global_name"] for _, cls, *fields in guards.sources if cls == "GlobalSource"}
    return found | ({guards.builtins} if guards.builtins is not None else set())


def _renamed_guards(guards: Guards, names: Mapping[str, str]) -> Guards:
    sources = [
        [
            kind,
            cls,
            *(
                [field, names.get(value, value)] if field == "global_name" else [field, value]
                for field, value in fields
            ),
        ]
        for kind, cls, *fields in guards.sources
    ]
    builtins = names.get(guards.builtins, guards.builtins) if guards.builtins is not None else None
    return msgspec.structs.replace(guards, sources=sources, builtins=builtins)
