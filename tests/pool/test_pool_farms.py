"""The server's end of a farm: which jobs go there and which run at home, with a bridge that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pool_loops import LIMIT, on_a_loop, settle, until

from fxpool.errors import ProtocolError
from fxpool.pool.server import farms
from fxpool.pool.server.farms import Bridge, Farm, Farms
from fxpool.pool.wire import farm as f
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import Message

ADDRESS = "dask://127.0.0.1:9"
BUILDS = {"torch": "1", "gcc": "2"}


class Process:
    """Stands for the process of a bridge."""

    def __init__(self, pid: int) -> None:
        self.pid, self.killed = pid, False

    def kill(self) -> None:
        self.killed = True

    def wait(self, seconds: float) -> int:
        assert self.killed, "it would wait for a process that runs"
        return -9


class Peer:
    """The bridge's end of the socket."""

    def __init__(self, sock: socket.socket, process: Process) -> None:
        self.process = process
        self.received: list[tuple[f.ToBridge, bytes]] = []
        self.ended = False
        self._connection: Connection[f.ToBridge] = Connection(sock, f.ToBridge, self._receive, self._end)

    def _receive(self, message: f.ToBridge, payload: memoryview) -> None:
        self.received.append((message, bytes(payload)))

    def _end(self, error: Exception | None) -> None:
        self.ended = True

    def send(self, message: Message, payload: bytes = b"") -> None:
        self._connection.send(message, payload)

    def list_machines(self, *machines: f.Machine) -> None:
        self.send(f.Machines(machines=list(machines)))

    def result(self, job: int, payload: bytes = b"result") -> None:
        self.send(f.Result(job=job, machine="m", seconds=0.5), payload)

    def close(self) -> None:
        self._connection.close()

    @property
    def runs(self) -> list[int]:
        return [message.job for message, _ in self.received if isinstance(message, f.Run)]

    @property
    def withdrawn(self) -> list[int]:
        return [message.job for message, _ in self.received if isinstance(message, f.Withdraw)]


