"""Takes one graph after AOTAutograd through Inductor, for graphs whose Dynamo form cannot be sent to a worker.

AOTAutograd then runs in the user's process (`compile_with_inner`), and each of the graphs it makes (inference, forward,
backward) is passed to fxpool's ``inner compile``.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo  # first, see torch_compat
import torch._functorch.config as functorch_config
import torch._inductor as inductor

from fxpool.torch_compat.inductor import aot
from fxpool.torch_compat.patching import patched

# Arguments of Inductor's inner compile that are plain data and affect the generated code.
PLAIN_ARGUMENTS = ("static_input_idxs", "is_backward", "graph_id", "cpp_wrapper", "fx_wrapper", "is_inference",
                   "layout_opt")  # fmt: skip


def compile_with_inner(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], inner: Callable[..., Any]
) -> Callable[..., Any]:
    """Run AOTAutograd here, and `inner(gm, fake inputs, **arguments)` on each graph it makes; return the callable."""
    from torch._inductor import compile_fx

    # torch's AOTAutograd cache would look for Inductor's results in the wrong place.
    with aot.in_process_only(), functorch_config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False):
        return compile_fx.compile_fx(gm, inputs, inner_compile=inner)


def compile_inner(gm: torch.fx.GraphModule, inputs: Sequence[Any], arguments: dict[str, Any]) -> Any:
    """Run Inductor's own inner compile in this process, without its caches. Return Inductor's output."""
    from torch._inductor import compile_fx
    from torch._inductor.utils import BoxedBool

    arguments = dict(arguments)
    arguments.setdefault("cudagraphs", BoxedBool(False))
    alone = aot.waits(inputs, arguments) and not aot.backward_is_forced()
    surroundings = contextlib.nullcontext() if alone else _in_aot_autograd(inputs)
    # For another process: no lookup, Triton's binaries bundled with the result.
    bundled = functorch_config.patch(bundled_autograd_cache=True)
    with aot.in_process_only(), bundled, _tensor_metadata(), surroundings:
        return compile_fx.compile_fx_inner(gm, list(inputs), **arguments)


@contextlib.contextmanager
def _in_aot_autograd(inputs: Sequence[Any]) -> Iterator[None]:
    """Hold what AOTAutograd and `compile_fx` hold around an inner compile; the switches are captured ones."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo import compiled_autograd

    fake_mode: Any = torch._guards.detect_fake_mode(inputs)
    with compiled_autograd._disable(), fake_mode or contextlib.nullcontext(), enable_python_dispatcher():
        yield


@contextlib.contextmanager
def _tensor_metadata() -> Iterator[None]:
    """Give nodes the ``tensor_meta`` that AOTAutograd gave them, as Inductor propagates fake tensors only.

    Its passes for quantized models, collectives and attention read it.
    """
    from torch._inductor import compile_fx
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    propagate = compile_fx.fake_tensor_prop

    def propagated(gm: torch.fx.GraphModule, *arguments: Any, **options: Any) -> Any:
        made = propagate(gm, *arguments, **options)
        for node in gm.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and "tensor_meta" not in node.meta:
                node.meta["tensor_meta"] = _extract_tensor_metadata(value)
        return made

    with patched(compile_fx, "fake_tensor_prop", propagated):
        yield


def plain_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an inner compile that are sent; the others concern only this process."""
    kept = {name: arguments[name] for name in PLAIN_ARGUMENTS if name in arguments}
    kept["static_input_idxs"] = list(kept.get("static_input_idxs") or ())
    cudagraphs = arguments.get("cudagraphs")
    kept["cudagraphs"] = bool(cudagraphs) if cudagraphs is not None else None
    return kept


def worker_arguments(plain: dict[str, Any]) -> dict[str, Any]:
    """Return `plain_arguments` in the form that Inductor expects."""
    from torch._inductor import config
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool

    arguments = dict(plain)
    wanted = arguments.pop("cudagraphs", None)
    arguments["cudagraphs"] = BoxedBool(config.triton.cudagraphs if wanted is None else wanted)
    arguments["boxed_forward_device_index"] = BoxedDeviceIndex(None)
    return arguments


def travelling(graph: Any) -> Any:
    """Return a copy of Inductor's output that can be pickled, after linking."""
    from copy import copy

    copied = copy(graph)
    copied.prepare_for_serialization()
    # Arguments contain boxes of the compiling process; the loader has its own.
    copied.fx_kwargs = {}
    return copied


