"""Dynamo's tracing context, as far as a backend needs it: fake inputs, sources, guards and ids.

A backend is called while Dynamo's ``TracingContext`` is active. Three parts of it leave the process with a graph: the
fake mode (through `shape_env` and `tensors`), the source of every input, and the guards that compiling adds, which
Dynamo reads after the backend has returned.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch._guards as _guards
from torch._guards import TracingContext as TracingContext  # re-exported
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxpool.torch_compat.dynamo import tensors
from fxpool.torch_compat.patching import patched

# The attributes of a context in which AOTAutograd records facts about the compiled graph.
_OF_ONE_GRAPH = ("fw_metadata", "aot_graph_name", "params_flat", "params_flat_unwrap_subclasses",
                 "params_unwrapped_to_flat_index", "output_strides")  # fmt: skip


def current_context() -> TracingContext | None:
    """Return Dynamo's TracingContext, or None outside a compile."""
    return _guards.TracingContext.try_get()


def fake_mode_of(context: TracingContext | None, inputs: Sequence[Any]) -> FakeTensorMode | None:
    """Return the fake mode a graph was traced under, from the context or else from its inputs."""
    if context is not None and context.fake_mode is not None:
        return context.fake_mode
    return _guards.detect_fake_mode(inputs)


def fakify(fake_mode: FakeTensorMode, context: TracingContext | None, value: Any, source: Any | None) -> Any:
    """Return a real tensor's fake twin, with the symbols Dynamo gave it; anything else unchanged.

    Dynamo has fakified its inputs already, so this reads the fake mode's memo; for other tensors the
    symbolic context decides which sizes are dynamic.
    """
    if not isinstance(value, torch.Tensor) or tensors.is_fake(value):
        return value
    symbolic_context = None
    if context is not None:
        symbolic_context = context.tensor_to_context.get(value)
    if symbolic_context is not None:
        # Dynamo's own source: under another source, a number wrapped into a tensor would get a second symbol.
        known = getattr(symbolic_context, "tensor_source", None) or source
        return fake_mode.from_tensor(value, symbolic_context=symbolic_context, source=known)
    # Without a context (a graph not from Dynamo) sizes are static.
    return fake_mode.from_tensor(value, static_shapes=context is None, source=source)


def of_piece(context: TracingContext | None) -> TracingContext | None:
    """Return a context for a part of the graph in progress.

    Guards, fake tensors and caches are shared with the whole graph; AOTAutograd's records belong to the part.
    """
    if context is None:
        return None
    part = copy.copy(context)
    for name in _OF_ONE_GRAPH:
        if hasattr(part, name):
            setattr(part, name, None)
    return part


def without_parameters(gm: torch.fx.GraphModule) -> None:
    """Record on a graph, as Dynamo does, that it carries no parameters as attributes."""
    gm._param_name_to_source = {}


def real_inputs_expected(context: TracingContext | None) -> bool:
    """Return whether the first call re-fakifies its inputs (DDPOptimizer): such a graph cannot be replayed."""
    return bool(context is not None and context.fakify_first_call)


# --- sources ---------------------------------------------------------------------------------


def placeholder_source(node: torch.fx.Node) -> Any | None:
    """Return an input's source in the user's frame; None for an input that a graph splitter made."""
    return getattr(node, "_dynamo_source", None)


def set_placeholder_source(node: torch.fx.Node, source: Any | None) -> None:
    """Set the source of an input of a graph that was made here."""
    node._dynamo_source = source


def dump_sources(sources: Sequence[Any]) -> list[bytes | None]:
    """Pickle sources: all together, or else each separately, with None for those that cannot be pickled.

    Sources can refer to any object that a user can name.
    """
    try:
        return [pickle.dumps(list(sources))]
    except Exception:
        return [None, *map(_dump_source, sources)]


def _dump_source(source: Any) -> bytes | None:
    try:
        return pickle.dumps(source)
    except Exception:
        return None


def load_sources(dumped: Sequence[bytes | None]) -> list[Any]:
    """Return the sources given to `dump_sources`, with None for those that could not be pickled."""
    if dumped[0] is not None:
        return pickle.loads(dumped[0])
    return [pickle.loads(data) if data is not None else None for data in dumped[1:]]


def positional_source(index: int) -> Any:
    """Return a stand-in for the source of input `index`, if the real source cannot be sent."""
    from torch._dynamo.source import LocalSource

    return LocalSource(f"__fxpool_input_{index}")


# --- guards that AOTAutograd adds -------------------------------------------------------------


def aot_guards(context: TracingContext | None) -> list[Any]:
    """Return the guards that AOTAutograd has added to the context."""
    return list(context.guards_context.aotautograd_guards) if context is not None else []


def describe_aot_guards(guards: Sequence[Any], sources: Sequence[Any]) -> list[list[Any]]:
    """Return guards as data, sources replaced by input positions.

    Raises:
        KeyError: a guard names a source that is not an input of the graph, or is of an unknown kind.
    """
    positions = {source: i for i, source in enumerate(sources) if source is not None}
    described: list[list[Any]] = []
    for guard in guards:
        if isinstance(guard, _guards.DuplicateInputs):
            described.append(["duplicate", positions[guard.input_source_a], positions[guard.input_source_b]])
        elif isinstance(guard, _guards.StorageOverlap):
            described.append(
                [
                    "overlap",
                    [positions[s] for s in guard.overlapping_sources],
                    [positions[s] for s in guard.non_overlapping_sources],
                ]
            )
        else:
            raise KeyError(f"unknown guard {type(guard).__name__}")
    return described


