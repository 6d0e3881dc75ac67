"""An exception that a signal handler or another thread raised is told from the errors of the work it came out of."""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fxpool import interruptions


class LateError(Exception):
    """A program's timeout."""


def on_alarm(number: int, frame: object) -> None:
    raise LateError


def with_more(extra: str, number: int, frame: object) -> None:
    raise LateError(extra)


class Alarm:
    def ring(self, number: int, frame: object) -> None:
        _raise()

    def __call__(self, number: int, frame: object) -> None:
        raise TimeoutError


def _raise() -> None:
    raise LateError


HANDLERS: dict[str, Any] = {
    "function": on_alarm,
    "method": Alarm().ring,
    "object": Alarm(),
    "lambda": lambda *arguments: _raise(),
    "partial": functools.partial(with_more, "late"),
}


# Not SIGALRM, whose timer is that of pytest's timeouts.
SIGNAL = signal.SIGUSR2


def soon() -> None:
    """Send the signal to this thread in a moment."""
    threading.Timer(0.02, signal.pthread_kill, (threading.main_thread().ident or 0, SIGNAL)).start()


@pytest.fixture
def alarm() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(SIGNAL)

    def ring(handler: Any) -> None:
        signal.signal(SIGNAL, handler)
        soon()

    yield ring
    signal.signal(SIGNAL, before)


def busy(seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def wrapped() -> None:
    try:
        busy()
    except Exception as error:
        raise ValueError("the graph is wrong") from error


@pytest.mark.parametrize("work", [busy, wrapped, lambda: time.sleep(5), lambda: interruptions.acquire(locked())])
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_raises(handler: str, work: Callable[[], None], alarm: Callable[[Any], None]) -> None:
    alarm(HANDLERS[handler])
    with pytest.raises((LateError, TimeoutError)) as caught:
        try:
            work()
        except Exception as error:
            interruptions.pass_on(error)
    assert interruptions.find(caught.value) is caught.value


def locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def takes_a_frame(number: int, frame: object) -> None:
    raise KeyError(number)


def fails_in_a_handled_error() -> None:
    try:
        raise LateError
    except LateError:
        raise RuntimeError from None


@pytest.mark.parametrize(
    "work",
    [
        lambda: int("x"),
        lambda: takes_a_frame(1000, sys._getframe()),  # no signal
        lambda: takes_a_frame(SIGNAL, sys._getframe(1)),  # not the frame that calls it
        lambda: on_alarm(SIGNAL, None),
        fails_in_a_handled_error,
    ],
)
def test_a_failure_is_none(work: Callable[[], object]) -> None:
    with pytest.raises(Exception) as caught:
        work()
    assert interruptions.find(caught.value) is None
    interruptions.pass_on(caught.value)


@pytest.mark.parametrize("wait", [lambda: interruptions.acquire(locked()), lambda: interruptions.join(sleeping())])
def test_what_another_thread_raises_in_a_wait(wait: Callable[[], object]) -> None:
    seen: list[BaseException | None] = []

    def waiting() -> None:
        try:
            wait()
        except Exception as error:
            seen.append(interruptions.find(error))

    thread = threading.Thread(target=waiting)
    thread.start()
    time.sleep(0.05)
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(LateError))
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in seen] == [LateError]


def sleeping() -> threading.Thread:
    thread = threading.Thread(target=time.sleep, args=(2,), daemon=True)
    thread.start()
    return thread


def test_a_lock_is_waited_for_no_longer_than_asked() -> None:
    lock = locked()
    started = time.monotonic()
    assert not interruptions.acquire(lock, 0.3)
    assert time.monotonic() - started >= 0.3
    lock.release()
    assert interruptions.acquire(lock, 0.0)


def test_handlers_are_held_back_until_the_end_or_a_wait(alarm: Callable[[Any], None]) -> None:
    seen = []
    signal.signal(SIGNAL, on_alarm)
    with pytest.raises(LateError), interruptions.held_back():
        soon()
        busy(0.05)
        seen.append("worked")
        with interruptions.let_through():
            pytest.fail("the alarm is lost")
    assert seen == ["worked"]
    assert signal.getsignal(SIGNAL) is on_alarm

    with pytest.raises(LateError), interruptions.held_back(), interruptions.let_through():
        soon()
        busy()
    assert signal.getsignal(SIGNAL) is on_alarm


def test_work_that_hangs_is_interrupted(alarm: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "_LONGEST_SECONDS", 0.2)
    started = time.monotonic()
    signal.signal(SIGNAL, on_alarm)
    with pytest.raises(LateError), interruptions.held_back():
        soon()
        busy()
    assert 0.2 <= time.monotonic() - started < 4


def test_a_handler_that_is_set_inside_stays(alarm: Callable[[Any], None]) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, on_alarm)
    try:
        with interruptions.held_back(), interruptions.held_back():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_holds_nothing_back(alarm: Callable[[Any], None]) -> None:
    signal.signal(SIGNAL, on_alarm)

    def inside() -> None:
        with interruptions.held_back():
            seen.append(signal.getsignal(SIGNAL))

    seen: list[object] = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [on_alarm]
