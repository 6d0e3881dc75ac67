"""What the server remembers of jobs: the record alone, then a server's over its socket."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_place import Place, until

from fxpool.errors import ProtocolError, WorkerDiedError
from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.client import hosts
from fxpool.pool.host import runtime_dir
from fxpool.pool.server.history import BUCKETS, History
from fxpool.pool.wire import messages as m


def test_a_job_from_its_first_ask_to_its_last_answer() -> None:
    history = History()
    history.submitted(1, 1, "graph 0", 100, 10.0)
    history.submitted(2, 1, "graph 0", 200, 11.0)
    history.begun(1, 500, 1, 12.0)
    history.phase(1, "lowering", 12.5)
    history.took(1, 1000)
    history.answered(1, "cancelled", 13.0)
    (one,) = history.since(0)
    assert (one.ended, one.askers, one.worker) == (None, [100, 200], 500), "another asker still waits"
    history.answered(2, "done", 15.0)
    (one,) = history.since(0)
    assert (one.queued, one.begun, one.ended, one.result, one.memory) == (10.0, 12.0, 15.0, "done", 1000)
    assert one.phases == [("lowering", 12.5)]
    facts = history.facts()
    assert facts["ended"] == {"done": 1} and facts["waited"]["sum"] == 2.0 and facts["ran"]["sum"] == 3.0
    assert facts["ran"]["counts"][BUCKETS.index(3.0)] == 1 == sum(facts["ran"]["counts"])


def test_a_reader_gets_what_changed_since() -> None:
    history = History()
    for job in (1, 2, 3):
        history.submitted(job, job, f"graph {job}", 1, float(job))
    seen = history.latest
    assert history.since(seen) == []
    history.begun(2, 50, 1, 4.0)
    assert [one.job for one in history.since(seen)] == [2]
    history.took(2, 100)
    seen = history.latest
    history.took(2, 101)
    history.took(2, 50)
    assert history.since(seen) == [], "a little more memory is no news"
    history.took(2, 200)
    history.begun(1, 51, 1, 5.0)
    assert [one.job for one in history.since(seen)] == [2, 1], "the latest last"


def test_a_retry_says_why() -> None:
    history = History()
    history.submitted(1, 1, "graph", 1, 0.0)
    history.begun(1, 50, 1, 1.0)
    history.begun(1, 51, 2, 2.0, "it was killed by SIGSEGV")
    history.answered(1, "died", 3.0)
    (one,) = history.since(0)
    assert (one.begun, one.worker, one.attempts, one.result) == (1.0, 51, 2, "died")
    assert one.reason == "it was killed by SIGSEGV" and one.phases == [("attempt 2", 2.0)]


def test_what_is_remembered_is_bounded() -> None:
    history = History(capacity=10)
    history.submitted(1, 1, "long", 1, 0.0)
    for job in range(2, 100):
        history.submitted(job, job, "graph", 1, 0.0)
        history.begun(job, 5, 1, 0.0)
        for number in range(200):
            history.phase(job, f"phase {number}", 0.0)
        history.answered(job, "done", 1.0)
    found = history.since(0)
    assert [one.job for one in found] == [1, *range(90, 100)], "a job that goes on is never forgotten"
    assert max(len(one.phases) for one in found) == 50
    history.phase(99, "late", 2.0)
    history.begun(5, 5, 1, 2.0)
    history.answered(5, "done", 2.0)
    assert history.facts()["ended"]["done"] == 98


@pytest.fixture
def host(place: Place, make_client: Callable[..., PoolClient]) -> Iterator[tuple[PoolClient, Path]]:
    client = make_client(host="shown", idle_timeout=0.3)
    client.start(wait=True)
    yield client, runtime_dir.link_of(place.runtime, "shown")
    (place.runtime / "host.lock").unlink(missing_ok=True)  # empty, and left for the next that starts a server


def ended(visit: hosts.Visit, count: int) -> list[m.JobRecord]:
    found: list[m.JobRecord] = []

    def all_over() -> bool:
        found[:] = visit.history().jobs
        return sum(one.ended is not None for one in found) == count

    assert until(all_over), found
    return found


def test_a_server_tells_what_ran(host: tuple[PoolClient, Path]) -> None:
    client, link = host
    visit = hosts.Visit(link)
    try:
        assert visit.history().jobs == []
        client.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result()
        with pytest.raises(WorkerDiedError):
            client.submit("pool_jobs:die", b"", JobSpec(label="dies", retries=0)).result()
        assert client.submit("pool_jobs:gather", b"2", JobSpec(label="gathers")).result() == b"0 1"
        found = {one.label: one for one in ended(visit, 5)}
        assert found["echo"].result == "done" and found["dies"].result == "died" and found["dies"].attempts == 1
        echo, whole = found["echo"], found["gathers"]
        assert echo.askers == [os.getpid()] and echo.worker not in (None, os.getpid())
        assert echo.begun is not None and echo.ended is not None and echo.queued <= echo.begun <= echo.ended
        assert echo.ended <= time.monotonic()
        assert [one.part_of for one in found.values()].count(whole.job) == len(found) - 3
        latest = visit.history()
        assert visit.history(latest.latest).jobs == [] and latest.now <= time.monotonic()
        jobs = visit.status()["jobs"]
        assert jobs["ended"] == {"done": 4, "died": 1} and sum(jobs["ran"]["counts"]) == 5
    finally:
        visit.close()


def test_who_waits_for_whom(host: tuple[PoolClient, Path]) -> None:
    client, link = host
    visit = hosts.Visit(link)
    try:
        jobs = [
            client.submit("pool_jobs:sleep", b"", JobSpec(label=f"sleeps {number}", dedup_key=str(number)))
            for number in (0, 1, 2, 3, 0)
        ]
        facts: dict[str, Any] = {}

        def settled() -> bool:
            facts.update(visit.status())
            return len(facts["running"]) == 2 and all(one["reached"] and one["memory"] for one in facts["running"])

        assert until(settled)
        by_label = {one["label"]: one for one in facts["running"]}
        assert set(by_label) == {"sleeps 0", "sleeps 1"}
        waiting = [(one["label"], one["position"], one["joined"]) for one in facts["waiting"]]
        assert waiting == [
            ("sleeps 0", 0, False), ("sleeps 1", 0, False), ("sleeps 2", 1, False), ("sleeps 3", 2, False),
            ("sleeps 0", 0, True),
        ]  # fmt: skip
        assert facts["waiting"][-1]["job"] == by_label["sleeps 0"]["job"] == facts["waiting"][0]["job"]
        assert until(lambda: all(one.memory for one in visit.history().jobs if one.begun is not None))
        for job in jobs:
            job.cancel()
        assert {one.result for one in ended(visit, 4)} == {"cancelled"}
    finally:
        visit.close()


def test_a_server_does_not_stay_for_a_visitor(host: tuple[PoolClient, Path]) -> None:
    client, link = host
    visit = hosts.Visit(link)
    assert visit.status()["clients"] == [os.getpid()]
    client.close()

    def gone() -> bool:
        try:
            visit.status()
        except (OSError, ProtocolError):
            return True
        return False

    assert until(gone)
    visit.close()
    with pytest.raises(OSError):
        hosts.Visit(link)
