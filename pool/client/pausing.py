"""Suspends this host's servers while this process measures: the client's side of `pool.server.measurement_pause`."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fxpool.errors import ProtocolError
from fxpool.pool.client import hosts
from fxpool.pool.host import runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import Channel

__all__ = ["Pause", "give_up_ours", "pause"]

# Pauses of this process, for `give_up_ours`.
_ours: set[Pause] = set()


@dataclass(eq=False)
class Pause:
    """A pause of all servers, from `pause` to `end`. `remarks` says which servers were not suspended all the time."""

    workers: int = 0
    remarks: list[str] = field(default_factory=list)
    _channels: list[Channel[m.ToClient]] = field(default_factory=list)

    def end(self) -> None:
        """Resume all servers. Idempotent."""
        _ours.discard(self)
        for channel in self._channels:
            if _was_over(channel):
                self.remarks.append(
                    "compile jobs were running again, as the pause was over first: measure in shorter blocks"
                )
            hosts.disconnect(channel.sock)
        self._channels = []


def pause(root: Path, seconds: float, patience: float) -> Pause:
    """Suspend all servers in the runtime directory `root` for at most `seconds`, and wait until they are suspended.

    Waits at most `patience` seconds, because a zygote finishes its start or warm-up first. Servers that do not answer
    are named in `remarks`.
    """
    paused = Pause()
    deadline = time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        stack.callback(paused.end)
        channels = [channel for directory in _directories(root) if (channel := _ask(directory, seconds)) is not None]
        paused._channels = channels
        for channel in channels:
            answer = _answer(channel, deadline)
            if answer is None:
                paused.remarks.append(
                    f"a server did not pause its jobs within {patience:.0f} s: measure when it is idle (fxpool status)"
                )
            else:
                paused.workers += answer.workers
        stack.pop_all()
    _ours.add(paused)
    return paused


def give_up_ours(why: str) -> None:
    """End this process's pauses: it needs a server now, and would wait for itself."""
    for ours in list(_ours):
        ours.remarks.append(why)
        ours.end()


def _directories(root: Path) -> Iterator[Path]:
    """Yield the private directories of all running servers, of all environments."""
    for directory in root.glob(f"{runtime_dir.PREFIX}*"):
        if runtime_dir.holder(directory) is not None:
            yield directory


def _ask(directory: Path, seconds: float) -> Channel[m.ToClient] | None:
    try:
        channel: Channel[m.ToClient] = Channel(hosts.connect(directory, 1.0, visitor=True), m.ToClient)
    except (OSError, ProtocolError):
        return None
    try:
        channel.send(m.Pause(seconds=seconds))
    except OSError:
        hosts.disconnect(channel.sock)
        return None
    return channel


def _answer(channel: Channel[m.ToClient], deadline: float) -> m.Paused | None:
    with contextlib.suppress(OSError, ProtocolError):
        while (left := deadline - time.monotonic()) > 0:
            channel.sock.settimeout(left)
            frame = channel.receive()
            if frame is None:
                return m.Paused(workers=0)  # it has ended, with all its workers
            if isinstance(frame[0], m.Paused):
                return frame[0]
            if isinstance(frame[0], m.Refused):
                return None
    return None


def _was_over(channel: Channel[m.ToClient]) -> bool:
    """Return whether a server has resumed before the end of the pause. Reads received messages without waiting."""
    with contextlib.suppress(OSError, ValueError, ProtocolError):
        while select.select([channel.sock], [], [], 0)[0]:
            frame = channel.receive()
            if frame is None:
                return False  # it ended
            if isinstance(frame[0], m.Resumed):
                return True
    return False
