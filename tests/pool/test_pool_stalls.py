"""Processes that stall for a while are waited for; those that something keeps suspended are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
from pool_asks import ask
from pool_place import HERE, Place, until

from fxpool.errors import WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient, PoolConfig
from fxpool.pool.server import scheduler as scheduling
from fxpool.pool.server.decisions import Cancelled, Deliver
from fxpool.pool.server.scheduler import Scheduler

Make = Callable[..., PoolClient]


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Place:
    """The test's own directories and processes."""
    place: Place = request.getfixturevalue("place")
    return place


@pytest.fixture
def join(make_client: Make, files: Place) -> Iterator[Make]:
    """Clients of the host's server, which leaves with them."""
    yield lambda **settings: make_client(**{"host": "env", "idle_timeout": 0.1, **settings})
    (files.runtime / "host.lock").unlink()  # empty, and left for the next process that starts a server


def running(client: PoolClient, files: Place, function: str, retries: int = 1) -> Job:
    mark = files.mark("mark-begun")
    job = client.submit(f"pool_jobs:{function}", str(mark).encode(), JobSpec(label=function, retries=retries))
    assert until(mark.exists, 30.0)
    return job


def for_a_while(pid: int, seconds: float) -> threading.Timer:
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    timer.start()
    return timer


def test_twenty_seconds_are_no_reason() -> None:
    assert PoolConfig().patience == 20.0


@pytest.mark.parametrize("stalled", ["server", "zygote"])
def test_a_stall_replaces_nothing(stalled: str, join: Make) -> None:
    first = join(patience=20.0)
    first.start(wait=True)
    facts = first.status()
    stall = for_a_while({"server": facts["server_pid"], "zygote": facts["zygote"]["pid"]}[stalled], 4.0)
    job = first.submit("pool_jobs:echo", b"x", JobSpec(label="meanwhile"))
    second = join(patience=20.0)
    assert second.submit("pool_jobs:echo", b"y", JobSpec(label="of another")).result(timeout=60) == b"y"
    assert (job.result(timeout=60), job.attempts) == (b"x", 1)
    stall.join()
    after = second.status()
    assert (after["server_pid"], after["zygote"]["pid"]) == (facts["server_pid"], facts["zygote"]["pid"])
    assert after["counters"]["deaths"] == 0


def test_a_suspended_worker_is_replaced(make_client: Make, files: Place) -> None:
    client = make_client(patience=1.0)
    job = running(client, files, "sleep_once")
    assert job.worker_pid is not None
    os.kill(job.worker_pid, signal.SIGSTOP)
    assert job.result(timeout=40) == b"again"
    assert (job.attempts, client.status()["counters"]["deaths"]) == (2, 1)


def test_a_job_whose_workers_are_all_suspended_says_so(make_client: Make, files: Place) -> None:
    client = make_client(patience=1.0)
    job = running(client, files, "sleep", retries=0)
    assert job.worker_pid is not None
    os.kill(job.worker_pid, signal.SIGSTOP)
    with pytest.raises(WorkerDiedError, match=r"suspended for more than 1 s \(SIGSTOP, a debugger\)"):
        job.result(timeout=40)


def test_a_worker_that_is_suspended_for_a_moment_goes_on(make_client: Make, files: Place) -> None:
    client = make_client(patience=20.0)
    mark = files.mark("mark-go")
    job = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="waits"))
    assert until(mark.exists, 30.0)
    assert job.worker_pid is not None
    for_a_while(job.worker_pid, 3.0).join()
    files.mark("mark-go-go").touch()
    job.result(timeout=40)
    assert job.attempts == 1


# ---------------------------------------------------------------- bounds


def test_best_effort_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_MOST_BEST_EFFORT", 3)
    scheduler = Scheduler(1)  # not ready: nothing starts
    for number in (1, 2, 3):
        assert ask(scheduler, number, best_effort=True, owner=number) == []
        scheduler.owner_left(number)
    assert ask(scheduler, 4, owner="a") == []
    (dropped,) = ask(scheduler, 5, best_effort=True, owner="a")
    assert isinstance(dropped, Deliver) and dropped.job == 1
    assert isinstance(dropped.outcome, Cancelled) and "best-effort" in dropped.outcome.reason
    assert sorted(scheduler.order) == [2, 3, 4, 5]


def test_a_client_takes_one_descriptor(join: Make) -> None:
    first = join()
    first.start(wait=True)
    server = first.server_pid

    def open_files() -> int:
        return len(os.listdir(f"/proc/{server}/fd"))

    assert until(lambda: first.status()["zygote"]["state"] == "ready")
    before = open_files()
    others = [join() for _ in range(20)]
    for other in others:
        other.start()
    assert until(lambda: len(first.status()["clients"]) == 21)
    assert open_files() - before == 20


LEAVES_A_CHILD = """
import ctypes, time
from fxpool.pool import JobSpec, PoolClient, PoolConfig
client = PoolClient(PoolConfig(**{config!r}))
client.start(wait=True)
if not ctypes.CDLL(None).fork():  # as C libraries do: without Python's hooks
    time.sleep(60)
print("forked", flush=True)
time.sleep(60)
"""


def test_a_client_whose_child_holds_the_socket_is_seen_to_end(join: Make, files: Place) -> None:
    first = join()
    first.start(wait=True)
    config = {
        "host": "env",
        "workers": 2,
        "idle_timeout": 0.1,
        "environment": dict(files.environment),
        "sys_path": (str(HERE),),
        "runtime_dir": str(files.runtime),
    }
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD.format(config=config)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **files.environment},
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "forked\n"
        children = psutil.Process(process.pid).children()
        assert until(lambda: len(first.status()["clients"]) == 2)
        process.kill()
        process.wait()
        try:
            assert until(lambda: len(first.status()["clients"]) == 1, 10.0)
        finally:
            for child in children:
                child.kill()
