"""Compiled graphs that outlive their process: without Dynamo, as torch's own artifacts; in Dynamo's files.

For ``torch.compile(...).aot_compile`` and ``caching_precompile`` Dynamo writes its guards and bytecode, and asks the
back end for a form of each compiled graph that pickles: the result that AOTAutograd bundles for its own cache. Torch
loads it without a back end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["context_and_inputs", "give_bundle", "give_precompile_bundle", "is_ahead_of_time", "is_bundle_requested",
           "save", "saveable"]  # fmt: skip


@contextlib.contextmanager
def saveable() -> Iterator[None]:
    """Let AOTAutograd make results that can be saved, also in this process."""
    from torch._functorch import config

    with config.patch(
        bundled_autograd_cache=True,
        force_autograd_cache=True,
        bypass_autograd_cache_key=True,
        force_non_lazy_backward_lowering=True,
    ):
        yield


def context_and_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], dynamic_shapes: str
) -> tuple[TracingContext, list[Any]]:
    """Return the tracing context to compile in, and the inputs in its form.

    `dynamic_shapes` is as in ``torch._inductor.standalone_compile``: where symbolic sizes come from. Raises ValueError.
    """
    inputs = list(example_inputs)
    if dynamic_shapes == "from_tracing_context":
        context = TracingContext.try_get()
        if context is None or context.fake_mode is None:
            raise ValueError(
                'dynamic_shapes="from_tracing_context" is only valid in a back end that torch.compile calls'
            )
        return context, inputs
    if dynamic_shapes == "from_graph":
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        known = [_value(node) for node in placeholders]
        mode = next((one.fake_mode for one in [*map(_value, gm.graph.nodes)] if isinstance(one, FakeTensor)), None)
        if mode is not None:
            # Use the graph's symbolic shapes; a real tensor instead would have fixed sizes.
            pairs = zip(inputs, [*known, *[None] * len(inputs)], strict=False)
            inputs = [symbolic if isinstance(symbolic, FakeTensor | torch.SymInt) else one for one, symbolic in pairs]
            return TracingContext(mode), inputs
    elif dynamic_shapes != "from_example_inputs":
        raise ValueError(
            "dynamic_shapes must be 'from_graph', 'from_tracing_context' or 'from_example_inputs', "
            f"got {dynamic_shapes!r}"
        )
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fixed = [
        mode.from_tensor(one, static_shapes=True) if isinstance(one, torch.Tensor) and not isinstance(one, FakeTensor)
        else one
        for one in inputs
    ]  # fmt: skip
    return TracingContext(mode), fixed


def _value(node: torch.fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def give_bundle(call: Callable[..., Any], bundle: Callable[[], Any]) -> Callable[..., Any]:
    """Return `call` in the form that torch's artifacts contain; `bundle` makes a new bundled result on each call."""

    def compiled(*args: Any) -> Any:
        return call(*args)

    compiled.serialize = bundle  # type: ignore[attr-defined]
    return compiled


def save(call: Callable[..., Any], path: str, label: str) -> None:
    """Write a compiled graph into a file. Raises ValueError: it cannot be saved."""
    from torch._inductor.standalone_compile import AOTCompiledArtifact

    if getattr(call, "serialize", None) is None:
        raise ValueError(f"{label} cannot be saved: it holds its own parameters, or runs eagerly; "
                         "make the parameters inputs of the graph")  # fmt: skip
    AOTCompiledArtifact(call).save(path=path)


def is_ahead_of_time() -> bool:
    """Return whether the current graph is compiled for ``aot_compile``, which writes it to its own file."""
    from torch._functorch import config

    return bool(getattr(config, "force_autograd_cache", False) and getattr(config, "bypass_autograd_cache_key", False))


def is_bundle_requested() -> bool:
    """Return whether Dynamo will request a picklable form of the current graph."""
    return is_ahead_of_time() or bool(getattr(torch._dynamo.config, "caching_precompile", False))


def give_precompile_bundle(
    gm: torch.fx.GraphModule, call: Callable[..., Any], bundle: Callable[[], Any]
) -> Callable[..., Any]:
    """Return `call` with the attributes that Dynamo looks for; `bundle` makes a new bundled result on each call."""
    backend_id = getattr(gm, "_backend_id", None)
    if torch._dynamo.config.caching_precompile and backend_id is not None:
        from torch._dynamo.precompile_context import PrecompileContext
        from torch._functorch._aot_autograd.aot_autograd_result import BundledAOTAutogradCacheArtifact

        PrecompileContext.record_artifact(BundledAOTAutogradCacheArtifact(backend_id, bundle()))

    compiled = give_bundle(call, bundle)
    made: Callable[..., Any] = torch._dynamo.disable(compiled, reason="fxpool's compiled graph")
    made.serialize = bundle  # type: ignore[attr-defined]
    return made
