"""What must make another key, and what must not. Nothing is compiled here: the key is the decision."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import captured, components_of, key_of
from circumstances import attention, import_operator, setting, states

from fxpool.codecache.graph import graph_codec
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.dynamo import shape_env
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.inductor import aot
from fxpool.torch_compat.state import configs

X = torch.ones(4, 8)


Q = torch.ones(1, 2, 8, 16)


@pytest.mark.parametrize("name", sorted(states()))
def test_state_that_shapes_code_is_in_the_key(name: str) -> None:
    plain = key_of(attention, Q)
    with states()[name]():
        changed = key_of(attention, Q)
    assert changed != plain
    if name != "matmul precision":  # torch writes "ieee" where nothing stood before
        assert key_of(attention, Q) == plain, "and the state is the same afterwards"


def test_two_autocast_types_are_two_keys() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one = key_of(attention, Q)
    with torch.autocast("cpu", dtype=torch.float16):
        assert key_of(attention, Q) != one


def test_the_dtype_that_autocast_will_take_counts() -> None:
    """A function may switch autocast on itself, and it is off when the graph is captured."""
    plain = key_of(attention, Q)
    before = torch.get_autocast_dtype("cpu")
    with setting(lambda dtype: torch.set_autocast_dtype("cpu", dtype), torch.float16, before):
        assert key_of(attention, Q) != plain
    assert key_of(attention, Q) == plain


def test_environment_counts_only_where_it_shapes_code(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = key_of(attention, Q)
    monkeypatch.setenv("SOME_UNRELATED_VARIABLE", "1")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert key_of(attention, Q) == plain
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert key_of(attention, Q) != plain


def test_where_code_lies_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = key_of(attention, Q)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert key_of(attention, Q) == plain


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("size", torch.ones(5, 8)),
        ("dtype", torch.ones(4, 8, dtype=torch.float64)),
        ("stride", torch.ones(8, 4).t()),
        ("requires grad", torch.ones(4, 8, requires_grad=True)),
        ("parameter", torch.nn.Parameter(torch.ones(4, 8))),
    ],
)
def test_inputs_by_metadata(name: str, other: torch.Tensor) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert components_of(double, other)["inputs"] != components_of(double, X)["inputs"], name


def test_values_of_inputs_do_not_count_and_values_of_constants_do() -> None:
    def scaled(by: list[float]) -> str:
        constant = torch.tensor(by)

        class Graph(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * constant

        gm = torch.fx.symbolic_trace(Graph())
        from fxpool.codecache.graph import graph_codec
        from fxpool.codecache.key import key

        return key.canonical(graph_codec.GraphEncoder().encode(gm).description).hex()

    assert key_of(lambda x: x * 2, X) == key_of(lambda x: x * 2, X + 1)
    assert scaled([1.0, 2.0]) == scaled([1.0, 2.0])
    assert scaled([1.0, 2.0]) != scaled([1.0, 3.0])


def test_shared_and_overlapping_inputs_are_keys_of_their_own() -> None:
    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    base = torch.ones(32)
    apart = components_of(add, base[0:8], base[8:16])["inputs"]
    assert components_of(add, base[0:8], base[4:12])["inputs"] != apart
    assert components_of(add, base[0:8], base[0:8].view_as(base[0:8]))["inputs"] != apart


@pytest.mark.slow
def test_the_fake_rule_of_a_custom_operator_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its implementation does not: compiled code calls it in the program's process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first = import_operator(tmp_path, "scaled_by", 2)
    before = components_of(lambda x: first(x) + 1, X)
    again = components_of(lambda x: first(x) + 1, X)
    assert again == before
    second = import_operator(tmp_path, "scaled_by", 3)
    after = components_of(lambda x: second(x) + 1, X)
    assert after["code"] != before["code"]


class Pass:
    """A custom pass that says what version it is (or does not)."""

    def __init__(self, version: str | None) -> None:
        self.version = version

    def __call__(self, graph: torch.fx.Graph) -> None:
        return None

    def uuid(self) -> str | None:
        return self.version


def test_custom_passes_count_by_uuid_and_are_refused_without() -> None:
    plain = key_of(attention, Q)
    with torch._inductor.config.patch(post_grad_custom_post_pass=Pass("1")):
        first = key_of(attention, Q)
    with torch._inductor.config.patch(post_grad_custom_post_pass=Pass("2")):
        assert len({plain, first, key_of(attention, Q)}) == 3
    with torch._inductor.config.patch(post_grad_custom_post_pass=Pass(None)):
        (found,) = captured(attention, Q)
    assert found.key is None
    assert found.bypass is not None
    assert found.bypass.reason == "custom_pass_without_uuid"


def test_names_of_variables_count_for_passes_only() -> None:
    def one(a: torch.Tensor) -> torch.Tensor:
        b = a.sin()
        return b * 2

    def other(c: torch.Tensor) -> torch.Tensor:
        d = c.sin()
        return d * 2

    assert key_of(one, X) == key_of(other, X)
    with torch._inductor.config.patch(pre_grad_custom_pass=Pass("1")):
        assert key_of(one, X) == key_of(one, X) != key_of(other, X)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("caches_disabled", lambda: torch._inductor.config.patch(force_disable_caches=True)),
    ],
)
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_refusals_by_configuration(reason: str, state: Callable[[], AbstractContextManager[Any]]) -> None:
    with state():
        (found,) = captured(attention, Q)
    assert found.bypass is not None
    assert found.bypass.reason == reason


def test_dynamic_sizes_share_a_key_and_promises_about_them_do_not() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).sum(0)

    assert key_of(total, torch.ones(4, 8), dynamic=True) == key_of(total, torch.ones(6, 9), dynamic=True)
    promised = torch.ones(4, 8)
    torch._dynamo.mark_dynamic(promised, 0, min=2, max=64)
    torch._dynamo.mark_dynamic(promised, 1)
    assert key_of(total, promised) != key_of(total, torch.ones(4, 8), dynamic=True)


@pytest.mark.slow
def test_keys_are_equal_in_another_process(tmp_path: Path) -> None:
    from processes import run_python

    program = (
        "import torch, sys; sys.path[:0] = ['.', 'request']; from capturing import components_of;"
        "import test_key_misses as t; import json; print(json.dumps(components_of(t.attention, t.Q)))"
    )
    import json

    seen = [json.loads(run_python(["-c", program], PYTHONHASHSEED=seed).splitlines()[-1]) for seed in ("1", "77")]
    assert seen[0] == seen[1]
    here = components_of(attention, Q)
    assert {name: here[name] for name in ("graph", "inputs", "system")} == {
        name: seen[0][name] for name in ("graph", "inputs", "system")
    }


def test_configuration_that_says_how_to_run_is_not_in_the_key() -> None:
    plain = configs.key_values(configs.capture())
    with torch._inductor.config.patch(compile_threads=3, fx_graph_cache=False):
        assert configs.key_values(configs.capture()) == plain


def test_strides_that_upstream_noted_for_outputs_are_described() -> None:
    """Since torch 2.14 they are noted before padding changes them, and Inductor lays outputs out by them."""

    def described(strides: list[tuple[int, ...] | None]) -> Any:
        graph = torch.fx.symbolic_trace(torch.nn.Identity())
        (output,) = graph.graph.find_nodes(op="output")
        output.meta["original_output_strides"] = strides
        return graph_codec.GraphEncoder().encode(graph).description

    different: list[list[tuple[int, ...] | None]] = [[(8, 1)], [(16, 1)], [None]]
    assert described([(8, 1)]) == described([(8, 1)])
    assert len({repr(described(strides)) for strides in different}) == 3


def test_decisions_that_all_ranks_take_together_are_not_taken_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch import config as functorch_config

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    with functorch_config.patch(_sync_decision_cross_ranks=True):
        key_of(function, X)  # with one rank there is nobody to ask
        with monkeypatch.context() as ranks:
            ranks.setattr(torch.distributed, "is_initialized", lambda: True)
            ranks.setattr(torch.distributed, "get_world_size", lambda *group: 2)
            assert aot.asks_other_ranks()
    assert not aot.asks_other_ranks()
    monkeypatch.setattr(aot, "asks_other_ranks", lambda: True)  # real groups would make Dynamo's frames other ones
    with pytest.raises(Exception, match="cross_rank_decisions"):
        captured(function, X)


@pytest.mark.skipif(not hasattr(ShapeEnv(), "name_to_symbol"), reason="new in torch 2.15")
def test_a_shape_environment_finds_its_symbols_by_name_in_a_worker() -> None:
    (one,) = captured(lambda x: x.softmax(-1), torch.ones(4, 8), dynamic=True)
    assert one.request.shapes is not None
    env = shape_env.load(one.request.shapes, one.request.hints)
    assert set(env.name_to_symbol) >= set(shape_env.values(env))
    for name in shape_env.values(env):
        assert str(env.deserialize_symexpr(name)) == name


def test_a_region_with_options_of_its_own_does_not_travel() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    graph.meta["nested_region_config"] = object()
    with pytest.raises(CannotTravelError, match="region_options"):
        graph_codec.GraphEncoder().encode(graph)
