"""Which blocks of a model are one piece: equal ones are, and one that differs in anything is not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cutting import WIDTH, Block, Outcome, Stack, cut, small_models
from torch import nn
from torch.utils.checkpoint import checkpoint

X = torch.randn(6, WIDTH)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with small_models(monkeypatch):
        yield


def test_equal_blocks_are_one_piece() -> None:
    found = cut(Stack(), X)
    assert len(found.pieces) == 6
    assert len(set(found.of_blocks())) == 1
    assert len(set(found.names)) == 3 - (found.names[0] == found.names[-1])


def test_a_deeper_model_has_the_same_pieces() -> None:
    assert cut(Stack(count=6), X).shared() == cut(Stack(count=3), X).shared()


def _wrapped(block: Any, around: Callable[[Callable[..., Any], torch.Tensor], torch.Tensor]) -> None:
    before = block.forward
    block.forward = lambda x: around(before, x)


def _under_autocast(forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return forward(x)


def _without_gradients(forward: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return forward(x)


def _transposed(block: Any) -> None:
    block.up.weight = nn.Parameter(block.up.weight.detach().t().contiguous().t())


def _part_of_more(block: Any) -> None:
    """The same numbers at the same strides, in the middle of larger memory."""
    weight = block.up.bias.detach()
    block.up.bias = nn.Parameter(torch.cat([weight, weight])[WIDTH : WIDTH + len(weight)])


def _aliasing(block: Any) -> None:
    """Two parameters of a block that are one memory."""
    both = torch.randn(3 * WIDTH)
    block.norm.weight = nn.Parameter(both[:WIDTH])
    block.norm.bias = nn.Parameter(both[:WIDTH])


def _scaled_by_memory(block: Any) -> None:
    block.scale = torch.tensor(1.0)


def _wider(block: Any) -> None:
    block.up, block.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a dropout rate": lambda block: setattr(block.drop, "p", 0.25),
    "dropout switched off": lambda block: block.drop.eval(),
    "a stride": _transposed,
    "an offset": _part_of_more,
    "aliasing parameters": _aliasing,
    "a frozen parameter": lambda block: block.up.weight.requires_grad_(False),
    "a frozen block": lambda block: block.requires_grad_(False),
    "a missing bias": lambda block: setattr(block.down, "bias", None),
    "an epsilon": lambda block: setattr(block.norm, "eps", 1e-6),
    "another activation": lambda block: setattr(block, "activation", nn.functional.silu),
    "an argument": lambda block: setattr(
        block, "activation", functools.partial(nn.functional.gelu, approximate="tanh")
    ),
    "a number": lambda block: setattr(block, "scale", 2.0),
    "a sign of zero": lambda block: setattr(block, "scale", -0.0),
    "an integer for a number": lambda block: setattr(block, "scale", 1),
    "a tensor for a number": _scaled_by_memory,
    "a width": _wider,
    "autocast": lambda block: _wrapped(block, _under_autocast),
    "no gradients": lambda block: _wrapped(block, _without_gradients),
    "a checkpoint": lambda block: _wrapped(
        block, lambda forward, x: checkpoint(forward, x, use_reentrant=False)
    ),
    "a detached input": lambda block: _wrapped(block, lambda forward, x: forward(x.detach())),
    "a hook": lambda block: block.register_forward_hook(lambda module, given, made: made * 2),
    "a write": lambda block: _wrapped(block, lambda forward, x: forward(x).add_(1)),
}  # fmt: skip


@functools.cache
def _unchanged(scale: float) -> Outcome:
    return cut(Stack(lambda: Block(drop=0.1, scale=scale)), X)


@pytest.mark.parametrize(("which", "change"), [(number % 3, change) for number, change in enumerate(CHANGES)])
def test_a_block_that_differs_shares_no_piece(change: str, which: int) -> None:
    scale = 0.0 if change == "a sign of zero" else 1.0
    before = _unchanged(scale)
    model = Stack(lambda: Block(drop=0.1, scale=scale))
    CHANGES[change](model.blocks[which])
    after = cut(model, X)
    if after.whole:
        return  # nothing is shared
    equal = set(before.of_blocks())
    assert len(equal) == 1
    names = [name for name in after.names if name in equal or name in after.shared()]
    assert len(names) <= 3, "the block that was changed is none of them"
    assert after.names != before.names


def test_what_does_not_matter_is_no_difference() -> None:
    model = Stack()
    before = cut(model, X).of_blocks()
    with torch.no_grad():
        model.blocks[1].up.weight.mul_(2)
    model.blocks[2].named = "another"
    assert cut(model, X).of_blocks() == before


def test_blocks_of_one_s_own_size_are_one_piece() -> None:
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    found = cut(Stack(), x)
    assert len(set(found.of_blocks())) == 1
    assert found.of_blocks() != cut(Stack(), X).of_blocks()


@pytest.mark.slow
def test_numbers_that_are_symbols_of_their_own() -> None:
    """Under ``dynamic=True`` each block's numbers are inputs of the graph, with symbols of their own."""
    found = cut(Stack(), X, dynamic=True)
    assert len(set(found.of_blocks())) == 1, found.whole
    four = Stack()
    four.blocks[2].scale = 2.0
    names = cut(four, X, dynamic=True).of_blocks()
    assert names[0] == names[1] == names[3] != names[2], "another value"


def test_frozen_weights_are_part_of_a_piece() -> None:
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        assert cut(Stack().eval(), X).whole == "nothing_repeats"
        model = Stack().eval()
        for block in model.blocks[1:]:
            block.load_state_dict(model.blocks[0].state_dict())
        assert len(set(cut(model, X).of_blocks())) == 1, "equal weights"


class Written(Stack):
    """A view of what a block made is written to behind the blocks."""

    def forward(self, x: torch.Tensor) -> Any:
        made = self.body(self.first(x))
        made.view(-1).mul_(2.0)
        return self.last(made)


class UnderAutocast(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = self.body(self.first(x))
        return self.last(made.float())


class OneCounter(Stack):
    """All blocks write to one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            self.count += 1
            x = block(x) * self.count.clone()
        return x


def _in_place() -> nn.Module:
    class InPlace(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(self.inner(x.clone()))

    return InPlace()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Written, "write_across"),
        (UnderAutocast, "nothing_repeats"),
        (OneCounter, "write_across"),
        (lambda: Stack(_in_place), "nothing_repeats"),
    ],
)
def test_what_may_not_be_cut_stays_whole(model: Callable[[], nn.Module], reason: str) -> None:
    assert cut(model(), X).whole == reason


def test_without_repetition_the_thinnest_places_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from fxpool.lowering.regions import cut as regions_cut
    from fxpool.lowering.regions import plan

    monkeypatch.setattr(plan, "WORTH_SPREADING", 16)
    monkeypatch.setattr(regions_cut, "_cores", lambda: 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        for number in range(5):
            sine, cosine = x.sin() * number, x.cos()
            x = (sine + cosine) * (sine - cosine) + x.exp().relu()
        return x

    found = cut(program, X)
    assert len(found.pieces) > 2
    assert all(len(piece.interval.outputs) == 1 for piece in found.pieces), "one value goes on from each"
