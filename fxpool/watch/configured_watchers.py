"""Attaches the watchers of the settings `progress` and `trace`, at the first graph and when the settings change."""

from __future__ import annotations

import os
from typing import Protocol

from fxpool import config, forks, notices, standard_streams
from fxpool.watch import events

__all__ = ["attach"]

log = notices.logger(__name__)


class _Watcher(events.Listener, Protocol):
    """A listener with a name for messages, `name`."""

    @property
    def name(self) -> str: ...

    def close(self) -> None: ...


_lock = forks.lock(__name__, "_lock")
_attached: tuple[object, ...] = ()
_watchers: list[_Watcher] = []


def attach() -> None:
    """Attach the watchers that the settings name, and detach those they no longer name.

    If a watcher can't be created, warn once and continue: watching never fails the watched compile.
    """
    global _attached
    settings = config.current()
    wanted = (os.getpid(), settings.progress, settings.trace)
    if wanted == _attached:
        return
    with _lock:
        if wanted == _attached:
            return
        standard_streams.keep_standard()  # so that prints can't end up in a log
        old, _watchers[:] = list(_watchers), _made_for(settings)
        events.exchange(old, _watchers)
        _attached = wanted  # last: other threads wait until everything is attached
    for watcher in old:
        try:
            watcher.close()
        except Exception as error:
            log.warning("could not close %s: %s", watcher.name, error)


def _made_for(settings: config.Settings) -> list[_Watcher]:
    made: list[_Watcher] = []
    if settings.trace is not None:
        from fxpool.watch.trace import TraceFile  # imported late: a hit without watchers must not pay for it

        made.append(TraceFile(settings.trace))
    if settings.progress:
        from fxpool.watch.display import display  # the same

        try:
            made.append(display(None if settings.progress == "on" else settings.progress))
        except Exception as error:
            log.warning("FXPOOL_PROGRESS: cannot show progress: %s", error)
    return made
