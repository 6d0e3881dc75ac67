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
import warnings

from fxpool import forks, statistics

__all__ = ["forget", "once", "show"]

log = logging.getLogger("fxpool")

_lock = forks.lock(__name__, "_lock")
_said: set[tuple[str, str]] = set()


def once(reason: str, text: str, *, about: str = "") -> None:
    """Count `reason`, and warn of it the first time in this process. `text` says what is off and what to do.

    Never raises.
    """
    statistics.count("switched_off", reason)
    with _lock:
        if (reason, about) in _said:
            return
        _said.add((reason, about))
    show(text)


def show(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """`warnings.warn`, but for raising: not under ``warnings.simplefilter("error")`` either."""
    try:
        # Who reads it looks for our name: the frame that called us is somewhere in torch.
        warnings.warn(text, category, stacklevel=3)
    except Exception:  # a filter, a stream, somebody's own `warnings.showwarning`
        with contextlib.suppress(Exception):
            log.warning("%s", text)


def forget() -> None:
    """Say everything once more."""
    with _lock:
        _said.clear()
