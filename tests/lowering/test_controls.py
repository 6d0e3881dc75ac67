"""Torch's own controls of its caches, with fxpool's in their place."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_python
from tiers import first_tier
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.utils import clear_caches, fresh_cache

import fxpool
from fxpool.lowering.compiling import remote
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request.captured_graph import Captured

pytestmark = pytest.mark.usefixtures("cache", "nothing_lowered_here")

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).relu()


def compiled(function: Callable[..., Any] = program) -> tuple[int, int]:
    """Compile and run as in a new process; return how many graphs workers compiled, and how many hit."""
    torch._dynamo.reset()
    before = fxpool.stats()
    torch.testing.assert_close(torch.compile(function, backend="fxpool")(X), function(X))
    after = fxpool.stats()
    return after["compiles"]["worker"] - before["compiles"]["worker"], after["hits"] - before["hits"]


def test_a_fresh_cache_knows_nothing_and_leaves_nothing() -> None:
    assert compiled() == (1, 0)
    with fresh_cache():
        assert compiled() == (1, 0)
        assert compiled() == (0, 1)
        with fresh_cache():
            assert compiled() == (1, 0), "one within another"
        assert compiled() == (0, 1)
        assert compiled(lambda x: x.cos() * 3) == (1, 0)
    assert compiled() == (0, 1)
    assert compiled(lambda x: x.cos() * 3) == (1, 0), "it was of the fresh cache"


@pytest.mark.slow
def test_what_is_known_of_the_host_is_known_in_a_fresh_cache(tmp_path: Path) -> None:
    compiled()
    with fresh_cache(dir=str(tmp_path), delete=False):
        compiled()
    assert not list(tmp_path.glob("*/fxpool*/toolchain")) and list(tmp_path.glob("*/fxpool*"))


@pytest.mark.slow
def test_what_is_compiled_when_a_fresh_cache_is_over_leaves_nothing(tmp_path: Path) -> None:
    torch._dynamo.reset()
    call = torch.compile(program, backend="fxpool", options={"mode": "async+subprocess"})
    with fresh_cache(dir=str(tmp_path / "t")):
        call(X)
        places = [path for path in (tmp_path / "t").iterdir() if path.name.startswith("tmp")]
        assert len(places) == 1
    fxpool.wait(120)
    torch.testing.assert_close(call(X), program(X))
    assert not places[0].exists()
    assert "cache_not_written" not in fxpool.stats()["switched_off"]
    assert fxpool.wait()[-1]["state"] == "ready"


@pytest.mark.slow
def test_a_fresh_cache_shares_no_compile_with_who_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    flights: list[str] = []
    original = remote._reply

    def watched(captured: Captured, attempt: Attempt, flight: str, inline: bool) -> Any:
        flights.append(flight)
        return original(captured, attempt, flight, inline)

    monkeypatch.setattr(remote, "_reply", watched)
    compiled()
    with fresh_cache():
        compiled()
    outside, inside = flights
    assert outside and inside and outside != inside


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable",
    first_tier(["TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FX_GRAPH_CACHE"], "TORCHINDUCTOR_FX_GRAPH_CACHE"),
)
def test_variables_switch_caches_off(variable: str) -> None:
    text = """
