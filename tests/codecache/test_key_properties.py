"""A key is a function of what it is made of: the same in every process, whatever was inserted first."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpool.codecache.graph.graph_codec import GraphEncoder
from fxpool.codecache.key import key

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
component_values = st.fixed_dictionaries(dict.fromkeys(key.ORDER, plain))


def reordered(data: Any, rng: random.Random) -> Any:
    """Equal data whose mappings were filled in another order."""
    if isinstance(data, dict):
        items = [(name, reordered(value, rng)) for name, value in data.items()]
        rng.shuffle(items)
        return dict(items)
    return [reordered(value, rng) for value in data] if isinstance(data, list) else data


@given(component_values, st.randoms(use_true_random=False))
def test_insertion_order_does_not_matter(parts: dict[str, Any], rng: random.Random) -> None:
    assert key.GraphKey.of(parts) == key.GraphKey.of(reordered(parts, rng))


@given(component_values, st.sampled_from(key.ORDER), plain)
def test_equal_components_and_only_those_have_equal_digests(parts: dict[str, Any], name: str, other: Any) -> None:
    """Also where the last value of a component is remembered: True is not 1, and 1 is not 1.0."""
    changed = {**parts, name: other}
    one, two = key.GraphKey.of(parts), key.GraphKey.of(changed)
    same = key.canonical(parts[name]) == key.canonical(other)
    assert (one.digest == two.digest) == same
    assert [c.digest for c in one.components if c.name != name] == [c.digest for c in two.components if c.name != name]


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.0), (0.0, -0.0), ("1", 1), ([], None), ([], {})])
def test_types_count(one: Any, other: Any) -> None:
    parts = {name: {"value": one} for name in key.ORDER}
    before = key.GraphKey.of(parts)
    after = key.GraphKey.of({**parts, "configuration": {"value": other}})
    assert before.digest != after.digest


UNARY = [torch.sin, torch.relu, torch.sigmoid, torch.neg, torch.exp]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum]


def program(seed: int) -> torch.fx.GraphModule:
    """A graph that depends on `seed` alone."""
    rng = random.Random(seed)
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"x{number}") for number in range(rng.randint(1, 4))]
    for number in range(rng.randint(1, 25)):
        if rng.random() < 0.5:
            node = graph.call_function(rng.choice(UNARY), (rng.choice(values),))
        elif rng.random() < 0.3:
            node = graph.call_method(
                "sum", (rng.choice(values),), {"dim": rng.choice([0, -1, (0, 1)]), "keepdim": True}
            )
        else:
            second = rng.choice([rng.choice(values), rng.randint(-3, 3), rng.random()])
            node = graph.call_function(rng.choice(BINARY), (rng.choice(values), second))
        node.meta = {"stack_trace": f"line {number}", "recompute": rng.randint(0, 2), "custom": {"a": 1, "b": [2, 3]}}
        values.append(node)
    graph.output(tuple(rng.sample(values, rng.randint(1, len(values)))))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def encoded(gm: torch.fx.GraphModule) -> bytes:
    return key.canonical(GraphEncoder().encode(gm).description)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_a_graph_is_described_by_what_it_computes(seed: int, rng: random.Random) -> None:
    gm, again = program(seed), program(seed)
    for node in again.graph.nodes:
        node.meta = reordered(node.meta, rng) | {"stack_trace": "elsewhere", "creation_timestamp": rng.random()}
        node.kwargs = reordered(dict(node.kwargs), rng)
    assert encoded(gm) == encoded(again)
    last = next(node for node in reversed(again.graph.nodes) if node.op.startswith("call"))
    last.meta["recompute"] = 7
    assert encoded(gm) != encoded(again)


PRINT_ENCODINGS = """
import sys; sys.path.insert(0, sys.argv[1])
import hashlib, test_key_properties as t
print(hashlib.sha256(b"".join(t.encoded(t.program(seed)) for seed in range(200))).hexdigest())
"""


def test_other_processes_and_hash_seeds_say_the_same() -> None:
    here = os.path.dirname(__file__)
    found = set()
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PRINT_ENCODINGS, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
