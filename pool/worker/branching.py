"""Makes a branch of the zygote: a copy of a worker after its preparation and before its job."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from fxpool.pool.host import processes
from fxpool.pool.wire import logs
from fxpool.pool.wire import messages as m
from fxpool.pool.worker.preparing import Files

__all__ = ["Branching", "close_others", "open_descriptors"]

_encode = msgspec.msgpack.Encoder().encode


class Branching:
    """A worker's chance to make a branch: one of the two methods is called once, after its preparation."""

    def __init__(
        self,
        control: socket.socket,
        stdout: int,
        stderr: int,
        foreign: set[int],
        serve: Callable[[socket.socket, Files], NoReturn],
    ) -> None:
        """`control` is connected to the zygote; `stdout` and `stderr` are the zygote's, and `foreign` those of its
        modules' descriptors that stay open. `serve` carries out orders, in the branch."""
        self._control = control
        self._outputs = (stdout, stderr)
        self._foreign = foreign
        self._serve = serve

    @property
    def descriptors(self) -> set[int]:
        """The descriptors that this object needs."""
        return {self._control.fileno(), *self._outputs}

    def decline(self, reason: str) -> None:
        """Make no branch."""
        self._send(m.NoBranch(reason=reason))
        self._close()

    def branch(self, files: Files, payload: memoryview) -> None:
        """Fork a branch, and return in the worker. The branch lasts until the zygote closes its socket.

        It does not keep `payload`, the input of the worker's job, to which no other reference may exist.
        """
        start = time.perf_counter()
        try:
            pid = os.fork()
        except OSError as error:
            self.decline(f"fork failed: {error}")
            return
        if pid == 0:
            try:
                os.setpgid(0, 0)
                _forget(payload)
                self._become_branch(files)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # before this worker's group is killed
        # Sent here, because the zygote must know the branch before this worker ends.
        self._send(m.Prepared(pid=pid, seconds=time.perf_counter() - start, threads=1))
        self._close()

    def _become_branch(self, files: Files) -> NoReturn:
        for number, output in enumerate(self._outputs, start=1):
            os.dup2(output, number)
        logs.stop_forwarding_prints()
        close_others({0, 1, 2, self._control.fileno(), *self._foreign})
        processes.adopt_orphans()
        processes.name_process("fxpool branch")
        self._serve(self._control, files)

    def _send(self, message: m.NoBranch | m.Prepared) -> None:
        with contextlib.suppress(OSError):
            self._control.send(_encode(message))

    def _close(self) -> None:
        self._control.close()
        for number in self._outputs:
            os.close(number)


def _forget(payload: memoryview) -> None:
    """Remove a received payload from this process, a copy of the one that needs it."""
    if isinstance(payload.obj, bytearray):
        payload[:] = bytes(len(payload))  # freed memory keeps its content
    payload.release()  # this unmaps a large one, which both processes share


def close_others(keep: set[int]) -> None:
    """Close all descriptors of this process but `keep`."""
    for number in open_descriptors() - keep:
        with contextlib.suppress(OSError):
            os.close(number)


def open_descriptors() -> set[int]:
    """Return the numbers of this process's open descriptors."""
    with os.scandir("/proc/self/fd") as entries:
        numbers = {int(entry.name) for entry in entries}
    # The listing includes scandir's descriptor, which is closed by now.
    return {number for number in numbers if _is_open(number)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
