"""`tracing` is what a backend needs of Dynamo's tracing context: fake inputs, sources, guards, ids and restarts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch._guards as _guards
from torch._dynamo.source import LocalSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

from fxpool.torch_compat.dynamo import tensors, tracing


def in_a_backend(look: Callable[[torch.fx.GraphModule, list[Any]], Any], function: Any, *args: Any) -> list[Any]:
    """Return what `look` returns where a backend is called: once for each graph of `function`."""
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(look(gm, inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    torch._dynamo.reset()
    return seen


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_backend_sees_context_fake_inputs_sources_and_its_compile() -> None:
    real = torch.ones(3, 5)

    def look(gm: torch.fx.GraphModule, inputs: list[Any]) -> dict[str, Any]:
        context = tracing.current_context()
        mode = tracing.fake_mode_of(context, inputs)
        (node,) = [node for node in gm.graph.nodes if node.op == "placeholder"]
        source = tracing.placeholder_source(node)
        assert mode is not None
        fake = tracing.fakify(mode, context, inputs[0], source)
        return {
            "context": context is not None and context.fake_mode is mode,
            "source": source == LocalSource("x", is_input=True),
            "fake": tensors.is_fake(fake) and tensors.fake_mode_of(fake) is mode,
            "of dynamo": fake is tracing.fakify(mode, context, inputs[0], source),
            "untouched": tracing.fakify(mode, context, 3, None),
            "label": tracing.compile_label(),
            "id": tracing.dump_compile_id(),
            "real inputs": tracing.real_inputs_expected(context),
            "guards": tracing.aot_guards(context),
        }

    (seen,) = in_a_backend(look, doubled, real)
    _, frame, compiled, attempt = seen.pop("id")
    assert seen.pop("label") == f"{frame}/{compiled}" and compiled == attempt == 0
    assert seen == {
        "context": True,
        "source": True,
        "fake": True,
        "of dynamo": True,
        "untouched": 3,
        "real inputs": False,
        "guards": [],
    }


def test_outside_of_a_compile_there_is_nothing() -> None:
    assert tracing.current_context() is None
    assert tracing.dump_compile_id() is None
    assert tracing.compile_label() == ""
    assert tracing.aot_guards(None) == []
    assert not tracing.real_inputs_expected(None)
    mode = FakeTensorMode()
    assert tracing.fake_mode_of(None, [torch.ones(2)]) is None
    assert tracing.fake_mode_of(None, [mode.from_tensor(torch.ones(2))]) is mode
    # Without Dynamo behind the graph, sizes are static.
    fake = tracing.fakify(FakeTensorMode(shape_env=ShapeEnv()), None, torch.ones(3), None)
    assert tensors.is_fake(fake) and type(fake.shape[0]) is int


def test_sizes_are_dynamic_as_dynamo_said() -> None:
    def look(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        context = tracing.current_context()
        assert context is not None
        mode = tracing.fake_mode_of(context, inputs)
        real = next(value for value in inputs if isinstance(value, torch.Tensor))
        assert mode is not None
        fake = tracing.fakify(mode, context, real, LocalSource("another"))
        return [type(size) for size in fake.shape], tracing.constraints(context, real), tracing.constraints(context, 3)

    real = torch.ones(3, 5)
    torch._dynamo.mark_dynamic(real, 0, min=2, max=64)
    ((sizes, promised, none),) = in_a_backend(look, doubled, real)
    assert sizes == [torch.SymInt, int]
    assert promised is not None and "64" in promised[0] and not any(promised[1:])
    assert none is None
    ((_, promised, _),) = in_a_backend(look, doubled, torch.ones(3, 5))
    assert promised is None


def test_a_part_of_a_graph_has_its_own_notes_and_shares_the_rest() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing.worker_context(mode, None) as context:
        context.fw_metadata, context.output_strides, context.params_flat = "metadata", [(1,)], [torch.ones(1)]
        part = tracing.of_piece(context)
    assert part is not None
    assert (part.fw_metadata, part.output_strides, part.params_flat) == (None, None, None)
    assert part.fake_mode is mode and part.guards_context is context.guards_context
    assert context.fw_metadata == "metadata"
    assert tracing.of_piece(None) is None


def test_all_that_aotautograd_notes_about_a_graph_is_known() -> None:
    """A name of `of_piece` that a release renamed would leave a part with the notes of another one."""
    context = _guards.TracingContext(FakeTensorMode())
    assert [name for name in tracing._OF_ONE_GRAPH if not hasattr(context, name)] == []


def test_a_graph_without_parameters_is_noted_as_dynamo_does() -> None:
    gm = torch.fx.symbolic_trace(doubled)
    tracing.without_parameters(gm)
    assert gm._param_name_to_source == {}
    (node,) = gm.graph.find_nodes(op="placeholder")
    assert tracing.placeholder_source(node) is None
    tracing.set_placeholder_source(node, LocalSource("x"))
    assert tracing.placeholder_source(node) == LocalSource("x")


def test_a_worker_is_in_the_compile_of_the_process_that_asked() -> None:
    mode = FakeTensorMode()
    with tracing.worker_context(mode, [None, 3, 1, 2]) as context:
        assert tracing.current_context() is context
        assert tracing.fake_mode_of(context, []) is mode
        assert tracing.compile_label() == "3/1"
        assert tracing.dump_compile_id() == [None, 3, 1, 2]
    assert tracing.current_context() is None and tracing.compile_label() == ""


def test_a_context_is_entered_again_in_another_thread() -> None:
    seen: list[Any] = []
    with tracing.worker_context(FakeTensorMode(), None) as context:
        pass

    def later() -> None:
        with tracing.reentered(context):
            seen.append(tracing.current_context())
        seen.append(tracing.current_context())

    thread = threading.Thread(target=later)
    thread.start()
    thread.join()
    assert seen == [context, None]


# --- sources and guards


class Local:
    """No pickle can name it."""

    def __reduce__(self) -> Any:
        raise TypeError("not for another process")


def test_sources_are_dumped_together_or_one_by_one() -> None:
    sources = [LocalSource("x"), LocalSource("y", is_input=True), None, tracing.positional_source(4)]
    dumped = tracing.dump_sources(sources)
    assert len(dumped) == 1 and tracing.load_sources(dumped) == sources
    assert tracing.load_sources(tracing.dump_sources([LocalSource("x"), Local()])) == [LocalSource("x"), None]
    assert tracing.positional_source(4) == tracing.positional_source(4) != tracing.positional_source(5)


def test_guards_of_aotautograd_come_back_for_another_call_s_sources() -> None:
    here = [LocalSource(name) for name in "abcd"]
    there = [LocalSource(name) for name in "wxyz"]
    guards = [_guards.DuplicateInputs(here[2], here[0]), _guards.StorageOverlap([here[0], here[1]], [here[3]])]
    described = tracing.describe_aot_guards(guards, here)
    assert described == [["duplicate", 2, 0], ["overlap", [0, 1], [3]]]
    with tracing.worker_context(FakeTensorMode(), None) as context:
        for _ in range(2):  # a guard is there once
            tracing.replay_aot_guards(context, described, there)
        assert tracing.aot_guards(context) == [
            _guards.DuplicateInputs(there[2], there[0]), _guards.StorageOverlap([there[0], there[1]], [there[3]])
        ]  # fmt: skip


def test_a_guard_that_names_no_input_is_refused() -> None:
    guard = _guards.DuplicateInputs(LocalSource("a"), LocalSource("elsewhere"))
    with pytest.raises(KeyError):
        tracing.describe_aot_guards([guard], [LocalSource("a"), None])
    with pytest.raises(KeyError, match="unknown guard object"):
        tracing.describe_aot_guards([object()], [])


# --- restarts, ids, checkpoints


@pytest.fixture
def no_specializations() -> Any:
    from torch._dynamo.symbolic_convert import TensorifyState

    TensorifyState.clear()
    yield TensorifyState
    TensorifyState.clear()


def test_a_restart_is_asked_for_with_its_sources(no_specializations: Any) -> None:
    with pytest.raises(BaseException) as caught:
        tracing.request_restart(["zf1", "zf0"])
    assert isinstance(caught.value, tracing.control_flow_errors())
    assert no_specializations.should_specialize("zf0") and not no_specializations.should_specialize("zf2")
    outer = RuntimeError("of the backend")
    outer.__cause__ = caught.value
    assert tracing.restart_request(outer) == ["zf0", "zf1"]
    assert tracing.restart_request(RuntimeError("another")) is None


def test_errors_that_control_dynamo_are_known() -> None:
    from torch._dynamo import exc

    errors = tracing.control_flow_errors()
    for kind in (exc.SkipFrame, exc.RestartAnalysis, exc.SpeculationRestartAnalysis):
        assert issubclass(kind, errors)
    assert not issubclass(exc.InternalTorchDynamoError, errors) and not issubclass(exc.BackendCompilerFailed, errors)


def test_graphs_are_numbered_as_in_the_process_that_asked() -> None:
    first = tracing.next_aot_id()
    with tracing.aot_id_is(40):
        assert [tracing.next_aot_id(), tracing.next_aot_id()] == [40, 41]
    assert tracing.next_aot_id() == first + 1


def test_aotautograd_takes_its_number_from_the_counter() -> None:
    from torch._functorch import aot_autograd

    assert isinstance(aot_autograd.AOT_COUNTER, itertools.count)
    with tracing.aot_id_is(70):
        aot_autograd.aot_function(doubled, fw_compiler=lambda gm, inputs: gm)(torch.ones(2))
        assert tracing.next_aot_id() == 71


def test_the_checkpoint_in_force_is_found() -> None:
    frames: list[Any] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        frames.append(tracing.checkpoint_in_force())
        return x.sin()

    x = torch.ones(2, requires_grad=True)
    checkpoint(part, x, use_reentrant=False).sum().backward()
    forward, recomputation = frames
    assert type(forward).__name__ == "_CheckpointFrame" and recomputation is forward
    assert tracing.checkpoint_in_force() is None


@pytest.mark.parametrize("hooks", [torch.autograd.graph.save_on_cpu, torch.no_grad])
def test_other_hooks_are_no_checkpoint(hooks: Callable[[], AbstractContextManager[Any]]) -> None:
    with hooks():
        assert tracing.checkpoint_in_force() is None


def test_dynamo_does_not_look_into_a_compiled_graph() -> None:
    @tracing.never_traced
    def call(x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_compiling()
        return x + 1

    def look(gm: torch.fx.GraphModule, inputs: list[Any]) -> list[str]:
        return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]

    seen = in_a_backend(look, lambda x: call(x * 2) * 3, torch.ones(2))
    assert len(seen) == 2 and all(len(one) == 1 and "mul" in one[0] for one in seen)
