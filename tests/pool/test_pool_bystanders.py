"""Processes that stand still while others measure, and what ends them when nobody is left to let them go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from pool_place import Place, until

from fxpool.bench.bystanders import Bystanders, signal_tree, tree
from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.client import pausing
from fxpool.pool.host import processes, runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import Channel

_BUSY = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass'], start_new_session=True)\n"
_SPIN = "while True: pass"
_MEASURES = """
import pathlib, sys, time
from fxpool.pool.client import pausing
paused = pausing.pause(pathlib.Path(sys.argv[1]), float(sys.argv[2]), 20.0)
print(paused.workers, flush=True)
time.sleep(60)
"""
_WATCHED = """
import os, signal, subprocess, sys, time
from fxpool.pool.host import processes
from fxpool.bench.guard import Guard
guard = Guard("a-mark")
environment = {**os.environ, processes.MARK: "a-mark"}
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], env=environment, start_new_session=True)
child.send_signal(signal.SIGSTOP)
print(child.pid, flush=True)
time.sleep(60)
"""

_LENDS = """
import pathlib, socket, sys
from fxpool.pool.client import hosts
connection = hosts.connect(pathlib.Path(sys.argv[1]), 10.0, visitor=True)
with socket.socket(socket.AF_UNIX) as other:
    other.connect(sys.argv[2])
    socket.send_fds(other, [b"x"], [connection.fileno()])
connection.close()
while True: pass
"""

Process = subprocess.Popen[str]


@pytest.fixture
def children(place: Place) -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for child in started:
        signal_tree(child.pid, signal.SIGKILL)
        child.communicate()


def start(children: list[Process], place: Place, code: str, *arguments: str) -> Process:
    environment = {**os.environ, **place.environment}
    command = [sys.executable, "-c", code, *arguments]
    children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    return children[-1]


def states(process: Process) -> set[str]:
    return {one.status() for one in tree(process.pid)}


STOPPED = {psutil.STATUS_STOPPED}


def test_they_stand_still_with_all_that_they_started(place: Place, children: list[Process]) -> None:
    busy = start(children, place, _BUSY + _SPIN)
    # A process that is stopped before it has executed its program holds up the one that started it.
    assert until(lambda: any(process.cmdline()[-1] == _SPIN for process in tree(busy.pid)))
    noted: list[tuple[int, bool]] = []
    bystanders = Bystanders(place.runtime, lambda: [busy.pid], lambda pid, stopped: noted.append((pid, stopped)))
    try:
        paused = pausing.pause(place.runtime, 30.0, 20.0)
        assert paused.workers == 1 and until(lambda: states(busy) == STOPPED, 5)
        late = start(children, place, _SPIN)
        bystanders.came(late.pid)
        assert until(lambda: states(late) == STOPPED, 5)
        paused.end()
        assert until(lambda: states(busy) == {psutil.STATUS_RUNNING} == states(late), 10)
        assert noted == [(busy.pid, True), (late.pid, True), *((pid, False) for pid in {busy.pid, late.pid})]
    finally:
        bystanders.end()
    assert not paused.remarks


def test_the_one_that_measures_goes_on(place: Place, children: list[Process]) -> None:
    busy = start(children, place, _SPIN)
    bystanders = Bystanders(place.runtime, lambda: [child.pid for child in children])
    measures = start(children, place, _MEASURES, str(place.runtime), "30")
    try:
        assert measures.stdout is not None and measures.stdout.readline() == "1\n"
        assert until(lambda: states(busy) == STOPPED, 5) and states(measures) != STOPPED
        measures.kill()
        measures.wait()
        assert until(lambda: states(busy) == {psutil.STATUS_RUNNING}, 10)
    finally:
        bystanders.end()


@pytest.mark.parametrize("manner", ["asks", "is spared"])
def test_one_that_is_to_measure_on_another_device_goes_on(place: Place, children: list[Process], manner: str) -> None:
    """Also if it is stopped while it asks: otherwise each would wait for the other."""
    busy = start(children, place, _SPIN)
    bystanders = Bystanders(place.runtime, lambda: [child.pid for child in children])
    try:
        (server,) = place.runtime.glob(f"{runtime_dir.PREFIX}*")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place.mark("mark-s")))
            listener.listen()
            asks = start(children, place, _LENDS, str(server), str(place.mark("mark-s")))
            sender, _ = listener.accept()
            with sender:
                _, (descriptor,), _, _ = socket.recv_fds(sender, 1, 1)
        with socket.socket(fileno=descriptor) as connection:
            paused = pausing.pause(place.runtime, 30.0, 20.0)
            assert paused.workers == 2 and until(lambda: states(busy) == states(asks) == STOPPED, 5)
            if manner == "asks":
                Channel(connection, m.ToClient).send(m.Pause(seconds=50.0))
            else:
                bystanders.spare(asks.pid)
            assert until(lambda: states(asks) == {psutil.STATUS_RUNNING}, 10) and states(busy) == STOPPED
            paused.end()
            if manner == "asks":
                time.sleep(0.2)
                assert states(busy) == STOPPED, "the other one still measures"
        assert until(lambda: states(busy) == {psutil.STATUS_RUNNING} == states(asks), 10)
    finally:
        bystanders.end()


@pytest.mark.parametrize("manner", ["ended", "too long", "its end"])
def test_nothing_stays_stopped(place: Place, children: list[Process], manner: str) -> None:
    busy = start(children, place, _SPIN)
    bystanders = Bystanders(place.runtime, lambda: [busy.pid])
    measures = start(children, place, _MEASURES, str(place.runtime), "0.5" if manner == "too long" else "50")
    assert measures.stdout is not None and measures.stdout.readline() == "1\n"
    if manner == "ended":
        measures.kill()
    elif manner == "its end":
        bystanders.end()
    assert until(lambda: states(busy) == {psutil.STATUS_RUNNING}, 10)
    if manner != "its end":
        bystanders.end()


def test_the_guard_ends_what_a_killed_process_left_stopped(place: Place, children: list[Process]) -> None:
    watched = start(children, place, _WATCHED)
    assert watched.stdout is not None
    left = int(watched.stdout.readline())
    assert psutil.pid_exists(left)
    watched.kill()
    watched.wait()
    assert until(lambda: not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE)
    assert until(lambda: not place.processes())


def test_marks_are_found_and_the_hosts_server_has_none(place: Place) -> None:
    with PoolClient(place.config(host="m", extra={processes.MARK: "b-mark"}, idle_timeout=0.2)) as shared:
        assert shared.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result(timeout=50) == b"x"
        assert not processes.marked("b-mark")
    until(lambda: not place.processes())
    (place.runtime / "host.lock").unlink(missing_ok=True)
    with PoolClient(place.config(extra={processes.MARK: "b-mark"})) as own:
        assert own.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result(timeout=50) == b"x"
        assert processes.marked("b-mark")
    start_ = time.monotonic()
    processes.kill_marked("b-mark")
    assert not processes.marked("b-mark") and time.monotonic() - start_ < 10
