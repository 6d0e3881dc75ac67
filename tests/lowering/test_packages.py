"""Exported programs as packages of AOTInductor's: built in a worker, kept, and loaded by torch alone."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fxpool

pytestmark = [
    pytest.mark.usefixtures("cache", "nothing_lowered_here"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch's own, of its tree specs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


class Model(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.register_buffer("scale", torch.tensor([1.0 + seed, 2.0]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.last(self.first(x).relu()) * self.scale.sum()}


def exported(seed: int = 0, largest: int = 64) -> tuple[torch.nn.Module, torch.export.ExportedProgram]:
    model = Model(seed).eval()
    rows = torch.export.Dim("rows", min=2, max=largest)
    return model, torch.export.export(model, (X,), dynamic_shapes={"x": {0: rows}})


def counted() -> dict[str, Any]:
    stats = fxpool.stats()
    return {"hits": stats["hits"], **stats["compiles"]}


def test_a_package_is_built_once_and_loaded_by_torch(tmp_path: Path) -> None:
    model, program = exported()
    path = fxpool.aot_compile(program, tmp_path / "model.pt2")
    assert counted() == {"hits": 0, "worker": 1, "in_process": 0}
    loaded = torch._inductor.aoti_load_package(path)
    for rows in (3, 9):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(loaded(x), model(x))
    again = fxpool.aot_compile(exported()[1], tmp_path / "again" / "model.pt2")
    assert counted() == {"hits": 1, "worker": 1, "in_process": 0}
    assert Path(again).read_bytes() == Path(path).read_bytes()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("fxpool-program", ".fxpool"))]


@pytest.mark.slow
def test_other_weights_or_ranges_are_another_package(tmp_path: Path) -> None:
    for number, (seed, largest) in enumerate([(0, 64), (1, 64), (0, 32)]):
        model, program = exported(seed, largest)
        loaded = torch._inductor.aoti_load_package(fxpool.aot_compile(program, tmp_path / f"{number}.pt2"))
        torch.testing.assert_close(loaded(X), model(X))
        assert counted() == {"hits": 0, "worker": number + 1, "in_process": 0}


@pytest.mark.slow
def test_options_are_inductors(tmp_path: Path) -> None:
    _, program = exported()
    sizes = []
    for name, inside in (("a", True), ("b", False)):
        options = {"aot_inductor.package_constants_in_so": inside}
        sizes.append(os.path.getsize(fxpool.aot_compile(program, tmp_path / f"{name}.pt2", options=options)))
    assert counted()["worker"] == 2
    assert sizes[0] != sizes[1]


class Folded(torch.nn.Module):
    """A product of constants, which need not be computed at every call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.register_buffer("first", torch.randn(8, 8))
        self.register_buffer("second", torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.first.sin() @ self.second)


def test_what_follows_from_constants_is_split_off_where_that_is_wanted(tmp_path: Path) -> None:
    program = torch.export.export(Folded(), (X,))
    options = {"aot_inductor.use_runtime_constant_folding": True}
    path = fxpool.aot_compile(program, tmp_path / "m.pt2", options=options)
    assert counted() == {"hits": 0, "worker": 1, "in_process": 0}
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(X), Folded()(X))
    with zipfile.ZipFile(path) as package:
        sources = [package.read(name).decode() for name in package.namelist() if name.endswith(".cpp")]
    assert any("_FOLDED_CONST_" in source for source in sources)


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    _, program = exported()
    with pytest.raises(TypeError, match="ExportedProgram"):
        fxpool.aot_compile(Model(), tmp_path / "m.pt2")
    with pytest.raises(ValueError, match=r"\.pt2"):
        fxpool.aot_compile(program, tmp_path / "m.so")
    program.example_inputs = None
    with pytest.raises(ValueError, match="example inputs"):
        fxpool.aot_compile(program, tmp_path / "m.pt2")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("m.")]
