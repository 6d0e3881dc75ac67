"""Code of equal graphs, which a compile takes from the cache instead of lowering them again.

    worker: AOTAutograd ──▶ forward [, backward] ──▶ digest of each: an entry of the same graphs?
                                                        │ no: Inductor lowers them; the entry is recorded for them
                                                        └ yes: their code, under this program's result of AOTAutograd

Keys tell programs apart that AOTAutograd makes equal, as ``x.sum(0)`` and ``x.sum(dim=0)``. The digest of a graph is
made of its key at the level after AOTAutograd, of what the request's key says besides graph and inputs, and of the
inputs that a backward may overwrite, which only the whole compile knows.

An entry is taken as a whole: forward and backward, and its libraries. Its guards are added to those of this compile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fxpool import notices
from fxpool.codecache.key import key
from fxpool.codecache.key.components import OF_A_FUNCTION
from fxpool.codecache.store import small_records
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.artifact import side_effects
from fxpool.lowering.artifact.entry_content import Effects, content_of
from fxpool.lowering.artifact.entry_parts import Artifact, parts_of_entry
from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import capture
from fxpool.lowering.request.compile_request import AOT, CompileRequest
from fxpool.torch_compat.dynamo import shape_env
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.inductor import aot, aot_graph

__all__ = ["EqualGraphs", "OtherBackwardError", "record"]

log = notices.logger(__name__)

# They say what a graph is; the key of AOTAutograd's graph has its own.
_OF_GRAPH = OF_A_FUNCTION | {"code"}


class OtherBackwardError(Exception):
    """The forward's code was taken from an entry with another backward: nothing can be taken from the cache."""


class EqualGraphs:
    """Looks up the graphs that AOTAutograd makes for one request, in order; `digests` are theirs so far.

    `entry` is the entry whose code is used, or None. With `digests` false graphs have no digests, with `look_up` false
    they are not looked up.
    """

    def __init__(self, request: CompileRequest, env: ShapeEnv, *, digests: bool = True, look_up: bool = True) -> None:
        self._request, self._env, self._look_up = request, env, look_up
        self._store = _store_of(request) if digests else None
        self.digests: list[str] = []
        self.entry: Entry | None = None
        self._graphs: list[Any] = []

    def compile(self, lower: Callable[..., Any], gm: Any, inputs: Sequence[Any], **arguments: Any) -> Any:
        """Return Inductor's output for a graph: an entry's, or that of `lower`. Raises OtherBackwardError."""
        if self._store is None:
            return lower(gm, inputs, **arguments)
        number, digest = len(self.digests), self._digest(gm, inputs, arguments)
        self.digests.append(digest)
        if number == 0 and digest and self._look_up:
            self._find(digest)
        if self.entry is None:
            return lower(gm, inputs, **arguments)
        if content_of(self.entry).graphs[number : number + 1] != [digest]:
            raise OtherBackwardError
        return aot_graph.as_lowered(self._graphs[number], inputs)

    def _digest(self, gm: Any, inputs: Sequence[Any], arguments: dict[str, Any]) -> str:
        """Return the digest of a graph; empty if it cannot be digested."""
        request = self._request
        into = Destination(store=request.store, toolchain_dir=request.toolchain_dir)
        try:
            plain = aot_graph.plain_arguments(arguments)
            made = capture.capture_inner(gm, inputs, plain, label=request.label, into=into).key
        except Exception as error:  # torch and the program's objects may raise anything
            log.info("%s: not looking for equal graphs: %s", request.label, error)
            return ""
        if made is None or request.key is None:
            return ""
        whole = request.host_key or request.key
        state = [[one.name, one.digest] for one in whole.components if one.name not in _OF_GRAPH]
        return hashlib.sha256(key.canonical([made.digest, state, aot.overwritten_by_backward()])).hexdigest()

    def _find(self, digest: str) -> None:
        assert self._store is not None
        address = small_records.lowered.find(self._store.root, digest)
        entry = self._store.entry(*address) if address is not None else None
        if entry is None:
            return
        values = {**shape_env.values(self._env), **self._request.hints}
        try:
            graphs = content_of(entry).graphs
            if graphs[:1] != [digest] or not side_effects.guards_hold(entry.guards, values):
                return
            loaded = aot.graphs_of(aot.load_result(parts_of_entry(entry, self._store).result()))
        except Exception as error:  # damaged, or of another torch
            log.info("entry %s could not be read for an equal graph: %s", entry.key[:12], error)
            return
        if len(loaded) == len(graphs) and side_effects.add_guards(self._env, entry.guards):
            self.entry, self._graphs = entry, loaded

    def artifact(self, result: bytes, recorded: Effects, guards: list[Any]) -> Artifact:
        """Return the entry's artifact with another result of AOTAutograd. Raises CorruptEntryError: a part is gone."""
        assert self.entry is not None and self._store is not None
        if content_of(self.entry).graphs != self.digests:
            raise OtherBackwardError
        kept = parts_of_entry(self.entry, self._store).inline()
        decisions = content_of(self.entry).decisions
        return msgspec.structs.replace(
            kept, result=result, effects=recorded, guards=guards, decisions=decisions, graphs=self.digests, reused=True
        )


def record(entry: Entry, store: LocalStore, artifact: Artifact) -> None:
    """Record a new entry for its graphs, so that programs of other spellings find it. Never raises."""
    if not artifact.graphs or not all(artifact.graphs) or artifact.reused:
        return
    try:
        small_records.lowered.add(store.root, artifact.graphs[0], (entry.key, entry.name))
    except StoreError as error:
        log.info("entry %s was not recorded for its graphs: %s", entry.key[:12], error)


def _store_of(request: CompileRequest) -> LocalStore | None:
    """Return the store to look into: none for a graph that is compiled to be compared, or because an entry failed."""
    if request.level != AOT or request.key is None or request.store is None or request.rejected_entries:
        return None
    if request.debug_files is not None or not request.store:
        return None
    try:
        return LocalStore(request.store)
    except StoreError:
        return None
