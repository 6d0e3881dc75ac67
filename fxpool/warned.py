"""Saying what a user must know, once, and without ever failing what it is about.

    warned.once("cache_directory_refused", "fxpool compiles without a cache: ...", about="/data/cache")
    warned.show("graph 3 runs eagerly: ...")

Whatever switches the pool or the cache off for a whole process says so by `once`: one `RuntimeWarning` per reason (and
what it is `about`), each time counted under ``fxpool.stats()["switched_off"]``. A filter that makes warnings errors,
a stream that is closed or full: what was to be said goes to the log then, and the compile goes on.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings

from fxpool import statistics

__all__ = ["forget", "once", "show"]

log = logging.getLogger("fxpool")

# A dictionary, whose single operations no other thread and no fork come between.
_said: dict[tuple[str, str], object] = {}
# Whose lines tell a reader nothing.
_NOT_THE_PROGRAM = ("fxpool", "torch", "threading", "contextlib", "concurrent")


def once(reason: str, text: str, *, about: str = "") -> None:
    """Count `reason`, and warn of it the first time in this process. `text` says what is off and what to do.

    Never raises.
    """
    statistics.count("switched_off", reason)
    ours = object()
    if _said.setdefault((reason, about), ours) is ours:
        show(text)


def show(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """`warnings.warn`, but for raising: not under ``warnings.simplefilter("error")`` either."""
    try:
        warnings.warn(text, category, stacklevel=_level_of_the_program())
    except Exception:  # a filter, a stream, somebody's own `warnings.showwarning`
        with contextlib.suppress(Exception):
            log.warning("%s", text)


def _level_of_the_program() -> int:
    """How far above `show` the program's line is that brought us here; a thread of ours has none."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        frame, level = frame.f_back, level + 1
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_PROGRAM:
            return level
    return 1


def forget() -> None:
    """Say everything once more."""
    _said.clear()
