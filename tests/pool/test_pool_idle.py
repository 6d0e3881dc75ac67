"""What a zygote does when nobody asks for anything: workers have it, and its failures cost nobody a job."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pool_place import Place, until

from fxpool.pool import JobSpec, PoolClient

Make = Callable[..., PoolClient]


def started(make_client: Make, site: Place, function: str) -> PoolClient:
    client = make_client(idle=f"pool_jobs:{function}")
    client.start(wait=True)
    assert until(site.mark("mark-warmed-up").exists)
    return client


def answer(client: PoolClient) -> bytes:
    return client.submit("pool_jobs:was_warmed_up", b"", JobSpec(label="asked")).result(timeout=60)


def test_workers_have_what_was_warmed_up(make_client: Make, place: Place) -> None:
    client = started(make_client, place, "warm_up")
    assert [answer(client), answer(client)] == [b"1", b"1"]
    assert client.status()["counters"]["zygotes"] == 1


def test_steps_follow_until_one_is_the_last(make_client: Make, place: Place) -> None:
    client = started(make_client, place, "warm_up_in_steps,pool_jobs:warm_up_at_last")
    assert until(place.mark("mark-warmed-up-at-last").exists)
    assert answer(client) == b"6"


def test_a_free_core_is_used_while_a_job_waits(make_client: Make, place: Place) -> None:
    client = make_client(workers=2, idle="pool_jobs:warm_up_in_steps,pool_jobs:warm_up_at_last")
    waiting = client.submit("pool_jobs:sleep", b"600", JobSpec(label="waits"))
    assert until(place.mark("mark-warmed-up-at-last").exists)
    assert not waiting.done() and answer(client) == b"6"
    waiting.cancel()


def test_a_warm_up_that_raises_is_none(make_client: Make, place: Place) -> None:
    client = started(make_client, place, "warm_up_and_raise")
    assert answer(client) == b"0"
    assert client.status()["counters"]["zygotes"] == 1


@pytest.mark.parametrize("function", ["warm_up_with_a_thread", "warm_up_and_die"])
def test_a_zygote_that_can_fork_no_more_is_replaced_by_one_that_does_not_warm_up(
    make_client: Make, place: Place, function: str
) -> None:
    client = started(make_client, place, function)
    assert answer(client) == b"0"
    assert client.status()["counters"]["zygotes"] == 2


def test_only_what_started_a_thread_is_not_called_again(make_client: Make, place: Place) -> None:
    calls = ("warm_up", "warm_up_with_a_thread", "warm_up_at_last")
    client = make_client(idle=",".join(f"pool_jobs:{name}" for name in calls))
    client.start(wait=True)
    assert until(place.mark("mark-warmed-up-at-last").exists)
    assert answer(client) == b"2"
    assert client.status()["counters"]["zygotes"] == 2


def test_a_long_queue_is_worth_it_at_once(make_client: Make, place: Place) -> None:
    """Nobody is idle, and all but the first workers are forked from a zygote that took its time."""
    client = make_client(workers=1, idle="pool_jobs:warm_up")
    jobs = [client.submit("pool_jobs:was_warmed_up", b"", JobSpec(label=f"job {n}")) for n in range(8)]
    found = [job.result(timeout=60) for job in jobs]
    assert found[0] == b"0" and found[-1] == b"1"
    assert found == sorted(found) and client.status()["counters"]["zygotes"] == 1


def test_a_warm_up_that_dies_beside_a_long_queue_loses_no_job(make_client: Make, place: Place) -> None:
    client = make_client(workers=2, idle="pool_jobs:warm_up_and_die")
    jobs = [client.submit("pool_jobs:was_warmed_up", b"", JobSpec(label=f"job {n}")) for n in range(9)]
    assert [job.result(timeout=60) for job in jobs] == [b"0"] * 9
    assert client.status()["counters"]["zygotes"] == 2
