"""What is shown of graphs, on terminals and in logs, and that nothing of the program's is touched by it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from terminal import Screen, shown

import fxpool
from fxpool.watch import events
from fxpool.watch.display import Lines, Summary, Terminal, display
from fxpool.watch.events import Span, State


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


# --- logs ------------------------------------------------------------------------------------------


def test_a_log_has_a_line_per_event(tmp_path: Path) -> None:
    shown = display(tmp_path / "log")
    assert isinstance(shown, Lines)
    story(shown)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [re.sub(r"^-?\d+\.\d+ ", "", line) for line in lines] == [
        "graph 0: queued",
        "graph 1: ready, from the cache",
        "graph 0: compiling in worker 4711: lowering",
        "graph 2: failed: WorkerDiedError",
        "graph 0: ready, compiled by a worker",
        "graph 0: stage 2, queued",
    ]
    shown.close()
    story(shown)
    shown.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 6


def test_a_released_log_is_opened_again_by_the_next_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fxpool.progress("log"):
        events.state("g", "queued")
        events.release()
        assert not any(str(tmp_path) in os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors())
        monkeypatch.chdir("/")
        events.state("g", "ready")
    events.release()
    assert not any(str(tmp_path) in os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors())
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def _descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


def test_a_released_terminal_starts_a_thread_at_the_next_event() -> None:
    file = io.StringIO()
    terminal = Terminal(file)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "fxpool-progress"]

    terminal.release()
    for state in ("ready", "failed"):
        terminal.on_state(State(time.monotonic(), "g", state))
        assert threads()
        terminal.release()
        assert not threads() and f"g: {state}" in file.getvalue()
    terminal.close()
    terminal.release()
    terminal.on_state(State(time.monotonic(), "h", "ready"))
    assert not threads() and "h:" not in file.getvalue()


def test_what_is_no_terminal_gets_lines() -> None:
    file = io.StringIO()
    with fxpool.progress(file):
        events.state("g", "queued")
    events.state("g", "ready")
    assert file.getvalue().endswith("g: queued\n") and "ready" not in file.getvalue()


def test_standard_error_is_what_it_is_at_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    other = io.StringIO()
    with fxpool.progress():
        events.state("g", "queued")
        with contextlib.redirect_stderr(other):
            events.state("g", "compiling")
        events.state("g", "ready")
    own = capsys.readouterr().err.splitlines()
    assert [re.sub(r"[\d.]+ ", "", line) for line in own] == ["fxpool: g: queued", "fxpool: g: ready"]
    assert "g: compiling" in other.getvalue()


def _in_order(file: Any) -> None:
    file.write("before\n")
    events.state("g", "queued")
    file.write("after\n")


def test_lines_come_between_what_a_program_writes(tmp_path: Path) -> None:
    with open(tmp_path / "own", "w") as file, fxpool.progress(file):
        _in_order(file)
    found = (tmp_path / "own").read_text().splitlines()
    assert [found[0], found[1].split(" ", 1)[1], found[2]] == ["before", "g: queued", "after"]


def test_a_pipe_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError) as caught:
        fxpool.progress(tmp_path / "pipe")
    assert caught.value.errno == errno.ENXIO
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with fxpool.progress(tmp_path / "pipe"):
            for _ in range(3000):  # a pipe holds 64 KiB
                events.state("a graph", "compiling", "in worker 4711: lowering")
            assert events.listening()
    finally:
        os.close(reader)


def _full(tmp_path: Path) -> Any:
    return open("/dev/full", "w")


def _broken(tmp_path: Path) -> Any:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def _closed(tmp_path: Path) -> Any:
    with open(tmp_path / "closed", "w") as file:
        return file


@pytest.mark.parametrize("make", [_full, _broken, _closed])
def test_what_can_not_be_written_is_said_once_and_left_behind_nowhere(
    make: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = make(tmp_path)
    with fxpool.progress(file):
        for _ in range(3):
            events.state("g", "queued")
    file.close()  # nothing of ours is in its buffer: that would raise
    assert len(caplog.records) == 1 and "stopped" in caplog.text


# --- what is told on a terminal, and when ------------------------------------------------------------


def test_a_graph_that_takes_long_is_told_of_each_time_it_has_taken_twice_as_long() -> None:
    summary = Summary()
    summary.add(State(100.0, "g", "queued"))
    assert summary.due == 102.0
    assert summary.lines(101.9) == []
    assert summary.lines(102.0) == ["g: queued, 2 s so far"]
    assert (summary.lines(103.0), summary.due) == ([], 104.0)
    summary.add(State(103.5, "g", "compiling", "in worker 7: lowering"))
    assert summary.lines(121.0) == ["g: compiling in worker 7: lowering, 21 s so far"]
    assert summary.due == 132.0
    summary.add(State(130.5, "g", "ready", "compiled by a worker"))
    assert summary.due is None
    assert summary.lines(131.0) == ["g: ready, compiled by a worker after 30.5 s"]
    assert summary.lines(200.0, last=True) == []


def test_much_of_the_same_is_one_line() -> None:
    summary = Summary()
    for number in range(20):
        summary.add(State(1.0, f"g{number}", "ready", "from the cache"))
    summary.add(State(1.0, "h", "failed", "WorkerDiedError"))
    assert summary.lines(1.0) == ["20 graphs: ready, from the cache", "h: failed: WorkerDiedError"]
    for number in range(5):
        summary.add(State(2.0, f"i{number}", "queued" if number else "compiling"))
    assert summary.lines(6.0) == ["5 graphs: 4 queued, 1 compiling, the first for 4 s so far"]
    assert summary.lines(6.0, last=True) == ["4 queued, 1 compiling, 20 ready, 1 failed"]


# --- terminals ---------------------------------------------------------------------------------------

BESIDE = """
import os, sys, time
from fxpool.watch import configured_watchers, events
configured_watchers.attach()
events.state("graph 9", "compiling", "in worker 4711")
for step in range(8):
    events.state(f"graph {step}", "compiling")
    print(f"loss of step {step}", file=(sys.stdout, sys.stderr)[step % 2], flush=True)
    time.sleep(0.3)
    os.write(1, b"written by C\\n")
    events.state(f"graph {step}", "ready", "compiled by a worker")
