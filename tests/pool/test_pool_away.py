"""The scheduler's part in sending jobs to a farm: they are not queued, come home at most once, and end once."""

from __future__ import annotations

from typing import Any

import pytest
from pool_asks import ask

from fxpool.pool.server.decisions import (
    Action,
    Answered,
    Cancelled,
    Deliver,
    Died,
    Fork,
    Kill,
    NoWorker,
    Recall,
    Send,
    Unavailable,
)
from fxpool.pool.server.scheduler import Scheduler


def ready(slots: int = 1) -> Scheduler:
    scheduler = Scheduler(slots)
    assert scheduler.zygote_ready() == []
    return scheduler


def send(scheduler: Scheduler, job: int, owner: str = "a", **wishes: Any) -> None:
    """Submit a job that goes to the farm."""
    assert ask(scheduler, job, away=True, **wishes, owner=owner) == [Send(job)]


def late(scheduler: Scheduler, job: int) -> int:
    """Send a job, and run it at home as well; return its worker."""
    send(scheduler, job)
    (fork,) = scheduler.home(job, still=True)
    assert isinstance(fork, Fork) and fork.job == job
    scheduler.reached(fork.worker)
    return fork.worker


def is_over(scheduler: Scheduler, job: int) -> bool:
    """Whether no later event of the farm has an effect on a job."""
    return scheduler.came(job, "again") == scheduler.home(job) == scheduler.home(job, still=True) == []


def test_a_job_for_the_farm_is_not_queued() -> None:
    scheduler = ready()
    send(scheduler, 1)
    assert (scheduler.queued, scheduler.used, scheduler.running) == (0, 0, 0)
    assert (scheduler.job_of(1), scheduler.asks_of(1)) == (1, [1])
    assert ask(scheduler, 2, owner="a") == [Fork(1, 2, 1)], "it takes no slot"


def test_a_job_for_the_farm_needs_no_zygote() -> None:
    scheduler = Scheduler(1)
    send(scheduler, 1)
    assert scheduler.zygote_ready() == []
    assert scheduler.came(1, "x") == [Deliver(1, Answered("x"), 0, None)]


def test_the_farm_s_answer_ends_the_job() -> None:
    scheduler = ready()
    send(scheduler, 1)
    assert scheduler.came(1, "x") == [Deliver(1, Answered("x"), 0, None)], "there is nothing to withdraw"
    assert scheduler.job_of(1) is None
    assert is_over(scheduler, 1)


def test_a_job_that_the_farm_does_not_run_is_queued() -> None:
    scheduler = ready()
    send(scheduler, 1)
    assert scheduler.home(1) == [Fork(1, 1, 1)]
    scheduler.reached(1)
    assert is_over(scheduler, 1)
    assert scheduler.answered(1, "x") == [Deliver(1, Answered("x"), 1, 1)], "the farm has nothing to withdraw"


def test_a_job_keeps_its_turn_while_it_is_away() -> None:
    scheduler = ready()
    ask(scheduler, 1, owner="a")
    send(scheduler, 2)
    ask(scheduler, 3, owner="a")
    assert scheduler.order == [3]
    assert scheduler.home(2) == []
    assert scheduler.order == [2, 3], "it is the older one"


def test_a_job_that_comes_home_waits_while_nothing_may_start() -> None:
    scheduler = ready()
    send(scheduler, 1)
    scheduler.hold()
    assert scheduler.home(1) == []
    assert scheduler.go_on() == [Fork(1, 1, 1)]


def test_the_farm_s_late_answer_kills_the_worker() -> None:
    scheduler = ready()
    worker = late(scheduler, 1)
    ask(scheduler, 2, owner="a")
    assert scheduler.came(1, "theirs") == [Deliver(1, Answered("theirs"), 1, worker), Kill(worker)]
    assert is_over(scheduler, 1)
    assert scheduler.answered(worker, "ours") == [], "the first answer counts"
    assert scheduler.exited(worker, "killed") == [Fork(2, 2, 1)], "the slot is free when the process is gone"


def test_the_farm_s_late_answer_unqueues_the_job() -> None:
    scheduler = ready()
    ask(scheduler, 1, owner="a")
    send(scheduler, 2)
    assert scheduler.home(2, still=True) == []
    assert scheduler.queued == 1
    assert scheduler.came(2, "x") == [Deliver(2, Answered("x"), 0, None)]
    assert scheduler.queued == 0
    assert scheduler.exited(1, "died") == [Fork(2, 1, 1, "died")], "its retry is not behind the other job"


