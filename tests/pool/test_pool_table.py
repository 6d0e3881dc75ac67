"""Who dies, how and when: a table, and in each of its cells what the others see.

What they must see in all of them: their own result, right and after one attempt, from the same server; and after the
cell no worker, no slot taken, nobody's process. Clients and servers live over several cells, as far as they live.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_crashes import KINDS, Asker, Plan
from pool_place import Place, until

from fxpool.errors import JobMemoryError, JobTimeoutError, ServerLostError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient, RemoteError
from fxpool.pool.host import runtime_dir

MB = 1 << 20
WHENS = ("queued", "lowering", "kernels", "publishing", "loading")
#: What waits for a job waits so long for it. Undisturbed, one takes a second, and a server or zygote as much.
SECONDS = 15.0

SIGNALS = {
    "exit": signal.SIGTERM,
    "segfault": signal.SIGSEGV,
    "kill": signal.SIGKILL,
    "abort": signal.SIGABRT,
    "hang": signal.SIGSTOP,
}

#: Cells that there are not, and why.
NONE = {
    ("worker", "queued", ""): "a job that is queued has no worker",
    ("worker", "loading", ""): "a job's worker has ended when its asker has the result",
    ("zygote", "loading", ""): "who loads a result asks nobody for anything any more",
    ("server", "loading", ""): "who loads a result asks nobody for anything any more",
    **{
        (who, "", kind): "only what runs a job can do that"
        for who in ("zygote", "server")
        for kind in ("os._exit", "memory", "unpicklable", "unpickling")
    },
    **{
        ("client", "", kind): "nobody reads what a client makes, and its memory is its own"
        for kind in ("memory", "unpicklable", "unpickling")
    },
}


def cells(who: str) -> list[tuple[str, str]]:
    return [
        (kind, when)
        for kind, when in itertools.product(KINDS, WHENS)
        if not {(who, when, ""), (who, "", kind)} & NONE.keys()
    ]


def tiered(table: list[Any], turn: int) -> list[Any]:
    """Return the cells as parameters: in the first tier are as many as have each kind and each moment at least once.

    `turn` shifts which kind meets which moment, so that together the tables have most of these pairs.
    """
    first: list[Any] = []
    for column in (0, 1):
        for number, value in enumerate(dict.fromkeys(cell[column] for cell in table)):
            if not any(cell[column] == value for cell in first):
                candidates = [cell for cell in table if cell[column] == value]
                first.append(candidates[(number + turn) % len(candidates)])
    return [pytest.param(cell, id=id_of(cell), marks=() if cell in first else pytest.mark.slow) for cell in table]


def test_the_table_is_whole() -> None:
    sizes = {who: len(cells(who)) for who in ("worker", "zygote", "server", "client")}
    assert sizes == {"worker": 9 * 3, "zygote": 5 * 4, "server": 5 * 4, "client": 6 * 5}
    assert all(NONE.values())


# ---------------------------------------------------------------- places that live over several cells


@pytest.fixture(autouse=True)
def place() -> None:
    """Not a place for each cell: `at_rest` looks after one, and `table_of` after all of a table."""


@pytest.fixture(autouse=True)
def _own_directories_and_no_leaks() -> None:
    """As `place`: a server that was started in a cell serves in the next, too."""


@dataclass
class Table:
    """A place, its clients and what a cell leaves to be tidied."""

    place: Place
    numbers: Iterator[int] = field(default_factory=itertools.count)
    clients: list[PoolClient] = field(default_factory=list)
    askers: list[Asker] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def client(self, **settings: Any) -> PoolClient:
        self.clients.append(PoolClient(self.place.config(**settings)))
        return self.clients[-1]

    def asker(self, **settings: Any) -> Asker:
        config = self.place.config(**settings)
        known = {
            name: getattr(config, name)
            for name in ("workers", "sys_path", "runtime_dir", "patience", "host", "idle_timeout")
        }
        self.askers.append(Asker({**known, "environment": self.place.environment}, self.place.environment))
        return self.askers[-1]

    def plan(self, text: str, **more: Any) -> Plan:
        directory = self.place.files / f"{text}-{next(self.numbers)}"
        directory.mkdir()
        self.plans.append(Plan(str(directory), text, **more))
        return self.plans[-1]

    def submit(self, client: PoolClient, plan: Plan, function: str = "compile_like", **settings: Any) -> Job:
        self.jobs.append(client.submit(f"pool_crashes:{function}", plan.dump(), JobSpec(label=plan.text, **settings)))
        return self.jobs[-1]

    def neighbour(self, client: PoolClient, text: str = "neighbour") -> tuple[Job, Plan]:
        """A job that runs, and does until it is told to go."""
        plan = self.plan(text)
        job = self.submit(client, plan, "neighbour")
        assert until(lambda: plan.came and job.worker_pid), f"the {text} did not start"
        return job, plan

    def stop(self, pid: int) -> None:
        self.stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)

    def pids(self) -> set[int]:
        return {process.pid for process in self.place.processes()}

    def tidy(self) -> None:
        """After a cell, whatever became of it."""
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for plan in self.plans:
            plan.go()
        for job in self.jobs:
            job.cancel()
        for asker in self.askers[1:]:
            asker.end()
        del self.stopped[:], self.plans[:], self.jobs[:], self.askers[1:]


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("fxpool")}


@contextlib.contextmanager
def table_of(who: str) -> Iterator[Table]:
    base = Path(tempfile.mkdtemp(prefix="fxpt-", dir="/tmp"))
    place = Place(uuid.uuid4().hex, base / "r", base / "f")
    place.runtime.mkdir(0o700)
    place.files.mkdir(0o700)
    table = Table(place)
    try:
        yield table
        for asker in table.askers:
            asker.end()
        for client in table.clients:
            client.close()
        left = place.processes
        for process in left():
            with contextlib.suppress(psutil.Error):
                if process.name() == "fxpool server":  # the host's would wait for the next client
                    process.terminate()
        assert until(lambda: not left()), f"left by the cells of {who}: {[(p.pid, p.cmdline()) for p in left()]}"
        (place.runtime / "host.lock").unlink(missing_ok=True)
        # A killed server's, if its lock was still held when its successor was started; a later one would do this.
        runtime_dir.sweep(place.runtime, older_than=0.0)
        assert until(lambda: not os.listdir(place.runtime)), f"left by the cells of {who}: {os.listdir(place.runtime)}"
    finally:
        for process in place.processes():
            process.kill()
        shutil.rmtree(base, ignore_errors=True)


def _table(who: str, **settings: Any) -> Callable[..., Iterator[Table]]:
    @pytest.fixture(scope="module", name=f"table_of_{who}s")
    def fixture() -> Iterator[Table]:
        with table_of(who) as table:
            table.client(**settings)
            yield table

    return fixture


# A parent that raises while it waits goes on when it has a slot: one more than its sub-job and the neighbour take.
workers = _table("worker", workers=3)
zygotes = _table("zygote")
servers = _table("server")
host_servers = _table("host_server", host="env", idle_timeout=60.0)
clients = _table("client", host="env", idle_timeout=60.0)


@contextlib.contextmanager
def a_cell(table: Table) -> Iterator[PoolClient]:
    """Around a cell, whose client has a server that is idle before and after."""
    client = table.clients[0]
    client.start(wait=True)
    try:
        yield client
        for plan in table.plans:
            assert plan.published in ("", plan.text), "half of it was published"
        at_rest(table, client)
    finally:
        table.tidy()


def at_rest(table: Table, client: PoolClient) -> None:
    def idle() -> bool:
        facts = client.status()
        busy = [facts.get(name, "?") for name in ("running", "waiting", "workers", "queued")]
        return busy == [[], [], [], 0] and facts["slots_free"] == facts["slots"]

    assert until(idle, SECONDS), f"there is something left to do: {client.status()}"
    alive = {client.server_pid, client.status()["zygote"]["pid"], *(asker.pid for asker in table.askers)}
    assert until(lambda: table.pids() == alive), f"left: {[(p.pid, p.cmdline()) for p in table.place.processes()]}"


def when_it_is(client: PoolClient, when: str, plan: Plan) -> None:
    """Wait until the job of `plan` is there."""
    if when == "queued":
        assert until(lambda: plan.text in [one["label"] for one in client.status().get("waiting", ())])
        assert client.status()["queued"] == 1
        assert not plan.came
        return
    assert until(lambda: plan.came), f"it did not come to {when}"
    phases = {one["label"]: one["phase"] for one in client.status()["running"]}
    assert phases[plan.text] == when
    assert (f"kernel 0 of {plan.text}" in phases) == (when == "kernels")


def id_of(cell: tuple[str, ...]) -> str:
    return "-".join(cell)


# ---------------------------------------------------------------- a worker dies

DIED = {
    "os._exit": (None, 4, ""),
    "segfault": (signal.SIGSEGV, None, "Segmentation fault"),
    "kill": (signal.SIGKILL, None, ""),
    "abort": (signal.SIGABRT, None, "Aborted"),
}
LIMITS = {"timeout": 1.2, "memory": 200 * MB}
WORKER_CELLS = [
    (kind, when, where)
    for kind, when in cells("worker")
    for where in (("sub-job", "parent") if when == "kernels" else ("itself",))
]


@pytest.mark.parametrize("cell", tiered(WORKER_CELLS, 0))
def test_a_worker_dies(cell: tuple[str, str, str], table_of_workers: Table) -> None:
    kind, when, where = cell
    table = table_of_workers
    with a_cell(table) as client:
        before = client.status()
        near, its_plan = table.neighbour(client)
        plan = table.plan(f"graph {id_of(cell)}", when=when, where=where, kind=kind)
        job = table.submit(client, plan, **({"timeout": 1.2} if kind == "hang" else {"memory": 200 * MB}))
        with pytest.raises(Exception) as caught:
            job.result(timeout=SECONDS)
        _is_said(caught.value, cell, plan, job)
        # The job's own end is its last; a death is forgiven once, to whoever it was that died.
        again = kind in (*DIED, "hang", "memory")
        assert plan.came == (2 if again else 1)
        assert job.attempts == (2 if again and not (kind in DIED and where == "sub-job") else 1)
        assert plan.published == ""
        its_plan.go()
        assert (near.result(timeout=SECONDS), near.attempts) == (b"neighbour: 0+1", 1)
        facts = client.status()
        assert (facts["server_pid"], facts["zygote"]["pid"]) == (before["server_pid"], before["zygote"]["pid"])
        gone = facts["counters"]["deaths"] - before["counters"]["deaths"]
        assert gone == (2 if again else 0)


def _is_said(error: BaseException, cell: tuple[str, str, str], plan: Plan, job: Job) -> None:
    """The error has everything that is known."""
    kind, when, where = cell
    if kind in DIED:
        assert type(error) is WorkerDiedError
        signum, code, words = DIED[kind]
        assert (error.signal, error.exit_code, error.attempts) == (signum, code, 2)
        assert words in error.reason
        assert error.log_path is not None and words in Path(error.log_path).read_text()
        if where == "sub-job":
            # An exception in the parent, which may be content without; the job that it came out of is noted.
            assert (error.job, error.phase) == (f"kernel 0 of {plan.text}", "compiler")
            assert (error.fxpool_job, error.fxpool_worker) == (plan.text, job.worker_pid)  # type: ignore[attr-defined]
        else:
            assert (error.job, error.phase, error.worker) == (plan.text, when, job.worker_pid)
        for said in (plan.text, str(error.worker), f"signal {signum:d}" if signum else f"code {code}"):
            assert said in str(error)
    elif kind == "hang":
        assert type(error) is JobTimeoutError
        assert (error.job, error.seconds, error.attempts, error.phase) == (plan.text, 1.2, 2, when)
        assert error.worker == job.worker_pid
    elif kind == "memory":
        assert type(error) is JobMemoryError
        assert (error.job, error.limit, error.attempts, error.phase) == (plan.text, 200 * MB, 2, when)
        assert error.used > 200 * MB and error.worker == job.worker_pid
    else:
        assert (error.fxpool_job, error.fxpool_worker) == (plan.text, job.worker_pid)  # type: ignore[attr-defined]
        if kind == "unpicklable":
            assert type(error) is TypeError
            assert "returned lock; a job must return bytes" in str(error)
        else:
            assert type(error) is RemoteError
            assert error.type_name == {"exit": "SystemExit", "unpickling": "pool_crashes.Sour"}[kind]
            assert error.worker_message == {"exit": "3", "unpickling": "sour"}[kind]
            assert ("unpickled here" in error.reason) == (kind == "unpickling")


# ---------------------------------------------------------------- the zygote dies


@pytest.mark.parametrize("cell", tiered(cells("zygote"), 1))
def test_the_zygote_dies(cell: tuple[str, str], table_of_zygotes: Table) -> None:
    kind, when = cell
    table = table_of_zygotes
    with a_cell(table) as client:
        before = client.status()
        zygote = before["zygote"]["pid"]
        running = [table.neighbour(client, "neighbour")]
        if when == "queued":
            running.append(table.neighbour(client, "another"))
        plan = table.plan(f"graph {id_of(cell)}", when=when)
        job = table.submit(client, plan, retries=0)  # nobody is blamed for a zygote's end
        when_it_is(client, when, plan)
        if kind == "hang":
            table.stop(zygote)
        else:
            os.kill(zygote, SIGNALS[kind])
        for one in table.plans:
            one.go()
        assert (job.result(timeout=SECONDS), job.attempts) == (plan.result, 1)
        assert plan.published == plan.text
        for near, its_plan in running:
            assert (near.result(timeout=SECONDS), near.attempts) == (its_plan.result, 1)
        later = table.plan("later")
        assert table.submit(client, later).result(timeout=SECONDS) == later.result
        facts = client.status()
        assert facts["server_pid"] == before["server_pid"]
        assert facts["zygote"]["pid"] != zygote
        assert facts["counters"]["zygotes"] == before["counters"]["zygotes"] + 1
        assert facts["counters"]["retries"] >= before["counters"]["retries"]


# ---------------------------------------------------------------- the server dies


def _kill_server(table: Table, kind: str, pid: int) -> None:
    if kind == "hang":
        table.stop(pid)
    else:
        os.kill(pid, SIGNALS[kind])


def _is_gone(table: Table, server: int, everybody: set[int]) -> None:
    """Nobody of a server's is left; one that was stopped gets to know of its successor when it goes on."""
    if server in table.stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)
    assert until(lambda: not table.pids() & everybody, 30.0), f"left of server {server}: {table.pids() & everybody}"


