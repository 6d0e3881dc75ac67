"""Children end at their time limit and with their run, with all they started; graphs are counted without fxpool."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest
from sources import ROOT

from fxpool.bench.witness import LoweringCounter, since

from .children import ChildError, Children
from .loader import Loader
from .places import with_tests

# Starts a process that would outlive it, and says which.
_PARENT = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); "


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_child_is_killed_at_its_limit_with_all_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PARENT + "import time; time.sleep(600)"]
    done = Children().run(command, os.environ, 3.0, keep=tmp_path)
    assert done.status is None
    end = time.monotonic() + 30
    while _is_running(int(done.output)) and time.monotonic() < end:  # killed, but only its parent is waited for
        time.sleep(0.01)
    assert not _is_running(int(done.output))
    assert (tmp_path / "output").read_text() == done.output


def test_status_and_both_streams_are_returned() -> None:
    program = "import sys; print('to output'); print('to errors', file=sys.stderr); sys.exit(3)"
    done = Children().run([sys.executable, "-c", program], os.environ, 60.0)
    assert (done.status, done.output, done.errors) == (3, "to output\n", "to errors\n")


def test_the_result_is_the_last_line() -> None:
    assert Children().result(["-c", "print('noise'); print('{\"a\": 1}')"], os.environ, "it") == {"a": 1}


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import sys; print('said', file=sys.stderr); sys.exit(3)", "it: the process exited with status 3"),
        ("import os; print('said', flush=True); os.kill(os.getpid(), 9)", "it: the process was killed by SIGKILL"),
        ("print('said')", "it: the process printed no result"),
        ("import time; print('said', flush=True); time.sleep(600)", "it: the process was killed after 2 s"),
    ],
)
def test_a_failed_child_is_reported_with_its_last_output(code: str, how: str) -> None:
    with pytest.raises(ChildError) as caught:
        Children().result(["-c", code], os.environ, "it", 2.0 if "600" in code else 60.0)
    assert caught.value.message == how and "said" in caught.value.output


@pytest.mark.slow
def test_a_loader_forks_for_each_program(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import json, os, sys, time\nfrom harness.loader import serve\n"
        "def main(arguments):\n"
        "    if arguments == ['fail']: print('said', flush=True); sys.exit(3)\n"
        f"    if arguments == ['hang']: open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)\n"
        "    print(json.dumps({'pid': os.getpid(), 'variable': os.environ['VARIABLE']}))\n"
        "if __name__ == '__main__': serve(main)\n"
    )
    environment = {**os.environ, "PYTHONPATH": with_tests(os.pathsep.join([str(ROOT), str(tmp_path)]))}
    with Loader("hanging", environment) as loader:
        first, second = (loader.run(["say"], {**environment, "VARIABLE": value}, "it") for value in "12")
        assert first["pid"] != second["pid"]
        assert (first["variable"], second["variable"]) == ("1", "2")
        with pytest.raises(ChildError, match="exited with status 3") as caught:
            loader.run(["fail"], environment, "it")
        assert "said" in caught.value.output
        with pytest.raises(ChildError, match="was killed after 3 s"):
            loader.run(["hang"], environment, "it", limit=3.0)
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
        assert loader.run(["say"], {**environment, "VARIABLE": "3"}, "it")["variable"] == "3"


def test_children_that_are_left_end_with_the_run() -> None:
    children = Children()
    ended: list[object] = []

    def work(number: int) -> None:
        if number == 0:
            while not children._running:
                time.sleep(0.01)
            raise ValueError("the first item")
        try:
            children.run([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, 600.0)
        except CancelledError as error:
            ended.append(error)

    with pytest.raises(ValueError, match="the first item"):
        list(children.each(work, range(2), 2))
    assert len(ended) == 1
    with pytest.raises(CancelledError):
        children.run([sys.executable, "-c", ""], os.environ, 60.0)


def test_lowerings_are_counted_in_every_thread_without_importing_their_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lowers.py").write_text("class GraphLowering:\n    def __init__(self, x): self.x = x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("fxpool.bench.witness._GRAPH", "lowers")
    counter = LoweringCounter()
    counter.install()
    assert "lowers" not in sys.modules and counter.count == 0
    lowers = importlib.import_module("lowers")
    assert counter not in sys.meta_path
    later = LoweringCounter()
    later.install()
    monkeypatch.delitem(sys.modules, "lowers")
    threads = [threading.Thread(target=lowers.GraphLowering, args=(3,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.count == later.count == 4
    counter.reset()
    assert lowers.GraphLowering(5).x == 5
    assert (counter.count, later.count) == (1, 5)


def test_only_what_was_counted_since_is_left() -> None:
    before = {"hits": 1, "misses": 2, "compiles": {"worker": 1, "in_process": 0}}
    now = {"hits": 1, "misses": 3, "compiles": {"worker": 3, "in_process": 0}, "fallbacks": {"function": 1}}
    assert since(before, now) == {"misses": 1, "compiles": {"worker": 2}, "fallbacks": {"function": 1}}
