"""The state of the registry of a farm behind Ray, without Ray: machines, jobs and the asks that wait for them.

    asks of hosts ──▶ a job per key ──▶ waits, higher priority first ──▶ runs on the allowed machine with the least load

Jobs with equal keys are one run, whose answer all asks get. A job that no ask waits for ends. A machine that is lost in
a job, or silent for `SILENCE` seconds, leaves the farm: its jobs run again on others, at most `_RERUNS` times. Asks of
a bridge that is silent for longer, because its host was killed, are withdrawn.

`ray_actors` sends this module's code to Ray by value, because the node of the registry need not have fxpool. It may
refer to the standard library only, and to constants of other modules.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fxpool.farm.engine import SILENCE

__all__ = ["Farm", "Link", "LostError"]

# How often a job whose machine was lost runs again. It may be the job that ends its machines.
_RERUNS = 2
# Seconds after which a bridge that says nothing counts as gone. It may be busy for longer than a machine may.
_BRIDGE_SILENCE = 3 * SILENCE
# The number of withdrawals that are remembered, because a withdrawal may overtake its ask.
_REMEMBERED = 1000


class LostError(Exception):
    """The machine ended or cannot be reached; the message is for people."""


class Link(Protocol):
    """A way to a machine."""

    async def run(self, order: bytes) -> bytes:
        """Run a job and return its packed answer. Raises LostError."""

    def cancel(self, key: str) -> None:
        """End a job, without waiting for that. Never raises."""


@dataclass(eq=False)
class _Machine:
    address: str
    slots: int
    described: bytes
    link: Link
    seen: float
    jobs: set[_Job] = field(default_factory=set)

    @property
    def load(self) -> float:
        return len(self.jobs) / self.slots


@dataclass(eq=False)
class _Job:
    key: str
    order: bytes
    number: int
    priority: int
    allowed: set[str]
    asks: dict[str, _Ask] = field(default_factory=dict)
    machine: _Machine | None = None
    task: asyncio.Task[None] | None = None
    lost: list[str] = field(default_factory=list)


@dataclass(eq=False)
class _Ask:
    bridge: str
    job: _Job
    answer: asyncio.Future[tuple[bool, bytes | str]]


class Farm:
    """Machines, and the jobs that hosts ask for. Belongs to one event loop; `tick` is due every second or so."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._machines: dict[str, _Machine] = {}
        self._bridges: dict[str, float] = {}
        self._jobs: dict[str, _Job] = {}  # by key: those that are asked for
        self._waiting: list[_Job] = []
        self._asks: dict[str, _Ask] = {}
        self._withdrawn: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self._numbers = itertools.count()

    # ------------------------------------------------------------ machines

    def announce(self, address: str, described: bytes, slots: int, link: Link) -> None:
        """Register a machine, or note that it is alive. `described` is opaque, and returned by `machines`."""
        machine = self._machines.get(address)
        if machine is None:
            machine = self._machines[address] = _Machine(address, slots, described, link, self._clock())
        machine.described, machine.slots, machine.seen = described, slots, self._clock()
        self._dispatch()

    def leave(self, address: str, reason: str = "it has left the farm") -> None:
        """Remove a machine, if it is registered; its jobs run on others."""
        machine = self._machines.pop(address, None)
        if machine is None:
            return
        for job in sorted(machine.jobs, key=lambda job: job.number):
            machine.link.cancel(job.key)
            self._lose(job, f"{address}: {reason}")
        self._check_waiting()
        self._dispatch()

    def machines(self, bridge: str) -> list[tuple[bytes, int]]:
        """Return each machine's description and its number of jobs, and note that the bridge is alive.

        Waiting jobs count in equal shares for the machines that may run them.
        """
        self._bridges[bridge] = self._clock()
        shares: dict[str, float] = collections.defaultdict(float)
        for allowed, jobs in collections.Counter(frozenset(job.allowed) for job in self._waiting).items():
            present = [address for address in allowed if address in self._machines]
            for address in present:
                shares[address] += jobs / len(present)
        return [
            (machine.described, len(machine.jobs) + math.ceil(shares[machine.address] - 1e-6))
            for machine in self._machines.values()
        ]

    # ------------------------------------------------------------ asks

    async def ask(
        self, bridge: str, ask: str, key: str, order: bytes, allowed: Sequence[str], priority: int
    ) -> tuple[bool, bytes | str]:
        """Have a job run on an allowed machine; return True and its packed answer, or False and the reason.

        `ask` names this call for `withdraw`. A call after its withdrawal returns at once, as a repeated call does.
        """
        self._bridges[bridge] = self._clock()
        if ask in self._withdrawn:
            return False, "the job was withdrawn"
        if ask in self._asks:
            return await asyncio.shield(self._asks[ask].answer)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(key, order, next(self._numbers), priority, set())
            self._waiting.append(job)
        job.allowed.update(set(allowed) - set(job.lost))
        job.priority = max(job.priority, priority)
        own = _Ask(bridge, job, asyncio.get_running_loop().create_future())
        self._asks[ask] = job.asks[ask] = own
        self._dispatch()
        self._check_waiting()
        return await asyncio.shield(own.answer)

    def withdraw(self, ask: str) -> None:
        """Withdraw an ask. Its job ends if no other ask waits for it."""
        own = self._asks.pop(ask, None)
        if own is None:
            self._withdrawn.append(ask)
            return
        job = own.job
        del job.asks[ask]
        own.answer.set_result((False, "the job was withdrawn"))
        if job.asks:
            return
        del self._jobs[job.key]
        if job.machine is not None:  # its slot is taken until it has ended
            job.machine.link.cancel(job.key)
        else:
            self._waiting.remove(job)

    def forget(self, bridge: str) -> None:
        """Withdraw all asks of a bridge."""
        self._bridges.pop(bridge, None)
        for name in [name for name, ask in self._asks.items() if ask.bridge == bridge]:
            self.withdraw(name)

    def tick(self) -> None:
        """Drop machines and bridges that have been silent for too long, and jobs that no machine may run."""
        now = self._clock()
        for machine in list(self._machines.values()):
            if now - machine.seen > SILENCE:
                self.leave(machine.address, f"it has said nothing for {now - machine.seen:.0f} s")
        for bridge, seen in list(self._bridges.items()):
            if now - seen > _BRIDGE_SILENCE:
                self.forget(bridge)
        self._check_waiting()
        self._dispatch()

    # ------------------------------------------------------------ jobs

    def _dispatch(self) -> None:
        """Give waiting jobs to machines with a free slot."""
        self._waiting.sort(key=lambda job: (-job.priority, job.number))
        free = [machine for machine in self._machines.values() if len(machine.jobs) < machine.slots]
        for job in list(self._waiting) if free else ():
            allowed = [machine for machine in free if machine.address in job.allowed]
            if not allowed:
                continue
            machine = min(allowed, key=lambda machine: machine.load)
            self._waiting.remove(job)
            job.machine = machine
            machine.jobs.add(job)
            job.task = asyncio.get_running_loop().create_task(self._run(job, machine))
            if len(machine.jobs) >= machine.slots:
                free.remove(machine)

    async def _run(self, job: _Job, machine: _Machine) -> None:
        try:
            answer: tuple[bool, bytes | str] = (True, await machine.link.run(job.order))
        except LostError as error:
            self.leave(machine.address, str(error))
            return
        except Exception as error:  # of any class: it is the machine's
            answer = (False, f"{machine.address}: {type(error).__name__}: {error}")
        machine.jobs.discard(job)
        self._end(job, answer)
        self._dispatch()

    def _lose(self, job: _Job, reason: str) -> None:
        """Have a job whose machine has left run again."""
        assert job.machine is not None
        job.machine.jobs.discard(job)
        job.lost.append(job.machine.address)
        job.allowed.discard(job.machine.address)
        if job.task is not None and job.task is not asyncio.current_task():
            job.task.cancel()
        job.machine = job.task = None
        if not job.asks:
            return
        if len(job.lost) > _RERUNS:
            self._end(job, (False, f"{len(job.lost)} machines were lost while they ran the job, the last was {reason}"))
        elif not job.allowed & self._machines.keys():
            self._end(job, (False, f"the job's machine was lost and no other may run it; {reason}"))
        else:
            self._waiting.append(job)

    def _check_waiting(self) -> None:
        """Fail jobs that no machine may run. After a registry's restart machines have to register first."""
        if self._clock() - self._start < SILENCE:
            return
        for job in [job for job in self._waiting if not job.allowed & self._machines.keys()]:
            self._waiting.remove(job)
            self._end(job, (False, f"no machine that may run the job is part of the farm now: {sorted(job.allowed)}"))

    def _end(self, job: _Job, answer: tuple[bool, bytes | str]) -> None:
        if job.asks:
            del self._jobs[job.key]
        for name, ask in job.asks.items():
            del self._asks[name]
            ask.answer.set_result(answer)
        job.asks.clear()
