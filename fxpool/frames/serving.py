"""Serves frames from the cache in Dynamo's place, and keeps those that Dynamo traced.

A frame is looked up by its own code and by all that every frame depends on (`key_of`). Records under one key differ in
what tracing met: the first that fits this frame is handed to Dynamo, with the entries of its graphs loaded.

No error here breaks a compile: Dynamo traces the frame as it would without this cache, and the reason is counted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import random
import sys
import time
import types
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec
import torch

from fxpool import config, counters, interruptions, notices
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.key import cacheable, compiler_examination, key
from fxpool.codecache.store import quarantine
from fxpool.codecache.store.entry import Entry, Metadata, Origin
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CannotReturnError, CannotTravelError, CorruptEntryError, FxpoolError
from fxpool.frames import fact_text, process_facts, record_making
from fxpool.frames import record as records
from fxpool.frames.code_digests import code_digest
from fxpool.frames.record_making import RefusedError
from fxpool.lowering.artifact import load, sharing, torch_artifacts
from fxpool.lowering.artifact.entry_content import Content, content_of
from fxpool.lowering.artifact.entry_parts import RESULT, parts_of_entry
from fxpool.lowering.artifact.load import Recipe
from fxpool.lowering.core import options as call_options
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request import capture
from fxpool.torch_compat.dynamo import frames, frozen_objects, process_groups
from fxpool.torch_compat.frames import frame_conversion, unguarded_facts
from fxpool.torch_compat.frames.recording import Recorder
from fxpool.torch_compat.inductor import hooks

__all__ = ["FRAME", "REFUSALS", "attempt_for", "begin", "key_of", "surroundings_of"]

log = notices.logger(__name__)

#: The level of an entry that holds a frame.
FRAME = "frame"
#: Errors that mean that a frame has no key: it is traced, and not kept.
REFUSALS = (RefusedError, FxpoolError, UnprovenError, cacheable.Bypass)
# Records tried for one frame. Each has some of its guards built.
_MOST = 16
# Those that are fetched from the remote cache for one frame, one after another.
_MOST_REMOTE = 8
# The kind of what stands for a recipe that comes later.
_LATER = "later"
# The part of the frames that could be served and are traced, and its source, which is not the program's.
_DOUBTED = 1e-3
_chance = random.SystemRandom()
# Code of served frames for the rest after a graph break, and the examination of compilers that it continues. Dynamo
# would make the rest of that rest in another way than from its own code, so that it is never compared.
_rests: weakref.WeakKeyDictionary[types.CodeType, compiler_examination.Examination | None] = weakref.WeakKeyDictionary()
# The same of frames that were traced to compare them: these are compared, too.
_doubted: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


class _Match(NamedTuple):
    """A record that fits a frame, and the callables of its graphs by the names of their globals."""

    record: records.Record
    fitted: records.Fitted
    graphs: dict[str, Callable[..., Any]]
    entry: Entry
    store: LocalStore


def begin() -> None:
    """Serve frames of `torch.compile(backend="fxpool")` from now on, if the setting `frames` says so. Idempotent."""
    frame_conversion.surround(_around)


def _around(call: frame_conversion.Call, trace: Callable[[Recorder | None], Any]) -> Any:
    if not _is_on() or not call.plain or not _is_ours(call.backend):
        return trace(None)
    start = time.perf_counter()
    try:
        with interruptions.held_back(), frozen_objects.frozen(), compiler_examination.under_way(_rests.get(call.code)):
            attempt = attempt_for(call.backend)
            digest = key_of(call, attempt)
            found = _find(digest, attempt, call)
            if found is not None and not _is_doubted(call.code):
                answer = _handed_over(found, call)
                counters.count("frames", "served")
                log.info("served %s in %.3f s", _name(call), time.perf_counter() - start)
                return answer
    except Exception as error:
        _not_kept(_origin(call), error)
        return trace(None)
    recorder = Recorder()
    answer = trace(recorder)
    counters.count("frames", "traced")
    start = time.perf_counter()
    recipes = _Recipes()
    try:
        with interruptions.held_back(), frozen_objects.frozen():
            if recorder.error is not None:
                raise recorder.error
            made = record_making.make(call, recorder, recipes.of)
            if found is not None:
                _doubted.update(recorder.rests())
                _verify(found, made, call)
            else:
                recipes.complete(made, functools.partial(_keep, digest=digest, attempt=attempt, origin=_origin(call)))
                log.info("recorded %s in %.3f s", _name(call), time.perf_counter() - start)
    except Exception as error:
        _not_kept(_origin(call), error)
    return answer


class _Recipes:
    """The recipes of a frame's graphs. Those that are compiled in the background come later."""

    def __init__(self) -> None:
        self._later: list[Future[Recipe | None]] = []

    def of(self, function: Callable[..., Any]) -> Recipe | None:
        """Return the recipe of a graph's callable, what stands for one that comes later, or None."""
        recipe: Any = getattr(function, "fxpool_recipe", None)
        if isinstance(recipe, Future):
            self._later.append(recipe)
            return [_LATER, len(self._later) - 1]
        return recipe

    def complete(self, record: records.Record, keep: Callable[[records.Record | None], None]) -> None:
        """Call `keep` once all recipes of a record are there: now, or in the thread that has the last one.

        It gets None if a graph lacks a recipe.
        """
        waiting = iter(self._later)

        def go_on(_: object) -> None:
            if (following := next(waiting, None)) is not None:
                following.add_done_callback(go_on)
            else:
                keep(self._completed(record))

        go_on(None)

    def _completed(self, record: records.Record) -> records.Record | None:
        installed = {}
        for number, row in record.installed.items():
            if row[0] == "graph" and row[1][0] == _LATER:
                row = ["graph", self._later[row[1][1]].result()]
                if row[1] is None:
                    return None
            installed[number] = row
        return msgspec.structs.replace(record, installed=installed)


