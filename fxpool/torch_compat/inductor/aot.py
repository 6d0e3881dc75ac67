"""Takes a Dynamo graph through AOTAutograd and Inductor, and makes a callable of the result.

AOTAutograd can bundle forward and backward into one picklable result for its own cache. Here that result is intercepted
when torch would save it (`compile_graph`), and turned into a callable in another process (`wrap`). torch's cache itself
is neither read nor written.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxpool import forks
from fxpool.torch_compat.inductor import direct_calls, retained_graphs
from fxpool.torch_compat.patching import Patches
from fxpool.torch_compat.state import compile_flags

# For all threads, with `_PATCHING` held. A child that was forked while another thread compiled restores the originals:
# unlike configuration, they are per process.
_patches = Patches()
_PATCHING = forks.rlock(__name__, "_PATCHING", _patches.restore)
# Has the form of torch's keys, because torch splits them in some places; no entry is stored under it.
_NO_KEY = "afxpool00"


def copy_of(gm: torch.fx.GraphModule) -> Any:
    """Copy a graph that may have to be compiled again after a failure: Inductor's first passes change their input.

    Parameters and nested graphs are shared.
    """
    if not isinstance(gm, torch.fx.GraphModule):
        return gm
    made = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta = dict(gm.meta)
    for theirs, ours in zip(gm.graph.nodes, made.graph.nodes, strict=True):
        if hasattr(theirs, "_dynamo_source"):  # AOTAutograd needs it on placeholders
            ours._dynamo_source = theirs._dynamo_source
    for name, value in vars(gm).items():  # Dynamo's attributes: sources of parameters, the reason for the compile
        made.__dict__.setdefault(name, value)
    return made


def asks_other_ranks() -> bool:
    """Return whether AOTAutograd, as configured, agrees with the other ranks on its decisions.

    It then runs collectives while it compiles, which hang unless every rank reaches them.
    """
    from torch._functorch import config

    # The second is new in 2.15: whether all ranks hit upstream's cache.
    asking = ("_sync_decision_cross_ranks", "_sync_cache_decision_cross_ranks")
    if not any(getattr(config, name, False) for name in asking):
        return False
    ranks = torch.distributed
    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1


class Compiled:
    """The outcome of one compile: the callable of this process, and the result that can be sent."""

    def __init__(self) -> None:
        self.callable: Callable[..., Any] | None = None
        self.result: Any | None = None


@contextlib.contextmanager
def _result_taken(compiled: Compiled) -> Iterator[None]:
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import config as inductor_config

    cache = autograd_cache.AOTAutogradCache

    def save(key: str, entry: Any, remote: bool = False) -> None:
        entry.pre_save()
        compiled.result = entry

    def no_lookup(*args: Any, **kwargs: Any) -> None:
        return None

    def no_key(*args: Any, **kwargs: Any) -> tuple[str, list[str]]:
        return _NO_KEY, []

    trace = torch._logging.trace_structured

    def traced(name: str, metadata_fn: Callable[[], Any] = dict, **more: Any) -> None:
        if name != "artifact" or not str(metadata_fn().get("name")).startswith("aotautograd_cache_"):
            trace(name, metadata_fn, **more)

    with _PATCHING, contextlib.ExitStack() as stack:
        for owner, name, value in (
            (cache, "save", staticmethod(save)),
            (cache, "_lookup", staticmethod(no_lookup)),
            (autograd_cache, "autograd_cache_key", no_key),
            (torch._logging, "trace_structured", traced),
        ):
            stack.enter_context(_patches.replaced(owner, name, value))
        stack.enter_context(
            functorch_config.patch(
                bundled_autograd_cache=True,
                enable_autograd_cache=True,
                enable_remote_autograd_cache=False,
                # A backward that is lowered lazily would be lowered in the user's process.
                force_non_lazy_backward_lowering=True,
                strict_autograd_cache=False,
            )
        )
        stack.enter_context(torch.compiler.config.patch(force_disable_caches=False))
        # AOTAutograd makes no result if Inductor's cache is off; bundling leaves that cache unused.
        stack.enter_context(inductor_config.patch(fx_graph_cache=True))
        stack.enter_context(_uncounted())
        yield


@contextlib.contextmanager
def _uncounted() -> Iterator[None]:
    """Undo torch's counts for its unused cache: the process that loads the result counts, and traces."""
    from torch._dynamo.utils import counters

    before = dict(counters["aot_autograd"])
    try:
        yield
    finally:
        now = counters["aot_autograd"]
        for name in [*now]:
            now[name] = before.get(name, 0)
            if not now[name]:
                del now[name]


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], *, keep_result: bool, through: Callable[..., Any] | None = None
) -> Compiled:
    """Compile in this process, under the tracing context, switches and configuration in force.

    With `keep_result` the backward is lowered at once and `Compiled.result` is the bundled
    AOTAutograd result, or None if AOTAutograd made none. `through` is called in place of Inductor's inner compile,
    with that as its first argument.
    """
    from torch._inductor import compile_fx

    lower: Callable[..., Any] = compile_fx.compile_fx_inner
    if through is not None:
        lower = functools.partial(through, lower)
    compiled = Compiled()
    if keep_result and not backward_is_forced():
        lower = functools.partial(_as_later, lower)
    with in_process_only(), _result_taken(compiled) if keep_result else contextlib.nullcontext():
        compiled.callable = compile_fx.compile_fx(gm, inputs, inner_compile=lower)
    return compiled


