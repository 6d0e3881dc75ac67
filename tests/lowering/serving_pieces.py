"""A toy model that is compiled in pieces, as vLLM compiles: split at an operator, each piece for two ranges of sizes.

Written for these tests after the way in which vLLM 0.33 calls torch; vLLM itself is not needed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.split_module import split_module

WIDTH = 16
LAYERS = 2
#: The number of rows that is compiled for separately; other numbers share code.
ROWS = 8
PIECES = LAYERS + 1


@torch.library.custom_op("fxpool_serving::attend", mutates_args=())
def attend(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0)


@attend.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Toy(torch.nn.Module):
    """No two pieces are equal: each multiplies by another number."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / 4, requires_grad=False)
            for _ in range(PIECES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, weight in enumerate(self.weights):
            x = torch.nn.functional.gelu(x @ weight) * (number + 2)
            if number < LAYERS:
                x = attend(x)
        return x


class Noted(CustomGraphPass):
    """A pass that notes each graph that is lowered, wherever that is, as a line in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, graph: torch.fx.Graph) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{os.getpid()}\n".encode())  # in one piece: several workers write
        os.close(descriptor)

    def uuid(self) -> Any:
        return "noted", self.path


def split(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    number = 0

    def part(node: torch.fx.Node) -> int:
        nonlocal number
        if "attend" not in str(node.target):
            return number
        number += 2
        return number - 1

    wanted = {"tuple_return": True} if "tuple_return" in inspect.signature(split_module).parameters else {}
    return split_module(gm, None, part, keep_original_order=True, **wanted)


def fakes_of(piece: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["example_value"] for node in piece.graph.find_nodes(op="placeholder")]


def with_rows(fakes: Sequence[Any], rows: int) -> list[Any]:
    """Fake inputs of another mode, with a number in place of each symbol."""

    def number(size: Any) -> int:
        return rows if isinstance(size, torch.SymInt) else int(size)

    with FakeTensorMode(shape_env=ShapeEnv()):
        return [
            torch.empty(*map(number, one.shape), dtype=one.dtype) if isinstance(one, torch.Tensor) else number(one)
            for one in fakes
        ]


class Piece:
    """One piece, compiled for `ROWS` rows and for any number of rows; or loaded from the files of an earlier start."""

    def __init__(self, piece: torch.fx.GraphModule, directory: Path, order: dict[str, Any], log: list[Any]) -> None:
        from torch._inductor.compile_fx import graph_returns_tuple

        self._is_tuple = graph_returns_tuple(piece)
        fakes = fakes_of(piece)
        self._any = self._made(piece, fakes, "from_graph", directory / "any", order, log)
        self._rows = self._made(piece, with_rows(fakes, ROWS), "from_example_inputs", directory / "rows", order, log)

    def _made(
        self,
        piece: torch.fx.GraphModule,
        inputs: list[Any],
        shapes: Any,
        path: Path,
        order: dict[str, Any],
        log: list[Any],
    ) -> Callable[..., Any]:
        import sys

        from torch._inductor import CompiledArtifact, standalone_compile

        if path.exists():
            log.append("loaded")
            return CompiledArtifact.load(path=str(path), format=order["format"])
        wanted: dict[str, Any] = {"aot": True} if order.get("aot") else {}
        if "donate_graph_module" in inspect.signature(standalone_compile).parameters:
            wanted["donate_graph_module"] = False  # compiled twice
        mode = next(one.fake_mode for one in inputs if isinstance(one, torch.Tensor))
        with patch.object(sys.modules["torch._inductor.standalone_compile"], "FakeTensorMode", lambda *a, **k: mode):
            made = standalone_compile(
                piece,
                inputs,
                dynamic_shapes=shapes,
                options={"config_patches": {"post_grad_custom_post_pass": Noted(order["noted"])}},
                **wanted,
            )
        log.append([type(made).__name__, isinstance(made, CompiledArtifact)])
        if not order.get("aot"):
            artifacts = made._artifacts
            assert artifacts is not None and len(artifacts[1].aot_autograd_artifacts) == 1
            assert not artifacts[1].artifacts.get("fxpool"), "the parts are with the graph"
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path=str(path), format=order["format"])
        return made

    def __call__(self, *inputs: Any) -> Any:
        rows = next(one.shape[0] for one in inputs if isinstance(one, torch.Tensor) and one.dim() == 2)
        found = (self._rows if rows == ROWS else self._any)(*inputs)
        # For a piece with one output a new artifact returns that, a loaded one a list.
        return found if self._is_tuple or isinstance(found, torch.Tensor) else found[0]


class Piecewise:
    """The back end."""

    def __init__(self, directory: Path, order: dict[str, Any]) -> None:
        self.directory, self.order = directory, order
        self.log: list[Any] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        whole = split(gm)
        for name, piece in [*whole.named_children()]:
            if not any("attend" in str(node.target) for node in piece.graph.nodes):
                delattr(whole, name)
                setattr(whole, name, _Called(Piece(piece, self.directory / name, self.order, self.log)))
        return whole.forward


class _Called(torch.nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.piece = piece

    def forward(self, *inputs: Any) -> Any:
        return self.piece(*inputs)