@pytest.mark.parametrize("cell", tiered(cells("server"), 2))
def test_the_server_dies(cell: tuple[str, str], table_of_servers: Table) -> None:
    kind, when = cell
    table = table_of_servers
    with a_cell(table) as client:
        server = client.server_pid
        assert server is not None
        running = [table.neighbour(client, "neighbour")]
        if when == "queued":
            running.append(table.neighbour(client, "another"))
        plan = table.plan(f"graph {id_of(cell)}", when=when)
        job = table.submit(client, plan)
        when_it_is(client, when, plan)
        everybody = table.pids()
        assert server in everybody and len(everybody) == {"queued": 4, "kernels": 5}.get(when, 4)
        _kill_server(table, kind, server)
        how = "exited with code 0" if kind == "exit" else f"killed by signal {SIGNALS[kind]:d}"
        if kind == "hang":
            how = "not answered for 1.5 s"
        for lost in (job, *(near for near, _ in running)):
            with pytest.raises(ServerLostError, match=how) as caught:
                lost.result(timeout=SECONDS)
            assert f"server {server}" in str(caught.value)
        for one in table.plans:
            one.go()
        _is_gone(table, server, everybody)
        assert not os.listdir(table.place.runtime)
        assert plan.published == ""
        again = [table.submit(client, one) for one in table.plans]
        for one, each in zip(table.plans, again, strict=True):
            assert (each.result(timeout=SECONDS), each.attempts) == (one.result, 1)
        assert client.server_pid not in (None, server)


