"""One graph on its way to its code: what was asked for it, and what has happened to it so far."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from fxpool import notices, statistics
from fxpool.errors import NoCompilerError
from fxpool.lowering.core.options import Options
from fxpool.watch import events

__all__ = ["FINAL", "Attempt"]

# For all modules that have it: what its handlers raise fails no graph.
log = notices.logger("fxpool.lowering")

#: Errors that say the same wherever the graph is compiled: no step down helps.
FINAL = (NoCompilerError,)

# What is said of a graph by how it came to its code.
_STATES = {
    "hit": ("ready", "from the cache"),
    "worker": ("ready", "compiled by a worker"),
    "joined": ("ready", "compiled for another process"),
    "in_process": ("ready", "compiled in this process"),
    "eager": ("eager", "for good"),
    "": ("failed", ""),
}


@dataclasses.dataclass
class Attempt:
    """One graph on its way: what it is called, what was asked, and what has happened to it so far."""

    label: str
    wanted: Options
    level: str = "aot"
    how: str = ""
    key: str | None = None
    priority: int = 0
    stage: int = 0
    told: bool = False
    submitted: Callable[[Any], None] | None = None  # is handed each job
    reasons: list[str] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def step_down(self, reason: str, error: BaseException) -> None:
        """Count a step down the ladder. Raises `error` under ``strict``."""
        if self.wanted.strict:
            raise error
        statistics.count("fallbacks", reason)
        self.reasons.append(reason)
        log.info("%s: step down (%s): %s", self.label, reason, error)

    def bypass(self, reason: str) -> None:
        statistics.count("bypasses", reason)
        self.reasons.append(f"bypass:{reason}")

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

    def tell(self, state: str = "", detail: str = "") -> None:
        """Say once, to who watches, what has become of the graph."""
        if self.told or not events.listening():
            return
        self.told = True
        if not state:
            state, detail = _STATES.get(self.how, ("ready", self.how))
        events.state(self.label, state, detail, stage=self.stage)

    def record(self) -> None:
        statistics.record_graph(
            {
                "label": self.label,
                "key": self.key,
                "how": self.how,
                "level": self.level,
                "stage": self.stage,
                "reasons": self.reasons,
                "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
            }
        )
