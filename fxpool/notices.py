"""What fxpool says of its own accord, log records and warnings: it never fails what it is about.

    log = notices.logger("fxpool.lowering")     a logger whose handlers may raise
    notices.warn("graph 3 runs eagerly: ...")   a warning; where a filter makes it an error, a log record

Whoever reads it has not asked for it, so it says who speaks: warnings, and records from WARNING on, begin with
``fxpool: ``. Nobody may be there to read it at all: standard error can be closed, full, or None, and what Python's own
handlers make of that is an exception in the middle of a compile.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable

from fxpool import forks

__all__ = ["PREFIX", "logger", "once", "warn"]

PREFIX = "fxpool: "

_lock = forks.lock(__name__, "_lock")
_said: set[str] = set()


def logger(name: str) -> logging.Logger:
    """The logger of a name, for all that have it. What its handlers raise is dropped."""
    found = logging.getLogger(name)
    if "handle" not in vars(found):
        found.handle = functools.partial(_handle, found.handle)  # type: ignore[method-assign]
    return found


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    if record.levelno >= logging.WARNING and not str(record.msg).startswith(PREFIX):
        record.msg = f"{PREFIX}{record.msg}"
    try:
        handle(record)
    except Exception:
        pass


log = logger("fxpool")


def warn(text: str, *, stacklevel: int = 1) -> None:
    """Warn (RuntimeWarning) from where the caller is, or `stacklevel` - 1 frames above.

    An error instead, by the program's filters, would cost the graph that the warning is about. It is logged then.
    """
    try:
        warnings.warn(PREFIX + text, RuntimeWarning, stacklevel=stacklevel + 1)
    except Exception:
        log.warning("%s", text)


def once(what: str, text: str) -> None:
    """Log a warning, if there has been none of `what` in this process."""
    with _lock:
        if what in _said:
            return
        _said.add(what)
    log.warning("%s", text)