def overwritten_by_backward() -> list[int] | None:
    """Return the inputs of the backward that its code may overwrite, during a compile of the whole graph."""
    from torch._inductor.utils import get_donated_idxs

    return get_donated_idxs()


def backward_is_forced() -> bool:
    """Return whether AOTAutograd, as the program configured it, lowers every backward beside its forward."""
    from torch._functorch import config

    return bool(config.force_non_lazy_backward_lowering)


def waits(inputs: Sequence[Any], arguments: dict[str, Any]) -> bool:
    """Return whether AOTAutograd leaves the lowering of a graph until autograd comes to it: of a backward.

    If it saves a size that is a symbol, it is lowered beside the forward, because that may add guards. Symbols come
    first in `inputs`.
    """
    return bool(arguments.get("is_backward")) and not isinstance(next(iter(inputs), None), torch.SymInt)


def _as_later(lower: Callable[..., Any], gm: torch.fx.GraphModule, inputs: Sequence[Any], **arguments: Any) -> Any:
    """Run an inner compile under the flags that are in force when stock Inductor runs it."""
    with compile_flags.as_in_backward() if waits(inputs, arguments) else contextlib.nullcontext():
        return lower(gm, inputs, **arguments)


@contextlib.contextmanager
def in_process_only() -> Iterator[None]:
    """Keep torch from starting its own compile sidecar for TORCHINDUCTOR_FX_COMPILE_MODE=subprocess."""
    from torch._inductor import compile_fx

    with _PATCHING, direct_calls.inside(), contextlib.ExitStack() as stack:
        for name, value in (
            ("fx_compile_mode", compile_fx.FxCompileMode.NORMAL),
            ("fx_compile_async", False),
            ("fx_compile_progressive", False),
        ):
            if hasattr(compile_fx, name):
                stack.enter_context(_patches.replaced(compile_fx, name, value))
        yield


def dump_result(result: Any) -> bytes:
    """Pickle the bundled result, without the times that it took. Raises any error of pickle."""
    from torch.utils._python_dispatch import _disable_current_modes

    result.forward_time_taken_ns = result.backward_time_taken_ns = 0  # in the entry; equal compiles give equal bytes
    with _disable_current_modes():
        return pickle.dumps(result)


def load_result(data: bytes) -> Any:
    """Unpickle a bundled result of `dump_result`."""
    return pickle.loads(data)


def graphs_of(result: Any) -> list[Any]:
    """Return Inductor's output in a bundled result: forward, then backward if there is one."""
    graphs = [result.compiled_fw.result]
    if result.compiled_bw is not None:
        graphs.append(result.compiled_bw.result)
    return graphs