events.state("graph 9", "ready", "compiled by a worker")
"""


@pytest.mark.slow
def test_lines_of_the_program_stay_whole() -> None:
    lines = shown(["-c", BESIDE], {"FXPOOL_PROGRESS": "1"}).lines
    ours = [line for line in lines if line.startswith("fxpool: ")]
    assert [line for line in lines if line and line not in ours] == [
        line for step in range(8) for line in (f"loss of step {step}", "written by C")
    ]
    ready = [
        line for line in ours if re.fullmatch(r"fxpool: graph \d: ready, compiled by a worker after [\d.]+ s", line)
    ]
    assert len(ready) == 9
    assert any(re.fullmatch(r"fxpool: graph 9: compiling in worker 4711, \d s so far", line) for line in ours)
    assert ours[-1] == "fxpool: 9 ready"


BARS = """
import time, tqdm
from fxpool.watch import configured_watchers, events
configured_watchers.attach()
for outer in tqdm.tqdm(range(3), desc="outer", ncols=60, mininterval=0):
    for inner in tqdm.tqdm(range(4), desc="inner", ncols=60, mininterval=0, leave=False):
        events.state(f"graph {outer}{inner}", "compiling")
        time.sleep(0.15)
        events.state(f"graph {outer}{inner}", "ready", "compiled by a worker")
"""


@pytest.mark.slow
def test_bars_step_aside() -> None:
    lines = [line for line in shown(["-c", BARS], {"FXPOOL_PROGRESS": "1"}).lines if line]
    (bar,) = [line for line in lines if not line.startswith("fxpool: ")]
    assert bar.startswith("outer: 100%|") and "3/3" in bar
    assert len([line for line in lines if re.search(r"ready, compiled by a worker after [\d.]+ s$", line)]) == 12


RICH = """
import time
from fxpool.watch import configured_watchers, events
from rich.progress import Progress
configured_watchers.attach()
with Progress() as progress:
    task = progress.add_task("steps", total=6)
    for step in range(6):
        events.state(f"graph {step}", "compiling")
        time.sleep(0.15)
        events.state(f"graph {step}", "ready", "compiled by a worker")
        progress.advance(task)
    time.sleep(0.5)
"""


@pytest.mark.slow
def test_a_live_display_of_the_programs_has_lines_above_it() -> None:
    lines = [line for line in shown(["-c", RICH], {"FXPOOL_PROGRESS": "1"}, columns=100).lines if line]
    assert len([line for line in lines if re.fullmatch(r"fxpool: graph \d: ready, compiled by .* s", line)]) == 6
    assert [line for line in lines if line.startswith("steps") and "100%" in line] == [lines[-2]]
    assert lines[-1] == "fxpool: 6 ready"


def test_the_terminal_of_these_tests_sees_what_is_erased() -> None:
    screen = Screen(10)
    screen.feed("one\r\ntwo\r\n\x1b[1A\x1b[2Kthree\r\nabcdefghijkl")
    assert screen.lines == ["one", "three", "abcdefghij", "kl"]


def _drained(ours: int, read: bytearray) -> threading.Thread:
    def drain() -> None:
        try:
            while data := os.read(ours, 4096):
                read.extend(data)
        except OSError:
            pass  # the other end is closed

    reader = threading.Thread(target=drain)
    reader.start()
    return reader


def test_what_is_left_is_told_at_the_end() -> None:
    ours, theirs = pty.openpty()
    read = bytearray()
    reader = _drained(ours, read)
    with os.fdopen(theirs, "w") as terminal:
        shown = display(terminal)
        assert isinstance(shown, Terminal)
        story(shown)
        shown.on_state(State(time.monotonic(), "graph 0", "ready", "", 1))
        shown.close()
        shown.close()
    reader.join()
    os.close(ours)
    said = read.decode().splitlines()
    assert said[:2] == ["fxpool: graph 1: ready, from the cache", "fxpool: graph 2: failed: WorkerDiedError"]
    assert said[-1] == "fxpool: 2 ready, 1 failed"
    assert "\x1b" not in read.decode()
    assert not [thread for thread in threading.enumerate() if thread.name == "fxpool-progress"]


FORK = """
import os, time
import fxpool
from fxpool.watch import events
with fxpool.progress():
    events.state("of the parent", "ready")
    if not (pid := os.fork()):
        events.state("of the child", "ready")
        fxpool.progress().close()
        time.sleep(1)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_fork_tells_what_is_its_own() -> None:
    lines = [line for line in shown(["-W", "ignore", "-c", FORK], {}).lines if line]
    assert sorted(lines) == ["fxpool: of the child: ready", "fxpool: of the parent: ready"]


def test_a_terminal_that_is_gone_ends_the_display_and_nothing_else() -> None:
    """As where a shell window is closed: the program goes on under nohup."""
    program = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from fxpool.watch import configured_watchers, events
configured_watchers.attach()
print("begun", flush=True)
sys.stdin.read()
for step in range(3):
    events.state(f"g{step}", "ready")
    time.sleep(0.3)
print("ended", flush=True)
"""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "FXPOOL_PROGRESS": "1"},
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    os.close(theirs)
    os.close(ours)
    assert process.communicate(timeout=60)[0] == "ended\n"
    assert process.returncode == 0