import json, torch, fxpool
torch.compile(lambda x: x.sin() * 13, backend="fxpool")(torch.ones(3))
stats = fxpool.stats()
print(json.dumps([stats["hits"], stats["misses"], stats["entries_written"], stats["bypasses"]]))
"""
    value = "1" if "DISABLE" in variable else "0"
    assert json.loads(run_python(["-c", text]).splitlines()[-1]) == [0, 1, 1, {}]
    off = json.loads(run_python(["-c", text], **{variable: value}).splitlines()[-1])
    assert off == [0, 0, 0, {"caches_disabled": 1}]


@pytest.mark.slow
def test_clearing_memory_leaves_files() -> None:
    compiled()
    clear_caches()
    torch.compiler.reset()
    assert compiled() == (0, 1)


@pytest.mark.slow
def test_a_tag_has_entries_of_its_own() -> None:
    assert compiled() == (1, 0)
    with torch.compiler.config.patch(cache_key_tag="another"):
        assert compiled() == (1, 0)
        assert compiled() == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches",
    [
        lambda: inductor_config.patch(fx_graph_cache=False),
        lambda: inductor_config.patch(force_disable_caches=True),
        lambda: torch.compiler.config.patch(force_disable_caches=True),
    ],
    ids=["fx_graph_cache", "inductor", "compiler"],
)
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_caches_that_are_off(switches: Callable[[], Any]) -> None:
    assert compiled() == (1, 0)
    entries = fxpool.stats()["entries_written"]
    with switches():
        before = fxpool.stats()["bypasses"].get("caches_disabled", 0)
        assert compiled() == compiled() == (1, 0)
        assert fxpool.stats()["bypasses"]["caches_disabled"] == before + 2
    assert fxpool.stats()["entries_written"] == entries
    assert compiled() == (0, 1)


@pytest.mark.slow
def test_without_autograd_s_cache_graphs_are_kept_after_it() -> None:
    with functorch_config.patch(enable_autograd_cache=False):
        assert compiled() == (1, 0)
        assert compiled() == (0, 1)
    assert fxpool.stats()["fallbacks"]["autograd_cache_off"] == 2
    assert compiled() == (1, 0), "another level has keys of its own"


def _uncacheable(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@pytest.mark.parametrize("mode", ["subprocess", "normal", "async+subprocess"])
def test_a_graph_that_can_not_be_kept_is_an_error_where_that_is_wanted(mode: str) -> None:
    torch._dynamo.reset()
    call = torch.compile(_uncacheable, backend="fxpool", options={"mode": mode})
    with (
        functorch_config.patch(strict_autograd_cache=True),
        pytest.raises(BackendCompilerFailed, match=r"NotKeptError.*higher_order_operator"),
    ):
        call(X)
    torch._dynamo.reset()
    call = torch.compile(_uncacheable, backend="fxpool", options={"mode": mode, "strict": True})
    with pytest.raises(BackendCompilerFailed, match=r"NotKeptError.*higher_order_operator"):
        call(X)


@pytest.mark.slow
def test_a_remote_cache_is_refused_by_name_once() -> None:
    with inductor_config.patch(fx_graph_remote_cache=True):
        with pytest.warns(RuntimeWarning, match="fx_graph_remote_cache"):
            compiled()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled()
    assert fxpool.stats()["switched_off"]["no_remote_cache"] == 2


def _of_torch() -> dict[str, int]:
    both = {**counters["aot_autograd"], **counters["inductor"]}
    return {name: count for name, count in both.items() if "cache" in name and count}


def _trained(backend: str, function: Callable[..., Any] = program) -> dict[str, int]:
    """torch's counters of its caches for a training step as in a new process."""
    torch._dynamo.reset()
    counters.clear()
    x = X.clone().requires_grad_()
    torch.compile(function, backend=backend)(x).sum().backward()
    return _of_torch()


def test_torch_s_counters_say_what_they_say_of_its_own_caches() -> None:
    first = {"autograd_cache_miss": 1, "autograd_cache_saved": 1, "fxgraph_cache_miss": 2}
    assert _trained("fxpool") == first
    assert _trained("fxpool") == {"autograd_cache_hit": 1, "fxgraph_cache_hit": 2}
    assert _trained("fxpool", _uncacheable) == {"autograd_cache_bypass": 1, "fxgraph_cache_bypass": 2}
    with functorch_config.patch(enable_autograd_cache=False):
        assert _trained("fxpool") == {"fxgraph_cache_miss": 2}
        assert _trained("fxpool") == {"fxgraph_cache_hit": 2}
