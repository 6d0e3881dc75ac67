"""`aot` takes a Dynamo graph through AOTAutograd and Inductor, and makes a callable of the result elsewhere.

The graphs here are products: Inductor calls ATen's and compiles no kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config

from fxpool.torch_compat.cpp.instruction_sets import instruction_sets_known
from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.inductor import aot


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


@pytest.fixture(autouse=True)
def _nothing_probed() -> Iterator[None]:
    with instruction_sets_known([]):
        yield
    torch._dynamo.reset()


class Compiled:
    """What a compile in a back end of Dynamo's left: its outcome, and what another process would load."""

    def __init__(self) -> None:
        self.compiled: aot.Compiled | None = None
        self.counted: dict[str, int] = {}

    def backend(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.gm, self.inputs = gm, inputs
        self.sources = [tracing.placeholder_source(node) for node in gm.graph.find_nodes(op="placeholder")]
        before = dict(counters["aot_autograd"])
        self.compiled = aot.compile_graph(aot.copy_of(gm), inputs, keep_result=True)
        now = counters["aot_autograd"]
        self.counted = {name: count - before.get(name, 0) for name, count in now.items() if "cache" in name}
        self.data = aot.dump_result(self.compiled.result)
        self.loaded = aot.load_result(self.data)
        mode = tracing.fake_mode_of(tracing.current_context(), inputs)
        assert mode is not None
        fakes = [tracing.fakify(mode, tracing.current_context(), one, None) for one in inputs]
        self.call = aot.wrap(self.loaded, fakes, self.sources)
        return lambda *args: self.call(list(args))


def test_a_result_is_taken_and_works_where_it_is_loaded() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    done = Compiled()
    result = torch.compile(product, backend=done.backend)(x, w)
    torch.testing.assert_close(result, product(x, w))
    result.sum().backward()
    torch.testing.assert_close(x.grad, w.sum(1).expand(3, 4))
    assert done.compiled is not None
    # The callable of this process is the same.
    torch.testing.assert_close(done.compiled.callable(x, w)[0], product(x, w))  # type: ignore[misc]
    bundled = done.compiled.result
    assert bundled is not None
    forward, backward = aot.graphs_of(bundled)
    for graph in (forward, backward):
        assert "extern_kernels.mm" in graph.source_code
    assert aot.mutated_inputs(bundled) == []
    assert aot.aot_config_of(bundled).aot_id >= 0
    # torch's cache was neither read nor written, and is not counted.
    assert not any(done.counted.values()), done.counted
    # Sources are those of the process that loads it.
    assert aot.aot_config_of(done.loaded).aot_autograd_arg_pos_to_source in (None, done.sources)
    aot.as_from_real_inputs(done.loaded)
    assert aot.aot_config_of(done.loaded).dynamic_shapes is False
    assert aot.for_dynamo(done.loaded, None).guards_expr is None


def test_torch_s_own_parts_are_back_after_a_compile() -> None:
    from torch._functorch._aot_autograd import autograd_cache

    before = vars(autograd_cache.AOTAutogradCache)["save"], autograd_cache.autograd_cache_key
    trace = torch._logging.trace_structured
    with aot._PATCHING, aot._result_taken(aot.Compiled()):
        assert functorch_config.bundled_autograd_cache and functorch_config.force_non_lazy_backward_lowering
        assert autograd_cache.autograd_cache_key(None) == (aot._NO_KEY, [])
        assert autograd_cache.AOTAutogradCache._lookup() is None
        assert torch._logging.trace_structured is not trace
    assert (vars(autograd_cache.AOTAutogradCache)["save"], autograd_cache.autograd_cache_key) == before
    assert torch._logging.trace_structured is trace and not aot._patches


def test_no_process_is_started_for_a_graph() -> None:
    from torch._inductor import compile_fx

    mode = compile_fx.fx_compile_mode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_fx, "fx_compile_mode", compile_fx.FxCompileMode.SUBPROCESS)
        with aot.in_process_only():
            assert compile_fx.fx_compile_mode == compile_fx.FxCompileMode.NORMAL
            assert compile_fx.fx_compile_async is False and compile_fx.fx_compile_progressive is False
        assert compile_fx.fx_compile_mode == compile_fx.FxCompileMode.SUBPROCESS
    assert compile_fx.fx_compile_mode == mode


def test_replacements_are_undone_in_a_child_that_was_forked_meanwhile() -> None:
    class Owner:
        value = 1

    with aot._PATCHING, aot._patches.replaced(Owner, "value", 2):
        aot._patches.restore()  # what the child does
        assert Owner.value == 1 and not aot._patches
    assert Owner.value == 1


def test_a_copy_is_changed_by_itself() -> None:
    gm = torch.fx.symbolic_trace(product)
    (x, w) = gm.graph.find_nodes(op="placeholder")
    x._dynamo_source = "source of x"
    gm.meta["note"] = 1
    gm._param_name_to_source = {"p": 2}
    copy = aot.copy_of(gm)
    first, _ = copy.graph.find_nodes(op="placeholder")
    assert first is not x and first._dynamo_source == "source of x"
    assert copy.meta == {"note": 1} and copy._param_name_to_source == {"p": 2}
    copy.graph.erase_node(copy.graph.output_node())
    assert len(list(gm.graph.nodes)) == 4 == len(list(copy.graph.nodes)) + 1
    assert aot.copy_of("no graph") == "no graph"
    assert aot.graph_of(gm) is gm and aot.graph_of("no graph") is None
    assert w.name == "w"


def test_a_rebuilt_graph_looks_like_dynamo_s() -> None:
    gm = torch.fx.symbolic_trace(product)
    assert aot.parameter_sources(gm) is None
    with tracing.worker_context(torch._subclasses.FakeTensorMode(), [None, 4, 2, 0]):
        aot.attach_dynamo_metadata(gm, ["source of x", None], {"p": "source of p"})
    assert str(gm.meta["dynamo_compile_id"]) == "4/2"
    assert [tracing.placeholder_source(node) for node in gm.graph.find_nodes(op="placeholder")] == ["source of x", None]
    assert aot.parameter_sources(gm) == {"p": "source of p"}


def test_parameters_come_in_the_order_in_which_aotautograd_lifts_them() -> None:
    module = torch.nn.Module()
    module.register_buffer("b", torch.ones(1))
    module.register_parameter("p", torch.nn.Parameter(torch.ones(2)))
    module.q = module.p
    assert list(aot.parameters_and_buffers(module)) == ["p", "q", "b"]


def test_ranks_are_asked_only_where_there_are_several() -> None:
    assert not aot.asks_other_ranks()
    with functorch_config.patch(_sync_decision_cross_ranks=True):
        assert not aot.asks_other_ranks()  # in no distributed program


def test_a_compile_holds_a_lock_that_the_same_thread_may_take_again() -> None:
    seen: list[bool] = []
    with aot._PATCHING, aot.in_process_only():
        thread = threading.Thread(target=lambda: seen.append(aot._PATCHING.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert seen == [False]
