"""Objects of classes that a C++ extension binds (torchbind): no form for a worker, and stock Inductor's results."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from beside_stock import BesideStock

import fxpool
from fxpool.codecache.key import cacheable
from fxpool.codecache.key.cacheable import Bypass

SOURCE = """
#include <torch/custom_class.h>
#include <torch/library.h>
struct Scale : torch::CustomClassHolder {
  int64_t by;
  explicit Scale(int64_t by) : by(by) {}
  at::Tensor apply(at::Tensor x) { return x.mul(by); }
};
using Pointer = c10::intrusive_ptr<Scale>;
static at::Tensor scaled(const Pointer& scale, at::Tensor x) { return scale->apply(x); }
TORCH_LIBRARY(fxpool_bound, m) {
  m.class_<Scale>("Scale")
      .def(torch::init<int64_t>())
      .def("apply", &Scale::apply)
      .def("__obj_flatten__", [](const Pointer& s) {
        return std::make_tuple(std::make_tuple(std::string("by"), s->by));
      })
      .def_pickle([](const Pointer& s) { return s->by; }, [](int64_t by) { return c10::make_intrusive<Scale>(by); });
  m.def("scaled(__torch__.torch.classes.fxpool_bound.Scale scale, Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(fxpool_bound, CompositeExplicitAutograd, m) { m.impl("scaled", scaled); }
TORCH_LIBRARY_IMPL(fxpool_bound, BackendSelect, m) { m.impl("scaled", scaled); }
"""


class FakeScale:
    """What torch traces in the place of one."""

    def __init__(self, by: int) -> None:
        self.by = by

    @classmethod
    def __obj_unflatten__(cls, flat: Any) -> FakeScale:
        return cls(**dict(flat))

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("bound")
    (directory / "bound.cpp").write_text(SOURCE)
    root = Path(torch.__file__).parent
    command = [
        "g++", "-shared", "-fPIC", "-O0", "-std=c++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", str(directory / "bound.cpp"),
        "-o", str(directory / "libbound.so"), f"-L{root}/lib", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    torch.ops.load_library(str(directory / "libbound.so"))

    torch._library.register_fake_class("fxpool_bound::Scale", FakeScale)

    @torch.library.register_fake("fxpool_bound::scaled")
    def scaled(scale: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    return torch.classes.fxpool_bound.Scale


X = torch.linspace(-1, 1, 12).view(3, 4)


def given_to_an_operator(x: torch.Tensor, scale: Any) -> torch.Tensor:
    return torch.ops.fxpool_bound.scaled(scale, x.sin()) + 1


def method_called(x: torch.Tensor, scale: Any) -> torch.Tensor:
    return scale.apply(x.sin()) + 1


class Holder(torch.nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale.apply(x.cos()) * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["given to an operator", "method called", "attribute of a module"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_compiled_here_under_a_name_and_gives_what_stock_inductor_gives(
    name: str, bound: Any, beside_stock: BesideStock
) -> None:
    def compile_(backend: str) -> Any:
        if name == "attribute of a module":
            return torch.compile(Holder(bound(3)), backend=backend)
        function = given_to_an_operator if name == "given to an operator" else method_called
        return torch.compile(function, backend=backend)

    def step(call: Any) -> Any:
        return call(X) if name == "attribute of a module" else call(X, bound(3))

    stock = beside_stock.stock(compile_, step).value
    expected = X.cos() * 6 if name == "attribute of a module" else X.sin() * 3 + 1
    torch.testing.assert_close(stock, expected)
    for times in (1, 2):
        found = beside_stock.fxpool(compile_, step, lowered_here=True)
        torch.testing.assert_close(found.value, stock)
        assert found.counts == {"worker": 0, "in_process": 1, "hits": 0}
        assert fxpool.stats()["fallbacks"] == {"value": times, "fx:value": times}
    assert fxpool.stats()["entries_written"] == 0, "nothing tells one object from another"


@pytest.mark.slow
def test_a_graph_with_one_may_not_be_kept(bound: Any) -> None:
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("scale"))
    root = torch.nn.Module()
    root.scale = bound(3)
    with pytest.raises(Bypass, match="torchbind: scale"):
        cacheable.check_graph(torch.fx.GraphModule(root, graph))
