"""Equal jobs under way are one: one worker, an answer for each who asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pool_place import Place, until

from fxpool.errors import JobCancelledError, JobTimeoutError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient, PoolConfig
from fxpool.pool.server.job_limits import JobLimits
from fxpool.pool.server.results import Exceeded, Work, Worker
from fxpool.pool.wire import messages as m


def ask(client: PoolClient, function: str, data: bytes = b"", dedup_key: str = "f", **settings: Any) -> Job:
    return client.submit(f"pool_jobs:{function}", data, JobSpec(label=function, dedup_key=dedup_key, **settings))


def asleep(client: PoolClient, place: Place, **settings: Any) -> Job:
    mark = place.mark("mark-sleep")
    job = ask(client, "sleep", str(mark).encode(), **settings)
    assert until(mark.exists)
    return job


def counters(client: PoolClient) -> dict[str, int]:
    found: dict[str, int] = client.status()["counters"]
    return found


def test_one_worker_answers_all(client: PoolClient) -> None:
    jobs = [ask(client, "worker_pid_slowly") for _ in range(5)]
    other = ask(client, "worker_pid_slowly", dedup_key="g")
    pids = {job.result(timeout=60) for job in jobs}
    assert len(pids) == 1
    assert other.result(timeout=60) not in pids
    assert [job.joined for job in jobs] == [False, True, True, True, True]
    assert {job.worker_pid for job in jobs} == {int(pid) for pid in pids}
    found = counters(client)
    assert (found["jobs"], found["joined"], found["forks"]) == (6, 4, 2)


def test_without_a_name_nothing_is_shared(client: PoolClient) -> None:
    jobs = [ask(client, "worker_pid_slowly", dedup_key="") for _ in range(2)]
    assert len({job.result(timeout=60) for job in jobs}) == 2


def test_what_is_done_is_not_joined(client: PoolClient) -> None:
    first = ask(client, "worker_pid_slowly").result(timeout=60)
    second = ask(client, "worker_pid_slowly")
    assert second.result(timeout=60) != first
    assert not second.joined


def test_the_first_who_asked_may_leave(client: PoolClient, place: Place) -> None:
    first = asleep(client, place)
    second = ask(client, "sleep", b"never read")
    assert until(lambda: second.worker_pid is not None)
    first.cancel()
    with pytest.raises(JobCancelledError):
        first.result(timeout=60)
    pid = second.worker_pid
    assert pid is not None
    os.kill(pid, 0)  # still at work
    assert client.status()["running"][0]["wanted_by"] == [os.getpid()]
    second.cancel()
    assert until(lambda: client.status()["workers"] == [])


def test_all_hear_of_a_death_and_of_the_attempt_after_it(client: PoolClient) -> None:
    jobs = [ask(client, "die") for _ in range(3)]
    for job in jobs:
        with pytest.raises(WorkerDiedError):
            job.result(timeout=60)
    assert [job.attempts for job in jobs] == [2, 2, 2]
    assert counters(client)["forks"] == 2


def test_all_get_the_error(client: PoolClient) -> None:
    jobs = [ask(client, "raise_value_error_slowly", b"no luck") for _ in range(3)]
    for job in jobs:
        with pytest.raises(ValueError, match="no luck"):
            job.result(timeout=60)
    assert counters(client)["forks"] == 1


def test_all_get_the_logs(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    jobs = [ask(client, "log_slowly") for _ in range(2)]
    for job in jobs:
        caplog.clear()
        job.result(timeout=60)
        assert [record.getMessage() for record in caplog.records if record.name == "of the job"] == ["from a worker"]


def test_sub_jobs_of_a_shared_job_outlive_the_first_who_asked(client: PoolClient, place: Place) -> None:
    mark = place.mark("mark-sub")
    first = ask(client, "wait_for_a_sub_job", str(mark).encode())
    second = ask(client, "wait_for_a_sub_job", str(mark).encode())
    assert until(mark.exists)
    first.cancel()
    place.mark("mark-sub-go").touch()
    assert second.result(timeout=60) == b"the sub-job is done"


# ---------------------------------------------------------------- limits


def running(client: PoolClient, place: Place, **settings: Any) -> tuple[Job, Callable[[], None]]:
    """A job that is certain to run, and what ends it."""
    mark = place.mark("mark-running")
    job = ask(client, "wait_for_a_mark", str(mark).encode(), retries=0, **settings)
    assert until(mark.exists)
    return job, place.mark("mark-running-go").touch


def ran_for(client: PoolClient, seconds: float) -> bool:
    (one,) = client.status()["running"]
    return bool(one["seconds"] > seconds)


def test_the_largest_limit_of_those_who_wait_holds(client: PoolClient, place: Place) -> None:
    first, go = running(client, place, timeout=1.0)
    second = ask(client, "wait_for_a_mark", timeout=50.0)  # it runs already
    assert until(lambda: ran_for(client, 2.0))
    go()
    for job in (first, second):
        assert (job.result(timeout=50), job.attempts) == (b"the sub-job is done", 1)


def test_who_has_no_limit_of_his_own_has_the_pool_s(client: PoolClient, place: Place) -> None:
    first, go = running(client, place, timeout=1.0)
    second = ask(client, "wait_for_a_mark")
    assert until(lambda: ran_for(client, 2.0))
    go()
    assert [job.result(timeout=50) for job in (first, second)] == [b"the sub-job is done"] * 2


def test_who_leaves_takes_his_limit_along(client: PoolClient, place: Place) -> None:
    first, _ = running(client, place, timeout=50.0)
    second = ask(client, "wait_for_a_mark", timeout=1.0, retries=0)
    assert until(lambda: ran_for(client, 2.0))
    first.cancel()
    with pytest.raises(JobTimeoutError) as caught:
        second.result(timeout=20)
    assert caught.value.seconds == 1.0


@pytest.mark.parametrize("limits", [(150, 900), (900, 150), (150, None)])
def test_so_does_the_largest_of_memory(client: PoolClient, limits: tuple[int, int | None]) -> None:
    asked = [None if one is None else one << 20 for one in limits]
    jobs = [ask(client, "eat_in_a_child", b"300 1.0", memory=one, retries=0) for one in asked]
    assert [job.result(timeout=50) for job in jobs] == [b"full"] * 2


def test_who_comes_when_it_was_ended_for_less_has_it_tried_again() -> None:
    """Between the kill and the worker's end, which no test can be quick enough for."""
    works = [
        Work(n, m.Submit(job=n, function="f", spec=m.JobSpec(label="l", timeout=t)), memoryview(b""), None, None)
        for n, t in ((1, 1.0), (2, 9.0))
    ]
    worker = Worker(1, 1, works[0], 1, Path("log"), Path("scratch"), None)
    waiting = works[:1]

    async def look() -> list[bool]:
        jobs: Any = SimpleNamespace(asking=lambda job: waiting)
        bounds = JobLimits(PoolConfig(), jobs)
        worker.exceeded = Exceeded("timeout", 1.0, 1.0, "", "1 s")
        before = bounds.allowed_since(worker)
        waiting.append(works[1])
        return [before, bounds.allowed_since(worker)]

    assert asyncio.run(look()) == [False, True]
