"""The compile of one graph: its options, and its state so far."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from fxpool import config, counters, failures, interruptions, notices
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import PoolError
from fxpool.lowering.core import host_report, switched_off, table_origins
from fxpool.lowering.core.options import Options
from fxpool.lowering.core.runtime import runtime
from fxpool.torch_compat.dynamo import frames
from fxpool.watch import events

__all__ = ["Attempt", "Destination", "Outcome"]

# A logger of `notices`, as in all modules: an error in a handler fails no graph.
log = notices.logger(__name__)

# The number of characters of a reason's detail that are kept.
_DETAIL = 300
# Reasons, at either level, for which the program's code takes part in a compile in its own process.
_CODE = frozenset(
    ("code_unknown", "code_differs", "code_not_importable", "torch_changed", "operator_in_main",
     "operator_of_unknown_source", "bypass:source", "bypass:custom_pass_without_uuid")
)  # fmt: skip
# The attributes of an attempt that are computed once per graph.
_ONCE = ("store", "stores", "toolchain_dir", "destination")


class Outcome(enum.Enum):
    """How a graph got its code; the value is in the records of ``fxpool.stats()["graphs"]``."""

    HIT = "hit"
    WORKER = "worker"
    FARM = "farm"  # compiled by a machine of the farm
    JOINED = "joined"  # another process's compile of the same graph
    IN_PROCESS = "in_process"
    PARTS = "parts"  # level "fx": the graphs that AOTAutograd makes of it have separate records
    ASYNC = "async"  # eager for now; the background compile has a separate record
    EAGER = "eager"  # permanently
    NOT_KEPT = "not_kept"  # a later stage that failed: the stage before stays in use
    FAILED = ""


# For each outcome, the state of `watch.events` and its detail.
_STATES = {
    Outcome.HIT: ("ready", "from the cache"),
    Outcome.WORKER: ("ready", "compiled by a worker"),
    Outcome.FARM: ("ready", "compiled by the farm"),
    Outcome.JOINED: ("ready", "compiled for another process"),
    Outcome.IN_PROCESS: ("ready", "compiled in this process"),
    Outcome.PARTS: ("ready", "in parts"),
    Outcome.ASYNC: ("ready", "async"),
    Outcome.EAGER: ("eager", "for good"),
    Outcome.NOT_KEPT: ("ready", "not_kept"),
    Outcome.FAILED: ("failed", ""),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Destination:
    """Where the result of a graph goes: the directory of a `store`, or None. With `keep` false no key is made.

    `bounds` are the store's limits. `toolchain_dir` is the directory of facts about this host's tool chain.
    """

    store: str | None = None
    bounds: Bounds | None = None
    toolchain_dir: str | None = None
    keep: bool = True


@dataclasses.dataclass
class Attempt:
    """The compile of one graph, with its state in the fallback chain.

    `settings` are those at its start: a change in the middle of a graph is for the next one. `level` is ``aot``, ``fx``
    or ``in_process`` (see `fallback.chain`), `key` the digest of its cache key, or None.
    `priority` is the priority of its jobs, `stage` the number of its stage in a progressive mode. `seconds` are by
    phase, `reasons` the names under which fallbacks and bypasses were counted, `details` an example for each, and
    `function` the function that Dynamo traced it from, if there are reasons. `is_ending` returns whether it is to stop
    waiting for other machines.
    """

    label: str
    options: Options
    settings: config.Settings = dataclasses.field(default_factory=config.current)
    level: str = "aot"
    outcome: Outcome = Outcome.FAILED
    key: str | None = None
    priority: int = 0
    stage: int = 0
    reported: bool = False
    function: str = ""
    submitted: Callable[[Any], None] | None = None  # called with each job
    is_ending: Callable[[], bool] = lambda: False
    reasons: list[str] = dataclasses.field(default_factory=list)
    details: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def step_down(self, reason: str, error: BaseException) -> None:
        """Count a fallback to the next level. Raises `error` under ``strict``, and an interruption as it was raised."""
        interruptions.pass_on(error)
        if self.options.strict:
            raise error
        counters.count("fallbacks", reason)
        self._note(reason, str(error))
        log.info("%s: falling back to the next level (%s): %s", self.label, reason, error)

    def step_down_without_pool(self, error: PoolError) -> None:
        """Step down because the pool cannot be used, and warn of that once. Raises as `step_down`."""
        self.step_down(switched_off.counted_as(error), error)
        switched_off.say_without_pool(error)

    def failed(self, error: Exception, counted: str = "compile_error:{}") -> str:
        """Count a failure as a fallback, and return where the graph goes: ``next`` or ``home`` (`failures.Follows`).

        `counted` is the reason, completed by the error's class. Raises `error` if no level would help.
        """
        follows = failures.FOLLOWS[failures.of(error)]
        if follows.then == "raised":
            interruptions.pass_on(error)
            raise error
        code = failures.shortage(error)
        reason = counted.format(type(error).__name__)
        self.step_down(f"{'fx:' if counted.startswith('fx:') else ''}shortage:{code}" if code else reason, error)
        return follows.then

    def part(self, **changes: Any) -> Attempt:
        """Return an attempt for a part or a stage of the graph: with a separate record, for the same stores."""
        part = dataclasses.replace(self, key=None, reasons=[], details={}, seconds={}, reported=False, **changes)
        part.__dict__.update({name: self.__dict__[name] for name in _ONCE if name in self.__dict__})
        return part

    @functools.cached_property
    def store(self) -> LocalStore | None:
        """The store for its results; None if the options or the directory rule it out."""
        return runtime.store(self.settings) if self.options.cache else None

    @functools.cached_property
    def stores(self) -> list[LocalStore]:
        """The stores to look into, in order."""
        return runtime.stores(self.settings) if self.options.cache else []

    @functools.cached_property
    def toolchain_dir(self) -> str | None:
        """The directory of facts about this host's tool chain."""
        return runtime.toolchain_directory(self.store, self.settings)

    @functools.cached_property
    def destination(self) -> Destination:
        """The destination of its results."""
        table_origins.settle(self.toolchain_dir, self.options.mode, self.settings)
        return Destination(
            store=self.store.root if self.store is not None else None,
            bounds=self.store.bounds if self.store is not None else None,
            toolchain_dir=self.toolchain_dir,
            keep=bool(self.stores),
        )

    @property
    def by_workers(self) -> bool:
        """Whether workers compile it, as opposed to this process."""
        return self.options.mode == "subprocess" and self.settings.pool != "off"

    @property
    def has_own_code(self) -> bool:
        """Whether code of the program that is not proven, or that a worker cannot have, takes part in the compile."""
        return any(reason.removeprefix("fx:") in _CODE for reason in self.reasons)

    def bypass(self, reason: str, detail: str = "") -> None:
        """Count the reason why its result is not cached, or not looked up."""
        counters.count("bypasses", reason)
        self._note(f"bypass:{reason}", detail)

    def _note(self, reason: str, detail: str) -> None:
        """Add a reason to its record, with an example for `fxpool.explain`."""
        self.reasons.append(reason)
        if detail:
            self.details[reason] = detail.split("\n", 1)[0][:_DETAIL]
        frame = frames.current_frame() if not self.function else None
        if frame is not None:
            self.function = f"{frame.name} in {frame.file}:{frame.line}"

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of the ``with`` block to the seconds of a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self.spent(phase, seconds)
            if events.listening():
                now = time.monotonic()
                events.span(self.label if phase == "total" else phase, now - seconds, now, graph=self.label)

    def spent(self, phase: str, seconds: float) -> None:
        if phase == "compile":
            counters.add_seconds("compile_seconds", seconds)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def report(self, state: str = "", detail: str = "") -> None:
        """Report the graph's outcome to displays and traces, once."""
        if self.reported or not events.listening():
            return
        self.reported = True
        if not state:
            state, detail = _STATES[self.outcome]
        facts = {"outcome": self.outcome.value, "level": self.level, "key": self.key, "reasons": tuple(self.reasons)}
        events.state(self.label, state, detail, stage=self.stage, facts=facts)

    def record(self) -> None:
        """Add it to the `graphs` of ``fxpool.stats()``, and at intervals to the host's statistics."""
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
