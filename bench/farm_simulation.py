"""A simulation of programs that compile: alone, with leases in a remote cache, on a farm, and on a farm with leases.

The clock is simulated, so a thousand clients take seconds on one core. `ASSUMPTIONS` lists the assumptions. A host
decides as `pool/server/farms.py` does (paused, full, late), waits for leases as `codecache/remote/leases.py` does, and
shares one compile among its clients. Equal scenarios have equal arrivals, lengths and tracing times under all policies.

    Client ──▶ Host (cache directory, equal jobs are one, slots) ──▶ Bridge (of the host) ──▶ Engine ──▶ machines
       └─────▶ Remote (entries and leases)
"""

from __future__ import annotations

import functools
import itertools
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm_clock import Clock, Gauge, Messages, Slots, Work

__all__ = ["ASSUMPTIONS", "LENGTHS", "LENGTHS_FROM", "POLICIES", "Scenario", "simulated"]

POLICIES = ("alone", "leases", "farm", "farm+leases")

#: Seconds of jobs, and the command that measured them: on 2 cores of a shared Xeon, with torch 2.13.0+cpu.
LENGTHS_FROM = "python bench/farm.py lengths --runs 2"
LENGTHS = (
    1.1, 2.4, 3.0, 4.4, 4.5, 4.9, 5.0, 5.3, 7.1, 7.5, 8.7, 8.8, 9.8, 9.9, 10.6, 12.1, 13.1, 16.3, 19.2, 20.2,
)  # fmt: skip

ASSUMPTIONS = (
    "A slot compiles at full speed, however many others are busy; tracing and loading of clients need no slots.",
    "A machine compiles `speed` times as fast as a host. Machines share no cache directory.",
    "A job goes to the machine with the fewest jobs per slot, for good: of the two that its key names if one of them "
    "has announced a free slot, else of all.",
    "The engine forgets a job once its result is delivered. A machine that has the graph in its directory returns it "
    "within `again` seconds, which is no compile; another machine compiles it.",
    "Hosts see once a second the jobs of each machine and which of them run.",
    "A host's server starts with its first client and needs `bridge` seconds until a job for the farm can leave, and "
    "`overhead` seconds for each.",
    "Networks lose nothing; no machine, worker or host fails; farm, hosts and remote have the same builds and keys.",
    "The remote answers after `trip` seconds whatever its load, so that waiting clients poll as fast as they may; an "
    "upload takes `upload` seconds.",
    "Messages of the scheduler: submissions and withdrawals of hosts, results to hosts, two for each task (to its "
    "machine and back), and each second a heartbeat of each machine and a list of machines for each host's bridge.",
)

# Of pool/server/farms.py.
_PAUSE, _LONGEST_PAUSE, _TYPICAL, _LAST = 30.0, 480.0, 10.0, 32
# Of codecache/remote/leases.py and lowering/compiling/graph_leases.py.
_FIRST_PAUSE, _LONGEST_POLL, _GROWTH, _ANSWERS, _LONGEST_OF_ALL, _MOST_IN_VAIN = 0.05, 0.5, 1.5, 10.0, 3.0, 3
_SHORTEST, _TIMES = 30.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Clients, hosts, machines and graphs. The clients of a host run one program: its graphs, in order.

    `arrival` is ``together`` (within `spread` seconds) or ``poisson`` (`rate` clients a second). A client has up to
    `ahead` graphs under way. `trace` and `load` are its seconds before and after each compile. `wait` and `remote_wait`
    are the settings FXPOOL_FARM_WAIT and FXPOOL_REMOTE_WAIT.
    """

    clients: int = 1000
    hosts: int = 125
    host_slots: int = 8
    machines: int = 64
    slots: int = 8
    programs: int = 1
    graphs: int = 20
    lengths: Sequence[float] = LENGTHS
    arrival: str = "together"
    spread: float = 0.5
    rate: float = 10.0
    ahead: int = 1
    trace: float = 0.5
    load: float = 0.05
    speed: float = 1.0
    overhead: float = 0.02
    bridge: float = 1.5
    again: float = 0.1
    wait: float = 30.0
    trip: float = 0.002
    upload: float = 0.02
    remote_wait: float | None = None
    seed: int = 0

    def draws(self) -> tuple[list[float], list[float], list[list[float]]]:
        """Return the lengths of all graphs, the clients' arrivals, and their seconds of tracing for each graph."""
        rng = random.Random(self.seed)
        lengths = [rng.choice(self.lengths) for _ in range(self.programs * self.graphs)]
        if self.arrival == "poisson":
            arrivals = list(itertools.accumulate(rng.expovariate(self.rate) for _ in range(self.clients)))
        else:
            arrivals = [rng.uniform(0.0, self.spread) for _ in range(self.clients)]
        traces = [[self.trace * rng.uniform(0.8, 1.2) for _ in range(self.graphs)] for _ in range(self.clients)]
        return lengths, arrivals, traces


