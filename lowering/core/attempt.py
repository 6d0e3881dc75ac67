"""The compile of one graph: its options, and its state so far."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator
from typing import Any

from fxpool import counters, notices
from fxpool.codecache.store.bounds import Bounds
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import NoCompilerError, NoHalideError, NotKeptError
from fxpool.lowering.core import host_report
from fxpool.lowering.core.options import Options
from fxpool.lowering.core.runtime import runtime
from fxpool.torch_compat.dynamo import frames
from fxpool.watch import events

__all__ = ["FINAL", "Attempt", "Destination", "Outcome"]

# For all modules that have it: what its handlers raise fails no graph.
log = notices.logger(__name__)

# Characters of a reason's detail that are kept.
_DETAIL = 300

#: Errors that say the same wherever the graph is compiled: no step down helps.
FINAL = (NoCompilerError, NoHalideError, NotKeptError)


class Outcome(enum.Enum):
    """The way in which a graph came to its code; its value stands in the records of ``fxpool.stats()["graphs"]``."""

    HIT = "hit"
    WORKER = "worker"
    JOINED = "joined"  # another process's compile of the same graph
    IN_PROCESS = "in_process"
    ASYNC = "async"  # eager for now; the background compile has a record of its own
    EAGER = "eager"  # for good
    NOT_KEPT = "not_kept"  # a later stage that failed: the stage before stays in use
    FAILED = ""


# What a watcher is shown for each: a state of `watch.events` and its detail.
_STATES = {
    Outcome.HIT: ("ready", "from the cache"),
    Outcome.WORKER: ("ready", "compiled by a worker"),
    Outcome.JOINED: ("ready", "compiled for another process"),
    Outcome.IN_PROCESS: ("ready", "compiled in this process"),
    Outcome.ASYNC: ("ready", "async"),
    Outcome.EAGER: ("eager", "for good"),
    Outcome.NOT_KEPT: ("ready", "not_kept"),
    Outcome.FAILED: ("failed", ""),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Destination:
    """The place for the result of a graph: the directory of a `store`, or None. With `keep` false no key is made.

    `bounds` are that store's. `toolchain_dir` is where facts about this host's tool chain are kept.
    """

    store: str | None = None
    bounds: Bounds | None = None
    toolchain_dir: str | None = None
    keep: bool = True


@dataclasses.dataclass
class Attempt:
    """One graph on its way through the fallback chain.

    `level` is ``aot``, ``fx`` or ``in_process`` (see `fallback.chain`), `key` the digest of its cache key, None where
    it has none. `priority` is that of its jobs, `stage` the number of its stage in a progressive mode. `seconds` are by
    phase, `reasons` the names under which steps down and bypasses were counted, `details` what is known of each, and
    `function` the one that Dynamo traced it from, where there are reasons.
    """

    label: str
    options: Options
    level: str = "aot"
    outcome: Outcome = Outcome.FAILED
    key: str | None = None
    priority: int = 0
    stage: int = 0
    reported: bool = False
    function: str = ""
    submitted: Callable[[Any], None] | None = None  # is handed each job
    reasons: list[str] = dataclasses.field(default_factory=list)
    details: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def step_down(self, reason: str, error: BaseException) -> None:
        """Count a step down the fallback chain. Raises `error` under ``strict``."""
        if self.options.strict:
            raise error
        counters.count("fallbacks", reason)
        self._note(reason, str(error))
        log.info("%s: step down (%s): %s", self.label, reason, error)

    def store(self) -> LocalStore | None:
        """The store that its results go to; None where the options or the directory rule it out."""
        return runtime.store() if self.options.cache else None

    def stores(self) -> list[LocalStore]:
        """The stores to look into, in this order."""
        return runtime.stores() if self.options.cache else []

    def destination(self) -> Destination:
        """The place for its results."""
        store = self.store()
        return Destination(
            store=store.root if store is not None else None,
            bounds=store.bounds if store is not None else None,
            toolchain_dir=runtime.toolchain_directory(store),
            keep=bool(self.stores()),
        )

    def bypass(self, reason: str, detail: str = "") -> None:
        """Count why its result is not kept, or not looked for."""
        counters.count("bypasses", reason)
        self._note(f"bypass:{reason}", detail)

    def _note(self, reason: str, detail: str) -> None:
        """Keep a reason for its record, with an example of it for `fxpool.explain`."""
        self.reasons.append(reason)
        if detail:
            self.details[reason] = detail.split("\n", 1)[0][:_DETAIL]
        frame = frames.current_frame() if not self.function else None
        if frame is not None:
            self.function = f"{frame.name} in {frame.file}:{frame.line}"

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add what happens meanwhile to the seconds of a phase."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begun
            self.spent(phase, seconds)
            if events.listening():
                now = time.monotonic()
                events.span(self.label if phase == "total" else phase, now - seconds, now, graph=self.label)

    def spent(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def report(self, state: str = "", detail: str = "") -> None:
        """Tell the watchers once what has become of the graph."""
        if self.reported or not events.listening():
            return
        self.reported = True
        if not state:
            state, detail = _STATES[self.outcome]
        events.state(self.label, state, detail, stage=self.stage)

    def record(self) -> None:
        """Put it among the `graphs` of ``fxpool.stats()``, and into the host's statistics now and then."""
        host_report.graph_done()
        counters.record_graph(
            {
                "label": self.label,
                "key": self.key,
                "outcome": self.outcome.value,
                "level": self.level,
                "stage": self.stage,
                "reasons": self.reasons,
                **({"details": self.details, "function": self.function} if self.reasons else {}),
                "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
            }
        )
