"""The backend: ``torch.compile(model, backend="fxpool")``.

Called by Dynamo for each graph. Looks the graph up, has it compiled on a miss, and steps down where
a graph can't take the direct way: from the graph as Dynamo made it, to the graphs AOTAutograd makes
of it, to an ordinary compile in this process. Each step is counted under a reason; with ``strict``
it is an error instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fxpool import notices, statistics
from fxpool.errors import (
    NoCompilerError,
    UnsupportedTorchError,
)
from fxpool.lowering import options as call_options
from fxpool.torch_compat import versions
from fxpool.watch import configured, events

# For all modules that have it: what its handlers raise fails no graph.
log = notices.logger("fxpool.lowering")

_numbers = itertools.count()

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
    wanted: call_options.Options
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


def fxpool_backend(
    gm: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile one Dynamo graph; returns what Dynamo calls in its place.

    `mode` and `options` are those of ``torch.compile``; see `fxpool.lowering.options`.

    Raises:
        UnsupportedTorchError: torch, Python or the platform is outside the supported range.
        ConfigurationError: an unknown option or mode.
        NoCompilerError: there is no C++ compiler.
    """
    refusal = versions.current_refusal()
    if refusal is not None:
        raise UnsupportedTorchError(refusal, remedy='use backend="inductor", or a version of torch in that range')
    # Imported late: an unsupported torch may not have the names these need.
    from fxpool.lowering import fallback, runtime
    from fxpool.torch_compat.operators import inductor_registrations

    inductor_registrations.watch()

    wanted = call_options.parse(mode, options)
    if wanted.mode != "subprocess":
        runtime.end_start_ahead()
    configured.attach()
    attempt = Attempt(_label(), wanted)
    try:
        with attempt.timed("total"), fallback.options_in_force(wanted):
            return fallback.descend(gm, example_inputs, attempt)
    finally:
        attempt.record()
        if attempt.how != "async":  # its thread tells
            attempt.tell()


def _label() -> str:
    from fxpool.torch_compat.dynamo import tracing

    number = next(_numbers)
    compile_id = tracing.compile_label()
    return f"graph {number} [{compile_id}]" if compile_id else f"graph {number}"


#: Errors that say the same wherever the graph is compiled: no step down helps.
FINAL = (NoCompilerError,)

__all__ = ["FINAL", "Attempt", "fxpool_backend"]
