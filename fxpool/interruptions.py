"""Exceptions that signal handlers and other threads raise in the middle of fxpool's work.

A signal handler (an alarm, a test runner's timeout) may raise any exception at any line of the main thread. An `except`
clause meant for fxpool's own errors would catch it: the program would lose its timeout, or the cache would count a good
entry as damaged. Therefore fxpool holds handlers back during its own work, which takes milliseconds, and lets them run
where it waits or runs torch:

    with interruptions.held_back():              a signal's handler runs at the end of the block
        ...
        with interruptions.let_through():        and in here, at once
            ...

    except Exception as error:
        interruptions.pass_on(error)             raises what a handler raised; an error of the work passes

Handlers are recognized by their arguments. Another thread (`PyThreadState_SetAsyncExc`) leaves no trace of where an
exception comes from: it is recognized in the functions here that only wait. Imports no other fxpool module.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["acquire", "find", "held_back", "join", "let_through", "pass_on", "with_causes"]

F = TypeVar("F", bound=Callable[..., Any])

# Seconds after which a waiting thread notices an exception that another thread has raised in it.
_LOOK_SECONDS = 0.2
_WAITING: set[types.CodeType] = set()
_SIGNALS = frozenset(int(number) for number in signal.valid_signals())
# Seconds after which a handler is held back no longer.
_LONGEST_SECONDS = 5.0


class _Hold:
    """A block in which handlers of signals are held back. Only the main thread has such blocks."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _LONGEST_SECONDS
        self._pid = os.getpid()
        self._waiting: list[int] = []
        self._handlers: dict[int, Callable[[int, types.FrameType | None], Any]] = {}
        self._over = False
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # KeyboardInterrupt is not an Exception, so nothing takes it for an error.
            if callable(handler) and handler is not signal.default_int_handler:
                self._handlers[number] = handler
                signal.signal(number, self._take)

    def _take(self, number: int, frame: types.FrameType | None) -> None:
        if self._over or os.getpid() != self._pid or time.monotonic() > self._end:
            self._handlers[number](number, frame)
        elif number not in self._waiting:
            self._waiting.append(number)
            # The work may hang, and a program may wait for its alarm. Not threading.Timer: this is a signal handler,
            # and the interrupted code may hold the locks of `threading`.
            _thread.start_new_thread(self._send_again, (number,))

    def _send_again(self, number: int) -> None:
        time.sleep(max(0.0, self._end - time.monotonic()) + 0.01)
        if not self._over:
            os.kill(self._pid, number)

    def end(self) -> None:
        """Put the handlers back, and run those of the signals that have arrived. Raises what they raise."""
        self._over = True
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._take:  # otherwise the program has set another one
                signal.signal(number, handler)
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            if callable(signal.getsignal(number)):
                signal.raise_signal(number)


_hold: _Hold | None = None


def _in_child() -> None:
    global _hold
    _hold = None


os.register_at_fork(after_in_child=_in_child)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back the handlers of signals in a ``with`` block, for some seconds at most; then they run at its end."""
    global _hold
    if _hold is not None or threading.get_ident() != threading.main_thread().ident:
        yield
        return
    _hold = hold = _Hold()
    try:
        yield
    finally:
        # Blocks inside this one have ended theirs.
        hold, _hold = _hold or hold, None
        hold.end()


@contextlib.contextmanager
def let_through() -> Iterator[None]:
    """Run handlers at once in a ``with`` block inside a block of `held_back`. Raises what waiting ones raise."""
    global _hold
    if _hold is None or threading.get_ident() != threading.main_thread().ident:
        yield
        return
    hold, _hold = _hold, None
    hold.end()
    try:
        yield
    finally:
        _hold = _Hold()


def _waits(function: F) -> F:
    """Mark a function that only waits, and raises nothing itself: an exception in it comes from outside."""
    _WAITING.add(function.__code__)
    return function


@_waits
def acquire(lock: threading.Lock, timeout: float | None = None) -> bool:
    """Acquire a lock, waiting at most `timeout` seconds; return whether it was acquired.

    Python raises another thread's exception only between two waits of a thread.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with let_through():
        while True:
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))
            if lock.acquire(timeout=left):
                return True
            if end is not None and time.monotonic() >= end:
                return False


@_waits
def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread."""
    with let_through():
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)


def pass_on(error: BaseException) -> None:
    """Raise the interruption that `error` is, or was caused by. No-op for a failure."""
    interruption = find(error)
    if interruption is not None:
        raise interruption


def find(error: BaseException) -> BaseException | None:
    """Return the exception among `error` and its causes that came from outside of the work; None for a failure."""
    return next((one for one in with_causes(error) if _is_from_outside(one)), None)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that led to it, the latest first."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is one for one in seen):
        yield cause
        seen.append(cause)
        before = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        inner = getattr(cause, "inner_exception", None)  # of Dynamo's and Inductor's errors
        cause = inner if isinstance(inner, BaseException) else before


def _is_from_outside(error: BaseException) -> bool:
    trace, caller = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in _WAITING or (caller is not None and _handles_signal(frame, caller)):
            return True
        trace, caller = trace.tb_next, frame
    return False


def _handles_signal(frame: types.FrameType, interrupted: types.FrameType) -> bool:
    """Return whether a frame is the call of a signal handler: the last arguments are a signal and the frame below."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    variables = frame.f_locals
    arguments = [variables.get(name) for name in names]
    if code.co_flags & 0x04:  # *arguments
        rest = variables.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += rest if isinstance(rest, tuple) else ()
    return any(
        interrupt is interrupted and isinstance(number, int) and int(number) in _SIGNALS
        for number, interrupt in itertools.pairwise(arguments)
    )
