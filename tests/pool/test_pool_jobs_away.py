"""A server with a farm: each job has one result, from there or from home, whatever becomes of the farm."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_engine import BUILDS, MACHINE, SITE
from pool_place import HERE, until

from fxpool import __version__, child_python
from fxpool.errors import JobCancelledError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.farm import Away
from fxpool.pool.wire.protocol import PROTOCOL_VERSION, Channel

MakeClient = Callable[..., PoolClient]
# Seconds for everything that a loaded machine does within a moment.
LIMIT = 50.0


@pytest.fixture
def played(tmp_path: Path) -> dict[str, str]:
    """The environment of a server whose farm is played by `pool_engine`."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    return child_python.environment({"PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE)])})


@pytest.fixture
def distant(make_client: MakeClient, played: dict[str, str]) -> PoolClient:
    return make_client(extra=played)


def away(function: str = "shout", wait: float = 300.0, farm: str = "dask://played", **builds: str) -> Away:
    return Away(
        farm=farm,
        key="key",
        function=function,
        seal=b"",
        environment={},
        builds=builds or BUILDS,
        wait=wait,
    )


def echo(client: PoolClient, part: Away | None, **settings: Any) -> Job:
    return client.submit("pool_jobs:echo", b"ours", JobSpec(label="echo", away=part, **settings))


def wait(client: PoolClient, mark: Path, **settings: Any) -> Job:
    """A job that waits for a file, `-go` at home and `-answer` at the farm."""
    part = away("wait", **{name: settings.pop(name) for name in ("wait",) if name in settings})
    return client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="wait", away=part, **settings))


def beside(mark: Path, name: str) -> Path:
    return mark.with_name(f"{mark.name}-{name}")


def counts(client: PoolClient) -> dict[str, int]:
    (facts,) = client.status()["farms"]
    counters: dict[str, int] = facts["counters"]
    return counters


def bridges(client: PoolClient) -> list[psutil.Process]:
    children = psutil.Process(client.status()["server_pid"]).children()
    return [child for child in children if child.name() == "fxpool bridge"]


def ends(job: Job) -> tuple[bytes, str, str]:
    """Return a job's result, the farm's machine, and the reason why it stayed."""
    return job.result(timeout=LIMIT), job.machine, job.stayed


# ---------------------------------------------------------------- with a farm


def test_a_server_connects_ahead_of_the_first_job(make_client: MakeClient, played: dict[str, str]) -> None:
    client = make_client(extra=played, farm="dask://played")
    client.start()
    end = time.monotonic() + LIMIT
    while [farm["state"] for farm in client.status().get("farms", ())] != ["up"]:
        assert time.monotonic() < end, client.status()
        time.sleep(0.05)
    assert len(bridges(client)) == 1 and counts(client) == {}
    assert ends(echo(client, away())) == (b"OURS", MACHINE, "")
    assert len(bridges(client)) == 1


def test_a_job_runs_on_the_farm(distant: PoolClient) -> None:
    assert ends(echo(distant, away())) == (b"OURS", MACHINE, "")
    assert ends(echo(distant, away())) == (b"OURS", MACHINE, "")
    assert counts(distant) == {"sent": 2, "results": 2}
    assert distant.status()["counters"]["forks"] == 0
    assert len(bridges(distant)) == 1


def test_jobs_that_may_not_leave_run_at_home(distant: PoolClient) -> None:
    assert ends(echo(distant, None)) == (b"ours", "", "")
    assert ends(echo(distant, away(), best_effort=True)) == (b"ours", "", ""), "it is for later callers of this host"
    assert distant.status()["farms"] == []


def test_a_job_with_other_builds_runs_at_home(distant: PoolClient) -> None:
    job = echo(distant, away(torch="2"))
    assert ends(job) == (b"ours", "", "other_builds")
    assert job.why == "torch"


def test_a_job_that_fails_there_runs_at_home(distant: PoolClient) -> None:
    job = echo(distant, away("fail"))
    assert ends(job) == (b"ours", "", "lost")
    assert job.why == f"{MACHINE}: WorkerDiedError: it died"


