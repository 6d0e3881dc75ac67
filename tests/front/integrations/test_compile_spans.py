"""Spans of compiles, by OpenTelemetry's own SDK, from the events of graphs. Real compiles: test_reports_of_compiles."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fxpool.errors import MissingExtraError
from fxpool.integrations.opentelemetry import CompileSpans
from fxpool.watch import events
from fxpool.watch.events import Span

GRAPH = "graph 3 [1/0]"


def compiled(graph: str = GRAPH, *, outcome: str = "worker", stage: int = 0, **facts: object) -> None:
    """The events of one graph, as a compile by a worker has them."""
    now = time.monotonic()
    events.span("capture", now - 9, now - 8, graph=graph)
    events.state(graph, "queued", stage=stage, at=now - 7)
    events.tell(Span(graph, now - 7, now - 6, 70, 70, "fxpool server: queue", True, {"graph": graph}))
    events.state(graph, "compiling", "in worker 71", stage=stage, at=now - 6)
    events.tell(Span("lowering", now - 6, now - 4, 71, 71, "fxpool worker", facts={"graph": graph}))
    events.tell(Span(graph, now - 6, now - 3, 71, 71, "fxpool worker", facts={"graph": graph}))
    events.span("compile", now - 7, now - 2, graph=graph)
    events.span(graph, now - 10, now, graph=graph)
    events.state(graph, "ready", "compiled", stage=stage, at=now, facts={"outcome": outcome, **facts})


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match="opentelemetry-api") as raised:
        CompileSpans()
    assert raised.value.remedy == "pip install 'fxpool[otel]'" and not events.listening()


def test_nothing_of_other_libraries_is_imported_before_it_is_used() -> None:
    program = (
        "import sys, fxpool, fxpool.integrations, fxpool.integrations.training, fxpool.integrations.opentelemetry;"
        "print({'torch', 'transformers', 'lightning', 'opentelemetry'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


class Recorded:
    """A provider with an exporter in memory."""

    def __init__(self, **arguments: Any) -> None:
        trace = pytest.importorskip("opentelemetry.sdk.trace")
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        self.provider = trace.TracerProvider(shutdown_on_exit=False, **arguments)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("a program")

    @property
    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def graphs(self) -> list[Any]:
        return [span for span in self.spans if span.name == "fxpool/graph"]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    with CompileSpans(made.provider):
        yield made
    assert not events.listening()


def seconds(span: Any) -> float:
    return float(span.end_time - span.start_time) / 1e9


def test_a_graph_has_a_span_with_its_phases_below_it(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("step"):
        compiled(level="aot", key="ab12", reasons=("fx:custom_pass",))
    (graph,), (step,) = recorded.graphs(), [span for span in recorded.spans if span.name == "step"]
    assert graph.parent.span_id == step.context.span_id and graph.context.trace_id == step.context.trace_id
    assert dict(graph.attributes) == {
        "fxpool.graph": GRAPH, "fxpool.state": "ready", "fxpool.stage": 0, "fxpool.outcome": "worker",
        "fxpool.level": "aot", "fxpool.key": "ab12", "fxpool.reasons": ("fx:custom_pass",),
    }  # fmt: skip
    assert seconds(graph) == pytest.approx(10, abs=0.01)
    assert abs(graph.end_time / 1e9 - time.time()) < 60
    below = [span for span in recorded.spans if span.parent and span.parent.span_id == graph.context.span_id]
    assert {span.name: round(seconds(span), 3) for span in below} == {
        "fxpool/capture": 1, "fxpool/queued": 1, "fxpool/worker": 3, "fxpool/lowering": 2, "fxpool/compile": 5,
    }  # fmt: skip
    (lowering,) = [span for span in below if span.name == "fxpool/lowering"]
    assert (lowering.attributes["process.pid"], lowering.attributes["fxpool.graph"]) == (71, GRAPH)
    told = [(event.name, event.attributes["fxpool.detail"]) for event in graph.events]
    assert told == [("queued", ""), ("compiling", "in worker 71"), ("ready", "compiled")]
    assert [round((event.timestamp - graph.start_time) / 1e9, 2) for event in graph.events] == [3, 4, 10]


def test_parts_are_below_their_graph_and_later_ones_below_its_parent(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("step") as step:
        now = time.monotonic()
        events.span("capture", now - 20, now - 19, graph=GRAPH)
        compiled(f"{GRAPH} forward")
        events.state(GRAPH, "ready", "in parts", facts={"outcome": "parts", "reasons": ("autograd_function",)})
    thread = threading.Thread(target=compiled, args=(f"{GRAPH} backward",))  # autograd has threads without a context
    thread.start()
    thread.join()
    spans = {span.attributes["fxpool.graph"]: span for span in recorded.graphs()}
    whole = spans[GRAPH]
    assert spans[f"{GRAPH} forward"].parent.span_id == whole.context.span_id
    assert whole.parent.span_id == spans[f"{GRAPH} backward"].parent.span_id == step.get_span_context().span_id
    assert whole.start_time <= spans[f"{GRAPH} forward"].start_time and whole.attributes["fxpool.outcome"] == "parts"


def test_a_later_stage_has_a_span_with_the_same_parent(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("step"):
        now = time.monotonic()
        events.span("capture", now - 2, now - 1, graph=GRAPH)
        events.state(GRAPH, "ready", "from the cache", facts={"outcome": "hit"})
        events.span(GRAPH, now - 2, now, graph=GRAPH)  # the call ends after its code was in use
    thread = threading.Thread(target=compiled, kwargs={"stage": 1})
    thread.start()
    thread.join()
    first, second = recorded.graphs()
    assert [span.attributes["fxpool.stage"] for span in (first, second)] == [0, 1]
    assert first.parent.span_id == second.parent.span_id and len(recorded.spans) == 1 + 2 + 6
    assert seconds(second) == pytest.approx(10, abs=0.01)


def test_a_failure_is_an_error_and_a_root_without_a_current_span(recorded: Recorded) -> None:
    events.state(GRAPH, "failed", "WorkerDiedError", facts={"outcome": "eager", "key": None})
    (graph,) = recorded.graphs()
    assert (graph.status.status_code.name, graph.status.description) == ("ERROR", "WorkerDiedError")
    assert graph.parent is None and "fxpool.key" not in graph.attributes


def test_a_graph_that_no_trace_records_has_no_further_spans() -> None:
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    asked = []

    class Off(sampling.StaticSampler):  # type: ignore[misc, name-defined, unused-ignore]
        def should_sample(self, context: Any, trace_id: int, name: str, *others: Any, **named: Any) -> Any:
            asked.append(name)
            return super().should_sample(context, trace_id, name, *others, **named)

    recorded = Recorded(sampler=Off(sampling.Decision.DROP))
    with CompileSpans(recorded.provider):
        compiled()
    assert asked == ["fxpool/graph"] and recorded.spans == []


def test_graphs_are_forgotten(recorded: Recorded) -> None:
    with CompileSpans(recorded.provider) as spans:
        for number in range(1100):
            events.state(f"graph {number}", "ready")
        assert (len(spans._graphs), len(spans._contexts)) == (0, 1000)
    before = len(recorded.spans)
    spans.close()
    compiled()
    assert len(recorded.spans) == before + 6, "only the other still makes spans"