def mutated_inputs(result: Any) -> list[int] | None:
    """Return positions of the inputs whose data the graph changes; None if it may be any of them.

    AOTAutograd renumbers inputs when it merges equal or overlapping ones; positions then do not
    match the caller's.
    """
    changed = [i for i, info in enumerate(result.runtime_metadata.input_info) if info.mutates_data]
    if changed and any(getattr(wrapper, "needs_post_compile", False) for wrapper in result.dispatch_wrappers):
        return None
    return changed


def aot_config_of(result: Any) -> Any:
    """Return AOTAutograd's configuration of the graph, reduced to the part kept in a result."""
    return result.sanitized_aot_config


def as_from_real_inputs(result: Any) -> None:
    """Set the stored configuration as if inputs had been real tensors, as Dynamo's are.

    AOTAutograd records whether its inputs were fake; nothing after tracing depends on it.
    """
    result.sanitized_aot_config = dataclasses.replace(result.sanitized_aot_config, dynamic_shapes=False)


def wrap(result: Any, fake_inputs: Sequence[Any], sources: Sequence[Any] | None) -> Callable[[list[Any]], Any]:
    """Return the callable AOTAutograd would have returned, taking one list of inputs that it empties.

    Runs the post-compile steps of Inductor (input alignment, cudagraphs) and of AOTAutograd
    (views, mutations, autograd). Guards are not added here: the caller has evaluated them.
    `sources` replace the sources of the compiling process.
    """
    from torch._inductor import config as inductor_config
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool

    result = for_dynamo(result, sources)
    return result.wrap_post_compile(
        list(fake_inputs),
        result.sanitized_aot_config,
        {
            "cudagraphs": BoxedBool(inductor_config.triton.cudagraphs),
            "boxed_forward_device_index": BoxedDeviceIndex(None),
        },
    )


def for_dynamo(result: Any, sources: Sequence[Any] | None) -> Any:
    """Return the result with this process's Dynamo sources for its inputs, and without guards, which Dynamo has.

    The program may retain its graph in a backward.
    """
    retained_graphs.allow(result)
    result.guards_expr = None
    aot_config = result.sanitized_aot_config
    if sources is not None and aot_config.aot_autograd_arg_pos_to_source is not None:
        aot_config.aot_autograd_arg_pos_to_source = list(sources)
    return result


def give_example_values(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give the nodes of a Dynamo graph the example values that Dynamo gave them, from fake inputs.

    Passes over this graph may read them (Inductor's fusions of groups do), as does the printed graph. Nodes behind an
    operator whose result depends on data get none.
    """
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    fake_mode: Any = torch._guards.detect_fake_mode(inputs)
    env = fake_mode.shape_env if fake_mode is not None else None
    if env is None or any("val" in node.meta for node in gm.graph.nodes):  # it is not Dynamo's
        return
    with contextlib.suppress(Exception), env.suppress_guards(), env.ignore_fresh_unbacked_symbols(), fake_mode:
        FakeTensorProp(gm, fake_mode).propagate_dont_convert_inputs(*inputs)
    for node in gm.graph.nodes:
        value = node.meta.pop("val", None)
        if value is not None:
            node.meta.setdefault("example_value", value)


def attach_dynamo_metadata(
    gm: torch.fx.GraphModule, input_sources: Sequence[Any], parameter_sources: dict[str, Any]
) -> None:
    """Make a rebuilt graph look like Dynamo's to AOTAutograd, which then knows sources and static inputs."""
    gm.meta["dynamo_compile_id"] = torch._guards.CompileContext.current_compile_id()
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, source in zip(placeholders, input_sources, strict=True):
        node._dynamo_source = source
    gm._param_name_to_source = dict(parameter_sources)


def parameters_and_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors a graph carries as attributes, in the order AOTAutograd lifts them into inputs."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def parameter_sources(gm: torch.fx.GraphModule) -> dict[str, Any] | None:
    """Return sources of lifted parameters by name; None for a graph that Dynamo did not make."""
    if "dynamo_compile_id" not in getattr(gm, "meta", {}):
        return None
    return getattr(gm, "_param_name_to_source", None)


def graph_of(module: Any) -> torch.fx.GraphModule | None:
    """Return the graph module behind Dynamo's argument to a backend; None for any other argument."""
    return module if isinstance(module, torch.fx.GraphModule) else None
