"""Starts, suspends and watches the processes of a suite's runs, and lets one at a time measure on each device.

While one of them or another process on this host measures, all others are stopped with their descendants. A run that
crashes, hangs or takes too much memory gets a record like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import psutil

from fxpool import config
from fxpool.bench import plan, servers
from fxpool.bench.bystanders import Bystanders, signal_tree, tree
from fxpool.bench.case import Case, Run
from fxpool.bench.guard import Guard
from fxpool.bench.measurement import surroundings
from fxpool.bench.measurement.surroundings import Look
from fxpool.bench.results import Record
from fxpool.bench.suite import Suite
from fxpool.pool.host import processes, runtime_dir

__all__ = ["Live", "Runner", "Settings"]

# Seconds between two checks of the processes' memory, and of the host's before another process starts.
_LOOK_SECONDS = 0.25
# Seconds that processes may take to end after they were killed.
_END_SECONDS = 30.0
# Seconds that servers get to finish what a run has left in their queue, before a run that is to be alone.
_IDLE_SECONDS = 60.0
# Runs named of those beside a first call.
_NAMED = 3
# Characters kept of a run's output.
_OUTPUT_KEPT = 4000


@dataclass(frozen=True)
class Settings:
    """Settings of a runner.

    `jobs` is the number of concurrent processes. With `exclusive`, all other processes are suspended while one
    measures. Without `measure`, a run ends after its first call. `threads` is the number of torch's threads in each
    process (0: torch's default). `environment` is that of each process (None: this one's), and `runtime_dir` the
    runtime directory (None: the configured one). `devices` replaces the devices of the cases; each run goes to the
    device with the fewest runs. With `warm`, a second process follows each run that compiles, to time a first call with
    warm caches.
    """

    jobs: int = 1
    devices: tuple[str, ...] = ()
    warm: bool = False
    exclusive: bool = True
    measure: bool = True
    threads: int = 0
    environment: Mapping[str, str] | None = None
    runtime_dir: str | None = None


@dataclass(eq=False)
class Live:
    """A run's process. `phase` is starting, building, compiling, comparing, waiting, measuring or ended.

    It began after `since` seconds of the process, without those in which the process was stopped. `first` is the record
    of the first process, if this is the second. `beside` has the ids of other runs while this process compiled, and
    `disturbance` says what other programs did.
    """

    run: Run
    case: Case
    process: asyncio.subprocess.Process
    output: IO[bytes]
    expected: int
    device: str
    first: Record | None = None
    phase: str = "starting"
    since: float = 0.0
    started: float = field(default_factory=time.monotonic)
    stopped_for: float = 0.0
    stopped_since: float | None = None
    bytes: int = 0
    peak: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    ended_by: str = ""
    beside: dict[str, None] = field(default_factory=dict)
    look: Look | None = None
    paused_before: float = 0.0
    disturbance: str | None = None

    def enter(self, phase: str) -> None:
        now = self.seconds
        self.phases[self.phase] = self.phases.get(self.phase, 0.0) + now - self.since
        self.phase, self.since = phase, now

    def note_stopped(self, stopped: bool) -> None:
        if self.stopped_since is not None:
            self.stopped_for += time.monotonic() - self.stopped_since
        self.stopped_since = time.monotonic() if stopped else None

    @property
    def paused(self) -> float:
        """Seconds in which the process was stopped."""
        since = self.stopped_since
        return self.stopped_for + (time.monotonic() - since if since is not None else 0.0)

    @property
    def seconds(self) -> float:
        """Seconds that the process has run, without those in which it was stopped."""
        return time.monotonic() - self.started - self.paused


class Runner:
    """Runs a suite. `on_record` is called with each record when its run has ended, `on_change` after each change."""

    def __init__(
        self,
        suite: Suite,
        runs: Sequence[Run],
        settings: Settings,
        on_record: Callable[[Record], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.waiting = deque(plan.in_order(runs))
        self.live: list[Live] = []
        self._suite, self._settings = suite, settings
        self._on_record, self._on_change = on_record, on_change
        self._peaks: dict[Run, int] = {}
        self._second: deque[Record] = deque()  # records whose second process has not started
        self._queue: deque[Live] = deque()  # processes that are ready to measure
        self._measuring: list[Live] = []
        self._mark = uuid.uuid4().hex
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._over = False
        self._idleness: servers.Idleness | None = None
        self._patience = 0.0

    async def run(self) -> None:
        """Run all runs. On SIGINT, SIGTERM or cancellation, kill the running processes without writing their records.

        Raises asyncio.CancelledError then, and PoolUnavailableError if the runtime directory cannot be used.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        configured = self._settings.runtime_dir or config.current().runtime_dir
        self._root = root = runtime_dir.runtime_root(configured)
        guard = Guard(self._mark)
        self._bystanders = Bystanders(root, self._suspended, self._changed)
        try:
            while self.waiting or self._second or self.live:
                await self._begin_some()
                self._look_after()
                self._on_change()
                await self._pause()
        finally:
            self._over = True
            for live in self.live:
                signal_tree(live.process.pid, signal.SIGKILL)
            self._bystanders.end()
            guard.end()
            if self._tasks:  # their processes and all descendants were killed
                await asyncio.wait(self._tasks, timeout=_END_SECONDS)

    def _suspended(self) -> list[int]:
        """Return the processes to suspend during a measurement. Called in a thread."""
        return [live.process.pid for live in list(self.live) if live not in self._measuring]

    async def _pause(self) -> None:
        """Wait until a process has ended or measured, but not for long."""
        idle = asyncio.ensure_future(self._idle.wait())
        try:
            # Not wait_for: up to Python 3.11 it loses a cancellation that coincides with the event.
            await asyncio.wait([idle], timeout=_LOOK_SECONDS)
        finally:
            idle.cancel()
        self._idle.clear()

    # ------------------------------------------------------------ processes

    async def _begin_some(self) -> None:
        # No process starts during a measurement, because a start keeps a core busy for seconds.
        while (self._second or self.waiting) and not (self._measuring and self._settings.exclusive):
            if self._settings.jobs == 1 and not self.live and not self._servers_idle():
                return
            expected = plan.expected_bytes(self._second[0].run if self._second else self.waiting[0], self._peaks)
            memory = psutil.virtual_memory()
            growing = [(live.expected, live.bytes) for live in self.live]
            if not plan.may_begin(expected, growing, memory.available, memory.total, self._settings.jobs):
                return
            first = self._second.popleft() if self._second else None
            await self._begin(first.run if first is not None else self.waiting.popleft(), first, expected)

    async def _begin(self, run: Run, first: Record | None, expected: int) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the run has ended)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fxpool.bench.child",
            str(os.getpid()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env={**(self._settings.environment or os.environ), processes.MARK: self._mark},
            start_new_session=True,
            limit=64 << 20,  # a line holds all samples
        )
        case = self._suite.case(run.case)
        live = Live(run, case, process, output, expected, self._device(case), first)
        for other in self.live:
            if other.phase == "compiling":
                other.beside[run.id] = None
        self.live.append(live)
        order = {
            "suite": str(self._suite.path),
            "case": run.case,
            "mode": run.mode,
            "backend": run.backend,
            "device": live.device,
            "threads": self._settings.threads,
            "alone": self._settings.exclusive,
            "measure": self._settings.measure and first is None,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        self._bystanders.came(process.pid)  # a measurement may have begun during its start
        task = asyncio.create_task(self._follow(live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _servers_idle(self) -> bool:
        """Return whether servers have finished what earlier runs left, or have had a minute for it."""
        if self._idleness is None:
            self._idleness, self._patience = servers.Idleness(self._root), time.monotonic() + _IDLE_SECONDS
        if not self._idleness.reached() and time.monotonic() < self._patience:
            return False
        self._idleness = None
        return True

    def _device(self, case: Case) -> str:
        there = [live.device for live in self.live]
        choice = [device if device != "cuda" else "cuda:0" for device in self._settings.devices or [case.device]]
        return min(choice, key=there.count)

    async def _follow(self, live: Live) -> None:
        """Read a run's events until its process ends, then record the result."""
        assert live.process.stdout is not None
        try:
            while line := await live.process.stdout.readline():
                with contextlib.suppress(ValueError):
                    self._event(live, json.loads(line))
                self._on_change()
            await live.process.wait()
        finally:
            self._ended(live)

    def _event(self, live: Live, event: dict[str, Any]) -> None:
        name = event.pop("event")
        live.facts |= event
        live.peak = max(live.peak, event.get("peak", 0))
        if name == "ready" and live.first is None and self._settings.measure:
            live.enter("waiting")
            self._queue.append(live)
            self._next_measurement()
        elif name in ("ready", "measured", "failed"):
            live.facts["state"] = "failed" if name == "failed" else "wrong" if event["wrong"] else "done"
            live.enter("ended")
            self._measurement_over(live)
        elif name == "comparing":
            self._compiled(live)
        else:
            live.enter(name)
            if name == "compiling":
                self._compiles(live)

    def _compiles(self, live: Live) -> None:
        live.beside |= {other.run.id: None for other in self.live if other is not live}
        live.paused_before = live.paused
        live.look = self._look(live) if not live.beside else None

    def _compiled(self, live: Live) -> None:
        """Take the seconds in which the process was stopped from its first call, and name what else ran."""
        live.facts["first_call"] -= live.paused - live.paused_before
        if not live.beside and live.look is not None:
            live.disturbance = surroundings.between(live.look, self._look(live)).disturbance()
        live.enter("comparing")

    def _look(self, live: Live) -> Look:
        """Return the state of the machine, in which a run's own processes are all that compile for it."""
        own = tree(live.process.pid)
        if live.run.backend == "fxpool":
            own += servers.processes(self._root)
        found = surroundings.look()
        pids = {process.pid for process in own}
        others = {pid: facts for pid, facts in found.processes.items() if pid not in pids}
        return replace(found, own=servers.cpu_seconds(own), processes=others)

    def _ended(self, live: Live) -> None:
        live.enter("ended")
        self.live.remove(live)
        if live.process.stdin is not None:
            live.process.stdin.close()
        if live in self._queue:
            self._queue.remove(live)
        self._peaks[live.run] = live.peak
        self._measurement_over(live)
        self._idle.set()
        if not self._over:
            self._came(live)
        live.output.close()

    def _came(self, live: Live) -> None:
        record = _record(live) if live.first is None else _with_second(live.first, live)
        if self._settings.warm and live.first is None and record.state == "done" and record.run.backend != "eager":
            self._second.append(record)
        else:
            self._on_record(record)

    # ------------------------------------------------------------ one at a time

    def _next_measurement(self) -> None:
        """Let the next runs measure."""
        chosen = plan.turns([live.device for live in self._measuring], [live.device for live in self._queue])
        for live in [self._queue[place] for place in chosen]:
            self._queue.remove(live)
            self._measuring.append(live)
            live.enter("measuring")
            self._bystanders.spare(live.process.pid)
            assert live.process.stdin is not None
            with contextlib.suppress(ConnectionError):
                live.process.stdin.write(b"now\n")

    def _measurement_over(self, live: Live) -> None:
        if live in self._measuring:
            self._measuring.remove(live)
            self._next_measurement()
            self._idle.set()

    def _changed(self, pid: int, stopped: bool) -> None:
        """Record when a run's process is stopped or resumed. Called in a thread."""
        for live in list(self.live):
            if live.process.pid == pid:
                live.note_stopped(stopped)

    # ------------------------------------------------------------ limits

    def _look_after(self) -> None:
        """Kill runs that are over their time or memory limit. Memory is not checked during an exclusive measurement."""
        for live in self.live:
            if live.seconds > live.case.timeout:
                self._end(live, f"timeout: it took longer than {live.case.timeout:g} s (while {live.phase})")
            elif not self._measuring or not self._settings.exclusive:
                live.bytes = _bytes(live.process.pid)
                live.peak = max(live.peak, live.bytes)
                limit = live.case.memory or psutil.virtual_memory().total // 2
                if live.bytes > limit:
                    self._end(live, f"memory: it took {live.bytes >> 20} MB of {limit >> 20} (while {live.phase})")

    def _end(self, live: Live, why: str) -> None:
        if not live.ended_by:
            live.ended_by = why
            signal_tree(live.process.pid, signal.SIGKILL)


def _record(live: Live) -> Record:
    """Return the record of a run whose process has ended."""
    facts, code = live.facts, live.process.returncode
    state, reason = facts.get("state", "killed"), facts.get("reason", "")
    if live.ended_by:
        state, _, reason = live.ended_by.partition(": ")
    elif state == "killed":
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        at = max(live.phases, key=lambda name: list(live.phases).index(name))
        reason = f"its process ended while {at}: {how}"
    if state not in ("done", "wrong"):
        reason = "\n".join(filter(None, [reason, facts.get("traceback", ""), _last_output(live.output)]))
    return Record(
        live.run,
        state,
        reason,
        facts.get("first_call"),
        facts.get("difference"),
        live.peak or None,
        facts.get("measured"),
        facts.get("stats", {}),
        _phases(live),
        facts.get("device_peak") or None,
        lowerings=facts.get("lowerings"),
        beside=_beside(live),
    )


def _phases(live: Live) -> dict[str, float]:
    phases = {name: seconds for name, seconds in live.phases.items() if name != "ended"}
    return {name: round(seconds, 3) for name, seconds in (phases | {"paused": live.stopped_for}).items()}


def _beside(live: Live) -> list[str] | None:
    """Return what else ran during a first call, in words; None without a first call."""
    if "first_call" not in live.facts:
        return None
    ids = list(live.beside)
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    runs = [f"{', '.join(ids[:_NAMED])}{more} ran: --jobs 1 measures it alone"] if ids else []
    return runs + ([live.disturbance] if live.disturbance else [])


def _with_second(record: Record, live: Live) -> Record:
    """Return the record of a run whose second process has ended."""
    if "first_call" in live.facts:
        phases = {name: seconds + record.phases.get(name, 0.0) for name, seconds in _phases(live).items()}
        return replace(
            record,
            warm_call=live.facts["first_call"],
            warm_beside=_beside(live),
            phases=record.phases | phases,
        )
    second = _record(live)
    return replace(record, state=second.state, reason=f"in a second process: {second.reason}")


def _last_output(output: IO[bytes]) -> str:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - _OUTPUT_KEPT))
    return output.read().decode(errors="replace").strip()


def _bytes(pid: int) -> int:
    total = 0
    for one in tree(pid):
        with contextlib.suppress(psutil.Error):
            total += one.memory_info().rss
    return total


def default_jobs() -> int:
    """Return the default number of concurrent processes: one per core, and one more as processes wait for the disk."""
    return len(os.sched_getaffinity(0)) + 1