@pytest.mark.parametrize("cell", tiered(cells("server"), 3))
def test_the_host_s_server_dies(cell: tuple[str, str], table_of_host_servers: Table) -> None:
    """Two processes wait for one job, and each for one of its own."""
    kind, when = cell
    table = table_of_host_servers
    if not table.askers:
        table.asker(host="env", idle_timeout=60.0)
    other = table.askers[0]
    with a_cell(table) as client:
        server = client.server_pid
        assert server is not None
        near, near_plan = table.neighbour(client)
        running = {near_plan.text: near}
        if when == "queued":
            blocking, its_plan = table.neighbour(client, "another")
            running[its_plan.text] = blocking
        plan = table.plan(f"graph {id_of(cell)}", when=when)
        running[plan.text] = table.submit(client, plan, dedup_key=plan.text)
        theirs = other.submit("pool_crashes:compile_like", plan.dump(), label=plan.text, dedup_key=plan.text)
        when_it_is(client, when, plan)
        assert until(lambda: other.pid in client.status()["clients"])
        everybody = table.pids() - {other.pid}
        _kill_server(table, kind, server)
        if kind == "exit":  # it drains: what was asked for is done
            for one in table.plans:
                one.go()
            for one in table.plans:
                assert (running[one.text].result(timeout=SECONDS), running[one.text].attempts) == (one.result, 1)
            found = other.result(theirs)
            assert (found.get("result"), found.get("attempts")) == (plan.result.decode(), 1), found
            assert found["joined"]
            # As long as it has something to do it takes more from those it knows.
            assert until(lambda: server not in table.pids() and not client.started and other.ask(server=0) is None)
        else:
            for lost in running.values():
                with pytest.raises(ServerLostError, match=f"server {server} of this host"):
                    lost.result(timeout=SECONDS)
            assert other.result(theirs)["error"] == "ServerLostError"
            assert plan.published == ""
            for one in table.plans:
                one.go()
        later = table.plan("later")
        both = [table.submit(client, one, dedup_key=one.text) for one in (plan, later)]
        theirs = other.submit("pool_crashes:compile_like", plan.dump(), label=plan.text, dedup_key=plan.text)
        for one, each in zip((plan, later), both, strict=True):
            assert (each.result(timeout=SECONDS), each.attempts) == (one.result, 1)
        found = other.result(theirs)
        assert (found.get("result"), found.get("attempts")) == (plan.result.decode(), 1), found
        assert client.server_pid not in (None, server)
        assert found["server"] == client.server_pid, "each has a server of its own"
        _is_gone(table, server, everybody)


