"""A key is a function of what it is made of: the same in every process, whatever was inserted first."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fxpool.codecache.graph import graph_names
from fxpool.codecache.graph.graph_codec import GraphEncoder
from fxpool.codecache.graph.graph_decoder import GraphDecoder
from fxpool.codecache.key import components, key
from fxpool.torch_compat.dynamo import tensors

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
component_values = st.fixed_dictionaries(dict.fromkeys(components.ORDER, plain))


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


@given(component_values, st.sampled_from(components.ORDER), plain)
def test_equal_components_and_only_those_have_equal_digests(parts: dict[str, Any], name: str, other: Any) -> None:
    """Also where the last value of a component is remembered: True is not 1, and 1 is not 1.0."""
    changed = {**parts, name: other}
    one, two = key.GraphKey.of(parts), key.GraphKey.of(changed)
    same = key.canonical(parts[name]) == key.canonical(other)
    assert (one.digest == two.digest) == same
    assert [c.digest for c in one.components if c.name != name] == [c.digest for c in two.components if c.name != name]


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.0), (0.0, -0.0), ("1", 1), ([], None), ([], {})])
def test_types_count(one: Any, other: Any) -> None:
    parts = {name: {"value": one} for name in components.ORDER}
    before = key.GraphKey.of(parts)
    after = key.GraphKey.of({**parts, "configuration": {"value": other}})
    assert before.digest != after.digest


def test_the_table_of_the_documentation_lists_every_component() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    table = page.partition("| component |")[2].partition("\n\n")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)] == list(components.ORDER)


UNARY = [torch.sin, torch.relu, torch.sigmoid, torch.neg, torch.exp]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum]


def program(seed: int, prefix: str = "") -> torch.fx.GraphModule:
    """A graph that depends on `seed` alone, but for the names of its parts."""
    rng = random.Random(seed)
    graph, root = torch.fx.Graph(), torch.nn.Module()
    values = [graph.placeholder(f"{prefix}x{number}") for number in range(rng.randint(1, 4))]
    for number in range(rng.randint(0, 3)):
        setattr(root, f"{prefix}constant{number}", torch.full((number + 1,), rng.random()))
        values.append(graph.get_attr(f"{prefix}constant{number}"))
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
    if rng.random() < 0.3:
        setattr(root, f"{prefix}nested", program(rng.randint(0, 2**32), f"{prefix}inner_"))
        values.append(graph.call_module(f"{prefix}nested", (values[0],)))
    graph.output(tuple(rng.sample(values, rng.randint(1, len(values)))))
    for number, node in enumerate(graph.nodes):
        node._rename(f"{prefix}{node.name}_{number}" if prefix else node.name)
    return torch.fx.GraphModule(root, graph)


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


prefixes = st.text("abcxyz_", min_size=1, max_size=6).map(lambda text: f"p{text}")


@settings(max_examples=60)
@given(st.integers(0, 2**32), prefixes)
def test_names_do_not_count_and_are_recorded(seed: int, prefix: str) -> None:
    gm, renamed = program(seed), program(seed, prefix)
    one, other = GraphEncoder().encode(gm), GraphEncoder().encode(renamed)
    assert key.canonical(one.description) == key.canonical(other.description)
    rows = graph_names.named(other.description, other.names)
    assert [row[1] for row in rows[1]] == [node.name for node in renamed.graph.nodes]
    assert [row[2] for row in rows[1] if isinstance(row[2], str)] == [
        node.target for node in renamed.graph.nodes if isinstance(node.target, str)
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), prefixes)
def test_a_graph_is_rebuilt_with_its_names(seed: int, prefix: str) -> None:
    gm = program(seed, prefix)
    made = GraphEncoder().encode(gm)
    decoder = GraphDecoder(tensors.Builder(tensors.new_fake_mode(None)), None, made.constants)
    rebuilt = decoder.decode(msgspec.msgpack.decode(key.canonical(made.description)), made.names)
    assert str(rebuilt.graph) == str(gm.graph)
    again = GraphEncoder().encode(rebuilt)
    assert key.canonical([again.description, again.names]) == key.canonical([made.description, made.names])


@settings(max_examples=60)
@given(st.integers(0, 2**32), prefixes, st.data())
def test_exchanged_operands_and_constants_count(seed: int, prefix: str, data: st.DataObject) -> None:
    gm, other = program(seed), program(seed, prefix)
    kinds = {op: [node for node in other.graph.nodes if node.op == op] for op in ("placeholder", "get_attr")}
    of_kind = data.draw(st.sampled_from([nodes for nodes in kinds.values() if len(nodes) > 1] or [[]]))
    assume(of_kind)
    one, two = data.draw(st.permutations(of_kind))[:2]
    assume(one.users or two.users)
    if one.op == "get_attr" and data.draw(st.booleans()):
        mine, yours = getattr(other, one.target), getattr(other, two.target)
        setattr(other, one.target, yours)
        setattr(other, two.target, mine)
    else:
        swapped = {one: two, two: one}
        for user in {*one.users, *two.users}:
            user.args = torch.fx.map_arg(user.args, lambda node: swapped.get(node, node))
    assert encoded(gm) != encoded(other)


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
