"""The zygote's branches: processes that have also run one preparation, from which workers of such jobs are forked.

    zygote ── Fork ──▶ worker: preparation ─┬─ fork ─▶ branch ◀── Fork, Kill, Stop, Continue, ... ── zygote
                                            └─ job          ──── Forked, Exited, Outdated ────▶ zygote ──▶ server

The first worker with a preparation runs it, and makes a copy of itself before it runs its job. Until then, later orders
for the same branch wait. An import that hangs, fails or takes too much memory thus ends with its job like any other.

A branch is closed when it was unused for a while, if too many others are used, and if memory is short; but not while it
has workers, because those end with it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from fxpool.pool.wire import messages as m

__all__ = ["Branch", "Branches", "Waiting"]

PACKET = 128 << 10
# Branches of one zygote, and seconds that an unused one is kept.
_MOST, _KEPT_SECONDS = 4, 300.0
# Workers that try to make a branch before its preparation counts as unsuitable, and preparations that are remembered.
_TRIES, _REMEMBERED = 2, 64

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[m.FromBranch] = msgspec.msgpack.Decoder(m.FromBranch)

#: An order to fork a worker, and the descriptor of the worker's socket.
Waiting = tuple[m.Fork, int]


@dataclass(eq=False)
class Branch:
    """A branch, as the zygote knows it. `pid` is None while a worker makes it."""

    key: str
    sock: socket.socket
    used: float
    pid: int | None = None
    waiting: dict[int, Waiting] = field(default_factory=dict)  # by worker
    workers: set[int] = field(default_factory=set)


class Branches:
    """All branches of a zygote. A branch has no branches."""

    def __init__(
        self, selector: selectors.BaseSelector, send: Callable[[m.FromZygote], None], has_memory: Callable[[], bool]
    ) -> None:
        """Sockets are registered with `selector`, with their branch. `send` passes a message to the server, and
        `has_memory` returns whether the host has room for another branch."""
        self._selector = selector
        self._send = send
        self._has_memory = has_memory
        self._open: list[Branch] = []
        self._by_key: dict[str, Branch] = {}
        self._failed: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._rest = m.Suspend(on=False)

    def __iter__(self) -> Iterator[Branch]:
        return iter(list(self._open))

    @property
    def busy(self) -> bool:
        """True while any worker of a branch runs."""
        return any(branch.workers for branch in self._open)

    @property
    def pids(self) -> set[int]:
        """The pids of all branches."""
        return {branch.pid for branch in self._open if branch.pid is not None}

    def offer(self, key: str) -> socket.socket | None:
        """Return the end of a socket for a worker that shall make a branch; None if no further branch is wanted."""
        self.tidy()
        if self._failed.get(key, 0) >= _TRIES or not self._has_memory():
            return None
        if len(self._by_key) >= _MOST:
            unused = [branch for branch in self._by_key.values() if self._is_unused(branch)]
            if not unused:
                return None
            self._close(min(unused, key=lambda branch: branch.used))
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        ours.setblocking(False)
        self._by_key[key] = branch = Branch(key, ours, time.monotonic())
        self._open.append(branch)
        self._selector.register(ours, selectors.EVENT_READ, branch)
        return theirs

    def takes(self, order: m.Fork, descriptor: int) -> bool:
        """Have the order's branch fork the worker, now or when it is ready; return False if there is no branch."""
        branch = self._by_key.get(order.branch)
        if branch is None:
            return False
        branch.used = time.monotonic()
        if branch.pid is None:
            branch.waiting[order.worker] = (order, descriptor)
            self._send(m.Deferred(worker=order.worker))
            return True
        return self._forward(branch, order, descriptor)

    def relay(self, order: m.Kill | m.Stop | m.Continue | m.Suspend) -> None:
        """Pass an order about a worker, or about idle calls, to the branches."""
        if isinstance(order, m.Suspend):
            self._rest = order
        packet = _encode(order)
        for branch in self:
            if isinstance(order, m.Kill) and order.worker in branch.waiting:
                os.close(branch.waiting.pop(order.worker)[1])
                self._send(m.Exited(worker=order.worker, failure="it was not forked yet"))
            elif branch.pid is not None and (isinstance(order, m.Suspend) or order.worker in branch.workers):
                with contextlib.suppress(OSError):
                    branch.sock.send(packet)

    def read(self, branch: Branch) -> list[Waiting]:
        """Handle a branch's messages; return the orders that it cannot carry out."""
        undone: list[Waiting] = []
        while branch in self._open:
            try:
                packet, descriptors, _, _ = socket.recv_fds(branch.sock, PACKET, 1)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                packet, descriptors = b"", []
            if not packet:
                undone += self._ended(branch)
                break
            message = _decoder.decode(packet)
            if isinstance(message, m.Prepared):
                undone += self._ready(branch, message)
            elif isinstance(message, m.NoBranch):
                self._note(branch.key, message.reason)
            elif isinstance(message, m.Outdated):
                branch.workers.discard(message.order.worker)
                self._retire(branch)
                undone += self._returned(message.order, descriptors)
                print(f"branch {branch.pid} is outdated: {message.reason}", file=sys.stderr, flush=True)
            elif not isinstance(message, m.Suspended):
                self._told(branch, message)
        return undone

    def tidy(self) -> None:
        """Close the branches that are unused for too long or, if memory is short, unused at all."""
        roomy = self._has_memory()
        for branch in self:
            too_old = time.monotonic() - branch.used >= _KEPT_SECONDS
            if self._is_unused(branch) and (too_old or not roomy or self._by_key.get(branch.key) is not branch):
                self._close(branch)

    def seconds_left(self) -> float | None:
        """Return the seconds until the next branch may be closed; None without branches."""
        left = [_KEPT_SECONDS - (time.monotonic() - branch.used) for branch in self._open if self._is_unused(branch)]
        return max(0.0, min(left)) + 0.01 if left else None

    def withdraw(self, key: str) -> None:
        """Take back an offer, because the worker was not forked."""
        self._close(self._by_key[key])

    def leave(self) -> None:
        """Close the sockets, in a process that was forked from the zygote."""
        for branch in self:
            self._close(branch)

    # ------------------------------------------------------------ internals

    def _is_unused(self, branch: Branch) -> bool:
        return branch.pid is not None and not branch.workers and not branch.waiting

    def _forward(self, branch: Branch, order: m.Fork, descriptor: int) -> bool:
        try:
            socket.send_fds(branch.sock, [_encode(order)], [descriptor])
        except OSError:  # it has ended, or its socket is full: fork the worker without it
            return False
        os.close(descriptor)
        branch.workers.add(order.worker)
        return True

    def _ready(self, branch: Branch, message: m.Prepared) -> list[Waiting]:
        branch.pid = message.pid
        branch.used = time.monotonic()
        self._failed.pop(branch.key, None)
        if self._rest.on:
            self.relay(self._rest)
        print(f"branch {message.pid} is ready after {message.seconds:.2f} s", file=sys.stderr, flush=True)
        waiting, branch.waiting = branch.waiting, {}
        return [one for one in waiting.values() if not self._forward(branch, *one)]

    def _returned(self, order: m.Fork, descriptors: list[int]) -> list[Waiting]:
        """Return an order of a branch that ends; report it if the kernel dropped its socket, for want of a number."""
        if not descriptors:
            failure = "the zygote has no file descriptor left for the worker's socket"
            self._send(m.Exited(worker=order.worker, failure=failure, code="EMFILE"))
        return [(order, number) for number in descriptors]

    def _told(self, branch: Branch, message: m.Forked | m.Exited) -> None:
        branch.used = time.monotonic()
        if isinstance(message, m.Exited):
            branch.workers.discard(message.worker)
        self._send(message)
        self.tidy()

    def _note(self, key: str, reason: str) -> None:
        print(f"no branch was made: {reason}", file=sys.stderr, flush=True)
        self._failed[key] = self._failed.pop(key, 0) + 1
        while len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)

    def _retire(self, branch: Branch) -> None:
        """Send no more orders to a branch. It is closed when its workers have ended."""
        if self._by_key.get(branch.key) is branch:
            del self._by_key[branch.key]
        if not branch.workers:
            self._close(branch)

    def _ended(self, branch: Branch) -> list[Waiting]:
        """Handle the end of a branch, or of the worker that should have made it."""
        workers, waiting = branch.workers, list(branch.waiting.values())
        self._close(branch)
        for worker in workers:  # they were killed with it
            failure = f"its branch of the zygote (process {branch.pid}) died"
            self._send(m.Exited(worker=worker, failure=failure))
        return waiting

    def _close(self, branch: Branch) -> None:
        self._open.remove(branch)
        if self._by_key.get(branch.key) is branch:
            del self._by_key[branch.key]
        self._selector.unregister(branch.sock)
        branch.sock.close()