def _is_ours(backend: Any) -> bool:
    """Return whether graphs go to fxpool: those of its backend, and after `fxpool.install()` those of Inductor's."""
    return getattr(backend, "compiler_name", None) == "fxpool" or hooks.options_of(backend) is not None


def _is_doubted(code: types.CodeType) -> bool:
    """Return whether a frame that fits is traced, and compared: a few are, so that a defect here is found."""
    if code in _rests:
        return False
    return config.current().frames == "verify" or code in _doubted or _chance.random() < _DOUBTED


def _is_on() -> bool:
    try:
        return config.current().keeps_frames
    except FxpoolError:  # the graph reports it
        return False


def _not_kept(origin: Origin, error: Exception) -> None:
    """Count and log why a frame is not looked up, or not kept. Raises an exception of a signal handler as it was."""
    interruptions.pass_on(error)
    if isinstance(error, (RefusedError, cacheable.Bypass, CannotTravelError)):
        reason = f"refused:{error.reason}"
    elif isinstance(error, REFUSALS):
        reason = f"refused:{type(error).__name__}"
    else:
        reason = f"error:{type(error).__name__}"
    counters.count("frames", reason, example=f"{origin.name} ({origin.location}): {error}")
    unexpected = reason.startswith("error:")
    log.log(
        logging.WARNING if unexpected else logging.INFO,
        "the frame %s (%s) is not kept (%s): %s",
        origin.name,
        origin.location,
        reason,
        error,
        exc_info=error if unexpected else None,
    )


def _origin(call: frame_conversion.Call) -> Origin:
    with contextlib.suppress(Exception):  # of the program's objects
        return Origin(**frames.frame_of(call.code, call.variables)._asdict())
    return Origin(function=call.code.co_name, file=call.code.co_filename, line=call.code.co_firstlineno)


def _name(call: frame_conversion.Call) -> str:
    origin = _origin(call)
    return f"{origin.name} ({origin.location})"


def attempt_for(backend: Any) -> Attempt:
    """Return the attempt to compile graphs with the options of a call of `torch.compile`. Raises one of `REFUSALS`."""
    if (of_inductor := hooks.options_of(backend)) is not None:
        mode = hooks.compile_mode()
        if not mode:
            raise RefusedError("inductor", "Inductor keeps its graphs: TORCHINDUCTOR_FX_COMPILE_MODE is not subprocess")
        return Attempt("frame", call_options.parse(mode, of_inductor))
    given: Mapping[str, Any] = getattr(backend, "kwargs", {})
    return Attempt("frame", call_options.parse(given.get("mode"), given.get("options")))


