"""Weights packed for MKL in an encoded graph: not part of the key, and made again in another process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxpool.codecache.graph.graph_codec import EncodedGraph, GraphEncoder
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.dynamo import tensors

pytestmark = [
    pytest.mark.skipif(not torch._C.has_mkl, reason="this build has no MKL"),
    pytest.mark.filterwarnings("ignore:.*does not reference"),
]

WEIGHT = torch.arange(48.0 * 32).reshape(48, 32)


def _encoded(weight: torch.Tensor, packed: torch.Tensor, rows: int = 16, *uses: Any) -> EncodedGraph:
    root = torch.nn.Module()
    root.weight, root.packed = weight, packed
    graph = torch.fx.Graph()
    x, taken, original = graph.placeholder("x"), graph.get_attr("packed"), graph.get_attr("weight")
    layer = graph.call_function(torch.ops.mkl._mkl_linear.default, (x, taken, original, None, rows))
    graph.output([layer, *(graph.call_function(use, (taken,)) for use in uses)])
    return GraphEncoder().encode(torch.fx.GraphModule(root, graph))


def test_they_are_described_by_what_they_were_made_from() -> None:
    encoded = _encoded(WEIGHT, tensors.pack_for_mkl(WEIGHT, 16))
    ((number, (weight, rows)),) = encoded.packings.items()
    assert encoded.constants[number].is_mkldnn
    assert torch.equal(encoded.constants[weight], WEIGHT)
    assert rows == 16


def test_the_description_is_of_the_weight_and_not_of_the_packed_form() -> None:
    packed = tensors.pack_for_mkl(WEIGHT, 16)
    other = packed.to_dense().add(1.0).to_mkldnn()
    assert _encoded(WEIGHT, packed).description == _encoded(WEIGHT, other).description
    assert _encoded(WEIGHT, packed).description != _encoded(WEIGHT + 1, packed).description
    assert _encoded(WEIGHT, packed).description != _encoded(WEIGHT, packed, 8).description


def test_one_with_other_uses_is_refused() -> None:
    with pytest.raises(CannotTravelError, match="packed for MKL, and has other uses"):
        _encoded(WEIGHT, tensors.pack_for_mkl(WEIGHT, 16), 16, torch.ops.aten.neg.default)


def test_plain_constants_have_no_packings() -> None:
    root = torch.nn.Module()
    root.weight = WEIGHT
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("weight"))
    assert GraphEncoder().encode(torch.fx.GraphModule(root, graph)).packings == {}