class Scene:
    """A host, and the bridges that its farms have started."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.results: list[tuple[int, str, bytes]] = []
        self.returned: list[tuple[int, str, bool]] = []
        self.details: list[str] = []
        self.slots, self.jobs = 1, 0
        self.refusal: Exception | None = None
        self.tries = 0
        self.lost: list[int] = []
        self.host: Any = SimpleNamespace(
            came=self._came, home=self._home, lost=self.lost.append, load=lambda: (self.slots, self.jobs)
        )

    def _came(self, job: int, result: f.Result, payload: memoryview) -> None:
        self.results.append((job, result.machine, bytes(payload)))

    def _home(self, job: int, reason: str, detail: str, still: bool) -> None:
        self.returned.append((job, reason, still))
        self.details.append(detail)
        self.jobs += 1

    def start(self, address: str) -> Bridge:
        self.tries += 1
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = socket.socketpair()
        process = Process(1000 + len(self.peers))
        self.peers.append(Peer(theirs, process))
        return Bridge(ours, cast(Any, process))


def machine(
    address: str = "tcp://m", slots: int = 1, jobs: int = 0, running: Sequence[str] = (), **builds: str
) -> f.Machine:
    return f.Machine(
        name="m", address=address, slots=slots, jobs=jobs, running=list(running), builds={**BUILDS, **builds}
    )


def submit(job: int, wait: float = 300.0, farm: str = ADDRESS, **more: Any) -> m.JobSpec:
    away = f.Away(
        farm=farm,
        key=f"key {job}",
        function="module:away",
        seal=b"seal",
        environment={"A": "1"},
        builds=BUILDS,
        wait=wait,
    )
    return m.JobSpec(label=f"job {job}", away=away, **more)


def give(farm: Farm | Farms, *jobs: int, wait: float = 300.0) -> None:
    for job in jobs:
        farm.send(job, submit(job, wait), memoryview(b"request"))


@contextlib.asynccontextmanager
async def a_farm() -> AsyncIterator[tuple[Farm, Scene]]:
    scene = Scene()
    farm = Farm(ADDRESS, scene.host, scene.start)
    try:
        yield farm, scene
    finally:
        farm.close()
        for peer in scene.peers:
            peer.close()
        assert all(peer.process.killed for peer in scene.peers), "a bridge is left"


@contextlib.asynccontextmanager
async def running(*machines: f.Machine) -> AsyncIterator[tuple[Farm, Scene, Peer]]:
    """A farm that has listed its machines, after a first job that it ran."""
    async with a_farm() as (farm, scene):
        give(farm, 100)
        await until(lambda: scene.peers)
        (peer,) = scene.peers
        peer.list_machines(machine())
        await until(lambda: peer.runs == [100])
        peer.result(100)
        await until(lambda: scene.results)
        del scene.results[:], peer.received[:]
        if machines:
            peer.list_machines(*machines)
            await until(lambda: len(farm.facts()["machines"]) == len(machines))
            await settle()
        yield farm, scene, peer


# ---------------------------------------------------------------- jobs that go to the farm


@on_a_loop
async def test_jobs_wait_for_the_first_list_of_machines() -> None:
    async with a_farm() as (farm, scene):
        give(farm, 1, 2)
        assert not scene.tries, "the caller's turn of the loop is not held up"
        await until(lambda: scene.peers)
        await settle()
        assert (scene.tries, scene.returned, scene.peers[0].runs) == (1, [], [])
        assert farm.facts()["state"] == "starting"
        scene.peers[0].list_machines(machine(slots=2))
        await until(lambda: scene.peers[0].runs == [1, 2])
        assert farm.facts()["state"] == "up"
        assert farm.counts == {"sent": 2}
        assert scene.returned == []


@on_a_loop
async def test_a_job_is_sent_with_all_that_a_machine_needs() -> None:
    async with running() as (farm, _scene, peer):
        farm.send(7, submit(7, priority=3, timeout=60.0), memoryview(b"request"))
        await until(lambda: peer.received)
        ((run, packed),) = peer.received
        assert run == f.Run(job=7, key="key 7", priority=3, machines=["tcp://m"])
        assert msgspec.msgpack.decode(packed, type=f.Order) == f.Order(
            key="key 7",
            label="job 7",
            function="module:away",
            seal=b"seal",
            environment={"A": "1"},
            builds=BUILDS,
            timeout=60.0,
            payload=b"request",
        )


@on_a_loop
async def test_equal_jobs_go_to_the_same_two_machines_while_these_are_free() -> None:
    names = [f"m{number}" for number in range(6)]
    free = [f.Machine(name=name, address=f"tcp://{name}", slots=50, jobs=1, builds=BUILDS) for name in names]
    async with running(*free) as (farm, _scene, peer):
        give(farm, *range(1, 41))
        await until(lambda: len(peer.received) == 40)
        sent = {run.job: run.machines for run, _ in peer.received if isinstance(run, f.Run)}
        give(farm, 101)
        assert all(len(set(machines)) == 2 for machines in sent.values())
        assert {address for machines in sent.values() for address in machines} == {one.address for one in free}
        busy = [one if one.address not in sent[7] else msgspec.structs.replace(one, jobs=50) for one in free]
        for job in list(sent):
            farm.recall(job)
        peer.list_machines(*busy)
        await until(lambda: [one["jobs"] for one in farm.facts()["machines"]] == [one.jobs for one in busy])
        del peer.received[:]
        give(farm, 7)
        await until(lambda: peer.runs[-1:] == [7])
        (again,) = [run.machines for run, _ in peer.received if isinstance(run, f.Run) and run.job == 7]
        assert sorted(again) == [f"tcp://{name}" for name in names], "both are busy"


@on_a_loop
async def test_a_job_is_sent_once() -> None:
    async with running() as (farm, _scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        for slots in (2, 3):
            peer.list_machines(machine(slots=slots))
        await until(lambda: farm.facts()["machines"][0]["slots"] == 3)
        await settle()
        assert peer.runs == [1]


@on_a_loop
async def test_a_result_ends_the_job() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        peer.result(1, b"x" * 100_000)
        await until(lambda: scene.results)
        assert scene.results == [(1, "m", b"x" * 100_000)]
        peer.result(1)
        peer.send(f.Lost(job=1, reason="again"))
        await settle()
        assert (len(scene.results), scene.returned, farm.facts()["jobs"]) == (1, [], [])
        assert farm.counts == {"sent": 2, "results": 2}


@on_a_loop
async def test_a_withdrawn_job_is_withdrawn_from_the_farm() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        farm.recall(1)
        await until(lambda: peer.withdrawn == [1])
        farm.recall(1)
        peer.result(1)
        await settle()
        assert (scene.results, scene.returned, peer.withdrawn) == ([], [], [1]), "its end is of no interest"


@on_a_loop
async def test_a_job_that_waits_is_withdrawn_without_a_word() -> None:
    async with a_farm() as (farm, scene):
        give(farm, 1, 2)
        farm.recall(1)
        await until(lambda: scene.peers)
        farm.recall(2)
        scene.peers[0].list_machines(machine())
        await settle()
        assert (scene.peers[0].received, scene.returned) == ([], [])


# ---------------------------------------------------------------- jobs that run at home


@on_a_loop
async def test_only_machines_with_equal_builds_get_a_job() -> None:
    more = machine("tcp://more", cuda="3")
    async with running(machine("tcp://other", gcc="9"), more) as (farm, _scene, peer):
        give(farm, 1)
        await until(lambda: peer.received)
        run, _ = peer.received[0]
        assert isinstance(run, f.Run) and run.machines == ["tcp://more"], "other builds may differ"
        assert [listed["differs"] for listed in farm.facts()["machines"]] == [["gcc"], []]


@pytest.mark.parametrize(
    ("builds", "detail"), [({"gcc": "9"}, "gcc, torch"), ({}, "fxpool"), ({**BUILDS, "gcc": "9"}, "gcc")]
)
@on_a_loop
async def test_a_job_that_no_machine_has_the_builds_for_runs_at_home(builds: dict[str, str], detail: str) -> None:
    other = f.Machine(name="m", address="a", slots=9, jobs=0, builds=builds)
    async with running(other) as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: scene.returned)
        assert (scene.returned, peer.runs) == ([(1, "other_builds", False)], [])
        assert (farm.counts["home:other_builds"], scene.details) == (1, [detail])


@on_a_loop
async def test_a_job_runs_at_home_if_the_farm_has_no_machines() -> None:
    async with a_farm() as (farm, scene):
        give(farm, 1)
        await until(lambda: scene.peers)
        scene.peers[0].list_machines()
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "no_machine", False)]


@pytest.mark.parametrize(
    ("jobs", "slots", "at_home", "full"),
    [
        (0, 1, 0, False),
        (1, 1, 0, False),  # by one job's time
        (2, 1, 0, True),
        (2, 1, 1, False),  # this host's slot is taken as well
        (9, 1, 4, True),
        (9, 1, 9, False),
        (9, 8, 0, False),  # two of ten jobs wait for eight slots
        (24, 8, 0, True),
    ],
)
@on_a_loop
async def test_a_job_runs_at_home_if_it_starts_there_earlier(jobs: int, slots: int, at_home: int, full: bool) -> None:
    async with running(machine(jobs=jobs, slots=slots)) as (farm, scene, peer):
        scene.jobs = at_home
        give(farm, 1)
        await until(lambda: scene.returned or peer.runs)
        assert scene.returned == ([(1, "full", False)] if full else [])


@on_a_loop
async def test_the_jobs_that_were_sent_count_before_the_machines_list_them() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1, 2, 3)
        await until(lambda: scene.returned and len(peer.runs) == 2)
        assert scene.returned == [(3, "full", False)]


@on_a_loop
async def test_other_machines_queues_do_not_count() -> None:
    async with running(machine(), machine("tcp://other", jobs=50, gcc="9")) as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: scene.returned or peer.runs)
        assert peer.runs == [1]


@on_a_loop
async def test_a_job_that_the_farm_loses_runs_at_home() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        peer.send(f.Lost(job=1, reason="its worker died", machine="m"))
        await until(lambda: scene.returned)
        assert (scene.returned, scene.results) == ([(1, "lost", False)], [])
        assert scene.details == ["m: its worker died"]
        give(farm, 2)
        await until(lambda: peer.runs == [1, 2])


@on_a_loop
async def test_a_job_longer_than_a_frame_runs_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (farm, scene, _peer):

        def refuse(*_: object) -> None:
            raise ProtocolError("too long")

        assert farm._connection is not None
        monkeypatch.setattr(farm._connection, "send", refuse)
        give(farm, 1)
        await until(lambda: scene.returned)
        assert (scene.returned, farm.facts()["jobs"]) == ([(1, "lost", False)], [])
        assert farm.counts["sent"] == 1, "only the first one"


# ---------------------------------------------------------------- jobs that come home from a farm that is full


@contextlib.asynccontextmanager
async def overrun(jobs: int, slots: int) -> AsyncIterator[tuple[Farm, Scene, Peer]]:
    """A host with so many slots, whose jobs from 1 to `jobs` have gone to a farm with a slot for each."""
    async with running(machine(slots=jobs)) as (farm, scene, peer):
        scene.slots = slots
        give(farm, *range(1, jobs + 1))
        await until(lambda: len(peer.runs) == jobs)
        yield farm, scene, peer


@on_a_loop
async def test_a_machine_that_is_gone_leaves_no_full_farm() -> None:
    """The engine reports its jobs as lost, or runs them on a machine that comes."""
    async with overrun(jobs=1, slots=3) as (_farm, scene, peer):
        peer.list_machines()
        await settle()
        assert (scene.returned, peer.withdrawn) == ([], [])
        peer.send(f.Lost(job=1, reason="its machine is gone"))
        await until(lambda: scene.returned == [(1, "lost", False)])


@on_a_loop
async def test_jobs_that_wait_at_a_full_farm_come_home_to_free_slots() -> None:
    async with overrun(jobs=6, slots=3) as (farm, scene, peer):
        scene.jobs = 1
        full = machine(slots=6, jobs=300, running=["key 6", "another host's"])
        peer.list_machines(full)
        await until(lambda: len(peer.withdrawn) == 2)
        assert scene.returned == [(5, "full", False), (4, "full", False)], "the last ones that have not started"
        assert farm.counts["home:full"] == 2 and [row["job"] for row in farm.facts()["jobs"]] == [1, 2, 3, 6]
        assert scene.jobs == 3
        peer.list_machines(full)
        await settle()
        peer.result(5)
        peer.send(f.Lost(job=4, reason="it was withdrawn"))
        await settle()
        assert (len(scene.returned), scene.results) == (2, []), "no slot is free, and those at home stay there"
        scene.jobs = 2
        peer.list_machines(machine(slots=6, jobs=300))
        await until(lambda: peer.withdrawn == [5, 4, 3])
        scene.jobs = 0
        peer.list_machines(full)
        await until(lambda: peer.withdrawn == [5, 4, 3, 2, 1])
        peer.list_machines(machine(slots=6, jobs=300))
        await settle()
        assert [row["job"] for row in farm.facts()["jobs"]] == [6], "one that has started does not come"


@pytest.mark.parametrize(
    ("jobs", "back"),
    [
        (8, 0),  # none waits
        (16, 0),  # one for each slot
        (17, 1),  # of 9 that wait there are 8 of this host, and there is one too many
        (24, 4),
        (800, 8),
    ],
)
@on_a_loop
async def test_each_host_takes_its_share_of_a_farm_s_surplus(jobs: int, back: int) -> None:
    async with overrun(jobs=8, slots=20) as (_farm, scene, peer):
        peer.list_machines(machine(slots=8, jobs=jobs), machine("tcp://other", slots=50, gcc="9"))
        await until(lambda: len(peer.withdrawn) == back)
        await settle()
        assert scene.returned == [(8 - number, "full", False) for number in range(back)]


@on_a_loop
async def test_a_job_that_has_waited_for_a_job_s_time_comes_home() -> None:
    async with overrun(jobs=3, slots=5) as (farm, scene, peer):
        for job, seconds in ((1, 60.0), (2, 60.0), (3, 8.0)):
            farm._jobs[job].placed_at -= seconds
        farm._jobs[3].since -= 60.0
        farm._seconds.extend([100.0] * 2)
        few = machine(slots=3, jobs=3, running=["key 2"])
        peer.list_machines(few)
        await settle()
        assert scene.returned == [], "jobs take 100 s there"
        farm._seconds.clear()
        peer.list_machines(few)
        await until(lambda: scene.returned)
        await settle()
        assert (scene.returned, peer.withdrawn) == ([(1, "full", False)], [1])


@on_a_loop
async def test_jobs_of_less_priority_come_home_first() -> None:
    async with running(machine(slots=3)) as (farm, scene, peer):
        for job, priority in ((1, 0), (2, 1), (3, 1)):
            farm.send(job, submit(job, priority=priority), memoryview(b"request"))
        await until(lambda: len(peer.runs) == 3)
        peer.list_machines(machine(slots=3, jobs=300))
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "full", False)]


@on_a_loop
async def test_a_late_job_is_at_home_already() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1, wait=0.1)
        await until(lambda: scene.returned)
        peer.list_machines(machine(jobs=300))
        await settle()
        assert (scene.returned, peer.withdrawn) == ([(1, "late", True)], [])


# ---------------------------------------------------------------- late jobs


@on_a_loop
async def test_a_late_job_runs_at_home_as_well_and_later_ones_only_there() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1, wait=0.2)
        await until(lambda: peer.runs == [1])
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "late", True)]
        assert (peer.withdrawn, farm.facts()["state"]) == ([], "paused")
        assert [row["late"] for row in farm.facts()["jobs"]] == [True]
        give(farm, 2)
        await until(lambda: len(scene.returned) == 2)
        assert (scene.returned[1], peer.runs) == ((2, "paused", False), [1])
        peer.result(1)
        await until(lambda: scene.results)
        assert scene.results == [(1, "m", b"result")], "it counts all the same"
        give(farm, 3)
        await until(lambda: peer.runs == [1, 3])
        assert farm.facts()["state"] == "up"
        assert farm.counts == {"sent": 3, "results": 2, "home:late": 1, "home:paused": 1}


@on_a_loop
async def test_a_pause_ends_and_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farms, "_PAUSE", 0.1)
    monkeypatch.setattr(farms, "_LONGEST_PAUSE", 0.3)
    loop = asyncio.get_running_loop()
    async with running(machine(slots=9)) as (farm, scene, peer):
        pauses: list[float] = []
        for job in (1, 2, 3, 4):
            give(farm, job, wait=0.05)
            await until(lambda: len(scene.returned) > len(pauses))
            pauses.append(farm._pause)
            await until(lambda: loop.time() > farm._paused_until)
        assert peer.runs == [1, 2, 3, 4]
        assert scene.returned == [(job, "late", True) for job in (1, 2, 3, 4)]
        assert pauses == [0.2, 0.3, 0.3, 0.3], "of the next late job"
        peer.result(1)
        await until(lambda: scene.results)
        assert farm._pause == 0.1, "a result ends that"


@on_a_loop
async def test_a_late_job_that_the_farm_loses_is_not_sent_home_again() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1, 2, wait=0.1)
        await until(lambda: len(scene.returned) == 2)
        peer.send(f.Lost(job=1, reason="its worker died"))
        await until(lambda: [row["job"] for row in farm.facts()["jobs"]] == [2])
        peer.send(f.Gone(reason="no answer"))
        await until(lambda: farm.facts()["jobs"] == [])
        assert scene.returned == [(1, "late", True), (2, "late", True)]
        assert scene.lost == [1, 2]


@on_a_loop
async def test_a_late_job_with_a_result_at_home_is_withdrawn() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1, wait=0.1)
        await until(lambda: scene.returned)
        farm.recall(1)
        await until(lambda: peer.withdrawn == [1])


@on_a_loop
async def test_jobs_may_take_twice_the_time_of_the_last_ones() -> None:
    async with running() as (farm, scene, peer):
        farm._seconds.append(100.0)
        give(farm, 1, wait=0.05)
        await until(lambda: peer.runs == [1])
        await asyncio.sleep(0.2)
        assert scene.returned == []


# ---------------------------------------------------------------- farms that do not answer


@on_a_loop
async def test_a_farm_that_is_gone_sends_all_jobs_home_and_later_ones_at_once() -> None:
    async with running(machine(slots=2)) as (farm, scene, peer):
        give(farm, 1, 2)
        await until(lambda: peer.runs == [1, 2])
        peer.send(f.Gone(reason="no answer"))
        await until(lambda: len(scene.returned) == 2)
        assert scene.returned == [(1, "gone", False), (2, "gone", False)]
        assert (farm.facts()["state"], farm.facts()["reason"], farm.facts()["machines"]) == ("gone", "no answer", [])
        assert scene.details == ["no answer"] * 2
        give(farm, 3)
        await until(lambda: len(scene.returned) == 3)
        peer.list_machines(machine())
        await until(lambda: farm.facts()["state"] == "up")
        give(farm, 4)
        await until(lambda: peer.runs == [1, 2, 4])
        assert (farm.counts["home:gone"], scene.tries) == (3, 1), "the bridge was there all the time"


@on_a_loop
async def test_a_farm_that_is_gone_from_the_start_sends_waiting_jobs_home() -> None:
    async with a_farm() as (farm, scene):
        give(farm, 1)
        await until(lambda: scene.peers)
        scene.peers[0].send(f.Gone(reason="no answer"))
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "gone", False)]


@on_a_loop
async def test_a_silent_bridge_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (farm, scene, peer):
        monkeypatch.setattr(farms, "_SILENCE", 0.3)
        give(farm, 1)
        await until(lambda: peer.runs)
        peer.list_machines(machine())
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "gone", False)]
        assert peer.process.killed and farm.pid() is None and farm.facts()["state"] == "gone"
        assert "silent" in farm.facts()["reason"]
        await until(lambda: peer.ended)


@on_a_loop
async def test_a_bridge_that_never_speaks_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farms, "_SILENCE", 0.3)
    async with a_farm() as (farm, scene):
        farm.start()
        (peer,) = scene.peers
        await until(lambda: peer.process.killed)
        assert farm.pid() is None and "silent" in farm.facts()["reason"]


@on_a_loop
async def test_a_bridge_that_speaks_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (farm, _scene, peer):
        monkeypatch.setattr(farms, "_SILENCE", 0.5)
        for _ in range(8):
            peer.list_machines(machine())
            await asyncio.sleep(0.1)
        assert farm.facts()["state"] == "up" and not peer.process.killed


@on_a_loop
async def test_a_bridge_without_a_word_costs_one_wait() -> None:
    async with a_farm() as (farm, scene):
        give(farm, 1, wait=0.2)
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "gone", False)]
        give(farm, 2)
        await until(lambda: len(scene.returned) == 2)
        assert (scene.returned[1], scene.tries) == ((2, "gone", False), 1), "the later one does not wait"
        scene.peers[0].list_machines(machine())
        await until(lambda: farm.facts()["state"] == "up")
        give(farm, 3)
        await until(lambda: scene.peers[0].runs == [3])


@on_a_loop
async def test_the_end_of_a_bridge_sends_jobs_home() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        peer.close()
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "gone", False)]
        assert farm.facts()["reason"] == "its bridge has ended"
        give(farm, 2)
        await until(lambda: len(scene.returned) == 2)
        assert (scene.returned[1], scene.tries) == ((2, "gone", False), 1), "it is not started again at once"


@on_a_loop
async def test_a_bridge_that_sends_garbage_is_killed() -> None:
    async with running() as (farm, scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        peer.send(f.Withdraw(job=1))
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "gone", False)] and peer.process.killed
        assert "no known message" in farm.facts()["reason"]


@on_a_loop
async def test_a_bridge_that_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that starts it does not wait for it, nor do others until the farm answers."""
    async with running() as (farm, scene, peer):
        monkeypatch.setattr(farms, "_AGAIN", 0.0)
        peer.close()
        await until(lambda: farm.facts()["state"] == "gone")
        give(farm, 1)
        await until(lambda: scene.returned)
        assert scene.returned == [(1, "gone", False)]
        give(farm, 2)
        await until(lambda: len(scene.returned) == 2)
        assert scene.tries == 2
        scene.peers[1].list_machines(machine())
        await until(lambda: farm.facts()["state"] == "up")
        give(farm, 3)
        await until(lambda: scene.peers[1].runs == [3])


