"""Graphs that can't be kept as Dynamo made them: what AOTAutograd makes of them is, and is found again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import out_dtype
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import fxpool

pytestmark = [
    pytest.mark.usefixtures("cache", "nothing_lowered_here"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo's doing
]

X = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))


def _policy(context: Any, operator: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    saved = operator == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def selective(x: torch.Tensor) -> Any:
    def part(y: torch.Tensor) -> torch.Tensor:
        return (y @ y.t() @ y).sin().relu()

    context = functools.partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(part, x, use_reentrant=False, context_fn=context)


def _step(call: Callable[..., Any]) -> list[torch.Tensor]:
    x = X.clone().requires_grad_()
    made = call(x)
    made.sum().backward()
    assert x.grad is not None
    return [made.detach(), x.grad]


def _stored_bytes() -> int:
    store = fxpool.stats()["store"]
    assert store is not None
    return store["bytes"]


def _in_next_process(call: Callable[..., Any], compiled: Callable[..., Any]) -> tuple[int, int]:
    """Compare with eager execution after a reset; return how many graphs workers compiled, and how many hit."""
    torch._dynamo.reset()
    before = fxpool.stats()
    torch.testing.assert_close(call(compiled), call(eager_of(compiled)))
    after = fxpool.stats()
    return after["compiles"]["worker"] - before["compiles"]["worker"], after["hits"] - before["hits"]


def eager_of(compiled: Any) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(compiled, "_torchdynamo_orig_callable", None) or compiled._orig_mod
    return original


@torch.library.custom_op("fxpool_tests::add_to_each", mutates_args=("kept",))
def add_to_each(kept: list[torch.Tensor], added: list[torch.Tensor], times: list[int]) -> None:
    for one, other, factor in zip(kept, added, times, strict=True):
        one.add_(other * factor)


@add_to_each.register_fake
def _(kept: list[torch.Tensor], added: list[torch.Tensor], times: list[int]) -> None:
    return None


def changed_in_a_list(x: torch.Tensor) -> torch.Tensor:
    """torch compares the operator's lists with what it noted of them, which are lists of a type of its own."""
    kept = [x.detach().sin(), x.detach().cos()]
    add_to_each(kept, [x.detach(), x.detach() * 2], [2, 3])
    made: torch.Tensor = selective(x) + kept[0] * kept[1]
    return made


def widened(x: torch.Tensor) -> torch.Tensor:
    """A product of bytes in a wider type, whose operator Inductor's decompositions replace."""
    whole = (x.detach() * 10).to(torch.int8)
    made: torch.Tensor = out_dtype(torch.ops.aten.mm.default, torch.int32, whole, whole.t()) + x.sum()
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (changed_in_a_list, "checkpoint_context_fn"),
        (selective, "checkpoint_context_fn"),
        (widened, "higher_order_operator_of_autograd"),
    ],
)
def test_a_graph_before_autograd_that_nobody_can_be_served(function: Callable[..., Any], reason: str) -> None:
    before = fxpool.stats()["fallbacks"].get(reason, 0)
    compiled = torch.compile(function, backend="fxpool")
    assert _in_next_process(_step, compiled) == (2, 0), "forward and backward"
    assert _in_next_process(_step, compiled) == (0, 2)
    assert fxpool.stats()["fallbacks"][reason] - before == 2


def _layers(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()


def _inference(call: Callable[..., Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [call(X)]


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_frozen_weights(packed: bool) -> None:
    """Their content is in the key: other weights are another graph. Packed by MKL, or as they are."""
    with torch._inductor.config.patch(freezing=True), torch.backends.mkldnn.flags(enabled=packed):
        assert _in_next_process(_inference, torch.compile(_layers(1), backend="fxpool")) == (1, 0)
        assert _in_next_process(_inference, torch.compile(_layers(1), backend="fxpool")) == (0, 1)
        assert _in_next_process(_inference, torch.compile(_layers(2), backend="fxpool")) == (1, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # Inductor's measurements
def test_frozen_weights_that_inductor_measures_with() -> None:
    """A worker packs them for MKL itself: a packed weight is bound to its address, and MKL crashes on a copy."""
    torch.manual_seed(3)
    layers = [nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 40)]
    options = {"freezing": True, "max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP,ATEN"}
    with torch._inductor.config.patch(options):
        compiled = torch.compile(nn.Sequential(*layers).eval(), backend="fxpool")
        assert _in_next_process(_inference, compiled) == (1, 0)
        assert _in_next_process(_inference, compiled) == (0, 1)


def test_frozen_weights_are_not_in_the_store() -> None:
    """A hit takes them from its own graph."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 40_000), nn.Linear(40_000, 4)).eval()
    with torch._inductor.config.patch(freezing=True), torch.backends.mkldnn.flags(enabled=False):
        compiled = torch.compile(model, backend="fxpool")
        before = _stored_bytes()
        assert _in_next_process(_inference, compiled) == (1, 0)
        assert _stored_bytes() - before < 4_000_000, "the weights are 10 MB"
        assert _in_next_process(_inference, compiled) == (0, 1)
