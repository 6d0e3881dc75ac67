"""`aot_graph` takes one graph after AOTAutograd through Inductor: for Dynamo graphs that can't be sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxpool.torch_compat.cpp.instruction_sets import instruction_sets_known
from fxpool.torch_compat.dynamo import tensors, tracing
from fxpool.torch_compat.inductor import aot_graph


@pytest.fixture(autouse=True)
def _nothing_probed() -> Iterator[None]:
    with instruction_sets_known([]):
        yield
    torch._dynamo.reset()


def product(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x @ w,)


def test_a_graph_is_compiled_sent_and_finished_elsewhere() -> None:
    """A product: Inductor calls ATen's and compiles no kernel."""
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    gm = make_fx(product, tracing_mode="fake")(x, w)
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    arguments = {"is_inference": True, "graph_id": 7, "static_input_idxs": ()}
    with tracing.worker_context(fakes[0].fake_mode, None):
        graph = aot_graph.compile_inner(gm, fakes, dict(arguments))
        data = aot_graph.dump(aot_graph.travelling(graph))
        loaded = aot_graph.load(data)
        assert loaded.fx_kwargs == {} and "extern_kernels.mm" in loaded.source_code
        call = aot_graph.finish(loaded, fakes, dict(arguments))
    (result,) = call([x, w])
    torch.testing.assert_close(result, x @ w)


def test_aotautograd_hands_over_forward_and_backward() -> None:
    seen: list[tuple[bool, int, dict[str, Any]]] = []

    def compile(gm: torch.fx.GraphModule, inputs: Any, **arguments: Any) -> Any:
        assert all(tensors.is_fake(one) for one in inputs if isinstance(one, torch.Tensor))
        plain = aot_graph.plain_arguments(arguments)
        seen.append((bool(arguments.get("is_backward")), aot_graph.count_calls(gm), plain))
        return aot_graph.as_output(gm)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            return aot_graph.compile_with_inner(gm, inputs, compile)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    result = torch.compile(lambda x, w: x @ w, backend=backend)(x, w)
    torch.testing.assert_close(result, x @ w)
    result.sum().backward()
    torch.testing.assert_close(x.grad, w.sum(1).expand(3, 4))
    (is_backward, calls, plain), (later, others, _) = seen
    assert (is_backward, later) == (False, True) and calls >= 1 and others >= 1
    assert plain.keys() <= {*aot_graph.PLAIN_ARGUMENTS, "cudagraphs"}
    assert plain["cudagraphs"] is False and isinstance(plain["static_input_idxs"], list)
    assert isinstance(plain["graph_id"], int)


def test_arguments_travel_as_plain_data() -> None:
    from torch._inductor.utils import BoxedBool

    plain = aot_graph.plain_arguments(
        {"static_input_idxs": (0, 2), "cudagraphs": BoxedBool(True), "is_backward": True, "get_decomp_fn": print}
    )
    assert plain == {"static_input_idxs": [0, 2], "cudagraphs": True, "is_backward": True}
    assert aot_graph.plain_arguments({}) == {"static_input_idxs": [], "cudagraphs": None}
    arguments = aot_graph.worker_arguments(plain)
    assert type(arguments["cudagraphs"]) is BoxedBool and arguments["cudagraphs"].value is True
    assert arguments["boxed_forward_device_index"].value is None and arguments["static_input_idxs"] == [0, 2]
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        assert bool(aot_graph.worker_arguments(aot_graph.plain_arguments({}))["cudagraphs"]) is True


def test_inductor_takes_these_arguments() -> None:
    """By the type that it declares for them."""
    from torch._inductor.compile_fx import _CompileFxKwargs

    known = set(_CompileFxKwargs.__annotations__)
    assert set(aot_graph.PLAIN_ARGUMENTS) - {"fx_wrapper"} <= known and "cudagraphs" in known
    assert "boxed_forward_device_index" in known


def test_a_constant_is_loaded_as_it_is_under_a_fake_mode() -> None:
    with torch._subclasses.FakeTensorMode():
        loaded = aot_graph.load(aot_graph.dump({"constant": _REAL}))
    assert type(loaded["constant"]) is torch.Tensor and torch.equal(loaded["constant"], _REAL)


_REAL = torch.arange(3.0)


def test_a_graph_that_runs_operator_by_operator_is_called_with_one_list() -> None:
    call: Any = aot_graph.as_output(torch.fx.symbolic_trace(lambda x, y: (x + y,)))
    inputs = [torch.ones(2), torch.ones(2)]
    (result,) = call(inputs)
    assert torch.equal(result, torch.full((2,), 2.0))
    assert inputs == [] and call._boxed_call is True


def test_only_nodes_that_compute_are_counted() -> None:
    assert aot_graph.count_calls(torch.fx.symbolic_trace(lambda x, y: (y, x))) == 0
    assert aot_graph.count_calls(torch.fx.symbolic_trace(lambda x, y: (x + y).sin())) == 2