@on_a_loop
async def test_a_bridge_that_cannot_be_started_sends_jobs_home(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_farm() as (farm, scene):
        scene.refusal = OSError("out of processes")
        give(farm, 1, 2)
        await until(lambda: len(scene.returned) == 2)
        assert scene.returned == [(1, "gone", False), (2, "gone", False)]
        assert scene.tries == 1 and "out of processes" in farm.facts()["reason"]
        assert farm.pid() is None
        scene.refusal = None
        monkeypatch.setattr(farms, "_AGAIN", 0.0)
        give(farm, 3)
        await until(lambda: scene.peers)
        scene.peers[0].list_machines(machine())
        await until(lambda: farm.facts()["state"] == "up")


@on_a_loop
async def test_a_machine_without_slots_is_refused() -> None:
    async with running() as (farm, _scene, peer):
        peer.list_machines(machine(slots=0))
        await until(lambda: peer.process.killed)
        assert "no known message" in farm.facts()["reason"]


# ---------------------------------------------------------------- all farms of a host


@contextlib.asynccontextmanager
async def all_farms() -> AsyncIterator[tuple[Farms, Scene]]:
    scene = Scene()
    host_farms = Farms(scene.host, scene.start)
    try:
        yield host_farms, scene
    finally:
        host_farms.close()
        assert all(peer.process.killed for peer in scene.peers), "a bridge is left"
        for peer in scene.peers:
            peer.close()


@on_a_loop
async def test_each_address_is_a_farm_with_a_bridge() -> None:
    async with all_farms() as (host_farms, scene):
        assert (host_farms.pids, host_farms.facts()) == (set(), [])
        for job, address in ((1, "dask://a:1"), (2, "dask://b:1"), (3, "dask://a:1")):
            host_farms.send(job, submit(job, farm=address), memoryview(b""))
        await until(lambda: len(scene.peers) == 2)
        assert host_farms.pids == {1000, 1001}
        assert [row["address"] for row in host_farms.facts()] == ["dask://a:1", "dask://b:1"]
        for peer in scene.peers:
            peer.list_machines(machine(slots=2))
        await until(lambda: [sorted(peer.runs) for peer in scene.peers] == [[1, 3], [2]])
        host_farms.recall(2)
        host_farms.recall(3)
        await until(lambda: [peer.withdrawn for peer in scene.peers] == [[3], [2]])
        scene.peers[0].result(1)
        await until(lambda: scene.results)
        scene.peers[1].close()
        await until(lambda: host_farms.pids == {1000})
        assert [row["state"] for row in host_farms.facts()] == ["up", "gone"]


@on_a_loop
async def test_a_job_that_has_left_a_farm_is_not_recalled() -> None:
    async with all_farms() as (host_farms, scene):
        give(host_farms, 1, 2, 3, 4)
        await until(lambda: scene.peers)
        (peer,) = scene.peers
        peer.list_machines(machine(slots=4))
        await until(lambda: peer.runs == [1, 2, 3, 4])
        peer.result(1)
        peer.send(f.Lost(job=2, reason="its worker died"))
        await until(lambda: scene.results and scene.returned)
        for job in (1, 2, 3, 5):
            host_farms.recall(job)
        await until(lambda: peer.withdrawn)
        await settle()
        assert peer.withdrawn == [3]
        assert {job for farm in host_farms._farms.values() for job in farm._jobs} == {4}, "the others are forgotten"


@on_a_loop
async def test_a_late_job_is_recalled() -> None:
    async with all_farms() as (host_farms, scene):
        give(host_farms, 1)
        await until(lambda: scene.peers)
        (peer,) = scene.peers
        peer.list_machines(machine(slots=4))
        await until(lambda: peer.runs == [1])
        give(host_farms, 2, wait=0.1)
        await until(lambda: scene.returned == [(2, "late", True)])
        host_farms.recall(2)
        await until(lambda: peer.withdrawn == [2])
        give(host_farms, 3, wait=0.1)
        farm = host_farms._farm(ADDRESS)
        farm._paused_until = 0.0
        await until(lambda: (3, "late", True) in scene.returned)
        peer.send(f.Lost(job=3, reason="its worker died"))
        await until(lambda: scene.lost == [3])
        assert {job for farm in host_farms._farms.values() for job in farm._jobs} == {1}


@on_a_loop
async def test_close_ends_bridges_and_forgets_jobs() -> None:
    async with all_farms() as (host_farms, scene):
        give(host_farms, 1, wait=0.1)
        await until(lambda: scene.peers)
        host_farms.close()
        assert scene.peers[0].process.killed and host_farms.pids == set()
        await asyncio.sleep(0.2)
        assert scene.returned == [], "the server has ended, and no job is started"


@on_a_loop
async def test_facts_are_plain_data() -> None:
    async with running(machine(slots=3, jobs=1), machine("tcp://other", gcc="9")) as (farm, _scene, peer):
        give(farm, 1)
        await until(lambda: peer.runs)
        facts = farm.facts()
        assert msgspec.json.decode(msgspec.json.encode(facts)) == facts
        (job,) = facts.pop("jobs")
        assert 0 <= job.pop("seconds") < LIMIT
        assert job == {"job": 1, "label": "job 1", "late": False}
        assert facts == {
            "address": ADDRESS,
            "state": "up",
            "reason": "",
            "machines": [
                {"name": "m", "slots": 3, "jobs": 1, "differs": []},
                {"name": "m", "slots": 1, "jobs": 0, "differs": ["gcc"]},
            ],
            "counters": {"sent": 2, "results": 1},
        }


def test_a_bridge_s_socket_is_closed_if_its_process_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture of all tests sees a descriptor that is left."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("out of processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="out of processes"):
        farms.start_bridge(ADDRESS)
