"""Sub-jobs: in parallel, nested in any depth, and never longer-lived than who asked for them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from pool_place import Place, until

from fxpool.errors import JobCancelledError, JobTimeoutError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient


def run(client: PoolClient, function: str, data: bytes = b"", **settings: Any) -> Job:
    settings.setdefault("label", function)
    return client.submit(f"pool_jobs:{function}", data, JobSpec(**settings))


def test_results(client: PoolClient) -> None:
    assert run(client, "gather", b"5").result() == b"0 1 2 3 4"
    counters = client.status()["counters"]
    assert (counters["jobs"], counters["sub_jobs"], counters["forks"]) == (1, 5, 6)


def test_one_can_be_given_a_variable_of_its_own(client: PoolClient) -> None:
    environment: dict[str, str | None] = {"FXPOOL_TEST_OURS": "ours"}
    assert run(client, "with_a_device", environment=environment).result() == b"7 - ours"


def test_what_is_to_run_alone_does(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(workers=4)
    rows = [line.split() for line in run(client, "measured", b"6").result().decode().splitlines()]
    intervals = [(name, float(begin), float(end)) for name, begin, end in rows]
    assert len(intervals) == 12
    for name, begin, end in intervals:
        if name == "alone":
            others = [one for one in intervals if one != (name, begin, end)]
            assert all(ended <= begin or begun >= end for _, begun, ended in others), "somebody else ran"


def test_they_run_at_the_same_time(client: PoolClient, place: Place) -> None:
    # Two slots, and the parent that waits needs none.
    assert run(client, "meet", str(place.files).encode()).result() == b"0 1"


@pytest.mark.parametrize("workers", [1, 3])
def test_nested_waits(make_client: Callable[..., PoolClient], workers: int) -> None:
    client = make_client(workers=workers)
    assert run(client, "fibonacci", b"5").result() == b"5"


def test_many_waiting_jobs_with_one_slot(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(workers=1)
    jobs = [run(client, "gather", b"2") for _ in range(10)]
    assert [job.result() for job in jobs] == [b"0 1"] * 10


@pytest.mark.parametrize(("function", "result"), [("gather_by_wait", b"3"), ("gather_by_threads", b"0 1 2")])
def test_other_ways_to_wait_with_one_slot(make_client: Callable[..., PoolClient], function: str, result: bytes) -> None:
    client = make_client(workers=1)
    assert run(client, function, b"3").result() == result


def test_errors_of_sub_jobs(client: PoolClient) -> None:
    with pytest.raises(RuntimeError, match="CustomError WorkerDiedError TypeError") as caught:
        run(client, "sub_errors", retries=0).result()
    assert type(caught.value.__cause__).__name__ == "CustomError"


def test_retries_of_sub_jobs(client: PoolClient) -> None:
    assert run(client, "sub_die_once").result() == b"attempt 2"


def test_a_limit_to_waiting(client: PoolClient, place: Place) -> None:
    assert run(client, "sub_timeout").result() == b"timed out"
    assert until(lambda: len(place.processes()) == 2)


def test_surroundings_are_inherited(client: PoolClient) -> None:
    import json

    seen = json.loads(run(client, "sub_surroundings", environment={"ADDED": "x"}, cwd="/").result())
    assert seen["environment"]["ADDED"] == "x"
    assert seen["cwd"] == "/"


def test_logs_of_sub_jobs(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = run(client, "sub_logs")
    job.result()
    records = [r for r in caplog.records if r.name == "pool_jobs.chatter"]
    assert [r.getMessage() for r in records] == ["info 2", "warning 3", "caught"]
    assert job.worker_pid not in {r.process for r in records}


@pytest.mark.parametrize("how", ["cancel", "die", "return", "time out", "cancel itself"])
def test_sub_jobs_end_with_their_parent(client: PoolClient, place: Place, how: str) -> None:
    mark = str(place.mark("mark-sub")).encode()
    if how == "cancel":
        job = run(client, "sub_sleep", mark)
        assert until(lambda: os.path.exists(mark))
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.result()
    elif how == "die":
        with pytest.raises(WorkerDiedError):
            run(client, "sub_sleep_and_die", mark, retries=0).result()
    elif how == "return":
        assert run(client, "sub_sleep_and_return", mark).result() == b"returned"
    elif how == "cancel itself":
        assert run(client, "sub_cancel", mark).result() == b"1"
    else:
        with pytest.raises(JobTimeoutError):
            run(client, "sub_sleep", mark, timeout=1.0).result()
    assert until(lambda: len(place.processes()) == 2), "server and zygote were to be all that is left"
    assert until(lambda: client.status()["slots_free"] == 2)
