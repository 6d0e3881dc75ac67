"""Exceptions that signal handlers and other threads raise in a compile come out of the call, and nothing is lost."""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import own_jobs
import pytest
import torch
from compiling import compiled
from tiers import first_tier

import fxpool
from fxpool import counters
from fxpool.lowering.core.runtime import runtime

# Python drops what a handler raises in a weak reference's callback, as torch has many.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

X = torch.randn(6, 8)


class LateError(Exception):
    """Which no part of torch knows."""


def wide(x: torch.Tensor) -> torch.Tensor:
    for number in range(30):
        x = (x + number).sin().softmax(-1)
    return x


# Not SIGALRM, whose timer is that of pytest's timeouts.
SIGNAL = signal.SIGUSR2


@contextlib.contextmanager
def alarm(error: type[Exception], seconds: float | None = None) -> Iterator[list[float]]:
    """Raise `error` in this thread after some seconds, and at each `SIGNAL`; gives the times at which that was."""
    rung: list[float] = []

    def ring(number: int, frame: object) -> None:
        rung.append(time.monotonic())
        raise error("late")

    before = signal.signal(SIGNAL, ring)
    timer = threading.Timer(seconds or 0.0, send)
    try:
        if seconds is not None:
            timer.start()
        yield rung
    finally:
        timer.cancel()
        if seconds is not None:
            timer.join()
        signal.signal(SIGNAL, before)


def send() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)


def inner(error: BaseException) -> BaseException:
    """The error inside of Dynamo's."""
    return getattr(error, "inner_exception", None) or error


def as_a_new_process(cache: Path) -> None:
    """See that nothing was written down: a worker compiles the graph, and no level is skipped."""
    assert not list(cache.glob("failed/*")) + list(cache.glob("quarantine/*"))
    assert fxpool.stats()["fallbacks"] == {}
    before = fxpool.stats()["compiles"]["worker"]
    compiled(wide, X)
    assert fxpool.stats()["compiles"] == {"worker": before + 1, "in_process": 0}


def graphs_running() -> list[str]:
    """The labels of graphs that workers compile now; a host's facts may be found out as well."""
    status = runtime.pool().status()
    return [job["label"] for job in own_jobs.running(status) if job["label"].startswith("graph")]


def until_it_runs() -> None:
    deadline = time.monotonic() + 60
    while not graphs_running() and time.monotonic() < deadline:
        time.sleep(0.02)


def nothing_runs() -> bool:
    deadline = time.monotonic() + 20
    while graphs_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not graphs_running()


@pytest.mark.parametrize("error", first_tier([LateError, TimeoutError, RuntimeError], TimeoutError))
def test_a_signal_handler_in_the_wait_for_a_worker(error: type[Exception], lone_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()

    def when_it_runs() -> None:
        until_it_runs()
        send()

    ringing = threading.Thread(target=when_it_runs)
    with alarm(error):
        with pytest.raises(Exception) as caught:
            ringing.start()
            torch.compile(wide, backend="fxpool")(X)
        ringing.join()  # before the handler is gone: by default, the signal ends the process
    assert type(inner(caught.value)) is error
    assert nothing_runs()
    as_a_new_process(cache)


@pytest.mark.slow
def test_what_another_thread_raises_in_the_wait(lone_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()
    raised: list[BaseException] = []

    def waiting() -> None:
        try:
            torch.compile(wide, backend="fxpool")(X)
        except Exception as error:
            raised.append(inner(error))

    thread = threading.Thread(target=waiting)
    thread.start()
    until_it_runs()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(LateError))
    thread.join(60)
    assert [type(error) for error in raised] == [LateError]
    assert nothing_runs()
    as_a_new_process(cache)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["normal", "serialize"])
def test_a_signal_handler_in_a_compile_here(mode: str, cache: Path) -> None:
    for _ in range(5):  # Dynamo itself loses one now and then
        torch._dynamo.reset()
        with alarm(LateError, 1.0) as rung, contextlib.suppress(Exception):
            torch.compile(wide, backend="fxpool", options={"mode": mode, "cache": False})(X)
            continue
        assert len(rung) == 1
        break
    else:
        pytest.fail("no compile was interrupted")
    assert fxpool.stats()["fallbacks"] == {}
    assert not list(cache.glob("failed/*"))


@pytest.mark.slow
@pytest.mark.parametrize("error", [LateError, TimeoutError])
def test_hits_are_interrupted_without_damage(error: type[Exception], lone_pool: Path, cache: Path) -> None:
    compiled(wide, X)
    counters.reset()
    times = random.Random(3)
    late = 0
    for _ in range(40):
        torch._dynamo.reset()
        try:
            with alarm(error, 0.002 + 0.1 * times.random()):
                torch.compile(wide, backend="fxpool")(X)
        except Exception as raised:
            # Dynamo's own state may be half made.
            late += type(inner(raised)) is error or "late" in str(raised)
    stats = fxpool.stats()
    assert late > 5
    assert (stats["corrupt_entries"], stats["fallbacks"], stats["bypasses"]) == (0, {}, {})
    assert not list(cache.glob("aside/*"))
    compiled(wide, X)