def test_the_farm_s_late_answer_ends_sub_jobs() -> None:
    scheduler = ready(2)
    parent = late(scheduler, 1)
    (fork,) = ask(scheduler, 2, parent=parent)
    assert isinstance(fork, Fork)
    actions = scheduler.came(1, "x")
    assert Deliver(2, Cancelled("the job that submitted it ended"), 1, fork.worker) in actions
    assert {action.worker for action in actions if isinstance(action, Kill)} == {parent, fork.worker}


def test_the_worker_s_answer_withdraws_the_job_from_the_farm() -> None:
    scheduler = ready()
    worker = late(scheduler, 1)
    assert scheduler.answered(worker, "ours") == [Deliver(1, Answered("ours"), 1, worker), Recall(1)]
    assert is_over(scheduler, 1)


def test_a_late_job_that_the_farm_loses_is_not_started_twice() -> None:
    scheduler = ready(2)
    worker = late(scheduler, 1)
    assert scheduler.home(1) == []
    assert (scheduler.queued, scheduler.running) == (0, 1)
    assert scheduler.answered(worker, "ours") == [Deliver(1, Answered("ours"), 1, worker)], "the farm has it no more"


def test_a_worker_s_death_is_retried_while_the_farm_is_late() -> None:
    scheduler = ready()
    worker = late(scheduler, 1)
    (fork,) = scheduler.exited(worker, "signal 9")
    assert fork == Fork(worker + 1, 1, 2, "signal 9")
    assert scheduler.came(1, "x") == [Deliver(1, Answered("x"), 2, worker + 1), Kill(worker + 1)]


def dead(scheduler: Scheduler, **wishes: Any) -> None:
    """Send a job, and have it fail at home, where it is late."""
    send(scheduler, 1, retries=0, **wishes)
    (fork,) = scheduler.home(1, still=True)
    assert isinstance(fork, Fork)
    scheduler.reached(fork.worker)
    assert scheduler.exited(fork.worker, "x") == []
    assert scheduler.awaits_farm(1)
    assert (scheduler.queued, scheduler.running, scheduler.used) == (0, 0, 0)


def test_the_last_death_of_a_late_job_leaves_it_to_the_farm() -> None:
    scheduler = ready()
    dead(scheduler)
    assert ask(scheduler, 2, owner="a") == [Fork(2, 2, 1)], "it takes no slot"
    assert scheduler.came(1, "theirs") == [Deliver(1, Answered("theirs"), 1, None)]
    assert is_over(scheduler, 1) and not scheduler.awaits_farm(1)


def test_a_late_job_that_has_failed_at_home_fails_when_the_farm_loses_it() -> None:
    scheduler = ready()
    dead(scheduler, dedup_key="f")
    assert ask(scheduler, 2, dedup_key="f", away=True, owner="b") == [], "it waits as well"
    assert scheduler.home(1) == [Deliver(ask, Died("x"), 1, None) for ask in (1, 2)]
    assert is_over(scheduler, 1)


def test_a_late_job_that_has_failed_at_home_can_be_cancelled() -> None:
    scheduler = ready()
    dead(scheduler)
    assert scheduler.cancel(1, "why") == [Deliver(1, Cancelled("why"), 1, None), Recall(1)]


def test_a_job_that_the_farm_has_lost_fails_with_its_last_worker() -> None:
    scheduler = ready()
    send(scheduler, 1, retries=0)
    scheduler.home(1, still=True)
    scheduler.reached(1)
    assert scheduler.home(1) == []
    assert scheduler.exited(1, "x") == [Deliver(1, Died("x"), 1, 1)]


def test_a_late_job_waits_for_the_farm_if_its_worker_does_not_end() -> None:
    scheduler = ready()
    send(scheduler, 1, retries=0)
    scheduler.home(1, still=True)
    scheduler.reached(1)
    scheduler.lost(1)
    assert scheduler.given_up(1, "x") == [] and scheduler.used == 1, "the process is still there"
    assert scheduler.came(1, "theirs") == [Deliver(1, Answered("theirs"), 1, None)]
    assert scheduler.exited(1, "x") == [] and scheduler.used == 0


def test_a_late_job_waits_for_the_farm_if_no_worker_starts() -> None:
    scheduler = Scheduler(1, begins=1)
    scheduler.zygote_ready()
    send(scheduler, 1)
    scheduler.home(1, still=True)
    assert scheduler.exited(1, "no memory") == []
    assert scheduler.home(1) == [Deliver(1, NoWorker("no memory", 1), 0, None)]


