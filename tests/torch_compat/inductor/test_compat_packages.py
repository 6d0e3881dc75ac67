"""`packages` reads exported programs for keys and workers. AOTInductor is left to the tests of whole programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fxpool.torch_compat.inductor import packages

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch's own, of its tree specs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.linear(x) * self.scale}


def exported(largest: int = 64, **named: Any) -> Any:
    rows = torch.export.Dim("rows", min=2, max=largest)
    return torch.export.export(Model(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: rows}})


@pytest.fixture(scope="module")
def program() -> Any:
    return exported()


def test_graph_inputs_and_tensors_are_read(program: Any) -> None:
    gm = packages.graph_of(program)
    inputs = packages.inputs_of(program)
    assert len(inputs) == len(gm.graph.find_nodes(op="placeholder")) == 4
    assert [tuple(map(str, one.shape)) for one in inputs[:3]] == [("2", "4"), ("2",), ("2",)]
    assert isinstance(inputs[3].shape[0], torch.SymInt) and inputs[3].shape[1] == 4
    tensors = packages.tensors_of(program)
    assert set(tensors) == {"linear.weight", "linear.bias", "scale"} and torch.equal(tensors["scale"], torch.ones(2))
    with pytest.raises(TypeError, match=r"expected an ExportedProgram of torch.export, got Model"):
        packages.graph_of(Model())


def test_the_interface_is_plain_data_that_says_how_it_is_called(program: Any) -> None:
    described = packages.interface(program)
    assert all(isinstance(value, (str, dict)) for value in described.values())
    (bounds,) = described["ranges"].values()
    assert bounds == "2 64" and "[3, 4]" in described["examples"] and "float32" in described["examples"]
    assert "out" in described["out_spec"] and described["in_spec"]
    assert "linear.weight" in described["signature"]
    assert packages.interface(exported()) == described
    assert packages.interface(exported(largest=32)) != described


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11 and 2.12 read programs so
def test_a_program_is_written_and_read(program: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "program.pt2")
    packages.write(program, path)
    again = packages.read(path)
    assert packages.interface(again) == packages.interface(program)
    x = torch.randn(5, 4)
    torch.testing.assert_close(again.module()(x), program.module()(x))


def test_a_package_lies_where_it_was_asked_for(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compile(exported_program: Any, *, package_path: str, inductor_configs: dict[str, Any]) -> str:
        asked.append((exported_program, inductor_configs))
        (tmp_path / "elsewhere.pt2").write_bytes(b"package")
        return str(tmp_path / "elsewhere.pt2")

    import inspect

    import torch._inductor

    real = inspect.signature(torch._inductor.aoti_compile_and_package).parameters
    assert {"package_path", "inductor_configs"} <= set(real) and next(iter(real)) == "exported_program"
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile)
    packages.build(program, str(tmp_path / "asked.pt2"), {"max_autotune": True})
    assert (tmp_path / "asked.pt2").read_bytes() == b"package" and not (tmp_path / "elsewhere.pt2").exists()
    assert asked == [(program, {"max_autotune": True})]
