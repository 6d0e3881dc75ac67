"""`output_code` loads a linked graph of Inductor's: a wrapper that is ready to be executed, without the compiler."""

from __future__ import annotations

import linecache
import marshal
import pickle
import types
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from fxpool.torch_compat.cpp.instruction_sets import instruction_sets_known
from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.inductor import aot_graph, output_code
from fxpool.torch_compat.inductor.output_code import Constants, ElsewhereError, leave_out_constants

CODE = """
def call(args):
    x, w = args
    args.clear()
    return (_fxpool_library.multiply(x, w) + offset,)
"""


def wrapper_with(**changed: Any) -> output_code.LinkedWrapper:
    code = marshal.dumps(compile(CODE, "<compat wrapper>", "exec"))
    facts = {"code": code, "kernels": 1, "triton": 0, "operators": [], "unlinked": [], **changed}
    return output_code.LinkedWrapper("<compat wrapper>", **facts)


class Surroundings:
    def __init__(self, indices: tuple[int, ...] = (), groups: tuple[str, ...] = ()) -> None:
        self.indices: Sequence[int] = indices
        self.groups: Sequence[str] = groups
        self.reported: list[str] = []

    def library(self) -> Any:
        return types.SimpleNamespace(multiply=torch.mm)

    def built(self) -> Any:
        raise AssertionError("not asked for")

    triton = built

    def missed(self, what: str) -> None:
        self.reported.append(what)


X, W = torch.randn(3, 4), torch.randn(4, 5)


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[Any, list[Any]]]:
    """Inductor's output for a product, which has no kernel, and the fake inputs that it was made for."""

    def product(x: torch.Tensor, w: torch.Tensor) -> Any:
        return (x @ w,)

    gm = make_fx(product, tracing_mode="fake")(X, W)
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    with instruction_sets_known([]), tracing.worker_context(fakes[0].fake_mode, None):
        graph = aot_graph.compile_inner(gm, fakes, {"is_inference": True, "graph_id": 0, "static_input_idxs": ()})
    yield aot_graph.dump(aot_graph.travelling(graph)), fakes


def linked(compiled: Any, **changed: Any) -> Any:
    """The graph with a linked wrapper, as it arrives in another process."""
    graph = aot_graph.load(compiled[0])
    assert output_code.is_compiled_graph(graph) and not output_code.is_linked(graph)
    assert output_code.name_of(graph) == f"<{graph.cache_key}>"
    graph.fx_kwargs = {"is_inference": True, "get_decomp_fn": linked}
    graph.constants = {"offset": torch.tensor(10.0)}
    output_code.link(graph, wrapper_with(**changed))
    assert "get_decomp_fn" not in graph.fx_kwargs
    arrived = pickle.loads(pickle.dumps(graph))
    assert output_code.is_linked(arrived) and output_code.name_of(arrived) == "<compat wrapper>"
    return arrived


def test_a_linked_graph_computes_with_its_library_and_constants(compiled: Any) -> None:
    graph, surroundings = linked(compiled), Surroundings()
    output_code.put_into(graph, surroundings)
    output_code.revive(graph, Constants([]))
    (result,) = graph([X, W])
    torch.testing.assert_close(result, X @ W + 10)
    assert surroundings.reported == []
    # A traceback finds the generated text.
    assert linecache.getline("<compat wrapper>", 1) == graph.source_code.splitlines(keepends=True)[0]


def test_a_loaded_graph_goes_through_torch_s_post_compile(compiled: Any) -> None:
    graph = linked(compiled)
    output_code.put_into(graph, Surroundings())
    with tracing.worker_context(compiled[1][0].fake_mode, None):
        call = aot_graph.finish(graph, compiled[1], {"is_inference": True, "graph_id": 0, "static_input_idxs": ()})
    torch.testing.assert_close(call([X, W])[0], X @ W + 10)


def test_counters_change_as_if_it_had_been_compiled_here(compiled: Any) -> None:
    graph = linked(compiled)
    graph.counter_deltas = graph.counter_deltas.__class__({"compat_lowered": 3})
    output_code.put_into(graph, Surroundings())
    before = counters["inductor"]["compat_lowered"]
    output_code.revive(graph, Constants([]))
    assert counters["inductor"].pop("compat_lowered") == before + 3


