"""Ends a server of this host for `fxpool stop`, even if the server does not answer.

A server that answers receives `Shutdown`, and ends when its jobs are done. A server that does not answer may be stopped
or hang: it receives SIGTERM, which means the same, and SIGCONT if it was stopped. If it does not react, it is killed,
and its zygote and workers die with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fxpool.pool.client import hosts
from fxpool.pool.host import predecessor, processes, runtime_dir

__all__ = ["PATIENCE", "Ended", "directory_of", "end", "wait"]

# Seconds for an unresponsive server to react to a signal, and for the kernel to end it.
PATIENCE = 10.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Ended:
    """Result of `end`: `how` is ``told``, ``killed``, ``gone`` (it had ended before) or ``failed``.

    `detail` is a sentence for the user; empty if the server answered.
    """

    how: str
    pid: int | None = None
    detail: str = ""


def end(link: Path, patience: float = PATIENCE) -> Ended:
    """End the server that a link points to. Takes up to twice `patience` (seconds) if the server does not answer."""
    # Send Shutdown only if the server answers. Otherwise SIGTERM would be a second request, at which it ends at once
    # and loses its jobs.
    if hosts.status(link)["state"] == "running" and hosts.stop(link):
        return Ended("told")
    directory = directory_of(link)
    if directory is None:
        return Ended("gone")  # the server has just removed its link
    pid = runtime_dir.holder(directory)
    if pid is None:
        return _remove_leftovers(link, directory)
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        return Ended("failed", pid, f"server {pid} does not answer and cannot be signalled: {error.strerror}")
    try:
        if runtime_dir.holder(directory) != pid or not predecessor.is_server_of(pid, directory):
            said = f"the server of {directory} does not answer; it may run in another container (not process {pid})"
            return Ended("failed", pid, said)
        return _by_signals(link, directory, pid, process, patience)
    except OSError as error:
        return Ended("failed", pid, f"server {pid} does not answer and cannot be ended: {error.strerror}")
    finally:
        os.close(process)


def directory_of(link: Path) -> Path | None:
    """Return the private directory of the server that a link points to; None if the link is gone."""
    try:
        return link.parent / os.path.dirname(os.readlink(link))
    except OSError:
        return None


def wait(directory: Path) -> None:
    """Wait until a server that was told to end has ended: its jobs may take up to `job_timeout`."""
    while runtime_dir.holder(directory) is not None:
        time.sleep(_LOOK_SECONDS)


def _by_signals(link: Path, directory: Path, pid: int, process: int, patience: float) -> Ended:
    stopped = processes.is_stopped(pid)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    if stopped:
        signal.pidfd_send_signal(process, signal.SIGCONT)

    def is_gone() -> bool:
        return runtime_dir.holder(directory) is None

    if _until(lambda: is_gone() or (directory / predecessor.LEAVING).exists(), patience):
        was = "was stopped" if stopped else "did not answer"
        return Ended("told", pid, f"server {pid} {was}; it received SIGTERM and ends once its jobs are done")
    signal.pidfd_send_signal(process, signal.SIGKILL)
    if not _until(is_gone, patience):
        return Ended("failed", pid, f"server {pid} does not answer and is still there after SIGKILL")
    _remove_leftovers(link, directory)
    return Ended("killed", pid, f"server {pid} did not answer for {patience:g} s and was killed with its workers")


def _remove_leftovers(link: Path, directory: Path) -> Ended:
    """Remove the files of a killed server, unless a process holds its directory."""
    try:
        lock = runtime_dir.hold(directory)
    except FileNotFoundError:
        lock = -1  # the directory is gone too
    except OSError:
        return Ended("gone")
    with contextlib.suppress(OSError):
        if os.path.dirname(os.readlink(link)) == directory.name:
            os.unlink(link)
    if lock >= 0:
        runtime_dir.remove(directory)
        os.close(lock)
    return Ended("gone")


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
