"""Jobs that leave their process as they found it share workers, one after the other."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from pool_place import until

from fxpool.errors import JobTimeoutError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient


def run(client: PoolClient, function: str, data: bytes = b"", **settings: Any) -> Job:
    settings = {"label": function, "reuse": True, **settings}
    return client.submit(f"pool_jobs:{function}", data, JobSpec(**settings))


def pid(client: PoolClient, **settings: Any) -> int:
    return int(run(client, "worker_pid", **settings).result())


def test_one_worker_for_many(client: PoolClient) -> None:
    assert len({pid(client) for _ in range(20)}) == 1
    counters = client.status()["counters"]
    assert (counters["forks"], counters["reused"]) == (1, 19)


def test_only_with_equal_surroundings(client: PoolClient) -> None:
    first = pid(client)
    assert pid(client, environment={"A": "1"}) != first
    assert pid(client, cwd="/") != first
    assert pid(client, sys_path=("/nowhere",)) != first
    assert pid(client, reuse=False) != first


def test_what_failed_or_used_the_pool_is_alone(client: PoolClient) -> None:
    first = pid(client)
    with pytest.raises(Exception, match="custom"):
        run(client, "raise_custom").result()
    second = pid(client)
    assert second != first
    assert run(client, "fibonacci", b"3").result()
    assert pid(client) != second
    with pytest.raises(WorkerDiedError):
        run(client, "die", retries=0).result()
    assert client.status()["slots_free"] == 2


def test_a_process_that_a_job_spoils_is_not_used_again(client: PoolClient) -> None:
    first = pid(client)
    assert int(run(client, "spoil").result()) == first
    assert pid(client) != first


def test_each_has_its_own_limit_and_its_own_records(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    pid(client)
    caplog.set_level(logging.INFO, "pool_jobs")
    for text in (b"one", b"two"):
        caplog.clear()
        assert int(run(client, "log_text", text).result()) > 0
        assert [record.getMessage() for record in caplog.records if record.name == "pool_jobs"] == [text.decode()]
    with pytest.raises(JobTimeoutError):
        run(client, "sleep", timeout=0.3, retries=0).result()
    assert run(client, "echo", b"x").result() == b"x"


def test_a_parked_worker_that_is_killed_costs_nobody_anything(client: PoolClient) -> None:
    first = pid(client)
    os.kill(first, signal.SIGKILL)
    assert until(lambda: first not in client.status()["workers"])
    job = run(client, "worker_pid")
    assert int(job.result()) != first
    assert job.attempts == 1


@pytest.mark.slow
def test_it_leaves_when_nobody_comes(client: PoolClient) -> None:
    first = pid(client)
    assert first in client.status()["workers"]
    assert until(lambda: first not in client.status()["workers"])


def test_there_are_not_more_than_slots(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(workers=1)
    for number in range(4):
        run(client, "echo", b"x", environment={"N": str(number)}).result()
    assert until(lambda: len(client.status()["workers"]) == 1)
    assert client.status()["slots_free"] == 1