def test_a_graph_that_is_called_later_is_made_then(compiled: Any) -> None:
    graph = linked(compiled)
    graph._fxpool_late = True
    output_code.put_into(graph, Surroundings())
    output_code.revive(graph, Constants([]))
    assert type(graph.current_callable).__name__ == "_LateCall" and graph.current_callable._call is None
    torch.testing.assert_close(graph([X, W])[0], X @ W + 10)
    assert graph.current_callable._call is not None


def test_a_constant_of_the_caller_s_is_left_out_and_given(compiled: Any) -> None:
    graph, weight = linked(compiled), torch.tensor(20.0)
    graph.constants = {"offset": weight, "other": torch.tensor(1.0)}
    leave_out_constants(graph, [torch.tensor(0.0), weight])
    assert list(graph.constants) == ["other"]
    graph = pickle.loads(pickle.dumps(graph))
    mine = torch.tensor(30.0)  # of another process, with the same content in truth
    assert Constants([torch.tensor(0.0), mine]).unwrap(graph)["offset"] is mine
    assert Constants([torch.tensor(0.0), mine]).unwrap(graph)["other"].item() == 1.0
    output_code.put_into(graph, Surroundings())
    output_code.revive(graph, Constants([torch.tensor(0.0), mine]))
    torch.testing.assert_close(graph([X, W])[0], X @ W + 30)


def test_devices_and_groups_get_this_process_s_names(compiled: Any) -> None:
    code = f"""
def call(args):
    return [{output_code.DEVICE}0, {output_code.DEVICE_NAME}0, {output_code.DEVICE}1, {output_code.GROUP}0]
"""
    graph = linked(compiled, code=marshal.dumps(compile(code, "<compat wrapper>", "exec")), devices=[0, 1])
    graph.device_idxs = {0, 1}
    output_code.compiled_for(graph, [0, 1])
    output_code.put_into(graph, Surroundings((3, 2), ("group 7",)))
    assert set(graph.device_idxs) == {3, 2}
    output_code.revive(graph, Constants([]))
    assert graph.current_callable([]) == [3, "cuda:3", 2, "group 7"]


def test_a_graph_that_is_not_linked_is_for_the_devices_it_was_compiled_for(compiled: Any) -> None:
    graph = aot_graph.load(compiled[0])
    graph.fx_kwargs = {"graph_id": 7, "is_inference": True}
    output_code.compiled_for(graph, [0])
    assert graph.fx_kwargs == {"graph_id": None, "is_inference": True}  # a number of the process that compiled it
    surroundings = Surroundings((0,))
    output_code.put_into(graph, surroundings)
    assert surroundings.reported == ["wrapper"]
    with pytest.raises(ElsewhereError, match=r"CUDA device \(0,\) can't be used on \(1,\)"):
        output_code.put_into(graph, Surroundings((1,)))
    with pytest.raises(ElsewhereError, match="process groups"):
        output_code.put_into(graph, Surroundings((0,), ("group",)))


def test_parts_that_are_left_to_torch_are_reported(compiled: Any) -> None:
    graph, surroundings = linked(compiled, unlinked=["kernel"]), Surroundings()
    output_code.put_into(graph, surroundings)
    graph.after_deserialization(Constants([]))
    assert surroundings.reported == ["kernel"]


def test_bundled_graphs_are_loaded_by_their_wrappers(compiled: Any) -> None:
    from torch._functorch._aot_autograd.aot_autograd_result import BundledCompiledBackward, BundledCompiledForward

    forward, backward = linked(compiled), linked(compiled)
    result: Any = types.SimpleNamespace(
        compiled_fw=BundledCompiledForward(result=forward),
        compiled_bw=BundledCompiledBackward(result=backward, backward_state_indices=[], num_symints_saved_for_bw_=0),
    )
    output_code.link_result(result)
    assert type(result.compiled_fw) is output_code.LinkedForward
    assert type(result.compiled_bw) is output_code.LinkedBackward
    assert not forward._fxpool_late and backward._fxpool_late


def test_the_digest_of_a_kernel_is_of_its_text_and_types() -> None:
    digest = output_code.kernel_digest(["float*"], "\nvoid kernel() {\n  x;  \n}\n")
    assert digest == output_code.kernel_digest(["float*"], "void kernel() {\n  x;\n}")
    assert digest != output_code.kernel_digest(["double*"], "void kernel() {\n  x;\n}")
    assert digest != output_code.kernel_digest(["float*"], "void kernel() {\n  y;\n}")
