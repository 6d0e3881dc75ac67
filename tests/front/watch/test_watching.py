"""Who watches: the trace file, the settings, and that nothing is made of an event nobody hears.

The display is in `test_progress_display`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fxpool
from fxpool.watch import configured_watchers, events
from fxpool.watch import display as display_module
from fxpool.watch.events import Span, State
from fxpool.watch.trace import TraceFile


@pytest.fixture(autouse=True)
def _nobody_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    fxpool.configure(progress=None, trace=None)
    configured_watchers.attach()
    assert not events.listening()


class Heard:
    def __init__(self) -> None:
        self.states: list[State] = []
        self.spans: list[Span] = []
        self.on_state, self.on_span = self.states.append, self.spans.append


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_listeners_are_told_and_let_go() -> None:
    heard = Heard()
    events.state("g", "queued")
    events.listen(heard)
    before = time.monotonic()
    events.state("g", "compiling", "in worker 3", stage=1)
    events.span("load", 1.0, 2.5, graph="g")
    events.unlisten(heard)
    events.unlisten(heard)
    events.state("g", "ready")
    (state,), (span,) = heard.states, heard.spans
    assert (state.graph, state.state, state.detail, state.stage) == ("g", "compiling", "in worker 3", 1)
    assert before <= state.at <= time.monotonic()
    assert (span.name, span.begin, span.end, span.pid) == ("load", 1.0, 2.5, os.getpid())
    assert span.thread == threading.get_native_id()


# --- a trace ---------------------------------------------------------------------------------------


def test_a_trace_is_valid_json_after_every_event(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trace = TraceFile(path)
    trace.on_span(Span("lowering", 10.0, 12.5, 7, 8, "fxpool worker", facts={"graph": "g"}))
    assert rows(path)[-1] == {
        "ph": "X", "name": "lowering", "ts": 10e6, "dur": 2.5e6, "pid": 7, "tid": 8, "args": {"graph": "g"},
    }  # fmt: skip
    trace.on_span(Span("g", 1.0, 5.0, 9, 9, "fxpool server: queue", True))
    trace.on_span(Span("h", 2.0, 3.0, 9, 9, "fxpool server: queue", True))
    trace.on_state(State(4.0, "g", "ready", "from the cache"))
    found = rows(path)
    names = {row["pid"]: row["args"]["name"] for row in found if row["ph"] == "M"}
    assert (names[7], names[9]) == ("fxpool worker", "fxpool server: queue") and os.getpid() in names
    waits = [row for row in found if row["ph"] in "be"]
    assert [(row["ph"], row["name"], row["ts"]) for row in waits] == [
        ("b", "g", 1e6), ("e", "g", 5e6), ("b", "h", 2e6), ("e", "h", 3e6),
    ]  # fmt: skip
    assert len({row["id"] for row in waits}) == 2, "each pair has a number of its own"
    assert found[-1]["ph"] == "i" and found[-1]["args"]["state"] == "ready: from the cache"


def _add_many(path: str, count: int) -> None:
    trace = TraceFile(Path(path))
    for number in range(count):
        trace.on_span(Span(f"{os.getpid()}-{number}", number, number + 1.0, os.getpid(), 1))


def test_processes_and_threads_share_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    spawn = multiprocessing.get_context("fork")
    others = [spawn.Process(target=_add_many, args=(str(path), 50)) for _ in range(4)]
    for process in others:
        process.start()
    trace = TraceFile(path)

    def add(number: int) -> None:
        for i in range(50):
            trace.on_span(Span(f"t{number}-{i}", 0, 1, 1, number))

    own = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in own:
        thread.start()
    while any(process.is_alive() for process in others):
        if path.exists() and path.stat().st_size:
            pass  # readers may look at any time: `rows` would raise, but for the moment of a write
    for thread in own:
        thread.join()
    for process in others:
        process.join()
    names = [row["name"] for row in rows(path) if row["ph"] == "X"]
    assert len(names) == len(set(names)) == 8 * 50


def test_a_run_adds_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for number in range(3):
        TraceFile(path).on_span(Span(str(number), 0, 1, 1, 1))
    assert [row["name"] for row in rows(path) if row["ph"] == "X"] == ["0", "1", "2"]


@pytest.mark.parametrize("content", ["something precious", "[", "[]", '{"traceEvents": []}\n'])
def test_a_file_that_is_no_trace_is_left_alone(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    trace = TraceFile(path)
    for _ in range(3):
        trace.on_span(Span("x", 0, 1, 1, 1))
    assert path.read_text() == content
    assert len(caplog.records) == 1 and "not a trace of fxpool" in caplog.text


def test_a_trace_that_can_not_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = TraceFile(tmp_path / "no" / "such" / "run.json")
    for _ in range(3):
        trace.on_span(Span("x", 0, 1, 1, 1))
    assert len(caplog.records) == 1 and "No such file" in caplog.text


# --- settings --------------------------------------------------------------------------------------


def test_settings_attach_and_detach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_PROGRESS", str(tmp_path / "log"))
    monkeypatch.setenv("FXPOOL_TRACE", str(tmp_path / "run.json"))
    configured_watchers.attach()
    configured_watchers.attach()
    events.state("g", "queued")
    events.span("load", 1.0, 2.0)
    assert (tmp_path / "log").read_text().count("g: queued") == 1
    assert [row["name"] for row in rows(tmp_path / "run.json") if row["ph"] in "Xi"] == ["g queued", "load"]
    monkeypatch.delenv("FXPOOL_PROGRESS")
    configured_watchers.attach()
    events.state("g", "ready")
    assert "ready" not in (tmp_path / "log").read_text()
    assert rows(tmp_path / "run.json")[-1]["name"] == "g ready"
    monkeypatch.delenv("FXPOOL_TRACE")
    configured_watchers.attach()
    assert not events.listening()


def test_a_log_that_can_not_be_opened_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="no-such"):  # who calls for it is told
        fxpool.progress(tmp_path / "no-such" / "log")
    fxpool.configure(progress=str(tmp_path / "no-such" / "log"), trace=str(tmp_path / "run.json"))
    for _ in range(3):
        configured_watchers.attach()
        events.state("g", "queued")
    (record,) = caplog.records
    assert record.getMessage().startswith("fxpool: FXPOOL_PROGRESS: cannot show progress: ")
    assert [row["name"] for row in rows(tmp_path / "run.json") if row["ph"] == "i"] == ["g queued"] * 3


def test_one_that_raises_is_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Heard):
        name = "a display"

        def __init__(self) -> None:
            super().__init__()
            self.on_state = self.on_span = self.refuse

        def refuse(self, event: Any) -> None:
            self.states.append(event)
            raise RuntimeError("not today")

    first, raises, last = Heard(), Raises(), Heard()
    for listener in (first, raises, last):
        events.listen(listener)
    try:
        for _ in range(3):
            events.state("g", "queued")
            events.span("load", 1.0, 2.0)
    finally:
        events.unlisten(first)
        events.unlisten(last)
    assert len(first.states) == len(last.spans) == 3 and len(raises.states) == 1
    assert [record.getMessage() for record in caplog.records] == ["fxpool: a display stopped: not today"]


def test_threads_that_start_at_once_are_all_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_PROGRESS", str(tmp_path / "log"))
    monkeypatch.setenv("FXPOOL_TRACE", str(tmp_path / "run.json"))
    opening = display_module.Lines.__init__

    def slow(self: Any, file: Any) -> None:
        time.sleep(0.2)
        opening(self, file)

    monkeypatch.setattr(display_module.Lines, "__init__", slow)
    together = threading.Barrier(4)

    def first(number: int) -> None:
        together.wait()
        configured_watchers.attach()
        events.state(f"g{number}", "queued")

    threads = [threading.Thread(target=first, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = sorted(line.split(" ", 1)[1] for line in (tmp_path / "log").read_text().splitlines())
    assert said == [f"g{number}: queued" for number in range(4)]