def test_a_late_job_waits_for_the_farm_if_zygotes_die_in_it() -> None:
    scheduler = Scheduler(2, zygote_losses=2)
    scheduler.zygote_ready()
    late(scheduler, 1)
    scheduler.zygote_lost("lost")
    assert scheduler.zygote_ready() == [Fork(2, 1, 1, "lost")]
    scheduler.reached(2)
    ask(scheduler, 2, owner="a")
    scheduler.answered(3, "x")
    assert scheduler.zygote_lost("lost") == [] and scheduler.zygote_ready() == []
    end = Unavailable("the zygote died while running this job, 2 times")
    assert scheduler.home(1) == [Deliver(1, end, 1, None)]


def test_all_asks_of_a_flight_get_the_farm_s_answer() -> None:
    scheduler = ready()
    send(scheduler, 1, dedup_key="x")
    assert ask(scheduler, 2, dedup_key="x", away=True, owner="b") == [], "it is sent once"
    assert ask(scheduler, 3, dedup_key="x", owner="c") == [], "it waits for the farm, too"
    assert scheduler.came(1, "x") == [Deliver(ask, Answered("x"), 0, None) for ask in (1, 2, 3)]
    send(scheduler, 4, dedup_key="x")


def test_a_job_for_the_farm_joins_one_that_runs_at_home() -> None:
    scheduler = ready()
    assert ask(scheduler, 1, dedup_key="x", owner="a") == [Fork(1, 1, 1)]
    assert ask(scheduler, 2, dedup_key="x", away=True, owner="b") == []
    assert scheduler.came(2, "x") == scheduler.came(1, "x") == [], "the farm has neither"


def test_the_last_ask_withdraws_the_job_from_the_farm() -> None:
    scheduler = ready()
    send(scheduler, 1, dedup_key="x")
    ask(scheduler, 2, dedup_key="x", away=True, owner="b")
    assert scheduler.cancel(1, "why") == [Deliver(1, Cancelled("why"), 0, None)], "another ask waits for it"
    assert scheduler.cancel(2, "why") == [Deliver(2, Cancelled("why"), 0, None), Recall(1)]
    assert is_over(scheduler, 1)


def test_a_late_job_s_last_ask_ends_both() -> None:
    scheduler = ready()
    worker = late(scheduler, 1)
    assert scheduler.cancel(1, "why") == [Deliver(1, Cancelled("why"), 1, worker), Recall(1), Kill(worker)]


def test_an_owner_that_leaves_takes_its_jobs_from_the_farm() -> None:
    scheduler = ready()
    send(scheduler, 1)
    send(scheduler, 2, owner="b")
    left: list[Action] = [Deliver(1, Cancelled("its caller is gone"), 0, None), Recall(1)]
    assert scheduler.owner_left("a") == left
    assert scheduler.asks_of(2) == [2]


def test_a_lost_zygote_leaves_jobs_at_the_farm() -> None:
    scheduler = ready(2)
    late(scheduler, 1)
    send(scheduler, 2)
    assert scheduler.zygote_lost("lost") == []
    assert scheduler.came(2, "x") == [Deliver(2, Answered("x"), 0, None)]
    assert scheduler.came(1, "x") == [Deliver(1, Answered("x"), 0, None)]
    assert scheduler.zygote_ready() == [], "the retry is not needed any more"


def test_a_broken_zygote_ends_jobs_at_the_farm() -> None:
    """A farm's job may come home at any time, and there it could not run."""
    scheduler = ready()
    send(scheduler, 1)
    end = Unavailable("no zygote")
    assert scheduler.zygote_broken("no zygote") == [Deliver(1, end, 0, None), Recall(1)]
    assert is_over(scheduler, 1)
    assert ask(scheduler, 2, away=True, owner="a") == [Deliver(2, end, 0, None)], "it is not sent"


@pytest.mark.parametrize("still", [False, True])
def test_events_of_jobs_that_are_not_away_have_no_effect(still: bool) -> None:
    scheduler = ready()
    ask(scheduler, 1, owner="a")
    ask(scheduler, 2, owner="a")
    for job in (1, 2, 3):
        assert scheduler.home(job, still=still) == scheduler.came(job, "x") == []
    assert (scheduler.queued, scheduler.running) == (1, 1)
