"""Graphs compiled in pieces: what they give, what is compiled for them, and what the next process finds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import WIDTH, Block, Stack, small_models
from tiers import first_tier
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxpool
from fxpool.lowering.regions import compile_pieces


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, cache: object, own_background: None) -> Iterator[None]:
    # Random numbers as eager execution draws them, so that dropout can be compared.
    with small_models(monkeypatch), torch._inductor.config.patch(fallback_random=True):
        yield


def step(model: nn.Module, call: Callable[..., Any], x: torch.Tensor, *, train: bool) -> dict[str, Any]:
    """Outputs, gradients and buffers of one step, and what else of the outputs can be seen."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_(train)
    model.zero_grad()
    with torch.set_grad_enabled(train):
        made = call(x)
    outputs = torch.utils._pytree.tree_leaves(made)
    if train:
        total = sum((one.float() ** 2).mean() for one in outputs if one.requires_grad)
        assert isinstance(total, torch.Tensor)
        total.backward()
    return {
        "outputs": [one.detach() for one in outputs],
        "gradients": [x.grad, *(one.grad for one in model.parameters())],
        "buffers": [one.clone() for one in model.buffers()],
        "strides": [one.stride() for one in outputs],
        "require gradients": [one.requires_grad for one in outputs],
    }


def check(model: nn.Module, *, train: bool = True, rows: tuple[int, ...] = (6, 6)) -> dict[str, int]:
    """Compare two steps in pieces with eager ones; return what was counted for them."""
    torch._dynamo.reset()
    eager = copy.deepcopy(model)
    before = dict(fxpool.stats()["regions"])
    compiled = torch.compile(model, backend="fxpool", options={"regions": True})
    for count in rows:
        x = torch.randn(count, WIDTH)
        torch.testing.assert_close(
            step(model, compiled, x, train=train), step(eager, eager, x, train=train), rtol=1e-3, atol=1e-4
        )
    counted = {name: count - before.get(name, 0) for name, count in fxpool.stats()["regions"].items()}
    return {name: count for name, count in counted.items() if count}


class _Views(Block):
    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        return made.view(2, -1, WIDTH).transpose(0, 1), made