class _Run:
    """One run: everything that its parts share."""

    def __init__(self, scenario: Scenario, policy: str) -> None:
        self.scenario, self.clock = scenario, Clock()
        self.lengths, self.arrivals, self.traces = scenario.draws()
        self.counts: Counter[str] = Counter()
        self.at_hosts, self.at_farm = Gauge(self.clock), Gauge(self.clock)
        self.of_scheduler, self.of_remote = Messages(self.clock), Messages(self.clock)
        self.engine = _Engine(self) if "farm" in policy else None
        self.remote = _Remote(self) if "leases" in policy else None
        hosts = [_Host(self) for _ in range(scenario.hosts)]
        ranks = -(-scenario.clients // scenario.hosts)
        self.clients = [
            _Client(self, number, number // ranks % scenario.programs, hosts[number // ranks])
            for number in range(scenario.clients)
        ]

    def compiles(self, graph: int, where: str, speed: float = 1.0) -> float:
        self.counts["compiles"] += 1
        self.counts[f"compiles at {where}"] += 1
        return self.lengths[graph] / speed


# ---------------------------------------------------------------- hosts


class _Host:
    """A host: its cache directory, its server with equal jobs as one, and its part of a farm."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.store: set[int] = set()
        self.slots = Slots(run.clock, run.scenario.host_slots, run.at_hosts)
        self._flights: dict[int, list[Callable[[], None]]] = {}
        self._works: dict[int, Work] = {}
        self._bridge = _Bridge(self, run.engine) if run.engine is not None else None

    def start(self) -> None:
        """Start the server, ahead of the first graph."""
        if self._bridge is not None:
            self._bridge.start()

    def compile(self, graph: int, then: Callable[[], None]) -> None:
        if graph in self._flights:
            self._flights[graph].append(then)
            return
        self._flights[graph] = [then]
        if self._bridge is not None:
            self._bridge.send(graph)
        else:
            self.compile_home(graph)

    def compile_home(self, graph: int) -> None:
        work = Work(lambda: self.run.compiles(graph, "hosts"), lambda: self.finish(graph))
        self._works[graph] = work
        self.slots.add(work)

    def finish(self, graph: int) -> None:
        """Deliver a result, whichever side it came from."""
        self.store.add(graph)
        if (work := self._works.pop(graph, None)) is not None and self.slots.drop(work):
            self.run.counts["ended early"] += 1
        if self._bridge is not None:
            self._bridge.recall(graph)
        for then in self._flights.pop(graph):
            then()


@dataclass
class _Sent:
    since: float
    deadline: float
    sent: bool = False
    late: bool = False
    started: bool = False


class _Bridge:
    """The decisions of a host which jobs a farm gets; see `pool/server/farms.py`."""

    def __init__(self, host: _Host, engine: _Engine) -> None:
        self._host, self._engine = host, engine
        self._run, self._clock = host.run, host.run.clock
        self._state = "ended"
        self._jobs: dict[int, _Sent] = {}
        self._seconds: deque[float] = deque(maxlen=_LAST)
        self._paused_until, self._pause = float("-inf"), _PAUSE

    def start(self) -> None:
        if self._state == "ended":
            self._state = "starting"
            self._clock.after(self._run.scenario.bridge, self._started)

    def send(self, graph: int) -> None:
        now, wait = self._clock.now, self._run.scenario.wait
        self._jobs[graph] = _Sent(now, now + wait)
        self._clock.after(wait, lambda: self._too_late(graph))
        self._clock.after(0.0, lambda: self._decide(graph))

    def recall(self, graph: int) -> None:
        job = self._jobs.pop(graph, None)
        if job is not None and job.sent:
            self._engine.withdraw(graph, self)

    def came(self, graph: int) -> None:
        job = self._jobs.pop(graph, None)
        if job is None:
            return
        self._seconds.append(self._clock.now - job.since)
        self._pause, self._paused_until = _PAUSE, float("-inf")
        self._host.finish(graph)

    def _decide(self, graph: int) -> None:
        job = self._jobs.get(graph)
        if job is None or job.sent:
            return
        if self._clock.now < self._paused_until:
            self._home(graph, "paused")
        elif self._state == "up":
            if self._is_full():
                self._home(graph, "full")
                return
            job.sent = True
            limit = max(self._run.scenario.wait, 2 * max(self._seconds, default=0.0))
            if limit != self._run.scenario.wait:
                job.deadline = job.since + limit
                self._clock.after(job.deadline - self._clock.now, lambda: self._too_late(graph))
            self._clock.after(self._run.scenario.overhead / 2, lambda: self._engine.submit(graph, self))

    def _started(self) -> None:
        self._state = "up"
        self._engine.bridges.append(self)
        for graph in list(self._jobs):
            self._decide(graph)

    def _is_full(self) -> bool:
        slots = self._host.slots
        waiting = self._waiting() + 1
        typical = self._typical()
        wait_home = typical * max(0, slots.jobs + 1 - slots.number) / slots.number
        return typical * max(0, waiting) / self._engine.slots > wait_home + typical

    def _typical(self) -> float:
        return statistics.median(self._seconds) if self._seconds else _TYPICAL

    def _waiting(self) -> int:
        """Return the number of jobs that wait at the farm, less its free slots."""
        return max(self._engine.announced, sum(job.sent for job in self._jobs.values())) - self._engine.slots

    def listed(self) -> None:
        """Take jobs home that have waited at the farm for a job's time or are this host's share of a surplus there, if
        slots are free here."""
        for graph in self._jobs.keys() & self._engine.running:
            self._jobs[graph].started = True
        own = [graph for graph, job in self._jobs.items() if job.sent and not job.started and not job.late]
        waiting, slots = self._waiting(), self._host.slots
        for number, graph in enumerate(reversed(own)):  # the last ones first
            if slots.jobs >= slots.number:
                break
            is_surplus = number * waiting < len(own) * (waiting - self._engine.slots)
            if is_surplus or self._clock.now - self._jobs[graph].since > max(_TYPICAL, self._typical()):
                self._engine.withdraw(graph, self)
                self._home(graph, "full")

    def _home(self, graph: int, reason: str) -> None:
        del self._jobs[graph]
        self._run.counts[reason] += 1
        self._host.compile_home(graph)

    def _too_late(self, graph: int) -> None:
        job = self._jobs.get(graph)
        if job is None or job.late or job.deadline > self._clock.now:
            return
        if not job.sent:
            self._home(graph, "gone")
            return
        job.late = True
        self._run.counts["late"] += 1
        self._paused_until = self._clock.now + self._pause
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        self._host.compile_home(graph)


# ---------------------------------------------------------------- the farm


@dataclass(eq=False)
class _Task:
    machine: int
    work: Work
    bridges: list[_Bridge] = field(default_factory=list)


class _Engine:
    """The scheduler and the machines: equal jobs of all hosts are one task, until it has ended."""

    def __init__(self, run: _Run) -> None:
        scenario = run.scenario
        self._run, self._rng = run, random.Random(scenario.seed + 1)
        self._machines = [Slots(run.clock, scenario.slots, run.at_farm) for _ in range(scenario.machines)]
        self._stores: list[set[int]] = [set() for _ in range(scenario.machines)]
        self._tasks: dict[int, _Task] = {}
        self.slots = scenario.machines * scenario.slots
        self.announced = 0
        self.running: set[int] = set()
        self.bridges: list[_Bridge] = []
        self._beat()

    def _beat(self) -> None:
        self._seen = [machine.jobs for machine in self._machines]
        self.announced = sum(self._seen)
        self.running = {graph for graph, task in self._tasks.items() if task.work.state == "running"}
        self._run.of_scheduler.count(len(self._machines) + len(self.bridges))
        for bridge in self.bridges:
            bridge.listed()
        self._run.clock.after(1.0, self._beat)

    def submit(self, graph: int, bridge: _Bridge) -> None:
        self._run.of_scheduler.count()
        if graph not in self._tasks:
            jobs = [machine.jobs / machine.number for machine in self._machines]
            likely = random.Random(graph).sample(range(len(jobs)), min(2, len(jobs)))
            if all(self._seen[number] >= self._run.scenario.slots for number in likely):
                likely = list(range(len(jobs)))
            least = min(jobs[number] for number in likely)
            machine = self._rng.choice([number for number in likely if jobs[number] == least])
            work = Work(lambda: self._begun(graph, machine), lambda: self._ended(graph))
            self._tasks[graph] = _Task(machine, work)
            self._run.of_scheduler.count()
            self._machines[machine].add(work)
        self._tasks[graph].bridges.append(bridge)

    def withdraw(self, graph: int, bridge: _Bridge) -> None:
        task = self._tasks.get(graph)
        if task is None or bridge not in task.bridges:
            return
        self._run.of_scheduler.count()
        task.bridges.remove(bridge)
        if not task.bridges:
            del self._tasks[graph]
            if self._machines[task.machine].drop(task.work):
                self._run.counts["ended early"] += 1

    def _begun(self, graph: int, machine: int) -> float:
        if graph in self._stores[machine]:
            return self._run.scenario.again
        return self._run.compiles(graph, "farm", self._run.scenario.speed)

    def _ended(self, graph: int) -> None:
        task = self._tasks.pop(graph)
        self._stores[task.machine].add(graph)
        self._run.of_scheduler.count(1 + len(task.bridges))
        for bridge in task.bridges:
            self._run.clock.after(self._run.scenario.overhead / 2, functools.partial(bridge.came, graph))


# ---------------------------------------------------------------- the remote cache


class _Remote:
    """Entries and leases; see `codecache/remote/leases.py`."""

    def __init__(self, run: _Run) -> None:
        self._run, self._clock = run, run.clock
        self._entries: set[int] = set()
        self._held: set[int] = set()

    def look(self, graph: int, then: Callable[[bool], None]) -> None:
        self._run.of_remote.count()
        self._clock.after(self._run.scenario.trip, lambda: then(graph in self._entries))

    def take(self, graph: int, then: Callable[[bool], None]) -> None:
        self._run.of_remote.count()

        def taken() -> None:
            is_free = graph not in self._held
            self._held.add(graph)
            then(is_free)

        self._clock.after(self._run.scenario.trip, taken)

    def is_free(self, graph: int, then: Callable[[bool], None]) -> None:
        self._run.of_remote.count()
        self._clock.after(self._run.scenario.trip, lambda: then(graph not in self._held))

    def upload(self, graph: int, then: Callable[[], None] = lambda: None) -> None:
        def uploaded() -> None:
            self._run.of_remote.count()
            self._entries.add(graph)
            then()

        self._clock.after(self._run.scenario.upload, uploaded)

    def release(self, graph: int) -> None:
        self._run.of_remote.count()
        self._held.discard(graph)


class _Client:
    """A program: traces, looks up, compiles, loads, graph by graph."""

    def __init__(self, run: _Run, number: int, program: int, host: _Host) -> None:
        self._run, self._clock, self._host = run, run.clock, host
        self._traces = run.traces[number]
        first = program * run.scenario.graphs
        self._graphs = deque(range(first, first + run.scenario.graphs))
        self._left = len(self._graphs)
        self._compiles: deque[float] = deque(maxlen=_LAST)
        self._in_vain = 0
        self.arrival, self.first, self.last = run.arrivals[number], 0.0, 0.0
        self._clock.after(self.arrival, host.start)
        for _ in range(run.scenario.ahead):
            self._clock.after(self.arrival, self._next)

    def _next(self) -> None:
        if self._graphs:
            graph = self._graphs.popleft()
            self._clock.after(self._traces[graph % len(self._traces)], lambda: self._look_up(graph))

    def _look_up(self, graph: int) -> None:
        remote = self._run.remote
        if graph in self._host.store:
            self._ready(graph)
        elif remote is None:
            self._host.compile(graph, lambda: self._ready(graph))
        else:
            patience = self._run.scenario.remote_wait
            if patience is None:
                patience = max(_SHORTEST, _TIMES * max(self._compiles, default=0.0))
            if self._in_vain >= _MOST_IN_VAIN:
                patience = 0.0
            end = self._clock.now + patience
            remote.look(graph, lambda hit: self._hit(graph) if hit else self._take(graph, end))

    def _take(self, graph: int, end: float) -> None:
        remote = self._of_remote()

        def looked(hit: bool) -> None:
            if hit:
                remote.release(graph)
                self._hit(graph)
            else:
                self._compile(graph, lambda: remote.upload(graph, lambda: remote.release(graph)))

        def taken(is_mine: bool) -> None:
            if is_mine:
                remote.look(graph, looked)
            else:
                self._poll(graph, end, _FIRST_PAUSE)

        remote.take(graph, taken)

    def _poll(self, graph: int, end: float, pause: float) -> None:
        remote = self._of_remote()

        def answered(is_free: bool) -> None:
            if is_free:
                remote.look(graph, lambda hit: self._hit(graph) if hit else self._take(graph, end))
                return
            if self._clock.now >= end:
                self._in_vain += 1
                self._run.counts["gave up"] += 1
                self._compile(graph, lambda: remote.upload(graph))
                return
            longer = min(_LONGEST_POLL, pause * _GROWTH)
            sleep = min(max(longer, _ANSWERS * self._run.scenario.trip), _LONGEST_OF_ALL, end - self._clock.now)
            self._clock.after(sleep, lambda: self._poll(graph, end, longer))

        remote.is_free(graph, answered)

    def _of_remote(self) -> _Remote:
        assert self._run.remote is not None
        return self._run.remote

    def _hit(self, graph: int) -> None:
        self._host.store.add(graph)
        self._in_vain = 0
        self._ready(graph)

    def _compile(self, graph: int, then: Callable[[], None]) -> None:
        start = self._clock.now

        def compiled() -> None:
            self._compiles.append(self._clock.now - start)
            then()
            self._ready(graph)

        self._host.compile(graph, compiled)

    def _ready(self, graph: int) -> None:
        self._clock.after(self._run.scenario.load, self._loaded)

    def _loaded(self) -> None:
        now = self._clock.now
        self.first = self.first or now
        self._left -= 1
        if self._left == 0:
            self.last = now
            self._run.counts["clients"] += 1
        self._next()


def simulated(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Return the figures of a run; seconds are those of a client from its arrival."""
    run = _Run(scenario, policy)
    run.clock.run(lambda: run.counts["clients"] == scenario.clients)
    firsts = [client.first - client.arrival for client in run.clients]
    alls = [client.last - client.arrival for client in run.clients]
    scheduler, remote = run.of_scheduler.rates(), run.of_remote.rates()
    return {
        "policy": policy,
        "compiles": run.counts["compiles"],
        "at hosts": run.counts["compiles at hosts"],
        "at farm": run.counts["compiles at farm"],
        "ended early": run.counts["ended early"],
        "home": {reason: run.counts[reason] for reason in ("full", "late", "paused", "gone") if run.counts[reason]},
        "gave up": run.counts["gave up"],
        "waiting max": run.at_hosts.most + run.at_farm.most,
        "waiting mean": run.at_hosts.mean() + run.at_farm.mean(),
        "first result": min(firsts),
        "first result p50": statistics.median(firsts),
        "all graphs p50": statistics.median(alls),
        "all graphs p99": statistics.quantiles(alls, n=100)[98] if len(alls) > 1 else alls[0],
        "until all": max(client.last for client in run.clients),
        "scheduler/s mean": scheduler[0],
        "scheduler/s max": scheduler[1],
        "remote/s mean": remote[0],
        "remote/s max": remote[1],
    }