def dump(graph: Any) -> bytes:
    """Pickle a `travelling` graph. Raises any error of pickle."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return pickle.dumps(graph)


def load(data: bytes) -> Any:
    """Unpickle a graph of `dump`, outside AOTAutograd's fake mode, which would make its constants fake."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return pickle.loads(data)


def finish(
    graph: Any, inputs: Sequence[Any], arguments: dict[str, Any], callers_constants: Sequence[torch.Tensor] = ()
) -> Any:
    """Run the post-compile steps of a graph that was loaded; return the callable output code.

    `callers_constants` are the constants of the caller's graph; the loaded graph may refer to some of them.

    Raises:
        RuntimeError: the generated module could not be loaded.
    """
    from torch._inductor import config
    from torch._inductor.utils import BoxedBool

    from fxpool.torch_compat.inductor.output_code import Constants

    arguments = dict(arguments)
    if arguments.get("cudagraphs") is None:
        arguments["cudagraphs"] = BoxedBool(config.triton.cudagraphs)
    arguments.setdefault("is_backward", False)
    constants = Constants(callers_constants)
    _revive(graph, constants)
    graph.fx_kwargs = arguments
    graph.post_compile(list(inputs), constants, arguments)
    return graph


def _revive(graph: Any, constants: Any) -> None:
    from torch._inductor.codecache import FxGraphCache

    from fxpool.torch_compat.inductor import output_code

    if output_code.is_linked(graph):
        output_code.revive(graph, constants)
    elif FxGraphCache.cache_hit_post_compile(graph, {}, constants)[0] is None:
        raise RuntimeError("the generated module could not be loaded")


def as_made_here(graph: Any, arguments: dict[str, Any]) -> Any:
    """Return a loaded graph as if Inductor had just lowered it here: torch runs the post-compile steps, and saves it.

    Raises:
        RuntimeError: the generated module could not be loaded.
    """
    from torch._inductor.output_code import CompiledFxGraphConstants

    _revive(graph, CompiledFxGraphConstants())
    # Functions (since 2.13: the table of decompositions) need not be picklable.
    graph.fx_kwargs = {name: value for name, value in arguments.items() if not callable(value)}
    return graph


def as_lowered(graph: Any, inputs: Sequence[Any]) -> Any:
    """Return a loaded graph as if Inductor had lowered it in this compile, which reads its outputs' strides."""
    from torch._inductor.utils import set_tracing_context_output_strides

    set_tracing_context_output_strides(inputs, graph)
    return graph


def count_calls(gm: torch.fx.GraphModule) -> int:
    """Return the number of nodes that compute something; a graph without any has nothing to compile."""
    return sum(node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes)


def as_output(gm: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Wrap a graph after AOTAutograd, to run operator by operator, like Inductor's output: called with one list."""

    def run(inputs: list[Any]) -> Any:
        arguments = list(inputs)
        inputs.clear()  # AOTAutograd passes its references on, so that memory can be freed early
        return gm(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compile_as_torch_does(gm: torch.fx.GraphModule, inputs: Sequence[Any], arguments: dict[str, Any]) -> Any:
    """Run Inductor's inner compile in this process, as without fxpool (the end of the fallback chain)."""
    from torch._inductor import compile_fx

    with aot.in_process_only():
        return compile_fx.compile_fx_inner(gm, inputs, **arguments)


def compile_stock(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Compile as ``backend="inductor"`` does. Modes and options unknown to torch are left out."""
    known = set(inductor.list_options())
    patches = dict(inductor.list_mode_options().get(mode, {})) if mode else {}
    patches.update({name: value for name, value in (options or {}).items() if name.replace("-", "_") in known})
    return inductor.compile(gm, list(inputs), options=patches)
