"""Sends jobs to farms, and decides which of them run at home instead.

A farm is reached through a bridge, a process that the first job for the farm starts (`fxpool.farm.bridge`). A job stays
at home, with a reason that is counted, if

    gone          the farm does not answer, or its bridge has ended
    no_machine    no machine has announced itself
    other_builds  no machine compiles with the builds that the job asks for
    full          the farm's queue is longer than this host's, by more than one job's time; a job comes home if this
                  host has a free slot and the farm has not started it after one job's time, or has more than one job
                  for each slot waiting
    paused        a job was late, less than `_PAUSE` seconds ago
    late          it has no result after `Away.wait` seconds, or twice the time of the farm's last jobs if that is more
    lost          the farm lost it, or its worker there failed

A job that is late goes on at the farm, too; whichever ends first counts. So a farm that is slow, wrong or half-open
costs the jobs that are under way one wait, and later jobs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import statistics
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fxpool.errors import ProtocolError
from fxpool.pool.host import processes
from fxpool.pool.wire import farm as f
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import Message

__all__ = ["Bridge", "Farm", "Farms", "Host", "start_bridge"]

log = logging.getLogger(__name__)

# Seconds without a word of a bridge after which the farm counts as gone. A bridge speaks every second, but not while it
# starts, or asks for the machines, for which it may wait for two answers of the engine.
_SILENCE = 20.0
# Seconds between two tries to start a bridge that has ended.
_AGAIN = 10.0
# Seconds for which new jobs stay at home after a late one; doubled each time, up to the second.
_PAUSE, _LONGEST_PAUSE = 30.0, 480.0
# The number of machines that equal jobs go to, so that the death of a machine does not send the job home.
_LIKELY = 2
# Seconds that a job is thought to take before the farm has returned any, and for which one may wait there at least; the
# number of jobs that are remembered.
_TYPICAL, _LAST = 10.0, 32


class Host(Protocol):
    """This host's side. Implemented by the dispatcher."""

    def came(self, job: int, result: f.Result, payload: memoryview) -> None:
        """Take a job's result."""

    def home(self, job: int, reason: str, detail: str, still: bool) -> None:
        """Run a job here, with the reason's name and details. `still`: the farm may answer yet."""

    def lost(self, job: int) -> None:
        """Take note that the farm will not answer such a job any more."""

    def load(self) -> tuple[int, int]:
        """Return the slots, and the jobs that hold or wait for one."""


@dataclass
class Bridge:
    """A running bridge: our end of its socket, and its process."""

    sock: socket.socket
    process: subprocess.Popen[bytes]


def start_bridge(address: str) -> Bridge:
    """Start the bridge to the farm at `address`. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [processes.interpreter(), "-m", "fxpool.farm.bridge", "--farm", address, "--socket", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Bridge(ours, process)


@dataclass
class _Sent:
    """A job that the farm has, or that waits for the farm's first list of machines."""

    spec: m.JobSpec
    away: f.Away
    payload: memoryview
    since: float
    placed: bool = False
    placed_at: float = 0.0
    started: bool = False
    late: bool = False
    timer: asyncio.TimerHandle | None = None