# ---------------------------------------------------------------- a client dies


@pytest.mark.parametrize("cell", tiered(cells("client"), 4))
def test_a_client_dies(cell: tuple[str, str], table_of_clients: Table) -> None:
    """Of three clients the one that asked first: the second wants the same, the third something else."""
    kind, when = cell
    table = table_of_clients
    if len(table.clients) == 1:
        table.client(host="env", idle_timeout=60.0)
        table.clients[1].start(wait=True)
    third = table.clients[1]
    dying = table.asker(host="env", idle_timeout=60.0)
    with a_cell(table) as second:
        before = second.status()
        near, _ = table.neighbour(third)
        alone = table.plan("alone", when="lowering")
        if when == "queued":
            blocking, its_plan = table.neighbour(third, "another")
        plan = table.plan(f"graph {id_of(cell)}", when="" if when == "loading" else when)
        arguments = {"label": plan.text, "dedup_key": plan.text}
        first = dying.submit("pool_crashes:compile_like", plan.dump(), **arguments)
        if when != "loading":
            when_it_is(second, when, plan)
        joined = table.submit(second, plan, dedup_key=plan.text)
        if when == "loading":
            assert dying.result(first)["result"] == plan.result.decode()
        mine = dying.submit("pool_crashes:compile_like", alone.dump(), label="alone", priority=-1)
        assert until(lambda: "alone" in [one["label"] for one in second.status()["waiting"]])
        if when != "loading":
            (ours,) = [one for one in second.status()["waiting"] if one["label"] == plan.text and one["joined"]]
            assert ours["client"] == os.getpid()
        assert mine == 1
        _end_client(dying, kind)
        # What nobody else wants ends with it, which frees what it took.
        assert until(lambda: kind == "hang" or dying.pid not in second.status()["clients"])
        assert until(lambda: kind == "hang" or "alone" not in [one["label"] for one in second.status()["waiting"]]), (
            "nobody wants that"
        )
        for one in table.plans:
            one.go()
        assert (joined.result(timeout=SECONDS), joined.attempts) == (plan.result, 1)
        assert joined.joined or when == "loading"
        assert plan.came == (0 if when in ("queued", "loading") else 1), "it was begun anew for the second"
        assert (near.result(timeout=SECONDS), near.attempts) == (b"neighbour: 0+1", 1)
        if when == "queued":
            assert (blocking.result(timeout=SECONDS), blocking.attempts) == (its_plan.result, 1)
        dying.end()
        facts = second.status()
        assert (facts["server_pid"], facts["zygote"]["pid"]) == (before["server_pid"], before["zygote"]["pid"])
        assert facts["counters"]["deaths"] == before["counters"]["deaths"]
        table.askers.remove(dying)


def _end_client(dying: Asker, kind: str) -> None:
    if kind == "hang":
        os.kill(dying.pid, signal.SIGSTOP)
        return
    if kind == "kill":
        dying.process.kill()
    else:
        dying.tell(die=kind)
    ended = {"exit": 3, "os._exit": 4, "segfault": -signal.SIGSEGV, "kill": -signal.SIGKILL, "abort": -signal.SIGABRT}
    assert dying.process.wait(SECONDS) == ended[kind]
