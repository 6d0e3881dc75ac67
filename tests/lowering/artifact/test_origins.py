"""What a person knows an entry by: recorded where it is compiled, not in the key, and not looked for on a hit."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fxpool
from fxpool.codecache.store import catalogue, layout
from fxpool.codecache.store.entry import Origin
from fxpool.codecache.store.store import LocalStore
from fxpool.torch_compat.dynamo import frames


class Toy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) + self.shift
        torch._dynamo.graph_break()
        return y.sin()


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return wrapper


class Decorated(torch.nn.Module):
    @decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def scale(x: torch.Tensor, by: int) -> torch.Tensor:
    return x * by


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    torch._dynamo.reset()
    yield tmp_path / "c"


def origins(cache: Path) -> list[Origin]:
    found = [one.entry.metadata.origin for one in LocalStore(str(cache)).scan() if one.entry is not None]
    assert all(isinstance(one, Origin) for one in found)
    return sorted((one for one in found if one is not None), key=lambda one: one.line)


@pytest.mark.slow
def test_a_model_its_function_its_inputs_and_a_break(shared_pool: Path, cache: Path) -> None:
    with torch.no_grad():
        torch.compile(Toy(), backend="fxpool")(torch.ones(2, 3))
    first, rest = origins(cache)
    assert (first.name, first.parameters, first.inputs, first.resumed) == ("Toy.forward", 3, ["float32[2, 3]"], False)
    assert first.location.endswith(f"test_origins.py:{line_of('def forward(self, x: torch.Tensor)')}")
    assert not first.file.startswith("/"), "no path of this host's"
    assert (rest.name, rest.parameters, rest.inputs, rest.resumed) == ("Toy.forward", 0, ["float32[2, 4]"], True)
    assert rest.location.endswith(f"test_origins.py:{line_of('graph_break()')} on")
    # All that a compile leaves is known to who measures and clears.
    assert catalogue.measure(str(cache))[layout.FOREIGN].files == 0


@pytest.mark.slow
def test_it_is_no_part_of_the_key_and_a_hit_does_not_ask(
    shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 3

    torch.compile(one, backend="fxpool")(torch.ones(5))
    torch._dynamo.reset()
    monkeypatch.setattr(frames, "shown_inputs", None)

    def another(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 3

    torch.compile(another, backend="fxpool")(torch.ones(5))
    assert (fxpool.stats()["hits"], fxpool.stats()["compiles"]["worker"]) == (1, 1)
    (origin,) = origins(cache)
    assert origin.name.endswith("one")


@pytest.mark.slow
def test_what_can_not_be_told_fails_no_compile(shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("odd inputs")

    monkeypatch.setattr(frames, "shown_inputs", refuse)
    x = torch.ones(7)
    torch.testing.assert_close(torch.compile(lambda x: x.sin() - 9, backend="fxpool")(x), x.sin() - 9)
    (found,) = LocalStore(str(cache)).scan()
    assert found.entry is not None and found.entry.metadata.origin is None


@pytest.mark.parametrize(
    ("callee", "inputs", "name", "line"),
    [
        (torch.nn.Sequential(torch.nn.Linear(3, 4)), (torch.ones(2, 3),), "Sequential.forward", None),
        (scale, (torch.ones(2, 3), 4), "scale", "def scale"),
        (functools.partial(scale, by=3), (torch.ones(2, 3),), "scale", "def scale"),
        (Decorated(), (torch.ones(2, 3),), "Decorated.forward", "@decorated"),
        (Decorated().forward, (torch.ones(2, 3),), "Decorated.forward", "@decorated"),
    ],
    ids=["torch's", "function", "partial", "decorated", "method"],
)
def test_whoever_is_called(callee: Any, inputs: Any, name: str, line: str | None) -> None:
    seen: list[frames.Frame | None] = []

    def backend(gm: Any, _: Any) -> Any:
        seen.append(frames.current_frame())
        return gm.forward

    torch._dynamo.reset()
    torch.compile(callee, backend=backend)(*inputs)
    (frame,) = seen
    assert frame is not None and frame.name == name
    if line is not None:
        assert Path(frame.file).name == "test_origins.py" and frame.line == line_of(line)
    else:
        assert frame.file.startswith("torch/nn/")


def test_outside_a_compile_there_is_none() -> None:
    assert frames.current_frame() is None


def test_many_inputs_are_cut() -> None:
    values = [torch.ones(n) for n in range(20)] + [torch.nn.Parameter(torch.ones(1)), 3]
    shown, parameters = frames.shown_inputs(values, [])
    assert shown[0] == "float32[0]" and shown[-1] == "12 more" and len(shown) == 9 and parameters == 1
