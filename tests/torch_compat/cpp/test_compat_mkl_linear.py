"""Weights packed for MKL: what they were made from is read from the graph, and they are made again."""

from __future__ import annotations

import pytest
import torch

from fxpool.torch_compat.dynamo import tensors
from fxpool.torch_compat.dynamo.tensors import MklPacking, UnknownPackingError

pytestmark = pytest.mark.skipif(not torch._C.has_mkl, reason="this build has no MKL")


class _Layers:
    """A graph with constants `weight` and `packed`, to which calls of MKL's linear layer are added."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.x = self.graph.placeholder("x")
        self.weight, self.packed = self.graph.get_attr("weight"), self.graph.get_attr("packed")

    def call(self, *arguments: object) -> torch.fx.Node:
        return self.graph.call_function(torch.ops.mkl._mkl_linear.default, arguments)


@pytest.fixture
def layers() -> _Layers:
    return _Layers()


def test_a_layer_says_what_a_weight_was_packed_from(layers: _Layers) -> None:
    layers.call(layers.x, layers.packed, layers.weight, None, 2)
    assert tensors.mkl_packing(layers.packed) == MklPacking(layers.weight, 2)
    assert tensors.mkl_packing(layers.weight) is None
    assert tensors.mkl_packing(layers.x) is None


def test_one_packed_weight_may_serve_several_layers(layers: _Layers) -> None:
    for _ in range(2):
        layers.call(layers.x, layers.packed, layers.weight, None, 2)
    assert tensors.mkl_packing(layers.packed) == MklPacking(layers.weight, 2)


def test_other_constants_are_not_packed(layers: _Layers) -> None:
    layers.graph.call_function(torch.neg, (layers.packed,))
    assert tensors.mkl_packing(layers.packed) is None


@pytest.mark.parametrize("other", ["another use", "rows", "an input as its weight", "symbolic rows", "its own weight"])
def test_uses_that_do_not_say_it_are_refused(layers: _Layers, other: str) -> None:
    x, packed, weight = layers.x, layers.packed, layers.weight
    arguments: tuple[object, ...] = (x, packed, weight, None, 2)
    if other == "another use":
        layers.graph.call_function(torch.neg, (layers.graph.get_attr("packed"),))
    elif other == "rows":
        layers.call(x, packed, weight, None, 3)
    elif other == "an input as its weight":
        arguments = (x, packed, x, None, 2)
    elif other == "symbolic rows":
        arguments = (x, packed, weight, None, x)
    else:
        arguments = (x, packed, packed, None, 2)
    layers.call(*arguments)
    with pytest.raises(UnknownPackingError, match="packed is packed for MKL, and has other uses"):
        tensors.mkl_packing(packed)


def test_a_weight_is_packed_as_inductor_packs_it() -> None:
    weight, x = torch.nn.Parameter(torch.randn(48, 32)), torch.randn(16, 32)
    packed = tensors.pack_for_mkl(weight, 16)
    assert packed.is_mkldnn
    got = torch.ops.mkl._mkl_linear(x, packed, weight.detach(), None, 16)
    torch.testing.assert_close(got, x @ weight.detach().t())