class _StackOfViews(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        views, x = [], self.first(x)
        for block in self.blocks:
            view, x = block(x)
            views.append(view)
        return self.last(x), views


class _Statistics(nn.Module):
    """Writes to buffers in training."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(nn.functional.relu(self.norm(self.up(x))))
        return made


class _WritesToItsOwn(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = nn.functional.relu(self.up(self.norm(x)), inplace=True)
        made = self.down(made)
        made += 1
        return x + made.mul_(2)


class _GivesItsInputBack(Block):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


class _StackOfPairs(Stack):
    def body(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.blocks:
            x, before = block(x)
            kept.append(before)
        return x + torch.stack(kept).sum(0)


class _Checkpointed(Stack):
    def body(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class _OneBlock(Stack):
    """The same block four times."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = self.blocks[0](x)
        return x


class _HalfWithout(Stack):
    def body(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for block in self.blocks[:2]:
                x = block(x)
        for block in self.blocks[2:]:
            x = block(x)
        return x


class _Random(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.rand_like(x)


class _Scaled(Block):
    """What it does depends on its number, which is known only while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (self.scale if self.scale > 0.5 else 3.0)


class _Halves(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.up(self.norm(x)).chunk(2, -1)
        return x + first * second


class _HasAConstant(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.tensor([0.5] * WIDTH)


def _tied() -> nn.Module:
    model = Stack()
    model.blocks[1].up.weight = model.blocks[0].up.weight
    model.blocks[3].down = model.blocks[2].down
    return model


def _alternating() -> nn.Module:
    model = Stack()
    for number, block in enumerate(model.blocks):
        block.scale = 1.0 + number % 2
    return model


def _frozen_at_first() -> nn.Module:
    model = Stack()
    model.first.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "equal blocks": (Stack, 3),
    "dropout": (lambda: Stack(lambda: Block(drop=0.5)), 3),
    "two kinds of blocks": (_alternating, 4),
    "statistics": (lambda: Stack(_Statistics), 3),
    "writes to their own": (lambda: Stack(_WritesToItsOwn), 3),
    "views given out": (lambda: _StackOfViews(_Views), 3),
    "inputs given back": (lambda: _StackOfPairs(_GivesItsInputBack), 3),
    "checkpoints": (lambda: _Checkpointed(lambda: Block(drop=0.3)), 3),
    "one block many times": (_OneBlock, 3),
    "tied weights": (_tied, 3),
    "frozen at first": (_frozen_at_first, 5),
    "some without gradients": (lambda: _HalfWithout(count=5), 4),
    "random numbers": (lambda: Stack(_Random), 3),
    "parts of tuples": (lambda: Stack(_Halves), 3),
    "constants": (lambda: Stack(_HasAConstant), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    first_tier(
        MODELS,
        "equal blocks",
        "dropout",
        "two kinds of blocks",
        "writes to their own",
        "views given out",
        "checkpoints",
        "tied weights",
        "some without gradients",
        "random numbers",
    ),
)
def test_a_step_in_pieces_is_the_eager_one(name: str) -> None:
    make, kinds = MODELS[name]
    counted = check(make())
    assert counted["graphs"] == 1, counted
    assert counted["distinct"] <= kinds
    assert counted["pieces"] > counted["distinct"]


@pytest.mark.slow
@pytest.mark.parametrize("name", first_tier(["equal blocks", "parts of tuples", "views given out"], "views given out"))
def test_sizes_that_are_symbols(name: str) -> None:
    assert check(MODELS[name][0](), rows=(6, 8, 10))["graphs"] == 2, "the second size makes it a symbol"


@pytest.mark.slow
def test_numbers_that_are_symbols() -> None:
    """Equal blocks with numbers of their own under ``dynamic=True``; what changes in one is seen."""
    model = Stack(_Scaled)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="fxpool", dynamic=True, options={"regions": True})
    x = torch.randn(6, WIDTH)
    before = dict(fxpool.stats()["regions"])
    torch.testing.assert_close(compiled(x), model(x))
    graphs, distinct = (fxpool.stats()["regions"][name] - before.get(name, 0) for name in ("graphs", "distinct"))
    assert graphs and distinct <= 3 * graphs, "the block, what is before it, and what comes behind"
    for number, scale in ((2, 2.0), (2, 0.25), (0, 0.25)):
        model.blocks[number].scale = scale
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equal blocks", "statistics", "inputs given back"])
def test_inference(name: str) -> None:
    assert check(MODELS[name][0]().eval(), train=False)["graphs"] == 1


@pytest.mark.slow
def test_gradients_of_several_steps_are_added_up() -> None:
    model = Stack()
    torch._dynamo.reset()
    eager, compiled = copy.deepcopy(model), torch.compile(model, backend="fxpool", options={"regions": True})
    for _ in range(3):
        x = torch.randn(6, WIDTH)
        (compiled(x) ** 2).mean().backward()
        (eager(x) ** 2).mean().backward()
    expected = [one.grad for one in eager.parameters()]
    torch.testing.assert_close([one.grad for one in model.parameters()], expected, rtol=1e-3, atol=1e-4)
    assert fxpool.stats()["regions"]["graphs"]


class _Cached(Block):
    """Writes a row of what it made to memory of its own, and reads all of that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, WIDTH))
        self.rows: torch.Tensor

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        made = super().forward(x)
        if at is None:
            return made
        self.rows.index_copy_(0, at, made)
        return made + self.rows.sum(0)


class _StackWithCaches(Stack):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:  # type: ignore[override]
        x = self.first(x)
        for block in self.blocks:
            x = block(x, at)
        return self.last(x)


@pytest.mark.slow
def test_caches_that_are_written_to_in_place() -> None:
    model = _StackWithCaches(_Cached).eval()
    torch._dynamo.reset()
    eager, compiled = copy.deepcopy(model), torch.compile(model, backend="fxpool", options={"regions": True})
    before = fxpool.stats()["regions"]
    with torch.no_grad():
        for number in range(4):
            x, at = torch.randn(1, WIDTH), torch.tensor([number])
            torch.testing.assert_close(compiled(x, at), eager(x, at), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(list(model.buffers()), list(eager.buffers()), rtol=1e-3, atol=1e-4)
    after = fxpool.stats()["regions"]
    assert after["graphs"] - before.get("graphs", 0) == 1
    assert after["distinct"] - before.get("distinct", 0) <= 3


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("buckets", first_tier([False, True], True), ids=["one graph", "a graph for each bucket"])
def test_a_rank_of_data_parallel_training(one_rank: None, buckets: bool) -> None:
    model = Stack()
    torch._dynamo.reset()
    eager = copy.deepcopy(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    before = fxpool.stats()["regions"]
    with torch._dynamo.config.patch(optimize_ddp=buckets):
        compiled = torch.compile(parallel, backend="fxpool", options={"regions": True})
        for _ in range(2):
            x = torch.randn(6, WIDTH)
            (compiled(x) ** 2).mean().backward()
            (eager(x) ** 2).mean().backward()
    expected = [one.grad for one in eager.parameters()]
    torch.testing.assert_close([one.grad for one in model.parameters()], expected, rtol=1e-3, atol=1e-4)
    graphs = fxpool.stats()["regions"].get("graphs", 0) - before.get("graphs", 0)
    assert buckets or graphs == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
def test_a_rank_with_sharded_blocks(one_rank: None) -> None:
    """The hooks at each block's borders end a graph: the blocks are graphs, and what is between them is."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Stack()
    torch._dynamo.reset()
    eager = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compiled = torch.compile(model, backend="fxpool", options={"regions": True})
    for _ in range(2):
        x = torch.randn(6, WIDTH)
        (compiled(x) ** 2).mean().backward()
        (eager(x) ** 2).mean().backward()
    found = [one.grad.full_tensor() for one in model.parameters()]
    torch.testing.assert_close(found, [one.grad for one in eager.parameters()], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_deeper_model_finds_the_pieces_of_another() -> None:
    check(Stack(lambda: Block(scale=0.75)))
    before = fxpool.stats()
    check(Stack(lambda: Block(scale=0.75), count=7))
    after = fxpool.stats()
    assert after["hits"] - before["hits"] == 2, "a block, and the layers at both ends, which are equal"
    assert after["compiles"] == before["compiles"]


@pytest.mark.slow
def test_a_changed_head_is_compiled_alone() -> None:
    check(Stack(lambda: Block(scale=0.85)))
    before = fxpool.stats()
    other = Stack(lambda: Block(scale=0.85))
    other.last = nn.Linear(WIDTH, 5)
    check(other)
    assert fxpool.stats()["compiles"]["worker"] - before["compiles"]["worker"] == 1


def _looks(graph: torch.fx.Graph) -> None:
    """A pass of the program's."""


@pytest.mark.slow
def test_a_pass_of_the_program_s_is_given_the_graph_as_a_whole() -> None:
    with torch._inductor.config.patch(post_grad_custom_post_pass=_looks):
        assert check(Stack()) == {"whole:configured_code": 1}


@pytest.mark.slow
def test_inference_mode() -> None:
    model = Stack().eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="fxpool", options={"regions": True})
    with torch.inference_mode():
        for rows in (6, 6, 9):
            x = torch.randn(rows, WIDTH)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_what_stays_whole_is_counted_with_the_reason() -> None:
    counted = check(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    assert [name for name in counted if name.startswith("whole:")], counted


@pytest.mark.slow
def test_a_piece_that_can_not_travel_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are compiled by workers as ever."""
    from fxpool.errors import CannotTravelError

    look_up = compile_pieces._Job._look_up
    refused: list[str] = []

    def refuse_first(job: Any) -> Any:
        if not refused:
            refused.append(job.attempt.label)
            raise CannotTravelError("made_up", "for the test")
        return look_up(job)

    monkeypatch.setattr(compile_pieces._Job, "_look_up", refuse_first)
    before = fxpool.stats()["fallbacks"].get("made_up", 0)
    assert check(Stack(lambda: Block(scale=0.65)))["graphs"] == 1
    assert fxpool.stats()["fallbacks"]["made_up"] == before + 1


@pytest.mark.slow
def test_a_piece_that_does_not_compile_leaves_the_graph_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a graph can be more than Inductor is up to where the whole is not."""

    def fail(job: Any, waiting: Any) -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr(compile_pieces._Job, "finish", fail)
    before = fxpool.stats()
    check(Stack(lambda: Block(scale=0.35)))
    after = fxpool.stats()
    assert after["fallbacks"]["pieces:RuntimeError"] == before["fallbacks"].get("pieces:RuntimeError", 0) + 1
    assert after["graphs"][-1]["outcome"] == "worker"


@pytest.mark.slow
def test_compiled_code_runs_in_every_piece() -> None:
    torch._dynamo.reset()
    model = Stack()
    compiled = torch.compile(model, backend="fxpool", options={"regions": True})
    x = torch.randn(6, WIDTH)
    compiled(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        compiled(x)
    calls = [event.name for event in profile.events() if event.name.startswith("## Call CompiledFxGraph")]
    assert len(calls) == 6


@pytest.mark.slow
@pytest.mark.parametrize("mode", first_tier(["progressive+subprocess", "async+subprocess"], "async+subprocess"))
def test_pieces_come_before_the_first_stage(mode: str, shared_pool: object) -> None:
    torch._dynamo.reset()
    model = Stack(lambda: Block(scale=0.55 if mode[0] == "a" else 0.45))
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="fxpool", options={"mode": mode, "stages": [{}]})
    x = torch.randn(6, WIDTH)
    for _ in range(200):
        torch.testing.assert_close(step(model, compiled, x, train=True), step(eager, eager, x, train=True))
        if any(row["stage"] == 0 for row in fxpool.wait(0)):
            break
    rows = [one for one in fxpool.wait(120) if one["stages"].get(-1) in ("superseded", "in use")]
    assert rows and rows[-1]["stage"] == 0, rows
    torch.testing.assert_close(step(model, compiled, x, train=True), step(eager, eager, x, train=True))


def test_pieces_are_recorded_for_another_machine(lone_pool: Path, tmp_path: Path) -> None:
    """Each distinct piece is; all of them run eagerly."""
    fxpool.configure(capture=tmp_path / "graphs")
    counted = check(Stack(), rows=(6,))
    stats = fxpool.stats()
    assert stats["captures"]["recorded"] == counted["distinct"] == len(list((tmp_path / "graphs").iterdir()))
    assert stats["eager_calls"] == {"recorded": counted["distinct"]}
    assert stats["compiles"] == {"worker": 0, "in_process": 0}
