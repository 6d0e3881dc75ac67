"""Equal jobs under way are one: one worker, an answer for each who asked."""

from __future__ import annotations

import os

import pytest
from pool_place import Place, until

from fxpool.errors import JobCancelledError, WorkerDiedError
from fxpool.pool import Job, PoolClient


def ask(client: PoolClient, function: str, data: bytes = b"", flight: str = "f", **settings: object) -> Job:
    return client.submit(f"pool_jobs:{function}", data, label=function, flight=flight, **settings)  # type: ignore[arg-type]


def asleep(client: PoolClient, place: Place, **settings: object) -> Job:
    mark = place.mark("mark-sleep")
    job = ask(client, "sleep", str(mark).encode(), **settings)
    assert until(mark.exists)
    return job


def counters(client: PoolClient) -> dict[str, int]:
    found: dict[str, int] = client.status()["counters"]
    return found


def test_one_worker_answers_all(client: PoolClient) -> None:
    jobs = [ask(client, "worker_pid_slowly") for _ in range(5)]
    other = ask(client, "worker_pid_slowly", flight="g")
    pids = {job.result(timeout=60) for job in jobs}
    assert len(pids) == 1
    assert other.result(timeout=60) not in pids
    assert [job.joined for job in jobs] == [False, True, True, True, True]
    assert {job.worker_pid for job in jobs} == {int(pid) for pid in pids}
    found = counters(client)
    assert (found["jobs"], found["joined"], found["forks"]) == (6, 4, 2)


def test_without_a_name_nothing_is_shared(client: PoolClient) -> None:
    jobs = [ask(client, "worker_pid_slowly", flight="") for _ in range(2)]
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