def key_of(call: frame_conversion.Call, attempt: Attempt) -> str:
    """Return the digest of a frame's code and of all that does not depend on its objects. Raises one of `REFUSALS`."""
    options = attempt.options
    if call.collective:
        raise RefusedError("collectives", "ranks that trace would wait for one that does not")
    if not attempt.stores:
        raise RefusedError("no_cache", "there is no cache")
    facts = [
        records.identity_of(call.code),
        _held(call),
        str(call.names.get("__name__")),
        call.whole,
        list(call.buckets),
        repr(getattr(call.backend, "dynamic", None)),
        repr(sorted(options.inductor.items())),
        repr([sorted(stage.items()) for stage in options.stages]),
        options.regions,
        sys.version,
        sys.flags.optimize,
        unguarded_facts.tracing_facts(),
        sorted(_text_of_polyfill(*row) for row in unguarded_facts.polyfills()),
        process_facts.package_of(call.names),
        surroundings_of(attempt),
    ]
    return hashlib.sha256(key.canonical(facts)).hexdigest()


def _held(call: frame_conversion.Call) -> list[str]:
    """Return the code of functions in a frame's closure: decorators give many functions the code of one wrapper."""
    found: dict[str, None] = {}
    left: list[Any] = [call.variables.get(name) for name in call.code.co_freevars]
    while left:
        value = left.pop()
        if isinstance(value, types.CellType):
            with contextlib.suppress(ValueError):  # it is empty
                left.append(value.cell_contents)
        elif isinstance(value, types.FunctionType) and (digest := code_digest(value.__code__)) not in found:
            found[digest] = None
            left += value.__closure__ or ()
    return [*found]


def _text_of_polyfill(function: Any, polyfill: Any) -> list[str]:
    """Name a function with the code that stands for it. Of methods in C nothing else tells."""
    code = getattr(getattr(polyfill, "__torch_dynamo_polyfill__", polyfill), "__code__", None)
    return [unguarded_facts.without_addresses(repr(function)), code_digest(code) if code is not None else ""]


def surroundings_of(attempt: Attempt) -> str:
    """Return the digest of all that the key of each graph of an attempt has besides the graph. Errors as `key_of`."""
    with attempt.options.in_force():
        return capture.surroundings(attempt.destination)


def _find(digest: str, attempt: Attempt, call: frame_conversion.Call) -> _Match | None:
    """Return the first record that fits, or None. Raises RefusedError: a record of this key was wrong before."""
    stores = attempt.stores
    for store in stores:
        if (aside := quarantine.find(store.root, digest)) is not None:
            raise RefusedError("set_aside", f"{aside.error}; release it with fxpool cache quarantine")
    for store in stores:
        for entry in store.entries(digest)[:_MOST]:
            if (match := _match(entry, store, attempt, call)) is not None:
                return match
    return _from_remote(digest, attempt, call)


def _from_remote(digest: str, attempt: Attempt, call: frame_conversion.Call) -> _Match | None:
    """Return the first record of the remote cache that fits, or None. Those that were tried are in the store then."""
    own = attempt.store
    if own is None or sharing.address(attempt.settings) is None:
        return None
    tried = {entry.name for entry in own.entries(digest) if own.complete(entry)}

    def is_new(entry: Entry) -> bool:
        return entry.name not in tried and content_of(entry).level == FRAME

    for _ in range(_MOST_REMOTE):
        entry = sharing.fetch_fitting([digest], is_new, own, attempt.settings)
        if entry is None:
            return None
        if (match := _match(entry, own, attempt, call)) is not None:
            return match
        tried.add(entry.name)
    return None


def _match(entry: Entry, store: LocalStore, attempt: Attempt, call: frame_conversion.Call) -> _Match | None:
    """Return the record of an entry on a frame; None if it does not fit."""
    if not store.complete(entry) or content_of(entry).level != FRAME:
        return None
    data = store.read_blob(entry.blobs[RESULT])
    if data is None:
        return None
    try:
        record = msgspec.msgpack.decode(data, type=records.Record)
        fitted = records.fit(record, call)
        graphs = {
            f"{fitted.prefix}{number}": _callable(row[1], attempt)
            for number, row in record.installed.items()
            if row[0] == "graph"
        }
    except (process_facts.UnfitError, CorruptEntryError, CannotReturnError, msgspec.MsgspecError) as error:
        counters.count("frames", "unfit", example=f"{_name(call)}: {error}")
        log.info("a frame that is kept does not fit %s: %s", _name(call), error)
        return None
    return _Match(record, fitted, graphs, entry, store)


