"""When a remote is asked, and what it may cost: the state machine, with a clock that is a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fxpool.codecache.remote.breaker import FIRST_PAUSE, LONGEST_PAUSE, MOST_BAD_VALUES, Breaker, State

DELAY = 2.0


def state(breaker: Breaker) -> State:
    """Its state; mypy takes an attribute that was compared for a constant."""
    return breaker.state


def test_at_first_a_look_may_take_the_whole_delay() -> None:
    breaker = Breaker(DELAY)
    assert (breaker.state, breaker.allowance()) == (State.CLOSED, DELAY)


def test_after_one_failure_nobody_asks() -> None:
    breaker = Breaker(DELAY)
    breaker.failed(10.0)
    assert (breaker.state, breaker.allowance()) == (State.OPEN, 0.0)
    assert breaker.seconds_to_probe(10.0) == FIRST_PAUSE


def test_one_caller_probes_when_the_pause_is_over() -> None:
    breaker = Breaker(DELAY)
    breaker.failed(10.0)
    assert not breaker.probe_due(10.0 + FIRST_PAUSE - 0.1)
    assert breaker.probe_due(10.0 + FIRST_PAUSE)
    assert not breaker.probe_due(10.0 + FIRST_PAUSE), "another does already"
    assert (breaker.state, breaker.allowance()) == (State.HALF_OPEN, 0.0)


def test_a_good_probe_closes_it() -> None:
    breaker = Breaker(DELAY)
    breaker.failed(0.0)
    assert breaker.probe_due(FIRST_PAUSE)
    breaker.probed(FIRST_PAUSE, True)
    assert (breaker.state, breaker.allowance()) == (State.CLOSED, DELAY)


def test_pauses_double_up_to_a_limit_until_there_is_a_hit() -> None:
    breaker, now, pauses = Breaker(DELAY), 0.0, []
    breaker.failed(now)
    for _ in range(9):
        pauses.append(breaker.seconds_to_probe(now))
        now += pauses[-1]
        assert breaker.probe_due(now)
        breaker.probed(now, False)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE] and pauses[-1] == LONGEST_PAUSE
    assert breaker.probe_due(now + LONGEST_PAUSE)
    breaker.probed(now, True)
    breaker.failed(now)
    assert breaker.seconds_to_probe(now) == LONGEST_PAUSE, "answering is not yet being of use"
    assert breaker.probe_due(now + LONGEST_PAUSE)
    breaker.probed(now, True)
    breaker.hit()
    breaker.failed(now)
    assert breaker.seconds_to_probe(now) == FIRST_PAUSE


def test_ordinary_misses_cost_nothing() -> None:
    breaker = Breaker(DELAY)
    for _ in range(1000):
        breaker.missed(0.0, DELAY / 4)
    assert breaker.allowance() == DELAY


def test_slow_misses_add_up_and_a_hit_sets_them_back() -> None:
    breaker = Breaker(DELAY)
    breaker.missed(0.0, DELAY)
    assert breaker.allowance() == DELAY / 4
    breaker.hit()
    assert breaker.allowance() == DELAY
    breaker.missed(0.0, 0.75 * DELAY)
    breaker.missed(0.0, 0.75 * DELAY)
    assert state(breaker) is State.OPEN


@given(st.lists(st.floats(0, 1)))
def test_without_a_hit_what_is_beyond_the_ordinary_costs_at_most_the_delay(parts: list[float]) -> None:
    breaker, cost = Breaker(DELAY), 0.0
    for part in parts:
        seconds = part * breaker.allowance()
        if not breaker.allowance():
            break
        assert breaker.allowance() >= DELAY / 4, "less would make an ordinary look fail"
        cost += max(0.0, seconds - DELAY / 4)
        breaker.missed(0.0, seconds)
    assert cost <= DELAY


def test_values_that_do_not_verify_open_it() -> None:
    breaker = Breaker(DELAY)
    for _ in range(MOST_BAD_VALUES - 1):
        breaker.bad_value(0.0)
    assert state(breaker) is State.CLOSED
    breaker.hit()
    for _ in range(MOST_BAD_VALUES):
        breaker.bad_value(0.0)
    assert state(breaker) is State.OPEN


def test_a_late_result_changes_nothing() -> None:
    breaker = Breaker(DELAY)
    breaker.probed(0.0, True)
    assert state(breaker) is State.CLOSED
    breaker.failed(0.0)
    breaker.failed(3.0)
    assert breaker.seconds_to_probe(3.0) == FIRST_PAUSE - 3.0, "the pause is not begun anew"
    breaker.probed(3.0, True)
    assert state(breaker) is State.OPEN
