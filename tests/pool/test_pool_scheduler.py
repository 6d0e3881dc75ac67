"""The server's decisions: what is promised, and a machine that tries every order of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_asks import ask

from fxpool.pool.server.decisions import (
    Action,
    Answered,
    Assign,
    Cancelled,
    Deliver,
    Died,
    Fork,
    Grant,
    Kill,
    NoWorker,
    Park,
    Recall,
    Send,
    Unavailable,
)
from fxpool.pool.server.scheduler import Scheduler


def ready(slots: int = 1) -> Scheduler:
    scheduler = Scheduler(slots)
    assert scheduler.zygote_ready() == []
    return scheduler


def start(scheduler: Scheduler, job: int, *, parent: int | None = None, **wishes: Any) -> int:
    """Submit a job that runs at once; its worker."""
    (fork,) = ask(scheduler, job, **wishes, owner="a", parent=parent)
    assert isinstance(fork, Fork)
    scheduler.reached(fork.worker)
    return fork.worker


def test_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="slot"):
        Scheduler(0)


def test_jobs_wait_for_the_zygote_and_then_for_slots() -> None:
    scheduler = Scheduler(1)
    assert ask(scheduler, 1, owner="a") == []
    assert ask(scheduler, 2, owner="a") == []
    assert scheduler.zygote_ready() == [Fork(1, 1, 1)]
    assert scheduler.answered(1, "x") == [Deliver(1, Answered("x"), 1, 1)]
    assert scheduler.queued == 1  # the slot is free when the process is gone
    assert scheduler.exited(1, "0") == [Fork(2, 2, 1)]


def test_order_is_priority_then_age() -> None:
    scheduler = ready()
    first = start(scheduler, 1)
    ask(scheduler, 2, owner="a")
    ask(scheduler, 3, priority=5, owner="a")
    ask(scheduler, 4, priority=5, owner="a")
    order = []
    worker = first
    for _ in range(3):
        scheduler.answered(worker, None)
        (fork,) = scheduler.exited(worker, None)
        assert isinstance(fork, Fork)
        order.append(fork.job)
        worker = fork.worker
    assert order == [3, 4, 2]


def test_a_death_costs_a_retry_and_then_the_job() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    (fork,) = scheduler.exited(worker, "signal 9")
    assert fork == Fork(2, 1, 2, "signal 9")
    scheduler.reached(2)
    assert scheduler.exited(2, "signal 11") == [Deliver(1, Died("signal 11"), 2, 2)]
    assert scheduler.retries == 1


def test_no_retries() -> None:
    scheduler = ready()
    worker = start(scheduler, 1, retries=0)
    assert scheduler.exited(worker, "x") == [Deliver(1, Died("x"), 1, worker)]


def test_a_retried_job_keeps_its_place() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    ask(scheduler, 2, owner="a")
    (fork,) = scheduler.exited(worker, "x")
    assert isinstance(fork, Fork)
    assert fork.job == 1


def test_cancel_queued_and_running() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    ask(scheduler, 2, owner="a")
    assert scheduler.cancel(2, "why") == [Deliver(2, Cancelled("why"), 0, None)]
    assert scheduler.cancel(1, "why") == [Deliver(1, Cancelled("why"), 1, worker), Kill(worker)]
    assert scheduler.cancel(1) == []
    assert ask(scheduler, 3, owner="a") == []  # the worker is not gone yet
    assert scheduler.exited(worker, "signal 9") == [Fork(2, 3, 1)]


def test_a_job_does_not_wait_for_a_worker_that_does_not_end() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    ask(scheduler, 2, owner="a")
    assert scheduler.given_up(worker, "over its time") == [Deliver(1, Died("over its time"), 1, worker), Kill(worker)]
    assert scheduler.given_up(worker, "over its time") == []
    assert scheduler.exited(worker, "signal 9") == [Fork(2, 2, 1)]  # its slot was not free before


def test_no_job_is_begun_beside_those_admitted() -> None:
    scheduler = ready(3)
    parent = start(scheduler, 1)
    assert scheduler.admit(0) == []
    assert ask(scheduler, 2, owner="a") == []
    assert ask(scheduler, 3, parent=parent) == [Fork(2, 3, 1)]  # a part of what runs
    assert scheduler.begun == 1
    assert scheduler.exited(parent, "died")[-1] == Kill(2)  # its retry waits, too
    scheduler.exited(2, "killed")
    assert (scheduler.running, scheduler.queued) == (0, 2)
    assert scheduler.admit(1) == [Fork(3, 1, 2, "died")]
    assert scheduler.admit(None) == [Fork(4, 2, 1)]


def test_nobody_is_blamed_for_the_zygote_but_one_that_is_always_there() -> None:
    scheduler = ready(2)
    worker = start(scheduler, 1, retries=0)
    for number in (2, 3):
        scheduler.answered(neighbour := start(scheduler, number), None)  # the pool works otherwise
        scheduler.exited(neighbour, None)
        assert scheduler.zygote_lost("gone") == []
        (fork,) = scheduler.zygote_ready()
        assert isinstance(fork, Fork)
        assert (fork.job, fork.attempt) == (1, 1)
        scheduler.reached(worker := fork.worker)
    often = Unavailable("the zygote died while running this job, 3 times")
    assert scheduler.zygote_lost("gone") == [Deliver(1, often, 1, worker)]


def test_a_worker_that_did_not_reach_its_job_costs_it_nothing() -> None:
    scheduler = ready()
    (fork,) = ask(scheduler, 1, retries=0, owner="a")
    for number in range(2, 9):
        assert isinstance(fork, Fork)
        assert scheduler.missed(1) == number - 2
        (fork,) = scheduler.exited(fork.worker, "no room")
        assert fork == Fork(number, 1, 1, "no room")
    assert scheduler.exited(8, "no room") == [Deliver(1, NoWorker("no room", 8), 0, 8)]
    assert (scheduler.used, scheduler.missed(1)) == (0, 0)


def test_patience_with_the_host_begins_again_when_a_worker_reached_its_job() -> None:
    scheduler = ready()
    ask(scheduler, 1, retries=1, owner="a")
    for worker in range(1, 8):
        scheduler.exited(worker, "no room")
    scheduler.reached(8)
    assert scheduler.missed(1) == 0
    assert scheduler.exited(8, "died") == [Fork(9, 1, 2, "died")]
    assert scheduler.exited(9, "no room") == [Fork(10, 1, 2, "no room")]
    scheduler.reached(10)
    assert scheduler.exited(10, "died") == [Deliver(1, Died("died"), 2, 10)]


def test_what_was_not_the_job_s_fault_after_all_costs_it_nothing() -> None:
    scheduler = ready()
    worker = start(scheduler, 1, retries=0)
    assert scheduler.failed(worker) == []
    assert scheduler.exited(worker, "no room") == [Fork(2, 1, 1, "no room")]


def test_a_job_that_no_worker_can_be_given_ends_at_once() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    assert scheduler.refuse(worker, "too long") == [Deliver(1, Unavailable("too long"), 1, worker), Kill(worker)]
    assert scheduler.exited(worker, "x") == []


def test_waiting_lends_the_slot_and_resume_comes_first() -> None:
    scheduler = ready()
    parent = start(scheduler, 1)
    ask(scheduler, 2, owner="b")
    assert ask(scheduler, 3, owner="a", parent=parent) == []
    (fork,) = scheduler.waiting(parent)
    assert fork == Fork(2, 3, 1)  # the sub-job before the older job
    scheduler.reached(2)
    assert scheduler.answered(2, "x") == [Deliver(3, Answered("x"), 1, 2)]
    assert scheduler.resume(parent) == []
    assert scheduler.exited(2, None) == [Grant(parent)]
    assert scheduler.resume(parent) == [Grant(parent)]
    scheduler.answered(parent, None)
    assert scheduler.exited(parent, None) == [Fork(3, 2, 1)]


@pytest.mark.parametrize("end", ["answered", "cancel", "exited", "given_up"])
def test_sub_jobs_end_with_the_worker_that_asked(end: str) -> None:
    scheduler = ready(3)
    parent = start(scheduler, 1, retries=0)
    child = start(scheduler, 2, parent=parent)
    grandchild = start(scheduler, 3, parent=child)
    ask(scheduler, 4, owner="a", parent=parent)  # queued
    actions = {
        "answered": lambda: scheduler.answered(parent, None),
        "cancel": lambda: scheduler.cancel(1),
        "exited": lambda: scheduler.exited(parent, None),
        "given_up": lambda: scheduler.given_up(parent, None),
    }[end]()
    delivered = {a.job for a in actions if isinstance(a, Deliver)}
    killed = {a.worker for a in actions if isinstance(a, Kill)}
    assert delivered == {1, 2, 3, 4}
    assert killed >= {child, grandchild}


def test_a_sub_job_of_a_worker_without_a_job_is_refused() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    scheduler.cancel(1)
    (deliver,) = ask(scheduler, 2, owner="a", parent=worker)
    assert isinstance(deliver, Deliver)
    assert isinstance(deliver.outcome, Cancelled)


def test_an_owner_s_jobs_end_when_it_leaves() -> None:
    scheduler = ready()
    worker = start(scheduler, 1)
    ask(scheduler, 2, owner="a")
    ask(scheduler, 3, owner="b")
    actions = scheduler.owner_left("a")
    assert {a.job for a in actions if isinstance(a, Deliver)} == {1, 2}
    assert scheduler.exited(worker, None) == [Fork(2, 3, 1)]


def test_a_lost_zygote_costs_what_ran_an_attempt() -> None:
    scheduler = ready(2)
    start(scheduler, 1)
    ask(scheduler, 2, owner="a")  # its worker was not forked yet
    assert scheduler.zygote_lost("gone") == []
    assert scheduler.used == 0
    assert scheduler.zygote_ready() == [Fork(3, 1, 1, "gone"), Fork(4, 2, 1, "gone")]


def test_a_zygote_that_is_lost_again_and_again_is_given_up() -> None:
    scheduler = ready()
    ask(scheduler, 1, owner="a")
    for _ in range(2):
        assert scheduler.zygote_lost("x", "the zygote died") == []
        scheduler.zygote_ready()
    (deliver,) = scheduler.zygote_lost("x", "the zygote died")
    assert deliver == Deliver(1, Unavailable("the zygote died 3 times in a row"), 0, None)
    assert scheduler.broken
    (deliver,) = ask(scheduler, 2, owner="a")
    assert isinstance(deliver, Deliver)
    assert isinstance(deliver.outcome, Unavailable)


def test_relieve_ends_a_wait_nobody_told_of() -> None:
    scheduler = ready()
    parent = start(scheduler, 1)
    assert not scheduler.stalled
    ask(scheduler, 2, owner="a", parent=parent)
    assert scheduler.stalled
    assert scheduler.relieve() == [Fork(2, 2, 1)]
    assert scheduler.used == 2
    assert not scheduler.stalled
    assert scheduler.relieve() == []


def test_other_jobs_are_no_reason_to_relieve() -> None:
    scheduler = ready()
    start(scheduler, 1)
    ask(scheduler, 2, owner="a")
    assert not scheduler.stalled


def test_equal_asks_are_one_job() -> None:
    scheduler = ready(2)
    worker = start(scheduler, 1, dedup_key="f")
    assert ask(scheduler, 2, dedup_key="f", owner="b") == []
    assert ask(scheduler, 3, dedup_key="g", owner="c") == [Fork(2, 3, 1)]
    assert [scheduler.job_of(ask) for ask in (1, 2, 3)] == [1, 1, 3]
    actions = scheduler.answered(worker, "x")
    assert actions == [Deliver(1, Answered("x"), 1, worker), Deliver(2, Answered("x"), 1, worker)]
    assert scheduler.job_of(2) is None
    assert ask(scheduler, 4, dedup_key="f", owner="b") == []  # a new one: what is done is not in flight
    assert scheduler.job_of(4) == 4


def test_a_job_goes_on_while_somebody_wants_it() -> None:
    scheduler = ready()
    worker = start(scheduler, 1, dedup_key="f")
    ask(scheduler, 2, dedup_key="f", owner="b")
    ask(scheduler, 3, dedup_key="f", owner="b")
    assert scheduler.owner_left("a") == [Deliver(1, Cancelled("its caller is gone"), 1, None)]
    assert scheduler.cancel(2, "no") == [Deliver(2, Cancelled("no"), 1, None)]
    assert scheduler.cancel(2, "no") == []
    assert scheduler.asks_of(1) == [3]
    assert scheduler.cancel(3, "no") == [Deliver(3, Cancelled("no"), 1, worker), Kill(worker)]
    assert ask(scheduler, 4, dedup_key="f", owner="a") == []  # not the one that is being killed
    assert scheduler.job_of(4) == 4


def test_who_joins_lives_through_a_death() -> None:
    scheduler = ready()
    worker = start(scheduler, 1, dedup_key="f", retries=0)
    ask(scheduler, 2, dedup_key="f", retries=1, owner="b")
    (fork,) = scheduler.exited(worker, "died")
    assert isinstance(fork, Fork) and (fork.job, fork.attempt) == (1, 2)
    scheduler.reached(fork.worker)
    assert [a.job for a in scheduler.exited(fork.worker, "died") if isinstance(a, Deliver)] == [1, 2]


def test_who_waits_raises_the_priority_of_what_runs_in_the_background() -> None:
    scheduler = ready()
    start(scheduler, 1)
    ask(scheduler, 2, dedup_key="f", priority=-1, owner="a")
    ask(scheduler, 3, owner="a")
    ask(scheduler, 4, dedup_key="f", owner="b")
    scheduler.answered(1, "x")
    assert scheduler.exited(1, "0") == [Fork(2, 2, 1)]


def test_slots_are_shared_out_between_owners() -> None:
    scheduler = ready(2)
    for job in range(1, 5):
        ask(scheduler, job, owner="many")
    ask(scheduler, 5, owner="one")
    order = []
    for worker in range(1, 4):
        scheduler.answered(worker, "x")
        order += [a.job for a in scheduler.exited(worker, "0") if isinstance(a, Fork)]
    assert order == [5, 3, 4]


def test_a_worker_is_parked_for_the_next_job_of_its_kind() -> None:
    scheduler = ready(2)
    worker = start(scheduler, 1, kind="k")
    assert scheduler.answered(worker, "x", stays=True) == [Deliver(1, Answered("x"), 1, worker), Park(worker)]
    assert (scheduler.used, scheduler.running) == (0, 0)
    (fork,) = ask(scheduler, 2, kind="other", owner="a")
    assert isinstance(fork, Fork)
    assert ask(scheduler, 3, kind="k", owner="a") == [Assign(worker, 3, 1)]
    assert scheduler.dismiss(worker) == []  # it is busy
    scheduler.reached(worker)
    assert scheduler.exited(worker, "died") == [Fork(3, 3, 2, "died")]


def test_parked_workers_are_dismissed_when_nobody_comes_or_there_are_too_many() -> None:
    scheduler = ready(1)
    first = start(scheduler, 1, kind="k")
    scheduler.answered(first, None, stays=True)
    second = start(scheduler, 2, kind="l")
    assert scheduler.answered(second, None, stays=True)[1:] == [Park(second), Kill(first)]
    assert scheduler.exited(first, None) == []
    assert scheduler.dismiss(second) == [Kill(second)]
    assert scheduler.dismiss(second) == []
    (fork,) = ask(scheduler, 3, kind="l", owner="a")
    assert isinstance(fork, Fork)


@pytest.mark.parametrize("settings", [{}, {"kind": "k"}])
def test_who_stays_and_is_not_wanted_is_ended(settings: dict[str, Any]) -> None:
    """It is of no kind, or its zygote has not told of it yet."""
    scheduler = ready()
    (fork,) = ask(scheduler, 1, **settings, owner="a")
    assert isinstance(fork, Fork)
    if not settings:
        scheduler.reached(fork.worker)
    assert scheduler.answered(fork.worker, None, stays=True)[-1] == Kill(fork.worker)


def test_who_is_to_run_alone_waits_for_all_others_and_they_for_it() -> None:
    scheduler = ready(3)
    parent, other = start(scheduler, 1), start(scheduler, 2)
    assert ask(scheduler, 3, exclusive=True, parent=parent) == []
    assert scheduler.waits_for_exclusion
    assert ask(scheduler, 4, owner="a") == []  # a slot is free, but it is the other's turn
    assert scheduler.waiting(parent) == []
    scheduler.answered(other, None)
    assert scheduler.exited(other, None) == [Fork(3, 3, 1)]
    assert not scheduler.waits_for_exclusion
    scheduler.reached(3)
    assert scheduler.resume(parent) == []
    assert scheduler.answered(3, None) == [Deliver(3, Answered(None), 1, 3), Grant(parent), Fork(4, 4, 1)]


def test_nothing_begins_on_hold() -> None:
    scheduler = ready(2)
    parent = start(scheduler, 1)
    scheduler.waiting(parent)
    scheduler.hold()
    assert ask(scheduler, 2, owner="a") == []
    assert scheduler.resume(parent) == []
    assert scheduler.relieve() == [] and not scheduler.stalled
    assert ask(scheduler, 3, best_effort=True, owner="a") == [] and not scheduler.waits_for_quiet
    assert scheduler.go_on() == [Grant(parent), Fork(2, 2, 1)]


def test_who_is_to_run_alone_is_let_in_when_its_caller_is_out_of_patience() -> None:
    scheduler = ready(2)
    parent, other = start(scheduler, 1), start(scheduler, 2)
    ask(scheduler, 3, exclusive=True, parent=parent)
    scheduler.waiting(parent)
    assert scheduler.waits_for_exclusion and not scheduler.stalled
    assert scheduler.relieve() == [Fork(3, 3, 1)]
    assert not scheduler.waits_for_exclusion
    scheduler.answered(other, None)
    assert ask(scheduler, 4, owner="a") == []
    assert scheduler.exited(other, None) == []


def test_a_wait_nobody_told_of_is_no_reason_to_wait_to_be_alone() -> None:
    scheduler = ready(2)
    parent = start(scheduler, 1)
    ask(scheduler, 2, exclusive=True, parent=parent)
    assert scheduler.stalled
    assert scheduler.relieve() == [Fork(2, 2, 1)]


class Machine(RuleBasedStateMachine):
    """Any order of events. The model knows what was asked for, what lives, and who holds a slot."""

    @initialize(slots=st.integers(1, 3))
    def begin(self, slots: int) -> None:
        self.scheduler = Scheduler(slots, zygote_losses=10**6)
        self.slots = slots
        self.ready = False
        self.open: dict[int, int | None] = {}  # ask: the worker that asks
        self.job: dict[int, int] = {}  # ask: the job it waits for
        self.flights: dict[str, int] = {}  # jobs that can be joined
        self.next = 0
        self.live: dict[int, int | None] = {}  # worker: its job, None once the asker was told
        self.slot: dict[int, str] = {}
        self.forked: set[int] = set()
        self.killed: set[int] = set()
        self.parked: set[int] = set()
        self.kinds: dict[int, str] = {}  # of jobs
        self.alone: set[int] = set()  # jobs
        self.kind: dict[int, str] = {}  # of workers
        self.over = 0  # how many `relieve` let in and that may still hold a slot
        self.admitted: int | None = None
        self.on_hold = False
        self.away: set[int] = set()  # jobs that the farm has
        self.late: set[int] = set()  # those of them that run at home, too

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, (Fork, Assign, Grant)):
                assert not self.on_hold, "nothing is to begin"
                assert not self.measuring(), "it is to be alone"
                held = [w for w in self.live if self.slot[w] == "held"]
                assert isinstance(action, Grant) or action.job not in self.alone or not held, "it is not alone"
            if isinstance(action, Fork):
                assert self.ready
                assert action.worker not in self.live
                assert action.job in self.job.values()
                assert action.job not in self.live.values(), "a job in two workers"
                assert action.job not in self.away - self.late, "the farm runs it"
                self.live[action.worker], self.slot[action.worker] = action.job, "held"
                self.kind[action.worker] = self.kinds[action.job]
            elif isinstance(action, Assign):
                assert action.job not in self.live.values(), "a job in two workers"
                assert action.job not in self.away - self.late, "the farm runs it"
                assert self.kinds[action.job] == self.kind[action.worker] != ""
                self.parked.remove(action.worker)
                self.live[action.worker], self.slot[action.worker] = action.job, "held"
            elif isinstance(action, Park):
                assert self.live[action.worker] is None and action.worker not in self.killed
                self.parked.add(action.worker)
                self.slot[action.worker] = "none"
            elif isinstance(action, Deliver):
                assert action.job in self.open, "delivered twice, or never asked for"
                del self.open[action.job]
                ended = self.job.pop(action.job)
                if ended in self.job.values():
                    continue  # others want it
                self.flights = {flight: job for flight, job in self.flights.items() if job != ended}
                for worker, job in self.live.items():
                    if job == ended:
                        self.live[worker] = None
                        self.slot[worker] = "none" if self.slot[worker] == "wanted" else self.slot[worker]
            elif isinstance(action, Kill):
                assert action.worker not in self.killed
                self.parked.discard(action.worker)
                self.killed.add(action.worker)
            elif isinstance(action, Send):
                assert action.job in self.open and action.job not in self.away, "sent twice"
                self.away.add(action.job)
            elif isinstance(action, Recall):
                assert action.job not in self.job.values(), "an ask waits for it"
                self.away.remove(action.job)
                self.late.discard(action.job)
            else:
                assert self.slot[action.worker] == "wanted"
                self.slot[action.worker] = "held"

    def measuring(self) -> list[int]:
        return [w for w, job in self.live.items() if job in self.alone and self.slot[w] == "held"]

    def gone(self, worker: int) -> None:
        self.live.pop(worker, None)
        self.slot.pop(worker, None)
        self.forked.discard(worker)
        self.killed.discard(worker)
        self.parked.discard(worker)

    def some(self, data: st.DataObject, choices: list[int]) -> int:
        return data.draw(st.sampled_from(sorted(choices)))

    def children(self, worker: int) -> list[int]:
        return [job for job, parent in self.open.items() if parent == worker]

    @rule(
        owner=st.sampled_from("abc"),
        retries=st.integers(0, 2),
        priority=st.integers(0, 1),
        flight=st.sampled_from(["", "x", "y"]),
        kind=st.sampled_from(["", "k", "l"]),
        away=st.booleans(),
    )
    def submit(self, owner: str, retries: int, priority: int, flight: str, kind: str, away: bool) -> None:
        self.next += 1
        self.kinds[self.next] = kind
        self.open[self.next] = None
        self.job[self.next] = self.flights.get(flight, self.next)
        if flight:
            self.flights.setdefault(flight, self.next)
        options: dict[str, Any] = {"retries": retries, "priority": priority, "dedup_key": flight}
        options |= {"kind": kind or None, "away": away}
        self.take(ask(self.scheduler, self.next, owner, **options))
        assert (self.next in self.away) == (away and self.job[self.next] == self.next)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), still=st.booleans())
    def come_home(self, data: st.DataObject, still: bool) -> None:
        self.bring_home(self.some(data, list(self.away)), still)

    def bring_home(self, job: int, still: bool) -> None:
        if still:
            self.late.add(job)
        else:
            self.away.discard(job)
            self.late.discard(job)
        self.take(self.scheduler.home(job, still=still))

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def come_from_the_farm(self, data: st.DataObject) -> None:
        job = self.some(data, list(self.away))
        self.away.discard(job)
        self.late.discard(job)
        self.take(self.scheduler.came(job, "theirs"))
        assert job not in self.job.values(), "an ask has no answer"

    @precondition(lambda self: any(self.running()))
    @rule(data=st.data(), alone=st.booleans())
    def submit_sub_job(self, data: st.DataObject, alone: bool) -> None:
        worker = self.some(data, self.running())
        self.next += 1
        if alone:
            self.alone.add(self.next)
        self.open[self.next] = worker
        self.job[self.next] = self.next
        self.kinds[self.next] = "k"
        self.take(ask(self.scheduler, self.next, dedup_key="x", kind="k", exclusive=alone, parent=worker))

    def running(self) -> list[int]:
        return [w for w in self.live if self.live[w] is not None and self.slot[w] == "held" and w in self.forked]

    @precondition(lambda self: set(self.live) - self.forked)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        worker = self.some(data, list(set(self.live) - self.forked))
        self.forked.add(worker)
        self.take(self.scheduler.reached(worker))

    @precondition(lambda self: any(self.children(w) for w in self.running()))
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        worker = self.some(data, [w for w in self.running() if self.children(w)])
        self.slot[worker] = "none"
        self.take(self.scheduler.waiting(worker))

    @precondition(lambda self: self.blocked())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        worker = self.some(data, self.blocked())
        self.slot[worker] = "wanted"
        self.take(self.scheduler.resume(worker))

    def blocked(self) -> list[int]:
        return [w for w in self.live if self.live[w] is not None and self.slot[w] == "none"]

    @precondition(lambda self: any(self.running()))
    @rule(data=st.data(), stays=st.booleans())
    def answer(self, data: st.DataObject, stays: bool) -> None:
        self.take(self.scheduler.answered(self.some(data, self.running()), "answer", stays=stays))

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def dismiss(self, data: st.DataObject) -> None:
        worker = self.some(data, list(self.parked))
        self.take(self.scheduler.dismiss(worker))
        assert worker in self.killed and worker not in self.parked

    @precondition(lambda self: self.forked)
    @rule(data=st.data())
    def exit(self, data: st.DataObject) -> None:
        worker = self.some(data, list(self.forked))
        actions = self.scheduler.exited(worker, "died")
        job = self.live[worker]
        self.gone(worker)
        if job is not None and any(isinstance(a, Deliver) and a.job == job for a in actions):
            pass  # its retries are used up
        self.take(actions)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.take(self.scheduler.cancel(self.some(data, list(self.open))))

    @precondition(lambda self: any(self.running()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.take(self.scheduler.given_up(self.some(data, self.running()), "over its limit"))

    @rule(jobs=st.sampled_from([None, None, 0, 1, 2]))
    def admit(self, jobs: int | None) -> None:
        self.admitted = jobs
        self.take(self.scheduler.admit(jobs))

    @precondition(lambda self: not self.on_hold)
    @rule()
    def hold(self) -> None:
        self.on_hold = True
        self.scheduler.hold()
        assert not self.scheduler.stalled and not self.scheduler.waits_for_exclusion

    @precondition(lambda self: self.on_hold)
    @rule()
    def go_on(self) -> None:
        self.on_hold = False
        self.take(self.scheduler.go_on())

    @rule(owner=st.sampled_from("abc"))
    def leave(self, owner: str) -> None:
        self.take(self.scheduler.owner_left(owner))

    @rule()
    def zygote_comes(self) -> None:
        if not self.ready:
            self.ready = True
            self.take(self.scheduler.zygote_ready())

    @precondition(lambda self: self.ready)
    @rule()
    def zygote_goes(self) -> None:
        self.ready = False
        actions = self.scheduler.zygote_lost("lost")
        self.take(actions)
        for worker in list(self.live):
            self.gone(worker)

    @invariant()
    def every_ask_has_its_job(self) -> None:
        if hasattr(self, "scheduler"):
            assert {ask: self.scheduler.job_of(ask) for ask in self.open} == self.job
            for job in set(self.job.values()):
                assert self.scheduler.asks_of(job) == [ask for ask, its in self.job.items() if its == job]

    @invariant()
    def the_farm_has_what_is_wanted_only(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.away <= set(self.job.values())
            waiting = set(self.job.values()) - set(self.live.values()) - (self.away - self.late)
            assert set(self.scheduler.order) == waiting, "a job is lost, or queued although the farm runs it"

    @invariant()
    def slots_are_never_exceeded(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        held = [w for w in self.live if self.slot[w] == "held"]
        assert len(held) == self.scheduler.used <= self.slots
        assert self.scheduler.running == len(self.live) - len(self.parked)
        assert len(self.parked) <= self.slots

    @invariant()
    def no_slot_is_idle_while_something_waits(self) -> None:
        if not hasattr(self, "scheduler") or not self.scheduler.free or self.measuring() or self.on_hold:
            return
        assert not [w for w in self.live if self.slot[w] == "wanted"]
        if self.ready and self.scheduler.queued and not self.scheduler.waits_for_exclusion:
            assert self.admitted is not None and self.scheduler.begun >= self.admitted
            begun = set(self.live.values())
            assert not [ask for ask, job in self.job.items() if job not in begun and self.open[ask] is not None]

    def teardown(self) -> None:
        """From wherever it got to, everything ends if workers just do their work: nothing is lost, nothing stuck."""
        if not hasattr(self, "scheduler"):
            return
        self.zygote_comes()
        self.admit(None)
        if self.on_hold:
            self.go_on()
        for job in list(self.away):
            self.bring_home(job, job % 2 == 0)
        for _ in range(20 * (self.next + 1)):
            if not self.open and not self.live:
                break
            for worker in list(self.live):
                self.forked.add(worker)
                self.take(self.scheduler.reached(worker))
                if self.live.get(worker) is None:
                    self.finish(worker)
                elif self.slot[worker] == "none" and not self.children(worker):
                    self.slot[worker] = "wanted"
                    self.take(self.scheduler.resume(worker))
                elif self.slot[worker] == "held" and self.children(worker):
                    self.slot[worker] = "none"
                    self.take(self.scheduler.waiting(worker))
                elif self.slot[worker] == "held":
                    self.take(self.scheduler.answered(worker, "answer"))
                    self.finish(worker)
        assert not self.open, "jobs without an end"
        assert not self.live
        assert self.scheduler.used == 0
        assert self.scheduler.queued == 0
        assert not self.away, "the farm works for no ask"

    def finish(self, worker: int) -> None:
        actions = self.scheduler.exited(worker, "done")
        self.gone(worker)
        self.take(actions)


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestMachine = Machine.TestCase