class Farm:
    """One farm, on the running event loop."""

    def __init__(self, address: str, host: Host, start: Callable[[str], Bridge] = start_bridge) -> None:
        self.address = address
        self._host, self._start = host, start
        self._loop = asyncio.get_running_loop()
        self._bridge: Bridge | None = None
        self._connection: Connection[f.FromBridge] | None = None
        self._machines: list[f.Machine] | None = None
        self._gone = ""
        self._started_at = float("-inf")
        self._silence: asyncio.TimerHandle | None = None
        self._paused_until, self._pause = float("-inf"), _PAUSE
        self._jobs: dict[int, _Sent] = {}
        self._seconds: deque[float] = deque(maxlen=_LAST)
        self._wanted: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------ jobs

    def send(self, job: int, spec: m.JobSpec, payload: memoryview) -> None:
        """Give a job to the farm; `Host.came` or `Host.home` follows, at the earliest in the loop's next turn."""
        assert spec.away is not None
        self._wanted = spec.away.builds
        now = self._loop.time()
        self._jobs[job] = sent = _Sent(spec, spec.away, payload, now)
        sent.timer = self._loop.call_later(spec.away.wait, self._too_late, job)
        self._loop.call_soon(self._place, job)

    def recall(self, job: int) -> None:
        """Withdraw a job. No-op if the farm does not have it."""
        sent = self._jobs.get(job)
        if sent is not None:
            self._forget(job)
            if sent.placed:
                self._tell(f.Withdraw(job=job))

    def _place(self, job: int) -> None:
        sent = self._jobs.get(job)
        if sent is None or sent.placed:
            return
        if self._loop.time() < self._paused_until:
            self._send_home(job, "paused")
            return
        self._connect()
        if job not in self._jobs:
            return  # the bridge could not be started
        if self._gone:
            self._send_home(job, "gone", self._gone)
            return
        if self._machines is None:
            return  # the bridge is starting
        equal = self._equal(sent)
        if not equal:
            nearest = min((one.differing(sent.away.builds) for one in self._machines), key=len, default=[])
            self._send_home(job, "other_builds" if self._machines else "no_machine", ", ".join(nearest))
            return
        if self._is_full(equal):
            self._send_home(job, "full")
            return
        order = f.Order(
            key=sent.away.key,
            label=sent.spec.label,
            function=sent.away.function,
            seal=sent.away.seal,
            environment=sent.away.environment,
            builds=sent.away.builds,
            timeout=sent.spec.timeout,
            payload=bytes(sent.payload),
        )
        sent.placed, sent.placed_at = True, self._loop.time()
        if sent.timer is not None:
            sent.timer.cancel()
        limit = max(sent.away.wait, 2 * max(self._seconds, default=0.0))
        sent.timer = self._loop.call_at(sent.since + limit, self._too_late, job)
        addresses = _likely(sent.away.key, equal)
        run = f.Run(job=job, key=sent.away.key, priority=sent.spec.priority, machines=addresses)
        try:
            self._tell(run, msgspec.msgpack.encode(order))
            self.counts["sent"] += 1
        except ProtocolError as error:  # longer than a frame may be
            self._send_home(job, "lost", str(error))

    def _is_full(self, equal: Sequence[f.Machine]) -> bool:
        """Return whether the farm would start the job later than this host, by more than one job's time."""
        there, waiting = self._queue(equal)
        slots, jobs = self._host.load()
        typical = self._typical()
        wait_here = typical * max(0, jobs + 1 - slots) / slots
        return typical * max(0, waiting + 1) / there > wait_here + typical

    def _take_home(self) -> None:
        """Take jobs home that have waited at the farm for one job's time, or while it has more such jobs than slots.

        Jobs leave before the machines list those of other hosts, and a farm that many hosts start to use at once gets
        far too many. All hosts see that at the same time, so each takes its share of the surplus, the last jobs first.
        """
        now = self._loop.time()
        unstarted = [job for job, sent in self._jobs.items() if sent.placed and not sent.started and not sent.late]
        unstarted.sort(key=lambda job: (self._jobs[job].spec.priority, -job))
        for number, job in enumerate(unstarted):
            there, waiting = self._queue(self._equal(self._jobs[job]))
            slots, jobs = self._host.load()
            if jobs >= slots:
                break
            if not there:  # the engine knows whether the job is lost with its machine
                continue
            seconds = now - self._jobs[job].placed_at
            if number * waiting < len(unstarted) * (waiting - there) or seconds > max(_TYPICAL, self._typical()):
                self._tell(f.Withdraw(job=job))
                self._send_home(job, "full", f"it waited there for {seconds:.0f} s")

    def _typical(self) -> float:
        """Return the time of a job."""
        return statistics.median(self._seconds) if self._seconds else _TYPICAL

    def _equal(self, sent: _Sent) -> list[f.Machine]:
        """Return the machines that have the builds of a job."""
        return [one for one in self._machines or () if not one.differing(sent.away.builds)]

    def _queue(self, equal: Sequence[f.Machine]) -> tuple[int, int]:
        """Return the slots of machines, and the number of jobs that wait for one (below 0: of free slots)."""
        there = sum(one.slots for one in equal)
        jobs = max(sum(one.jobs for one in equal), sum(sent.placed for sent in self._jobs.values()))
        return there, jobs - there

    def _too_late(self, job: int) -> None:
        sent = self._jobs[job]
        if not sent.placed:
            self._lose(f"it has listed no machines for {self._loop.time() - sent.since:.0f} s")
            return
        sent.late, sent.timer = True, None
        self.counts["home:late"] += 1
        self._paused_until = self._loop.time() + self._pause
        log.warning(
            "the farm %s has no result for job %r after %.0f s: running it here, too, and no new one there for %.0f s",
            self.address, sent.spec.label, self._loop.time() - sent.since, self._pause,
        )  # fmt: skip
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        self._host.home(job, "late", f"no result after {self._loop.time() - sent.since:.0f} s", True)

    def _send_home(self, job: int, reason: str, detail: str = "") -> None:
        sent = self._forget(job)
        if sent.late:  # it is there already
            self._host.lost(job)
            return
        self.counts[f"home:{reason}"] += 1
        self._host.home(job, reason, detail, False)

    def _forget(self, job: int) -> _Sent:
        sent = self._jobs.pop(job)
        if sent.timer is not None:
            sent.timer.cancel()
        return sent

    # ------------------------------------------------------------ the bridge

    def start(self) -> None:
        """Start the bridge before the first job."""
        self._connect()

    def _connect(self) -> None:
        """Start the bridge unless one is running, at most every `_AGAIN` seconds. A farm that is gone stays so until it
        answers: the jobs that start its bridge again do not wait for it."""
        if self._connection is not None or self._loop.time() - self._started_at < _AGAIN:
            return
        self._started_at = self._loop.time()
        try:
            self._bridge = self._start(self.address)
        except OSError as error:
            self._end(f"its bridge could not be started: {error}")
            return
        self._connection = Connection(self._bridge.sock, f.FromBridge, self._from_bridge, self._bridge_ended)
        self._await_a_word()

    def _await_a_word(self) -> None:
        """End the bridge if it is silent from now on, also before its first word: then another one can be started."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(_SILENCE, self._end, f"its bridge was silent for {_SILENCE:g} s")

    def _tell(self, message: Message, payload: bytes = b"") -> None:
        if self._connection is not None and not self._connection.closed:
            self._connection.send(message, payload)

    def _from_bridge(self, message: f.FromBridge, payload: memoryview) -> None:
        self._await_a_word()
        if isinstance(message, f.Machines):
            if self._gone:
                log.info("the farm %s answers again", self.address)
            self._machines, self._gone = message.machines, ""
            running = {key for one in message.machines for key in one.running}
            for sent in self._jobs.values():
                sent.started |= sent.away.key in running
            self._take_home()
            for job in list(self._jobs):
                self._place(job)
        elif isinstance(message, f.Connecting):
            pass
        elif isinstance(message, f.Gone):
            self._lose(message.reason)
        elif message.job not in self._jobs:
            return  # withdrawn
        elif isinstance(message, f.Result):
            sent = self._forget(message.job)
            self._seconds.append(self._loop.time() - sent.since)
            self._pause, self._paused_until = _PAUSE, float("-inf")
            self.counts["results"] += 1
            self._host.came(message.job, message, payload)
        else:
            self._send_home(message.job, "lost", f"{message.machine}: {message.reason}".removeprefix(": "))

    def _lose(self, reason: str) -> None:
        """Send all jobs home, because the farm does not answer."""
        if not self._gone:
            log.warning("the farm %s is gone: %s", self.address, reason)
        self._machines, self._gone = None, reason
        for job in list(self._jobs):
            self._send_home(job, "gone", reason)

    def _bridge_ended(self, error: Exception | None) -> None:
        self._end(f"its bridge has ended{f': {error}' if error else ''}")

    def _end(self, reason: str) -> None:
        self._disconnect()
        self._lose(reason)

    def _disconnect(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._bridge is not None:
            self._bridge.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._bridge.process.wait(1.0)
            self._bridge = None

    def pid(self) -> int | None:
        """Return the bridge's pid, or None."""
        return self._bridge.process.pid if self._bridge is not None else None

    def close(self) -> None:
        """End the bridge; the farm's jobs are withdrawn with it."""
        for job in list(self._jobs):
            self._forget(job)
        self._disconnect()

    def facts(self) -> dict[str, Any]:
        """Return plain data for `fxpool status`: state, machines, counters, and the jobs that the farm has."""
        now = self._loop.time()
        paused = round(self._paused_until - now, 1)
        state = "gone" if self._gone else "starting" if self._machines is None else "paused" if paused > 0 else "up"
        return {
            "address": self.address,
            "state": state,
            "reason": self._gone,
            "machines": [
                {
                    "name": one.name,
                    "slots": one.slots,
                    "jobs": one.jobs,
                    "differs": one.differing(self._wanted),
                }
                for one in self._machines or ()
            ],
            "counters": dict(self.counts),
            "jobs": [
                {"job": job, "label": sent.spec.label, "seconds": round(now - sent.since, 3), "late": sent.late}
                for job, sent in self._jobs.items()
            ],
        }


