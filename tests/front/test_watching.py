"""Who watches: the trace file and the display, and that nothing is made of an event nobody hears."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pty
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fxpool
from fxpool import events
from fxpool.display import Lines, Terminal, display
from fxpool.errors import ConfigurationError
from fxpool.events import Span, State
from fxpool.trace import TraceFile


@pytest.fixture(autouse=True)
def _nobody_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    fxpool.configure(progress=None, trace=None)
    events.start()
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
    own = [
        threading.Thread(target=lambda n=n: [trace.on_span(Span(f"t{n}-{i}", 0, 1, 1, n)) for i in range(50)])
        for n in range(4)
    ]
    for thread in own:
        thread.start()
    while any(process.is_alive() for process in others):
        if path.exists() and path.stat().st_size:
            pass  # readers may look at any time: `rows` would raise, but for the moment of a write
    for worker in (*own, *others):
        worker.join()
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
    assert len(caplog.records) == 1 and "no trace of fxpool's" in caplog.text


def test_a_trace_that_can_not_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = TraceFile(tmp_path / "no" / "such" / "run.json")
    for _ in range(3):
        trace.on_span(Span("x", 0, 1, 1, 1))
    assert len(caplog.records) == 1 and "No such file" in caplog.text


# --- the display -----------------------------------------------------------------------------------


def story(listener: Any) -> None:
    now = time.monotonic()
    for graph, state, detail, stage in (
        ("graph 0", "queued", "", 0),
        ("graph 1", "ready", "from the cache", 0),
        ("graph 0", "compiling", "in worker 4711: lowering", 0),
        ("graph 2", "failed", "WorkerDiedError", 0),
        ("graph 0", "ready", "compiled by a worker", 0),
        ("graph 0", "queued", "", 1),
    ):
        listener.on_state(State(now, graph, state, detail, stage))
        listener.on_span(Span("x", 0, 1, 1, 1))


def test_a_log_has_a_line_per_event(tmp_path: Path) -> None:
    shown = display(tmp_path / "log")
    assert isinstance(shown, Lines)
    story(shown)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [re.sub(r"^-?\d+\.\d+ ", "", line) for line in lines] == [
        "graph 0: queued",
        "graph 1: ready from the cache",
        "graph 0: compiling in worker 4711: lowering",
        "graph 2: failed WorkerDiedError",
        "graph 0: ready compiled by a worker",
        "graph 0: stage 2, queued",
    ]
    shown.close()
    story(shown)
    assert len((tmp_path / "log").read_text().splitlines()) == 6


def test_what_is_no_terminal_gets_lines() -> None:
    file = io.StringIO()
    with fxpool.progress(file):
        events.state("g", "queued")
    events.state("g", "ready")
    assert file.getvalue().endswith("g: queued\n") and "ready" not in file.getvalue()


def test_a_terminal_has_a_table_while_something_is_under_way() -> None:
    ours, theirs = pty.openpty()
    read = bytearray()

    def drain() -> None:
        try:
            while data := os.read(ours, 4096):
                read.extend(data)
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(theirs, "w") as terminal:
        shown = display(terminal)
        assert isinstance(shown, Terminal)
        story(shown)
        while b"stage 2" not in read:
            time.sleep(0.01)
        shown.on_state(State(time.monotonic(), "graph 0", "ready", "", 1))
        while b"fxpool: 2 ready, 1 failed" not in read:
            time.sleep(0.01)
        shown.close()
    reader.join()
    os.close(ours)
    text = read.decode()
    assert "graph 1" in text and "from the cache" in text
    assert not [thread for thread in threading.enumerate() if thread.name == "fxpool-progress"]


def test_a_long_list_is_cut() -> None:
    from rich.console import Console

    terminal = Terminal(io.StringIO())
    now = time.monotonic()
    terminal._graphs = {f"graph {n}": State(now, f"graph {n}", "queued") for n in range(20)}
    shown = io.StringIO()
    Console(file=shown, width=100).print(terminal.table())
    assert "fxpool: 20 queued" in shown.getvalue()
    assert "graph 15" in shown.getvalue() and "graph 16" not in shown.getvalue() and "and 4 more" in shown.getvalue()


# --- settings --------------------------------------------------------------------------------------


def test_settings_attach_and_detach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_PROGRESS", str(tmp_path / "log"))
    monkeypatch.setenv("FXPOOL_TRACE", str(tmp_path / "run.json"))
    events.start()
    events.start()
    events.state("g", "queued")
    events.span("load", 1.0, 2.0)
    assert (tmp_path / "log").read_text().count("g: queued") == 1
    assert [row["name"] for row in rows(tmp_path / "run.json") if row["ph"] in "Xi"] == ["g queued", "load"]
    monkeypatch.delenv("FXPOOL_PROGRESS")
    events.start()
    events.state("g", "ready")
    assert "ready" not in (tmp_path / "log").read_text()
    assert rows(tmp_path / "run.json")[-1]["name"] == "g ready"
    monkeypatch.delenv("FXPOOL_TRACE")
    events.start()
    assert not events.listening()


def test_a_log_that_can_not_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such"):
        fxpool.progress(tmp_path / "no-such" / "log")
    fxpool.configure(progress=str(tmp_path / "no-such" / "log"))
    with pytest.raises(ConfigurationError, match="no-such"):
        events.start()
