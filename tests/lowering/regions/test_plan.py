"""Which cuts are made: decisions on numbers, without graphs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpool.lowering.regions import plan
from fxpool.lowering.regions.plan import Call


def call(name: str, first: int, last: int, *children: Call) -> Call:
    return Call(name, first, last, {child.name: child for child in children})


def named(**digests: str | None) -> plan.Digest:
    return lambda one: digests.get(one.name, one.name)


def repeated(root: Call, digest: plan.Digest, least: int = 2) -> list[str]:
    return [one.name for one in plan.repeated(root, [1] * (root.last + 1), digest, least)]


def test_equal_siblings_are_cut_out() -> None:
    root = call("", 0, 39, call("a", 0, 9), call("b", 10, 19), call("c", 20, 29), call("head", 30, 39))
    assert repeated(root, named(a="x", b="x", c="x")) == ["a", "b", "c"]


def test_what_is_alone_stays() -> None:
    root = call("", 0, 29, call("a", 0, 9), call("b", 10, 19), call("c", 20, 29))
    assert repeated(root, named(a="x", b="y", c="x")) == ["a", "c"]
    assert repeated(root, named()) == []


def test_what_can_not_be_cut_out_is_looked_into() -> None:
    stages = [call(f"s{n}", 20 * n, 20 * n + 19, call(f"a{n}", 20 * n, 20 * n + 8)) for n in range(2)]
    root = call("", 0, 39, *stages)
    assert repeated(root, named(s0=None, s1=None, a0="x", a1="x")) == [], "cousins: no sibling of theirs is equal"
    stages = [
        call(f"s{n}", 20 * n, 20 * n + 19, call(f"a{n}", 20 * n, 20 * n + 8), call(f"b{n}", 20 * n + 9, 20 * n + 17))
        for n in range(2)
    ]
    root = call("", 0, 39, *stages)
    assert repeated(root, named(s0=None, s1=None, a0="x", a1="x", b0="x", b1="x")) == ["a0", "b0", "a1", "b1"]


def test_a_repetition_inside_of_one_is_better_if_most_of_it_repeats() -> None:
    def stage(number: int, share: int) -> Call:
        first = 40 * number
        return call(f"s{number}", first, first + 39, *(
            call(f"s{number}b{n}", first + share * n, first + share * (n + 1) - 1) for n in range(3)
        ))  # fmt: skip

    def digest(one: Call) -> str:
        return "stage" if "b" not in one.name else "block"

    most = call("", 0, 79, stage(0, 13), stage(1, 13))
    assert repeated(most, digest) == [f"s{s}b{n}" for s in range(2) for n in range(3)]
    little = call("", 0, 79, stage(0, 4), stage(1, 4))
    assert repeated(little, digest) == ["s0", "s1"]


def test_calls_in_one_another_s_way_stay() -> None:
    root = call("", 0, 29, call("a", 0, 12), call("b", 10, 19), call("c", 20, 29))
    assert repeated(root, named(a="x", b="x", c="x")) == []


def test_small_calls_stay() -> None:
    root = call("", 0, 29, *(call(f"a{n}", 5 * n, 5 * n + 4) for n in range(6)))
    assert repeated(root, lambda _: "x", least=6) == []
    assert len(repeated(root, lambda _: "x", least=5)) == 6


def test_of_small_calls_nothing_is_asked() -> None:
    asked: list[str] = []

    def digest(one: Call) -> str:
        asked.append(one.name)
        return "x"

    repeated(call("", 0, 29, call("a", 0, 1), call("b", 2, 29)), digest, least=5)
    assert asked == ["b"]


def test_thinnest_places() -> None:
    live: list[int | None] = [None, *(9 for _ in range(19)), 0]
    live[9] = 1
    live[11] = 2
    assert plan.spread([1] * 20, live, 2, least=1) == [9]
    live[9] = None
    assert plan.spread([1] * 20, live, 2, least=1) == [11]


def test_no_place_no_cut() -> None:
    assert plan.spread([1] * 20, [None] * 21, 4, least=1) == []
    assert plan.spread([1] * 20, [1] * 21, 4, least=15) == []


@pytest.mark.slow
@given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=40),
    seed=st.integers(0, 2**16),
    pieces=st.integers(2, 5),
)
def test_cuts_are_allowed_and_parts_of_like_size(weights: list[int], seed: int, pieces: int) -> None:
    live: list[int | None] = [None if (seed >> n % 16) & 1 else n % 7 for n in range(len(weights) + 1)]
    cuts = plan.spread(weights, live, pieces, least=2)
    assert cuts == sorted(set(cuts)) and all(live[cut] is not None for cut in cuts)
    assert len(cuts) < pieces
    borders = [0, *cuts, len(weights)]
    parts = [sum(weights[a:b]) for a, b in itertools.pairwise(borders)]
    if cuts:
        share = sum(weights) / len(parts)
        assert all(max(2, share / 2) <= part <= 1.5 * share for part in parts)


@pytest.mark.parametrize(
    ("whole", "distinct", "pieces", "cores", "worth"),
    [
        (1000, [100, 50], 24, 1, True),
        (1000, [900], 3, 1, False),
        (1000, [480, 500], 2, 1, False),
        (1000, [480, 500], 2, 2, True),
        (100, [30, 30, 30], 3, 1, False),
        (1000, [], 1, 4, False),
        (150, [50, 50, 10], 4, 1, False),
    ],
)
def test_what_is_worth_it(whole: int, distinct: list[int], pieces: int, cores: int, worth: bool) -> None:
    assert plan.is_worth_it(whole, distinct, pieces, cores, 15) is worth


def test_what_a_piece_costs_besides_its_nodes_counts() -> None:
    assert plan.is_worth_it(1000, [50, 100, 40], 14, 2, plan.FIXED_ON_CPU)
    assert plan.is_worth_it(200, [10, 50, 10], 6, 2, plan.FIXED_ON_GPU)
    assert not plan.is_worth_it(150, [10, 70, 10], 4, 2, plan.FIXED_ON_CPU), "three compilers' calls for one"