def _likely(key: str, machines: Sequence[f.Machine]) -> list[str]:
    """Return the addresses of machines to choose from: if they are free, those that any host's equal job goes to.

    Such a machine has the result in its directory. Without machines in common, each of many would compile it.
    """

    def rank(machine: f.Machine) -> bytes:
        return hashlib.sha256(f"{key} {machine.name}".encode()).digest()

    likely = sorted(machines, key=rank)[:_LIKELY]
    if not any(one.jobs < one.slots for one in likely):
        likely = list(machines)
    return [one.address for one in likely]


class Farms:
    """The farms of this host's clients, by address; usually one."""

    def __init__(self, host: Host, start: Callable[[str], Bridge] = start_bridge) -> None:
        self._host, self._start = host, start
        self._farms: dict[str, Farm] = {}

    def start(self, address: str) -> None:
        """Connect to a farm ahead of its first job: an engine takes seconds for that."""
        self._farm(address).start()

    def send(self, job: int, spec: m.JobSpec, payload: memoryview) -> None:
        """Give a job to the farm that it names; see `Farm.send`."""
        assert spec.away is not None
        self._farm(spec.away.farm).send(job, spec, payload)

    def _farm(self, address: str) -> Farm:
        if address not in self._farms:
            self._farms[address] = Farm(address, self._host, self._start)
        return self._farms[address]

    def recall(self, job: int) -> None:
        """Withdraw a job, which has ended."""
        for farm in self._farms.values():
            farm.recall(job)

    @property
    def pids(self) -> set[int]:
        """The pids of the bridges."""
        return {pid for farm in self._farms.values() if (pid := farm.pid()) is not None}

    def facts(self) -> list[dict[str, Any]]:
        """Return a row for each farm; see `Farm.facts`."""
        return [farm.facts() for farm in self._farms.values()]

    def close(self) -> None:
        """End all bridges."""
        for farm in self._farms.values():
            farm.close()
