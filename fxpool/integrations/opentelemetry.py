"""OpenTelemetry spans of compiles: one for each graph, and one below it for each phase. Needs the extra `otel`.

    fxpool/graph              from Dynamo's call to code that is ready; its attributes say how the graph got its code
    ├── fxpool/capture
    ├── fxpool/lookup
    ├── fxpool/compile        this process waits for the worker
    ├── fxpool/queued         the job waits for a worker
    ├── fxpool/worker         and its phases: fxpool/lowering, fxpool/kernels, ...
    └── fxpool/load

A graph's spans are made when its last state is known, with the times at which everything happened. Its parent is the
span that was current in the program when the graph came; stages and a backward that are compiled later, in threads
without a current span, have the same parent. Parts of a graph are below it.

opentelemetry is imported inside functions: events are collected without it, and only who makes `CompileSpans` needs it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fxpool import forks
from fxpool.errors import MissingExtraError
from fxpool.version import __version__
from fxpool.watch import events
from fxpool.watch.events import Span, State

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context

__all__ = ["CompileSpans"]

_LAST = ("ready", "eager", "failed")
# Graphs whose parent is remembered for later stages.
_REMEMBERED = 1000


@dataclass
class _Graph:
    """A graph under way. `begin` and `parts` are of the whole graph, including parts of it that are over."""

    context: Context
    begin: float
    states: list[State] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    parts: list[_Graph] = field(default_factory=list)


class CompileSpans:
    """Makes spans of all graphs from now on, until `close` or the end of the ``with`` block.

    `tracer_provider` is OpenTelemetry's global one by default. Where spans are not recorded (without an SDK, or in a
    trace that is not sampled) a graph costs one call.

    Raises:
        errors.MissingExtraError: opentelemetry-api is not installed.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MissingExtraError("spans of compiles", "opentelemetry-api", "otel") from error
        self._tracer = trace.get_tracer("fxpool", __version__, tracer_provider)
        self._lock = forks.lock(self, "_lock")
        self._graphs: dict[str, _Graph] = {}
        self._contexts: OrderedDict[str, Context] = OrderedDict()
        events.listen(self)

    def __enter__(self) -> CompileSpans:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Make no more spans. Graphs that are not ready yet get none. Idempotent."""
        events.unlisten(self)

    def on_state(self, event: State) -> None:
        with self._lock:
            graph = self._graph(event.graph, event.at)
            graph.states.append(event)
            if event.state not in _LAST:
                return
            del self._graphs[event.graph]
            if (whole := self._whole(event.graph)) is not None:
                whole.parts.append(graph)
                return
        self._make(graph, graph.context)

    def on_span(self, event: Span) -> None:
        label = event.facts.get("graph")
        if not isinstance(label, str):
            return
        with self._lock:
            if event.name != label or event.role:
                self._graph(label, event.begin).spans.append(event)
            elif label in self._graphs or label not in self._contexts:  # the call as a whole, if not reported before
                self._graph(label, event.begin)

    def _graph(self, label: str, begin: float) -> _Graph:
        graph = self._graphs.get(label)
        if graph is None:
            graph = self._graphs[label] = _Graph(self._context(label), begin)
        graph.begin = min(graph.begin, begin)
        return graph

    def _whole(self, label: str) -> _Graph | None:
        """Return the graph under way that a part is of: for ``graph 3 [1/0] forward`` that is ``graph 3 [1/0]``."""
        return next((self._graphs[name] for name in _wholes(label) if name in self._graphs), None)

    def _context(self, label: str) -> Context:
        """Return the context of a graph's parent, and remember it for what comes of the graph later."""
        from opentelemetry import context, trace

        current = context.get_current()
        for name in (label, *_wholes(label)):
            if name in self._contexts:
                if name == label or not trace.get_current_span(current).get_span_context().is_valid:
                    current = self._contexts[name]
                break
        self._contexts[label] = current
        if len(self._contexts) > _REMEMBERED:
            self._contexts.popitem(last=False)
        return current

    def _make(self, graph: _Graph, context: Context) -> None:
        from opentelemetry import trace

        since_epoch = time.time_ns() - time.monotonic_ns()

        def clock(at: float) -> int:
            return since_epoch + int(at * 1e9)

        last = graph.states[-1]
        span = self._tracer.start_span("fxpool/graph", context, start_time=clock(graph.begin))
        if not span.is_recording():
            return
        for name, value in (("graph", last.graph), ("state", last.state), ("stage", last.stage), *last.facts.items()):
            if isinstance(value, str | int | tuple):
                span.set_attribute(f"fxpool.{name}", value)
        for state in graph.states:
            span.add_event(state.state, {"fxpool.detail": state.detail}, clock(state.at))
        if last.state == "failed":
            span.set_status(trace.StatusCode.ERROR, last.detail)
        below = trace.set_span_in_context(span, context)
        for part in graph.parts:
            self._make(part, below)
        for event in graph.spans:
            facts: dict[str, str | int] = {
                "fxpool.graph": last.graph,
                "process.pid": event.pid,
                "thread.id": event.thread,
            }
            child = self._tracer.start_span(
                _name(event, last.graph), below, attributes=facts, start_time=clock(event.begin)
            )
            child.end(clock(event.end))
        span.end(clock(last.at))


def _wholes(label: str) -> list[str]:
    """Return the labels that `label` begins with, the longest first."""
    words = label.split(" ")
    return [" ".join(words[:length]) for length in range(len(words) - 1, 0, -1)]


def _name(event: Span, label: str) -> str:
    if event.overlapping:
        return "fxpool/queued"
    return "fxpool/worker" if event.name == label else f"fxpool/{event.name}"