def _callable(recipe: Recipe, attempt: Attempt, boxed: bool = False) -> Callable[..., Any]:
    """Make the callable of a graph from its recipe. Raises UnfitError, and as `load.load_without_graph`."""
    kind, *parts = recipe
    if kind != load.ENTRY:
        from fxpool.lowering.regions import recipes  # only for graphs in pieces

        return recipes.compose_again(recipe, lambda one, boxed: _callable(one, attempt, boxed))
    digest, name, indices = parts
    for store in attempt.stores:
        if (entry := store.entry(digest, name)) is not None:
            return _loaded(entry, store, indices, boxed)
    if (own := attempt.store) is not None:
        fetched = sharing.fetch_fitting([digest], lambda entry: entry.name == name, own, attempt.settings)
        if fetched is not None:
            return _loaded(fetched, own, indices, boxed)
    raise process_facts.UnfitError("a graph is no longer in the cache")


def _loaded(entry: Entry, store: LocalStore, indices: list[int], boxed: bool) -> Callable[..., Any]:
    function = load.load_without_graph(parts_of_entry(entry, store), indices, boxed=boxed)
    _used(entry, store)
    return function


def _used(entry: Entry, store: LocalStore) -> None:
    """Mark an entry as used, for eviction and for ``save_cache_artifacts()``."""
    store.mark_used(entry)
    torch_artifacts.record(entry, store)
    process_groups.extend_timeouts(entry.metadata.compile_seconds)  # other ranks may compile it


def _handed_over(match: _Match, call: frame_conversion.Call) -> Any:
    record, fitted = match.record, match.fitted
    rests, codes = records.rests(record, fitted, call)
    _rests.update((code, compiler_examination.current()) for code in codes)
    defined = {**fitted.defined, **match.graphs, **rests}
    _used(match.entry, match.store)
    return frame_conversion.hand_over(call, fitted.code, fitted.built.manager, defined)


def _keep(record: records.Record | None, *, digest: str, attempt: Attempt, origin: Origin) -> None:
    """Write a record with complete recipes into the cache. None: a graph lacks a recipe."""
    try:
        if record is None:
            raise RefusedError("graph", "a graph that was compiled in the background is not in the cache")
        _publish(record, digest, attempt, origin)
    except Exception as error:
        _not_kept(origin, error)


def _publish(record: records.Record, digest: str, attempt: Attempt, origin: Origin) -> None:
    store = attempt.store
    if store is None:
        raise RefusedError("no_cache", "there is no cache to write to")
    # Frames with one key differ in the objects that tracing met. An entry's guards tell such entries apart, and list
    # them to users.
    content = msgspec.msgpack.encode(record)
    objects = hashlib.blake2b(content, digest_size=8).hexdigest()
    entry = Entry(
        key=digest,
        components=[],
        guards=[["symbol", f"objects_{objects}"]],
        content=Content(level=FRAME),
        metadata=Metadata(
            label=origin.function,
            created=time.time(),
            torch_version=str(torch.__version__),
            extra=fact_text.summary(record),
            origin=origin,
        ),
    )
    entry = store.publish(entry, {RESULT: content})
    counters.count("frames", "kept")
    torch_artifacts.record(entry, store)
    sharing.offer(entry, store, attempt.settings)


def _with_recipes_of(then: records.Record, now: records.Record) -> records.Record:
    """Return a record with another's recipes in place of those that come later."""
    installed = {
        number: then.installed.get(number, row) if row[0] == "graph" and row[1][0] == _LATER else row
        for number, row in now.installed.items()
    }
    return msgspec.structs.replace(now, installed=installed)


def _verify(match: _Match, record: records.Record, call: frame_conversion.Call) -> None:
    """Compare a record that fits with what Dynamo made of the frame now; discard it if they differ."""
    then, now = match.record.guards, record.guards
    # A frame for any size fits one that was traced for its own.
    if (then.sizes, then.shapes) != (now.sizes, now.shapes):
        counters.count("frames", "other_sizes")
        return
    difference = records.difference(match.record, _with_recipes_of(match.record, record))
    if difference is None:
        counters.count("frames", "verified")
        return
    counters.count("frames", "wrong", example=f"{_name(call)}: {difference}")
    match.store.remove(match.entry.key, match.entry.name)
    error = f"a frame that was kept is not what Dynamo makes of it: {difference}"
    quarantine.add(match.store.root, match.entry.key, label=_name(call), error=error, log=None)
    log.warning(
        "the frame that was kept for %s is not what Dynamo makes of it now: %s. It was removed, and this function is "
        "traced by all processes from now on. Please report this",
        _name(call),
        difference,
    )
