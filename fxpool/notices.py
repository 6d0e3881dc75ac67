"""Log records and warnings of fxpool. They never fail the work that they report on.

    log = notices.logger(__name__)            a logger whose handlers may raise
    notices.warn("graph 3 runs eagerly: ...")   a warning; a log record if a filter makes warnings errors
    notices.switched_off("cache_directory_refused", "compiles without a cache: ...", about="/data/cache")

They appear unasked, so they name their source: warnings, and records from WARNING on, start with
``fxpool: ``. Standard error can be closed, full, or None; Python's
handlers would then raise in the middle of a compile.

`switched_off` reports that a whole process runs without its pool or cache: one warning for each reason and
subject, and a count under ``fxpool.stats()["switched_off"]`` each time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator

from fxpool import counters, forks

__all__ = ["PREFIX", "forget", "logger", "once", "switched_off", "texts", "warn"]

PREFIX = "fxpool: "

_lock = forks.lock(__name__, "_lock")
_said: set[tuple[str, ...]] = set()
_texts: dict[tuple[str, str], str] = {}  # by reason and subject
# Packages whose lines are never the cause of a warning. The standard library is among them, because torch finds the
# backend by `importlib.metadata`, and calls it in threads and context managers.
_NOT_THE_PROGRAM = frozenset(("fxpool", "torch")) | sys.stdlib_module_names


def logger(name: str) -> logging.Logger:
    """Return the (shared) logger of a name. Exceptions of its handlers are dropped."""
    shared = logging.getLogger(name)
    if "handle" not in vars(shared):
        shared.handle = functools.partial(_handle, shared.handle)  # type: ignore[method-assign]
    return shared


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    if record.levelno >= logging.WARNING and not str(record.msg).startswith(PREFIX):
        record.msg = f"{PREFIX}{record.msg}"
    try:
        with _nothing_left_to_write():
            handle(record)
    except Exception:
        pass


log = logger("fxpool")


def warn(text: str) -> None:
    """Warn (RuntimeWarning), attributed to the line of the program that led here.

    If the program's filters turn warnings into errors, log instead: an error would fail the graph.
    """
    frame = _frame_of_the_program()
    names, code = frame.f_globals, frame.f_code
    registry = names.setdefault("__warningregistry__", {})
    try:
        with _nothing_left_to_write():
            # Not by a stack level: `warnings.warn` leaves frames of an import out when it counts.
            # Without the module's globals: the loader of `python -c` raises if it is asked for the source.
            module = str(names.get("__name__"))  # Python drops a warning of the module None
            warnings.warn_explicit(PREFIX + text, RuntimeWarning, code.co_filename, frame.f_lineno, module, registry)
    except Exception:
        log.warning("%s", text)


@contextlib.contextmanager
def _nothing_left_to_write() -> Iterator[None]:
    """Leave no fxpool text in standard error's buffer: unwritten text makes the exit status 120."""
    stream = sys.stderr
    is_ours = _flushed(stream)  # otherwise the buffer holds text of the program, which is not dropped
    try:
        yield
    finally:
        if not _flushed(stream) and is_ours:
            _drop(stream)


def _flushed(stream: object) -> bool:
    try:
        stream.flush()  # type: ignore[attr-defined]
    except Exception:
        return stream is None
    return True


def _drop(stream: object) -> None:
    """Empty a stream's buffer by flushing it to /dev/null, for lack of a direct call."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]
        kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except Exception:
        return
    try:
        os.dup2(nowhere, number, inheritable=os.get_inheritable(number))
        _flushed(stream)
        os.dup2(kept, number, inheritable=True)
    finally:
        os.close(kept)
        os.close(nowhere)


def _frame_of_the_program() -> types.FrameType:
    """Return the program's innermost frame above `warn`, or that of `warn` in a thread without one."""
    frame = warned = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        # Code that torch generates has no name.
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.partition(".")[0] not in _NOT_THE_PROGRAM:
            return frame
    return warned


def once(name: str, text: str) -> None:
    """Log a warning, once per `name` in this process."""
    if _is_first("log", name):
        log.warning("%s", text)


def switched_off(reason: str, text: str, *, about: str = "") -> None:
    """Count `reason`, and warn once per process and `about`. `text` names what is off and a remedy."""
    counters.count("switched_off", reason)
    if _is_first(reason, about):
        with _lock:
            _texts[reason, about] = text
        warn(text)


def texts(reason: str) -> tuple[str, ...]:
    """Return the warnings that `switched_off` gave under `reason`, the oldest first."""
    return tuple(text for (name, _), text in _texts.copy().items() if name == reason)


def _is_first(*names: str) -> bool:
    with _lock:
        first = names not in _said
        _said.add(names)
    return first


def forget() -> None:
    """Forget which warnings were given, so that each is given again."""
    with _lock:
        _said.clear()
        _texts.clear()
