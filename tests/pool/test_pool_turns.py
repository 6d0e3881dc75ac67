"""Turns to measure: one after the other, in order, over processes that come and die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_place import Place, until

from fxpool.errors import PoolUnavailableError
from fxpool.pool.host import measurement_lock
from fxpool.pool.host.measurement_lock import Turn

_CHILD = """
import pathlib, sys, time
from fxpool.pool.host.measurement_lock import Turn
root, device, mark, do = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
turn = Turn(root, device)
mark.with_name(mark.name + "-asked").touch()
assert turn.wait(50)
with open(mark.with_name("mark-order"), "a") as file:
    file.write(mark.name[-1])
mark.touch()
if do == "stay":
    time.sleep(60)
turn.end()
"""

Child = subprocess.Popen[bytes]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.kill()
        child.wait()


def begin(children: list[Child], place: Place, name: str, device: str = "cpu", do: str = "stay") -> Path:
    """Another process that asks for a turn; the file it makes when its turn begins."""
    mark = place.mark(f"mark-{name}")
    children.append(subprocess.Popen([sys.executable, "-c", _CHILD, str(place.runtime), device, str(mark), do]))
    assert until(mark.with_name(mark.name + "-asked").exists)
    return mark


def left(place: Place) -> list[str]:
    return os.listdir(place.runtime)


def test_one_after_the_other_in_order(place: Place, children: list[Child]) -> None:
    first = Turn(place.runtime, "cpu")
    assert first.wait(0)
    marks = [begin(children, place, name, do="leave") for name in "abc"]
    assert not any(mark.exists() for mark in marks)
    first.end()
    for child in children:
        assert child.wait(20) == 0
    assert place.mark("mark-order").read_text() == "abc"
    assert not left(place)


def test_who_is_out_of_patience_is_told(place: Place) -> None:
    first, second = Turn(place.runtime, "cpu"), Turn(place.runtime, "cpu")
    assert first.wait(0) and not second.wait(0.05)
    second.end()
    second.end()
    third = Turn(place.runtime, "cpu")
    first.end()
    assert third.wait(0)
    third.end()
    assert not left(place)


@pytest.mark.parametrize("who", ["the holder", "one who waits"])
def test_the_dead_are_passed_over(who: str, place: Place, children: list[Child]) -> None:
    holder = begin(children, place, "a")
    assert until(holder.exists)
    waits = begin(children, place, "b")
    last = begin(children, place, "c", do="leave")
    victim = children[0 if who == "the holder" else 1]
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    if who == "the holder":
        assert until(waits.exists) and not last.exists()
        children[1].kill()
    else:
        assert not last.exists()
        children[0].kill()
    assert until(last.exists)
    assert children[2].wait(20) == 0
    assert not left(place)


def test_devices_exclude_themselves_and_the_cpu_all(place: Place) -> None:
    first, other, same = (Turn(place.runtime, device) for device in ("cuda:0", "cuda:1", "cuda:0"))
    cpu, later = Turn(place.runtime, "cpu"), Turn(place.runtime, "cuda:1")
    assert first.wait(0) and other.wait(0)
    assert not same.wait(0) and not cpu.wait(0) and not later.wait(0)
    first.end()
    assert same.wait(0) and not cpu.wait(0)
    same.end()
    assert not cpu.wait(0)
    other.end()
    assert cpu.wait(0) and not later.wait(0)
    cpu.end()
    assert later.wait(0)
    later.end()
    assert not left(place)


def test_a_forked_child_does_not_keep_the_turn(place: Place) -> None:
    turn = Turn(place.runtime, "cpu")
    assert turn.wait(0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        turn.end()
        after = Turn(place.runtime, "cpu")
        assert after.wait(0)
        after.end()
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_other_processes_turns_can_be_waited_for(place: Place, children: list[Child]) -> None:
    mine = Turn(place.runtime, "cpu")
    begin(children, place, "a")
    (other,) = measurement_lock.of_others(place.runtime, os.getpid())
    assert not measurement_lock.is_over(other)
    assert len(measurement_lock.of_others(place.runtime)) == 2
    assert measurement_lock.listed(place.runtime) == [("cpu", os.getpid()), ("cpu", children[0].pid)]
    children[0].kill()
    assert until(lambda: measurement_lock.is_over(other))
    mine.end()
    assert measurement_lock.of_others(place.runtime) == []


def test_what_is_no_device_is_refused(place: Place) -> None:
    for device in ("", "../x", "cuda:0/..", "a" * 65):
        with pytest.raises(ValueError, match="not the name of a device"):
            Turn(place.runtime, device)


def test_where_no_file_can_be_made_there_is_an_error(place: Place) -> None:
    (place.runtime / "measuring").write_text("")
    with pytest.raises(PoolUnavailableError, match="cannot take the measuring lock"):
        Turn(place.runtime, "cpu")
    (place.runtime / "measuring").unlink()