def test_one_answer_serves_all_asks(distant: PoolClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    first = wait(distant, mark, dedup_key="f")
    assert until(beside(mark, "sent").exists, LIMIT)
    second = wait(distant, mark, dedup_key="f")
    assert until(lambda: len(distant.status()["waiting"]) == 2)
    beside(mark, "answer").touch()
    assert ends(first) == ends(second) == (b"theirs", MACHINE, "")
    assert (first.joined, second.joined, counts(distant)["sent"]) == (False, True, 1)


def test_a_job_without_asks_is_withdrawn(distant: PoolClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = wait(distant, mark)
    assert until(beside(mark, "sent").exists, LIMIT)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.result(timeout=LIMIT)
    assert until(beside(mark, "withdrawn").exists, LIMIT)


def test_a_late_job_runs_at_home_as_well_and_the_farm_may_be_first(distant: PoolClient, tmp_path: Path) -> None:
    assert ends(echo(distant, away()))[1] == MACHINE
    mark = tmp_path / "mark"
    job = wait(distant, mark, wait=0.5)
    assert until(mark.exists, LIMIT), "its worker runs"
    beside(mark, "answer").touch()
    assert ends(job)[:2] == (b"theirs", MACHINE)
    assert until(lambda: distant.status()["workers"] == []), "the worker is killed"
    assert counts(distant) == {"sent": 2, "results": 2, "home:late": 1}


def test_a_late_job_runs_at_home_as_well_and_home_may_be_first(distant: PoolClient, tmp_path: Path) -> None:
    assert ends(echo(distant, away()))[1] == MACHINE
    mark = tmp_path / "mark"
    job = wait(distant, mark, wait=0.5)
    assert until(mark.exists, LIMIT)
    assert ends(echo(distant, away())) == (b"ours", "", "paused")
    beside(mark, "go").touch()
    assert ends(job) == (b"the sub-job is done", "", "late")
    assert until(beside(mark, "withdrawn").exists, LIMIT)


def dies(client: PoolClient, mark: Path) -> Job:
    """A late job whose workers here die, while the farm works on it."""
    assert ends(echo(client, away()))[1] == MACHINE
    job = client.submit(
        "pool_jobs:die", str(mark).encode(), JobSpec(label="die", retries=0, away=away("wait", wait=0.5))
    )
    assert until(lambda: client.status()["counters"]["deaths"] == 1, LIMIT)
    assert until(lambda: client.status()["running"] == [], LIMIT)
    return job


def test_a_late_job_that_fails_at_home_gets_the_farm_s_answer(distant: PoolClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = dies(distant, mark)
    beside(mark, "answer").touch()
    assert ends(job)[:2] == (b"theirs", MACHINE)


def test_a_late_job_that_fails_at_home_fails_with_its_farm(distant: PoolClient, tmp_path: Path) -> None:
    job = dies(distant, tmp_path / "mark")
    assert not job.done()
    (bridge,) = bridges(distant)
    bridge.kill()
    with pytest.raises(WorkerDiedError) as caught:
        job.result(timeout=LIMIT)
    assert (caught.value.signal, caught.value.attempts) == (signal.SIGKILL, 1)
    assert caught.value.log_path is not None and Path(caught.value.log_path).exists()


def test_a_bridge_that_dies_sends_its_jobs_home(distant: PoolClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    waiting = wait(distant, mark)
    assert until(beside(mark, "sent").exists, LIMIT)
    (bridge,) = bridges(distant)
    server = distant.status()["server_pid"]
    crash = echo(distant, away("crash"))
    beside(mark, "go").touch()
    assert ends(crash) == (b"ours", "", "gone")
    assert ends(waiting) == (b"the sub-job is done", "", "gone")
    assert not psutil.pid_exists(bridge.pid), "it is no zombie either"
    assert distant.status()["server_pid"] == server
    assert ends(echo(distant, away())) == (b"ours", "", "gone")


def test_the_death_of_the_zygote_leaves_the_bridge(distant: PoolClient, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = wait(distant, mark)
    assert until(beside(mark, "sent").exists, LIMIT)
    (bridge,) = bridges(distant)
    assert until(lambda: "pid" in distant.status()["zygote"], LIMIT)
    zygote = distant.status()["zygote"]["pid"]
    os.kill(zygote, signal.SIGKILL)
    assert until(lambda: distant.status()["zygote"].get("pid", zygote) != zygote, LIMIT)
    beside(mark, "answer").touch()
    assert ends(job) == (b"theirs", MACHINE, "")
    assert bridges(distant) == [bridge]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_bridge_ends_with_its_server(end: signal.Signals, distant: PoolClient) -> None:
    assert ends(echo(distant, away()))[1] == MACHINE
    (bridge,) = bridges(distant)
    os.kill(distant.status()["server_pid"], end)
    assert until(lambda: not bridge.is_running() or bridge.status() == psutil.STATUS_ZOMBIE, LIMIT)


def test_the_bridge_ends_with_its_client(distant: PoolClient) -> None:
    assert ends(echo(distant, away()))[1] == MACHINE
    (bridge,) = bridges(distant)
    distant.close()
    assert not bridge.is_running()


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_wait_that_is_no_number_is_refused(seconds: float, distant: PoolClient) -> None:
    distant.start(wait=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(LIMIT)
        sock.connect(str(Path(distant.status()["directory"]) / "socket"))
        channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
        channel.send(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=1))
        channel.send(m.Submit(job=1, function="pool_jobs:echo", spec=m.JobSpec(label="x", away=away(wait=seconds))))
        while (frame := channel.receive()) is not None:  # until it is disconnected
            assert not isinstance(frame[0], m.Done)
    assert distant.status()["farms"] == []


# ---------------------------------------------------------------- without one


def test_a_scheduler_that_does_not_answer_costs_one_wait(make_client: MakeClient) -> None:
    """With the real engine, if it is installed; without it, the farm is gone, too."""
    client = make_client(extra=child_python.environment({}))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"dask://127.0.0.1:{closed.getsockname()[1]}"
        first = [echo(client, away(farm=address)) for _ in range(2)]
        assert [ends(job) for job in first] == [(b"ours", "", "gone")] * 2
        assert ends(echo(client, away(farm=address))) == (b"ours", "", "gone")
        (facts,) = client.status()["farms"]
    assert (facts["address"], facts["state"], facts["counters"]) == (address, "gone", {"home:gone": 3})
    (bridge,) = bridges(client)
    client.close()
    assert not bridge.is_running()
