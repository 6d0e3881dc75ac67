"""The compile of one captured graph: look it up, or have it compiled, and load the result.

    captured ──▶ look_up ──▶ entries of the stores, then of the remote cache, until one of them can be loaded
                   │ miss
                   ├─▶ compile, or start ──▶ a worker (`remote`)
                   └─▶ compile_through_bytes, or compile_live ──▶ this process

Levels of the fallback chain, stages, pieces, standalone graphs and packages differ in how they capture a graph and in
what they load; the steps between are these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fxpool import counters, interruptions, notices
from fxpool.codecache.key import cacheable
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, PoolUnavailableError
from fxpool.lowering.artifact import lookup, sharing
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.artifact.entry_parts import Artifact, Load, parts_of_artifact, parts_of_entry
from fxpool.lowering.artifact.load import GuardsDoNotHold
from fxpool.lowering.compiling import eager, graph_recording
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import AOT, CompileRequest
from fxpool.torch_compat.dynamo import compile_times, torch_counters
from fxpool.torch_compat.inductor import aot

if TYPE_CHECKING:
    import torch

    from fxpool.lowering.compiling.remote import Result

__all__ = ["GraphCompile", "Pending", "complete"]

log = notices.logger(__name__)


@dataclasses.dataclass
class GraphCompile:
    """A captured graph, the attempt to compile it, and `load`, which makes the result from its parts."""

    captured: Captured
    attempt: Attempt
    load: Load

    def __post_init__(self) -> None:
        self.attempt.key = self.captured.key.digest if self.captured.key is not None else None

    def look_up(self, *, count_misses: bool = True, shared: bool = True) -> Any | None:
        """Return the result of loading an entry that fits this call; None is a miss.

        With `shared` false, the remote cache is skipped, because the call must not wait for it.
        """
        has_remote = sharing.address(self.attempt.settings) is not None
        if self.captured.key is None:
            if count_misses:
                self._count_bypass()
            return None
        if graph_recording.is_on(self.attempt.settings):
            return None  # it is recorded even if it has been compiled before
        return self._look_up(count_misses=count_misses, shared=shared and has_remote)

    def look_up_or_prepare(self) -> Any | None:
        """Look the graph up; after a miss its request is complete, for `start`. Raises why it has to stay here."""
        if self.captured.stays is not None:
            raise self.captured.stays
        with self.attempt.timed("lookup"):
            served = self.look_up()
        if served is None:
            self.prepare()
        return served

    def prepare(self) -> None:
        """Complete the request after a miss. Raises QuarantinedError if the graph may not be compiled."""
        eager.check(self.attempt)
        complete(self.captured, self.attempt)

    def run(self) -> Any:
        """Look the graph up, or compile it in a worker, or through bytes in this process."""
        with self.attempt.timed("lookup"):
            served = self.look_up()
        if served is not None:
            return served
        self.prepare()
        if graph_recording.is_on(self.attempt.settings) or self.attempt.by_workers:
            return self.compile()
        return self.compile_through_bytes()

    # ------------------------------------------------------------ lookup

    def _look_up(self, *, count_misses: bool, shared: bool = True, again: bool = False) -> Any | None:
        if not self.attempt.stores:
            return None
        search = lookup.Search(self.captured, self.attempt.stores)
        for entry, store in itertools.chain(search.candidates(), self._fetched(again) if shared else ()):
            if content_of(entry).effects.restart:  # loading it raises Dynamo's restart
                lookup.count_restart(self.captured, entry, store)
            loaded = self._load_entry(entry, store)
            if loaded is not None:
                lookup.count_hit(self.captured, entry, store)
                self.attempt.outcome = Outcome.HIT
                return loaded
        if count_misses:
            search.count_miss()
        return None

    def _look_up_again(self) -> Any | None:
        """Look for an entry that has come since the first lookup, in the stores or the remote."""
        return self._look_up(count_misses=False, again=True)

    def _fetched(self, again: bool) -> Iterator[tuple[Entry, LocalStore]]:
        """Yield the fitting entry of the remote, written into the store, if there is one."""
        store = self.attempt.store
        if store is not None and (entry := sharing.fetch(self.captured, store, self.attempt.settings, again=again)):
            yield entry, store

    def _load_entry(self, entry: Entry, store: LocalStore) -> Any | None:
        """Load an entry; None if it is damaged, incomplete or does not fit this call."""
        if not store.complete(entry):
            return None
        try:
            return self.load(parts_of_entry(entry, store))
        except GuardsDoNotHold:
            return None
        except (CorruptEntryError, KeyError, TypeError) as error:
            counters.count("corrupt_entries")
            log.warning("entry %s of the cache could not be loaded; recompiling: %s", entry.key[:12], error)
            return None

    def _count_bypass(self) -> None:
        bypass = self.captured.bypass or cacheable.Bypass("unknown")
        self.attempt.bypass(bypass.reason, bypass.detail)
        if bypass.reason not in cacheable.SWITCHED_OFF:
            before = self.captured.request.level == AOT
            torch_counters.bypass(before_autograd=before, inputs=self.captured.fakes, reason=bypass.reason)

    # ------------------------------------------------------------ in a worker

    def start(self) -> Pending:
        """Start `compile` in a thread."""
        return Pending(self.compile, self.attempt.label)

    def compile(self) -> Any:
        """Have a worker compile the complete request, or wait until another machine has; return the loaded result.

        Raises:
            CannotTravelError: the worker's code is not the program's.
            CannotReturnError: the result has no form outside the worker.
            PoolError: the worker died, ran out of time or memory, or could not be started.
            RecordedError: graphs are recorded, not compiled.
            Exception: any error of the compile.
        """
        from fxpool.lowering.compiling import graph_leases, remote  # with the pool's client: only a miss needs it

        remote.require_possible(self.captured, self.attempt)
        with graph_leases.turn(self.captured, self.attempt, self._look_up_again) as served:
            if served is not None:
                return served
            for result in remote.results(self.captured, self.attempt):
                loaded = self._load_result(result)
                if loaded is not None:
                    return loaded
        raise PoolUnavailableError(f"the worker of {self.attempt.label} sent no result")

    def _load_result(self, result: Result) -> Any | None:
        """Load a worker's result; None if it was compiled for another process, and cannot be loaded."""
        store, entry = self.attempt.store, result.entry
        with contextlib.nullcontext() if result.for_others else compile_times.merged(result.times):
            if entry is None or store is None:
                assert result.artifact is not None
                loaded = self.load(parts_of_artifact(result.artifact))
            elif result.for_others:
                loaded = self._load_entry(entry, store)
            else:
                loaded = self.load(parts_of_entry(entry, store))
        if result.for_others and loaded is not None:
            counters.count("joined")
        elif loaded is None and entry is not None:
            self.captured.reject(entry.name)
        return loaded

    # ------------------------------------------------------------ in this process

    def compile_through_bytes(self) -> Any:
        """Mode ``serialize`` (and a disabled pool): compile as a worker does, through bytes."""
        from fxpool.lowering.worker import compiler  # imports Inductor's compiler, for seconds: a hit does not need it

        with self.attempt.timed("compile"):
            request = CompileRequest.load(self.captured.request.dump())
            with interruptions.let_through(), compiler.local_kernels() as kernels:
                artifact = compiler.compile_request(request, kernels)
        return self._load_own(artifact, request)

    def compile_live(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Mode ``normal``: compile the graph itself."""
        from fxpool.lowering.worker import compiler  # as above

        self.captured.complete(keep_request=self.attempt.settings.keep_requests)
        with self.attempt.timed("compile"), interruptions.let_through(), compiler.local_kernels() as kernels:
            artifact = compiler.compile_live(self.captured, aot.copy_of(gm), inputs, kernels)
        # With groups, the code contains this process's names for them.
        return self._load_own(artifact, None if self.captured.groups else self.captured.request)

    def _load_own(self, artifact: Artifact, request: CompileRequest | None) -> Any:
        """Publish what this process compiled for `request`, and load it."""
        from fxpool.lowering.artifact import publishing  # not needed for a hit

        counters.count("compiles", "in_process")
        self.attempt.outcome = Outcome.IN_PROCESS
        if request is not None:
            publishing.publish_if_kept(artifact, request, self.attempt.store, self.attempt)
        with compile_times.compiled_here():
            return self.load(parts_of_artifact(artifact))


def complete(captured: Captured, attempt: Attempt) -> None:
    """Fill in the data that only a compile needs; count the reason if the worker has to see a device."""
    captured.complete(keep_request=attempt.settings.keep_requests)
    if captured.placement.needed:
        counters.count("fallbacks", f"device_needed:{captured.placement.needed}")


class Pending:
    """The result of `work`, which runs in a thread."""

    def __init__(self, work: Callable[[], Any], label: str) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"fxpool {label}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        """Wait for the end of the thread."""
        interruptions.join(self._thread)

    def result(self) -> Any:
        """Wait for the result. Raises the error of `work`."""
        self.join()
        if self._result is None and self._error is None:  # a forked child does not have the thread
            self._run()
        if self._error is not None:
            raise self._error
        return self._result
