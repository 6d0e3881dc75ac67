"""A job in the pool as whoever watches sees it: where its graph is, and what server and workers spent their time on."""

from __future__ import annotations

from fxpool.pool import PoolClient
from fxpool.pool import messages as m
from fxpool.watch import events
from fxpool.watch.events import Span

__all__ = ["Following"]


class Following:
    """To be called with each step of a job; one per job. Runs in the connection's thread."""

    def __init__(self, label: str, stage: int, pool: PoolClient) -> None:
        self._label = label
        self._stage = stage
        self._pool = pool
        self._queued: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self._phases: dict[int, tuple[str, float]] = {}

    def __call__(self, step: m.Step) -> None:
        if step.what == "queued":
            self._queued[step.part] = step.at
            self._say(step, "queued", "")
        elif step.what == "begun":
            self._waited(step)
            self._begun[step.part] = step.at
            self._say(step, "compiling", f"in worker {step.worker}")
        elif step.what == "phase":
            self._end_phase(step)
            self._phases[step.part] = (step.name, step.at)
            self._say(step, "compiling", f"in worker {step.worker}: {step.name}")
        else:
            self._end_phase(step)
            begun = self._begun.pop(step.part, None)
            if begun is not None:
                self._span(step, step.label, begun, {"how": step.name} if step.name else {})

    def _say(self, step: m.Step, state: str, detail: str) -> None:
        if step.part == 0:
            events.state(self._label, state, detail, stage=self._stage, at=step.at)

    def _waited(self, step: m.Step) -> None:
        since, server = self._queued.pop(step.part, None), self._pool.server_pid
        if since is not None and server is not None:
            facts = {"graph": self._label}
            events.tell(Span(step.label, since, step.at, server, server, "fxpool server: queue", True, facts))

    def _end_phase(self, step: m.Step) -> None:
        name, since = self._phases.pop(step.part, ("", 0.0))
        if name:
            self._span(step, name, since, {})

    def _span(self, step: m.Step, name: str, since: float, facts: dict[str, object]) -> None:
        if step.worker is not None:
            facts = {"graph": self._label, "stage": self._stage, **facts}
            events.tell(Span(name, since, step.at, step.worker, step.worker, "fxpool worker", facts=facts))
