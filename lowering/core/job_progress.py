"""Reports the progress of a job: the state of its graph, and the time that server and workers spent on it."""

from __future__ import annotations

from fxpool.pool import PoolClient
from fxpool.pool.wire import messages as m
from fxpool.watch import events
from fxpool.watch.events import Span

__all__ = ["JobProgress"]


class JobProgress:
    """A callback for the events of one job. Runs in the connection's thread."""

    def __init__(self, label: str, stage: int, pool: PoolClient) -> None:
        self._label = label
        self._stage = stage
        self._pool = pool
        self._queued: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self._phases: dict[int, tuple[str, float]] = {}
        self._away = 0.0

    def __call__(self, event: m.JobEvent) -> None:
        if event.kind == "queued":
            self._queued[event.part] = event.at
            self._say(event, "queued", "")
        elif event.kind == "begun":
            self._waited(event)
            self._begun[event.part] = event.at
            self._say(event, "compiling", f"in worker {event.worker}")
        elif event.kind == "phase":
            self._end_phase(event)
            self._phases[event.part] = (event.name, event.at)
            self._say(event, "compiling", f"in worker {event.worker}: {event.name}")
        elif event.kind == "away":
            self._away = event.at
            self._say(event, "compiling", "by the farm")
        elif event.kind == "returned":
            self._returned(event)
        else:
            self._end_phase(event)
            begun = self._begun.pop(event.part, None)
            if begun is not None:
                self._span(event, event.label, begun, {"how": event.name} if event.name else {})

    def _say(self, event: m.JobEvent, state: str, detail: str) -> None:
        if event.part == 0:
            events.state(self._label, state, detail, stage=self._stage, at=event.at)

    def _waited(self, event: m.JobEvent) -> None:
        since, server = self._queued.pop(event.part, None), self._pool.server_pid
        if since is not None and server is not None:
            facts = {"graph": self._label}
            events.tell(Span(event.label, since, event.at, server, server, "fxpool server: queue", True, facts))

    def _returned(self, event: m.JobEvent) -> None:
        server = self._pool.server_pid
        if server is not None:
            facts = {"graph": self._label, "stage": self._stage, "machine": event.name}
            events.tell(Span(event.label, self._away, event.at, server, server, "fxpool server: farm", True, facts))

    def _end_phase(self, event: m.JobEvent) -> None:
        name, since = self._phases.pop(event.part, ("", 0.0))
        if name:
            self._span(event, name, since, {})

    def _span(self, event: m.JobEvent, name: str, since: float, facts: dict[str, object]) -> None:
        if event.worker is not None:
            facts = {"graph": self._label, "stage": self._stage, **facts}
            events.tell(Span(name, since, event.at, event.worker, event.worker, "fxpool worker", facts=facts))
