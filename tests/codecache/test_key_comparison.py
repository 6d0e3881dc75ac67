"""Two keys beside each other: symmetric, complete, nothing for equal ones; nodes are aligned, secrets are not kept."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fxpool.codecache.explain import comparison, graph_comparison, misses, nearest
from fxpool.codecache.explain.comparison import Described, Difference
from fxpool.codecache.explain.nearest import Side
from fxpool.codecache.key import key, key_detail
from fxpool.codecache.key.components import ORDER
from fxpool.codecache.key.key import GraphKey
from fxpool.codecache.store.entry import Entry, Metadata, Origin

EMPTY: dict[str, Any] = {
    **{name: {} for name in ORDER}, "graph": b"", "inputs": b"", "shapes": [], "ambient": {"environment": {}}
}  # fmt: skip


def call(name: str, target: str, *args: Any) -> list[Any]:
    return ["call_method", name, target, ["t", *args], ["d"], []]


def graph(*rows: list[Any]) -> list[Any]:
    return ["graph", [["placeholder", "x", "x", ["t"], ["d"], []], *rows], [], [], []]


def described(nodes: list[Any], *, names_count: bool = True, **parts: Any) -> GraphKey:
    """The key of a graph as `graph_names.named` returns it."""
    kind, rows, attributes, lifted, meta = nodes
    plain = [[op, None if op == "placeholder" else target, *rest] for op, _, target, *rest in rows]
    description = [kind, plain, [row for _, row in attributes], [row for _, *row in lifted], meta]
    inputs = [row[2] for row in rows if row[0] == "placeholder"]
    names = [[[row[1] for row in rows], inputs, [row[0] for row in [*lifted, *attributes]], []]]
    whole = {
        **EMPTY,
        **parts,
        "graph": key.canonical([description, names if names_count else []]),
        "inputs": key.canonical([["tensor", number] for number, _ in enumerate(inputs)]),
    }
    detail = key_detail.packed(
        whole, level="aot", graph=key.canonical(description), names=names, inputs=whole["inputs"]
    )
    return GraphKey.of(whole).described(whole, {}, detail)


def side(made: GraphKey) -> Described:
    return Described.of(made.components, made.detail)


def found(a: GraphKey, b: GraphKey) -> list[str]:
    return [str(one) for one in comparison.differences(side(a), side(b))]


# Few kinds of nodes, so that graphs have much in common, and references to any node before.
@st.composite
def graphs(draw: st.DrawFn) -> list[Any]:
    rows = []
    for at in range(draw(st.integers(0, 12))):
        reference = ["n", draw(st.integers(0, at))]
        rows.append(
            call(f"n{draw(st.integers(0, 3))}_{at}", draw(st.sampled_from("abc")), reference, draw(st.integers(0, 2)))
        )
    return graph(*rows)


_options = st.dictionaries(st.sampled_from(["p", "q", "r"]), st.integers(0, 2) | st.lists(st.booleans(), max_size=2))


@given(graphs(), graphs(), _options, _options)
def test_symmetric_complete_and_nothing_for_equal_keys(
    one: list[Any], other: list[Any], mine: dict[str, Any], yours: dict[str, Any]
) -> None:
    a, b = described(one, configuration={"inductor": mine}), described(other, configuration={"inductor": yours})
    forth, back = (comparison.differences(side(x), side(y)) for x, y in ((a, b), (b, a)))
    assert forth == tuple(difference.mirrored() for difference in back)
    differing = {x.name for x, y in zip(a.components, b.components, strict=True) if x.digest != y.digest}
    assert {difference.component for difference in forth} == differing
    assert bool(forth) == (a.digest != b.digest)


@given(st.lists(st.sampled_from("abcd"), max_size=14), st.lists(st.sampled_from("abcd"), max_size=14))
def test_alignment_is_a_longest_common_subsequence(a: list[str], b: list[str]) -> None:
    pairs = graph_comparison.aligned(a, b)
    assert pairs is not None
    assert all(a[x] == b[y] for x, y in pairs)
    assert all(x < other_x and y < other_y for (x, y), (other_x, other_y) in itertools.pairwise(pairs))
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for x in range(len(a)):
        for y in range(len(b)):
            longer = max(lengths[x][y + 1], lengths[x + 1][y])
            lengths[x + 1][y + 1] = lengths[x][y] + 1 if a[x] == b[y] else longer
    assert len(pairs) == lengths[-1][-1]


def test_a_node_that_is_added_does_not_change_those_after_it() -> None:
    x, first = ["n", 0], ["n", 1]
    short = graph(call("a", "sin", x), call("b", "add", first, x), call("c", "mul", ["n", 2], first))
    long = graph(
        call("a", "sin", x), call("relu", "relu", x), call("b_1", "add", first, x), call("c", "mul", ["n", 3], first)
    )
    assert found(described(short), described(long)) == ["graph: node relu: added: x.relu()"]


def test_a_changed_argument_and_another_operand_are_one_node_each() -> None:
    one = graph(call("a", "add", ["n", 0], 2), call("b", "sin", ["n", 1]))
    assert found(described(one), described(graph(call("a", "add", ["n", 0], 3), call("b", "sin", ["n", 1])))) == [
        "graph: node a: x.add(2) -> x.add(3)"
    ]
    assert found(described(one), described(graph(call("a", "add", ["n", 0], 2), call("b", "sin", ["n", 0])))) == [
        "graph: node b: a.sin() -> x.sin()"
    ]


def test_names_count_where_nothing_else_differs() -> None:
    one, other = (graph(call(name, "sin", ["n", 0])) for name in ("a", "b"))
    assert found(described(one), described(other)) == ["graph: the name of node 1: a -> b"]


def test_names_say_nothing_of_keys_without_them() -> None:
    def whole(name: str, weight: str, by: int) -> list[Any]:
        nodes = graph(call(name, "sin", ["n", 0]), call("last", "add", ["n", 1], by))
        return [*nodes[:2], [[f"{weight}_c", ["constant", 0, "d"]]], [[weight, True, "tensor"]], []]

    one, other, renamed = whole("a", "w", 1), whole("b", "v", 2), whole("z", "y", 1)
    made = [described(each, names_count=False) for each in (one, other)]
    assert found(*made) == ["graph: node last: a.add(1) -> b.add(2)"]
    assert described(renamed, names_count=False).digest == made[0].digest


def test_graphs_with_little_in_common_are_compared_in_time() -> None:
    one, other = (
        graph(*(call(f"{name}{at}", f"{name}{at}", ["n", at], at) for at in range(1500))) for name in ("a", "b")
    )
    differences = comparison.differences(side(described(one)), side(described(other)))
    assert differences and len(comparison.lines(differences)) == 21


def test_values_of_the_environment_are_not_kept() -> None:
    secret = "hunter2-hunter2"
    one = described(graph(), ambient={"environment": {"TORCHINDUCTOR_TOKEN": secret}, "grad": True})
    other = described(graph(), ambient={"environment": {"TORCHINDUCTOR_TOKEN": "other"}, "grad": True})
    kept = msgspec.msgpack.encode(one.components) + msgspec.msgpack.encode(key_detail.unpacked(one.detail))
    assert secret.encode() not in kept and b"TORCHINDUCTOR_TOKEN" in kept
    (difference,) = comparison.differences(side(one), side(other))
    assert difference.item == "environment variable TORCHINDUCTOR_TOKEN"


def test_of_an_entry_without_detail_the_component_is_named() -> None:
    one, other = (GraphKey.of({**EMPTY, "system": {"torch": version}}) for version in ("2.13", "2.14"))
    (difference,) = comparison.differences(*(Described.of(made.components, b"") for made in (one, other)))
    assert (difference.component, difference.item) == ("system", "")
    assert str(difference).startswith("system: digest ")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_detail_say_nothing(data: bytes) -> None:
    assert isinstance(key_detail.unpacked(data), dict)
    made = described(graph())
    assert key_detail.unpacked(made.detail[: len(data) % len(made.detail)]) == {}


# ---------------------------------------------------------------- the nearest entry, and misses


def entry(made: GraphKey, function: str, created: float, guards: Any = ()) -> Entry:
    origin = Origin(function=function, file="model.py", line=3)
    return Entry(
        key=made.digest,
        components=list(made.components),
        detail=made.detail,
        guards=list(guards),
        metadata=Metadata(label=function, created=created, origin=origin),
    )


def test_the_nearest_entry_is_of_the_same_function_and_differs_least() -> None:
    base = graph(call("a", "sin", ["n", 0]), call("b", "cos", ["n", 1]))
    changed = graph(call("a", "sin", ["n", 0]), call("b", "tan", ["n", 1]))
    far = graph(call("a", "exp", ["n", 0]), call("b", "log", ["n", 1]), call("c", "abs", ["n", 2]))
    wanted = entry(described(base), "forward", 9.0)
    near, farther = entry(described(changed), "forward", 1.0), entry(described(far), "forward", 2.0)
    other_function = entry(described(changed, system={"a": 1}), "loss", 3.0)
    best = nearest.nearest(Side.of(wanted), [farther, other_function, near, wanted])
    assert best == Side.of(near)
    result = nearest.compared(best, Side.of(wanted))
    assert result.differences == (Difference("graph", "node b", "a.tan()", "a.cos()", 2),)
    assert "graph" not in result.equal and "system" in result.equal and "node b" in str(result)


def test_entries_of_one_key_differ_in_their_guards() -> None:
    made = described(graph())
    s0 = ["symbol", "s0", "integer", "positive"]
    small, large = (entry(made, "f", 1.0, [[kind, s0, 4]]) for kind in ("LessThan", "StrictGreaterThan"))
    assert nearest.nearest(Side.of(small), [small, large]) == Side.of(large)
    assert [str(one) for one in nearest.compared(Side.of(large), Side.of(small)).differences] == [
        "guards: added: s0 <= 4",
        "guards: removed: s0 > 4",
    ]


def test_a_guard_that_does_not_hold_is_named_with_the_values() -> None:
    s0 = ["symbol", "s0", "integer", "positive"]
    failed = misses.failed_guards([["LessThan", s0, 4], ["StrictGreaterThan", s0, 1]], {"s0": 7, "s1": 2})
    assert [str(one) for one in failed] == ["s0 = 7, but the entry needs s0 <= 4"]
    rejected = misses.Rejected("name", misses.GUARDS, failed)
    miss = misses.Miss(Side("ab" * 32, (), b"", label="graph 3"), "guard_miss", 1.0, (rejected,))
    assert misses.explained(miss, []).first == "s0 = 7, but the entry needs s0 <= 4"
    assert "none fits these sizes" in str(misses.explained(miss, []))


def test_a_miss_in_an_empty_cache_says_so() -> None:
    made = described(graph())
    miss = misses.Miss(Side(made.digest, made.components, made.detail, label="graph 0"), "miss", 1.0)
    assert "held no other graph" in misses.explained(miss, [entry(made, "f", 2.0)]).first
    damaged = misses.Miss(miss.side, "miss", 1.0, (misses.Rejected("", misses.DAMAGED),))
    assert "damaged entry was set aside" in misses.explained(damaged, []).why


def test_long_values_stay_different() -> None:
    one, other = (hashlib.sha512(text.encode()).hexdigest() * 4 for text in "ab")
    options = ({"inductor": {"text": f"{'x' * 200}{each}"}} for each in (one, other))
    first, second = (described(graph(), configuration=each) for each in options)
    (difference,) = comparison.differences(side(first), side(second))
    assert difference.item == "inductor.text" and difference.before != difference.after


def test_digests_are_cut_and_short_names_are_not() -> None:
    one, other = (described(graph(), system={"fxpool_files": two * 32, "triton": two * 19}) for two in ("7a", "6c"))
    assert found(one, other) == [
        "system: fxpool_files: '7a7a7a7a7a7a' -> '6c6c6c6c6c6c'",
        f"system: triton: '{'7a' * 19}' -> '{'6c' * 19}'",
    ]
