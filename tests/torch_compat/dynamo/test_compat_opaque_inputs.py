"""`opaque_inputs` lets a device mesh, which a graph only hands on, be compiled for where there is none."""

from __future__ import annotations

import torch

from fxpool.torch_compat.dynamo.tensors import OpaqueInput, opaque_stand_in, with_opaque_inputs


def graph_of_three() -> torch.fx.Graph:
    """Uses its first input, gives back the second and leaves the third alone."""
    graph = torch.fx.Graph()
    used, given_back, _ = (graph.placeholder(name) for name in ("used", "given_back", "unused"))
    graph.output((graph.call_function(torch.neg, (used,)), given_back))
    return graph


def test_an_object_that_is_only_handed_on_is_named_by_its_class() -> None:
    mesh = opaque_stand_in("torch.distributed.device_mesh.DeviceMesh")
    tensor = torch.ones(2)
    first, second, third = with_opaque_inputs(graph_of_three(), [tensor, mesh, mesh])
    assert first is tensor
    for one in (second, third):
        assert isinstance(one, OpaqueInput) and one.class_name == "torch.distributed.device_mesh.DeviceMesh"


def test_an_object_that_the_graph_uses_stays() -> None:
    mesh = opaque_stand_in("Mesh")
    used, given_back, _ = with_opaque_inputs(graph_of_three(), [mesh, mesh, 3])
    assert used is mesh and isinstance(given_back, OpaqueInput)


def test_inputs_that_are_values_are_left_as_they_are() -> None:
    inputs = [torch.ones(2), 3, None]
    assert with_opaque_inputs(graph_of_three(), inputs) is inputs


def test_a_stand_in_has_the_class_name() -> None:
    from torch._library.fake_class_registry import FakeScriptObject

    made = opaque_stand_in("Mesh")
    assert type(made) is FakeScriptObject and made.script_class_name == "Mesh" and made.real_obj is None
