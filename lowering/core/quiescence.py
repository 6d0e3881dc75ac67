"""Prepares the process for a checkpoint, and reports what a checkpoint may refuse: `fxpool.quiesce`.

    background compiles ─▶ remote cache ─▶ counters ─▶ watchers ─▶ pool ─▶ threads ─▶ servers in the process's tree
    withdrawn              disconnected    written     released    closed   joined     ended

Afterwards the process has no thread, child, socket or open file of fxpool, and remembers neither directories nor facts
of its machine. All of it comes back when the next graph needs it, which may be on another machine. Modules that the
process has not imported have nothing to end, so none of them is imported here. Modules of the pool are imported
inside functions, as a process with only hits does not load them otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fxpool import config, errors

if TYPE_CHECKING:
    from fxpool.results.data import Quiesced, Resources

__all__ = ["quiesce"]

# Seconds for threads to end after their work was withdrawn, and for a server that was told to end.
_END_SECONDS = 10.0


def quiesce(*, stop_server: bool) -> Quiesced:
    """Do what `fxpool.quiesce` describes, after `fxpool.wait`."""
    settings = config.current()
    background = _imported("fxpool.lowering.background.compiles")
    pending: list[str] = background.withdraw(_END_SECONDS) if background is not None else []
    shared = _imported("fxpool.lowering.core.shared_remote")
    left: int = shared.disconnect() if shared is not None else 0
    if (held_directories := _imported("fxpool.codecache.store.held_directories")) is not None:
        held_directories.let_go()
    if (host_report := _imported("fxpool.lowering.core.host_report")) is not None:
        host_report.report()
    if (events := _imported("fxpool.watch.events")) is not None:
        events.release()
    core = _imported("fxpool.lowering.core.runtime")
    stores: list[str] = core.runtime.let_go() if core is not None else []
    _join_threads()
    ended = _end_servers(settings, all_of_them=stop_server)
    return _report(settings, stores, pending, left, ended)


def _imported(name: str) -> Any:
    """Return an fxpool module if it was imported, else None."""
    return importlib.import_module(name) if name in sys.modules else None


def _join_threads() -> None:
    """Wait for threads that end by themselves: they list headers, build a library, or wait for a remote's answer."""
    from fxpool.pool.host import held_resources

    end = time.monotonic() + _END_SECONDS
    for thread in threading.enumerate():
        if held_resources.is_ours(thread) and thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))


def _end_servers(settings: config.Settings, *, all_of_them: bool) -> list[int]:
    """End this host's servers that are descendants of this process, or all; return their pids.

    A server becomes a child of a process that adopts orphans, such as a container's first process.
    """
    from fxpool.pool.client import hosts
    from fxpool.pool.host import memory, runtime_dir

    own = set(memory.tree(os.getpid())) - {os.getpid()}
    if not own and not all_of_them:
        return []
    try:
        root = runtime_dir.runtime_root(settings.runtime_dir)
    except errors.PoolUnavailableError:
        return []
    ended: list[int] = []
    told: list[Path] = []
    for link in hosts.links(root):
        directory = hosts.directory_of(link)
        pid = runtime_dir.holder(directory) if directory is not None else None
        if directory is None or pid is None or not (all_of_them or pid in own):
            continue
        if hosts.end(link).result != "failed":
            told.append(directory)
            ended.append(pid)
    end = time.monotonic() + _END_SECONDS
    while any(runtime_dir.holder(directory) is not None for directory in told) and time.monotonic() < end:
        time.sleep(0.02)
    _reap(ended, end)
    return ended


def _reap(pids: list[int], end: float) -> None:
    """Wait for those that became children of this process: they would be zombies in the checkpoint."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.02)


def _report(settings: config.Settings, stores: list[str], pending: list[str], left: int, ended: list[int]) -> Quiesced:
    from fxpool.pool.host import held_resources

    of_fxpool = [*stores, str(settings.cache_dir)]
    of_fxpool += [str(one) for one in (settings.cache_base, settings.runtime_dir) if one is not None]
    ours, others = held_resources.held(of_fxpool)
    return {
        "clean": not (ours.threads or ours.children or ours.descriptors),
        "pending": pending,
        "uploads_left": left,
        "servers_ended": ended,
        "remaining": cast("Resources", vars(ours)),
        "others": cast("Resources", vars(others)),
        "mapped": held_resources.mapped_below(of_fxpool),
    }
