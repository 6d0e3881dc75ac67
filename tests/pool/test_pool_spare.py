"""Jobs that the server does in time to spare, for those who come later: they are nobody's, and in nobody's way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pool_asks import ask
from pool_place import Place, until
from test_pool_scheduler import ready, start

from fxpool.pool import Job, JobSpec, PoolClient
from fxpool.pool.client import hosts
from fxpool.pool.server.decisions import Answered, Deliver, Fork, NoWorker

Make = Callable[..., PoolClient]


def test_with_few_slots_it_waits_for_quiet() -> None:
    scheduler = ready(2)
    worker = start(scheduler, 1)
    assert ask(scheduler, 2, best_effort=True, owner="a") == []
    assert scheduler.quiet() == [] and not scheduler.waits_for_quiet  # somebody compiles
    scheduler.answered(worker, None)
    assert scheduler.exited(worker, None) == []
    assert scheduler.waits_for_quiet
    other = start(scheduler, 3)  # who comes now is served first
    assert not scheduler.waits_for_quiet
    scheduler.answered(other, None)
    scheduler.exited(other, None)
    (fork,) = scheduler.quiet()
    assert isinstance(fork, Fork) and fork.job == 2


def test_with_many_slots_it_begins_beside_others() -> None:
    scheduler = ready(4)
    start(scheduler, 1)
    (fork,) = ask(scheduler, 2, best_effort=True, owner="a")
    assert isinstance(fork, Fork) and fork.job == 2
    start(scheduler, 3)
    assert ask(scheduler, 4, best_effort=True, owner="a") == []  # half of the slots are for those who wait


@pytest.mark.parametrize("slots", [2, 4])
def test_asked_for_several_times_it_takes_any_free_slot(slots: int) -> None:
    """Small graphs that follow each other leave no quiet, and each of them could use what it makes."""
    scheduler = ready(slots)
    for number in range(slots - 1):
        start(scheduler, 100 + number)
    assert [ask(scheduler, number, best_effort=True, dedup_key="f", owner=number) for number in (1, 2)] == [[], []]
    (fork,) = ask(scheduler, 3, best_effort=True, dedup_key="f", owner=3)
    assert isinstance(fork, Fork) and fork.job == 1 and scheduler.free == 0
    assert [ask(scheduler, number, best_effort=True, dedup_key="g", owner=number) for number in (4, 5, 6)] == [[]] * 3


def test_others_go_first_also_if_it_is_asked_for_several_times() -> None:
    scheduler = ready(2)
    workers = [start(scheduler, 100), start(scheduler, 101)]
    for number in (1, 2, 3):
        assert ask(scheduler, number, best_effort=True, dedup_key="f", priority=-1, owner="a") == []
    assert ask(scheduler, 102, owner="b") == []
    scheduler.answered(workers[0], None)
    forked = [action.job for action in scheduler.exited(workers[0], None) if isinstance(action, Fork)]
    assert forked == [102]


def test_it_goes_on_without_its_askers() -> None:
    scheduler = ready(4)
    (fork,) = ask(scheduler, 1, best_effort=True, dedup_key="f", owner="a")
    assert isinstance(fork, Fork)
    assert ask(scheduler, 2, best_effort=True, dedup_key="f", owner="b") == []  # the same: it is done once
    assert scheduler.owner_left("a") == scheduler.owner_left("b") == []
    scheduler.reached(fork.worker)
    told = scheduler.answered(fork.worker, None)
    assert told == [Deliver(1, Answered(None), 1, fork.worker), Deliver(2, Answered(None), 1, fork.worker)]


@pytest.mark.parametrize("slots", [2, 4])
def test_one_runs_at_a_time_even_if_it_releases_its_slot(slots: int) -> None:
    """Hosts with dozens of cache directories would run dozens of them, each with a compiler's memory."""
    scheduler = ready(slots)
    first, *rest = [action for job in (1, 2, 3) for action in ask(scheduler, job, best_effort=True, owner=job)] or (
        scheduler.quiet()
    )
    assert isinstance(first, Fork) and rest == []
    assert scheduler.waiting(first.worker) == [] and scheduler.used == 0
    assert not scheduler.waits_for_quiet and scheduler.quiet() == []
    scheduler.reached(first.worker)
    actions = scheduler.answered(first.worker, None) + scheduler.exited(first.worker, None) + scheduler.quiet()
    assert [action.job for action in actions if isinstance(action, Fork)] == [2]


def test_one_whose_worker_cannot_start_is_given_up() -> None:
    scheduler = ready(4)
    (fork,) = ask(scheduler, 1, best_effort=True, owner="a")
    assert isinstance(fork, Fork)
    (told,) = scheduler.exited(fork.worker, "no memory")
    assert isinstance(told, Deliver) and told.outcome == NoWorker("no memory", 1)


@pytest.fixture
def join(make_client: Make, place: Place) -> Make:
    return lambda **settings: make_client(**{"host": "env", "idle_timeout": 0.1, **settings})


def prepare(client: PoolClient, place: Place) -> Job:
    return client.submit(
        "pool_jobs:prepare", str(place.files).encode(), JobSpec(label="prepare", dedup_key="f", best_effort=True)
    )


def gone(place: Place) -> bool:
    left = until(lambda: not place.processes())
    (place.runtime / "host.lock").unlink(missing_ok=True)  # empty, and left for the next that starts a server
    return left


def test_the_server_stays_until_it_is_done_and_leaves_then(join: Make, place: Place) -> None:
    """However short its clients live, and however many ask for it."""
    pids = set()
    for number in range(3):
        client = join()
        prepare(client, place)
        assert client.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result(timeout=60) == b"x"
        pids.add(client.server_pid)
        if not number:
            assert until(place.mark("mark-begun").exists)  # in the quiet after the client's own job
        client.close()
    assert len(pids) == 1 and place.called("fxpool server")
    place.mark("mark-go").touch()
    assert until(place.mark("mark-done").exists)
    assert gone(place)
    assert place.mark("mark-begun").read_text() == "x"


def test_who_tells_the_server_to_end_does_not_wait_for_it(join: Make, place: Place) -> None:
    client = join(idle_timeout=60.0)
    prepare(client, place)
    assert until(place.mark("mark-begun").exists)
    client.close()
    (link,) = hosts.links(place.runtime)
    assert hosts.stop(link)
    assert gone(place)
    assert not place.mark("mark-done").exists()