def replay_aot_guards(context: TracingContext, described: Sequence[Sequence[Any]], sources: Sequence[Any]) -> None:
    """Add the guards of `describe_aot_guards` to the context, for this call's sources."""
    target = context.guards_context.aotautograd_guards
    for guard in described:
        if guard[0] == "duplicate":
            rebuilt: Any = _guards.DuplicateInputs(sources[guard[1]], sources[guard[2]])
        else:
            rebuilt = _guards.StorageOverlap([sources[i] for i in guard[1]], [sources[i] for i in guard[2]])
        if rebuilt not in target:
            target.append(rebuilt)


# --- restarts ---------------------------------------------------------------------------------


def restart_request(error: BaseException) -> list[str] | None:
    """Return the sources that a pass asked Dynamo to specialize when it raised `error`; None for any other error."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, TensorifyScalarRestartAnalysis):
            return sorted(TensorifyState.force_specializations)
        chain = chain.__cause__ or chain.__context__
    return None


def request_restart(sources: Sequence[str]) -> None:
    """Ask Dynamo to trace again with `sources` specialized. Always raises."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    for source in sources:
        TensorifyState.specialize(source)
    raise TensorifyScalarRestartAnalysis


# --- ids --------------------------------------------------------------------------------------


def next_aot_id() -> int:
    """Take and return the number that AOTAutograd would give this process's next graph."""
    from torch._functorch import aot_autograd

    return next(aot_autograd.AOT_COUNTER)


@contextlib.contextmanager
def aot_id_is(value: int) -> Iterator[None]:
    """Give number `value` to AOTAutograd's next graph (a worker compiles for another process)."""
    from torch._functorch import aot_autograd

    with patched(aot_autograd, "AOT_COUNTER", itertools.count(value)):
        yield


def dump_compile_id() -> list[Any] | None:
    """Return the compile in progress as data: (compiled autograd id, frame, frame's compile, attempt)."""
    context = _guards.CompileContext.try_get()
    if context is None or context.compile_id is None:
        return None
    compile_id = context.compile_id
    return [compile_id.compiled_autograd_id, compile_id.frame_id, compile_id.frame_compile_id, context.attempt]


@contextlib.contextmanager
def worker_context(fake_mode: FakeTensorMode, compile_id: Sequence[Any] | None) -> Iterator[Any]:
    """Yield a tracing context in a process where no Dynamo runs."""
    with contextlib.ExitStack() as stack:
        if compile_id is not None:
            made = _guards.CompileId(
                compiled_autograd_id=compile_id[0], frame_id=compile_id[1], frame_compile_id=compile_id[2]
            )
            compile_context = _guards.CompileContext(made)
            compile_context.attempt = compile_id[3]
            stack.enter_context(_guards.compile_context(compile_context))
        context = _guards.TracingContext(fake_mode)
        stack.enter_context(_guards.tracing(context))
        yield context


@contextlib.contextmanager
def reentered(context: TracingContext | None) -> Iterator[None]:
    """Enter the tracing context a graph was captured in, in another thread and later."""
    with _guards.tracing(context):
        yield


def checkpoint_in_force() -> Any | None:
    """Return the activation checkpoint (its frame) whose forward, or recomputation, is running in this thread, or None.

    Both set hooks for saved tensors whose functions hold the frame.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    for hook in hooks or ():
        function = inspect.unwrap(hook)
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
        for name, cell in zip(code.co_freevars if code is not None else (), cells or (), strict=False):
            if name == "frame":
                return cell.cell_contents
            if name == "target_frame_ref":
                return cell.cell_contents()
    return None


def never_traced(fn: Any) -> Any:
    """Mark `fn` so that Dynamo runs it without looking inside."""
    return torch._dynamo.disable(fn, reason="fxpool's compiled graph")


def compile_label() -> str:
    """Return frame and compile as ``"0/1"``, for messages; empty outside a compile."""
    compile_id = _guards.CompileContext.current_compile_id()
    return str(compile_id) if compile_id is not None else ""


def constraints(context: TracingContext, value: Any) -> list[str] | None:
    """Return the user's promises about an input's sizes (mark_dynamic), as text; None without any."""
    if not isinstance(value, torch.Tensor):
        return None
    symbolic = context.tensor_to_context.get(value)
    promised = [
        str(constraint) if constraint is not None and not constraint.warn_only else ""
        for name in ("constraint_sizes", "constraint_strides")
        for constraint in getattr(symbolic, name, None) or ()
    ]
    return promised if any(promised) else None


def control_flow_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions by which a compile controls Dynamo; they are not failures."""
    from torch._dynamo import exc

    return (exc.RestartAnalysis, exc.SkipFrame, exc.TensorifyScalarRestartAnalysis)


@contextlib.contextmanager
def without_program() -> Iterator[None]:
    """Enter an empty tracing context, for torch's code that asks for one, without inference mode, as in a backend."""
    from torch._dynamo.utils import maybe_disable_inference_mode

    with maybe_disable_inference_mode(), _guards.tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        yield
