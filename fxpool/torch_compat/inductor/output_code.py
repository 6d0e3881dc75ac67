"""Inductor's output for one graph, and its loading from an entry without the compiler.

A linked graph (`link`) carries its wrapper as code that is ready to be executed, with its kernels in a library. Loading
it imports nothing of Inductor beyond the modules that Dynamo has already imported. The following steps (alignment of
inputs, cudagraphs, counters, traces) are torch's own post-compile or have the same effect. A graph that was not linked
keeps torch's loader.

Results refer to constants that the caller of a compile has by number (`Constants`, `leave_out_constants`). A frozen
graph's weights are its constants. An entry that contained them would be as large as the model, and the caller has them
anyway, as the key covers their content. Weights that oneDNN has packed have no form outside it: a worker gets the same
numbers in a tensor of the same kind, which is enough to compile for them.

Inductor keeps with its code the script that reproduces a graph, for ``TORCH_TRACE``. It begins with environment
variables and configuration of the process that compiled the graph: secrets among them, and a worker's temporary
folders. An entry has marks in their place (`repro_text_marked`), which become those of the process that traces.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import linecache
import marshal
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch
import torch._dynamo  # first, see torch_compat
from torch._dynamo.utils import counters, get_metrics_context, get_runtime_metrics_context
from torch._functorch._aot_autograd.aot_autograd_result import BundledCompiledBackward, BundledCompiledForward
from torch._inductor import config, cudagraph_utils, metrics
from torch._inductor.output_code import CompiledFxGraph, CompiledFxGraphConstants
from torch._inductor.runtime.autotune_cache import AutotuneCacheBundler, inductor_meta_from_config
from torch._logging import getArtifactLogger, trace_structured

from fxpool.torch_compat.dynamo import log_state
from fxpool.torch_compat.inductor import import_paths
from fxpool.torch_compat.patching import patched

_output_code_log = getArtifactLogger("torch._inductor.codecache", "output_code")


#: Prefixes of names in linked code for the index of a CUDA device, and the device itself, by number in the graph.
DEVICE = "_fxpool_device_"
DEVICE_NAME = "_fxpool_device_name_"
GROUP = "_fxpool_group_"


class LinkedWrapper(msgspec.Struct, array_like=True):
    """A wrapper that is ready to be executed, made from a generated module by `fxpool.lowering.worker.wrapper_linking`.

    `code` is a marshalled code object, `name` its file name. `kernels` is the number of functions that it uses from
    the entry's library (set as ``_fxpool_library`` before it runs), `triton` from its Triton library
    (``_fxpool_triton``), and `built` the number of libraries of one source each (``_fxpool_built``). `operators` are
    those it calls besides aten's, `unlinked` the parts left to torch's own loader.
    `devices` are the CUDA devices it names, by number in the graph; their indices are set when it is loaded.
    """

    name: str
    code: bytes
    kernels: int
    triton: int
    operators: list[str]
    unlinked: list[str]
    devices: list[int] = []
    built: int = 0


class Surroundings(Protocol):
    """The environment that a linked graph gets when it is loaded."""

    #: This process's index of each CUDA device that the graph names.
    indices: Sequence[int]
    #: This process's name of each process group that the graph names.
    groups: Sequence[str]

    def library(self) -> Any:
        """Return the module with the entry's C++ kernels."""

    def built(self) -> Any:
        """Return the libraries of one source each."""

    def triton(self) -> Any:
        """Return the library with its Triton kernels, which also has `texts`, `changed` and `keep_choices`."""

    def missed(self, part: str) -> None:
        """Report a part of the graph that is left to torch's own loader."""


class ElsewhereError(Exception):
    """The graph runs only on the device it was compiled for."""


class LinkedGraph(CompiledFxGraph):
    """A CompiledFxGraph whose wrapper is linked. Pickled like its parent."""

    _fxpool_wrapper: LinkedWrapper
    _fxpool_surroundings: Surroundings
    _fxpool_late: bool
    _fxpool_tunes: bool
    _fxpool_triton: Any
    # Whether torch keeps it in its own caches and artifacts, with its source in a file (`make_storable`).
    _fxpool_stored: bool = False

    def after_deserialization(self, constants: CompiledFxGraphConstants) -> str:
        """Make `current_callable`, or defer that if the graph is not called soon. Return the wrapper's name."""
        wrapper, surroundings = self._fxpool_wrapper, self._fxpool_surroundings
        name = self.write_to_disk() if self._fxpool_stored else wrapper.name
        # Torch's own autotuner may run; finding the facts that it needs about Triton takes a third of a second.
        self._fxpool_tunes = bool(wrapper.unlinked) and self.device_types != {"cpu"}
        for what in wrapper.unlinked:
            surroundings.missed(what)
        # Load now, even if it is not called soon: an entry may be gone later, but a loaded library stays.
        library = surroundings.library() if wrapper.kernels else None
        self._fxpool_triton = surroundings.triton() if wrapper.triton else None
        if self._fxpool_triton is not None:
            self._fxpool_triton.texts.append(self.source_code)
        if self._fxpool_stored and not _contains(name, self.source_code):
            surroundings.missed("edited")  # artifacts are unpacked for people who try out changes of the code
            return super().after_deserialization(constants)
        values = constants.unwrap(self)
        if self._fxpool_late and not config.triton.cudagraphs and not wrapper.unlinked:
            self.current_callable = _LateCall(lambda: self._module(library, values, name).call)
        else:
            module = self._module(library, values, name)
            self.current_callable = module.call
            self.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
            self.compiled_fn_runner = getattr(module, "runner", None)
        return name

    def prepare_for_serialization(self) -> None:
        """Drop the loaded code, which the surroundings load again."""
        super().prepare_for_serialization()
        self._fxpool_triton = None

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Keep the bundle of the compiling process, if it has one: torch collects the kernels of this process."""
        if self._triton_bundle is None:
            super().set_triton_bundle(triton_bundle)

    def _module(self, library: Any, constants: dict[str, Any], name: str) -> types.ModuleType:
        wrapper = self._fxpool_wrapper
        if not all(map(import_paths.is_registered, wrapper.operators)):
            self._fxpool_surroundings.missed("operators")
            import_paths.register_torch_operators()
        module = types.ModuleType(name)
        module.__file__ = name
        # For tracebacks: line numbers of the code are those of the generated text.
        text = self.source_code
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        self._name_lines(name)
        module.__dict__["_fxpool_library"] = library
        module.__dict__["_fxpool_triton"] = self._fxpool_triton
        if wrapper.built:
            module.__dict__["_fxpool_built"] = self._fxpool_surroundings.built()
        if wrapper.devices:
            for number, index in enumerate(self._fxpool_surroundings.indices):
                module.__dict__[f"{DEVICE}{number}"] = index
                module.__dict__[f"{DEVICE_NAME}{number}"] = f"cuda:{index}"
        for number, group in enumerate(self._fxpool_surroundings.groups):
            module.__dict__[f"{GROUP}{number}"] = group
        exec(_in_file(marshal.loads(wrapper.code), name), module.__dict__)
        for constant, value in constants.items():
            setattr(module, constant, value)
        return module

    def _name_lines(self, name: str) -> None:
        """Register the program's lines of the code for torch's own tracebacks, for example of a memory snapshot."""
        codecache = sys.modules.get("torch._inductor.codecache")  # they look there, if it is imported
        if codecache is not None and self.cache_linemap:
            lines = list(zip(*self.cache_linemap, strict=True))
            codecache.PyCodeCache.linemaps[name] = lines

    def __call__(self, inputs: Sequence[Any]) -> Any:
        debug = sys.modules.get("torch._inductor.debug")  # importing it would import the scheduler
        if getattr(debug, "RECORD_GRAPH_EXECUTION", False) or getattr(self, "_compile_context", None) is not None:
            return super().__call__(inputs)
        assert self.current_callable is not None
        try:
            if torch.autograd.profiler._is_profiler_enabled:
                with torch._C._profiler._RecordFunctionFast(
                    f"## Call CompiledFxGraph {self._fx_graph_cache_key} ##", keyword_values={"scope": "user_scope"}
                ):
                    return self.current_callable(inputs)
            return self.current_callable(inputs)
        finally:
            get_runtime_metrics_context().finish()
            if self._fxpool_tunes or self._fxpool_stored:  # torch's loader of its own caches has begun it
                AutotuneCacheBundler.end_compile()
            if self._fxpool_triton is not None and self._fxpool_triton.changed:
                self._fxpool_triton.keep_choices()


def _contains(path: str, text: str) -> bool:
    with open(path, encoding="utf-8") as file:
        return file.read() == text


def _in_file(code: types.CodeType, name: str) -> types.CodeType:
    """Return code, with the code of its functions, as if it had been read from another file."""
    if code.co_filename == name:
        return code
    constants = (_in_file(one, name) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(constants))


class _LateCall:
    """A callable that is made on its first call."""

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        self._make = make
        self._call: Callable[..., Any] | None = None

    def __call__(self, inputs: Any) -> Any:
        if self._call is None:
            self._call = self._make()
        return self._call(inputs)


def _load(loadable: Any, graph: Any, fx_config: Any) -> Any:
    """Load a graph as torch's bundled graphs are loaded, without lowering. `torch_counters` traces the hit."""
    constants = CompiledFxGraphConstants()
    revive(graph, constants)
    graph.compile_region_name = fx_config.get("compile_region_name")
    # Since 2.13. The compiling process may have used another allocator, or no allocator.
    allocator = getattr(cudagraph_utils, "check_caching_allocator_for_cudagraphs", None)
    if config.triton.cudagraphs and graph.disabled_cudagraphs_reason is None and allocator is not None:
        graph.disabled_cudagraphs_reason = allocator()
    graph.post_compile(loadable.example_inputs, constants, fx_config)
    policy = getattr(config, "cudagraph_policy", None)
    return policy.wrap_output(graph) if policy is not None else graph


class LinkedForward(BundledCompiledForward):
    """Forward or inference graph of a bundled result."""

    def post_compile(self, result: Any, fx_config: Any) -> Any:
        return _load(self, result, fx_config)


class LinkedBackward(BundledCompiledBackward):
    """Backward graph of a bundled result."""

    def post_compile(self, result: Any, fx_config: Any) -> Any:
        # Compiled autograd must not trace compiled code.
        return torch._dynamo.disable(_load(self, result, fx_config), reason="do not trace generated backwards pass")


def is_compiled_graph(value: Any) -> bool:
    return isinstance(value, CompiledFxGraph)


def compiled_for(graph: Any, indices: Sequence[int]) -> None:
    """Make a graph that is about to be pickled forget its process, except for the CUDA devices it was compiled for.

    `indices` are the devices, in the graph's order.
    """
    graph._fxpool_indices = tuple(indices)
    graph.fx_kwargs = {**graph.fx_kwargs, "graph_id": None}  # counts the process's graphs
    graph.runnable_graph_str = _without_process(graph.runnable_graph_str)


def link(graph: Any, wrapper: LinkedWrapper) -> None:
    """Make `graph`, which is about to be pickled, load by its linked wrapper."""
    graph.__class__ = LinkedGraph
    # Unpickling functions among a compile's arguments would import their modules, decompositions included.
    graph.fx_kwargs = {k: v for k, v in graph.fx_kwargs.items() if not isinstance(v, types.FunctionType)}
    graph._fxpool_wrapper = wrapper
    graph._fxpool_late = False


def link_result(result: Any) -> None:
    """Make the linked graphs of a bundled result load by their wrappers."""
    if is_linked(result.compiled_fw.result):
        result.compiled_fw.__class__ = LinkedForward
    if result.compiled_bw is not None and is_linked(result.compiled_bw.result):
        result.compiled_bw.__class__ = LinkedBackward
        result.compiled_bw.result._fxpool_late = True


def is_linked(graph: Any) -> bool:
    return isinstance(graph, LinkedGraph)


def name_of(graph: Any) -> str:
    """Return the name of a graph's module in tracebacks."""
    return graph._fxpool_wrapper.name if isinstance(graph, LinkedGraph) else f"<{graph.cache_key}>"


def put_into(graph: Any, surroundings: Surroundings) -> None:
    """Give a linked graph its surroundings. An unlinked graph is left to torch, which is counted.

    Raises:
        ElsewhereError: the graph is not linked, and needs other devices than it was compiled for, or process groups.
    """
    before, now = getattr(graph, "_fxpool_indices", ()), tuple(surroundings.indices)
    linked = isinstance(graph, LinkedGraph) and not graph._fxpool_wrapper.unlinked
    if surroundings.groups and not isinstance(graph, LinkedGraph):
        raise ElsewhereError("code that names process groups can't be used as torch loads it")
    if not linked and before != now:
        raise ElsewhereError(f"code for CUDA device {before} can't be used on {now} as torch loads it")
    moved = dict(zip(before, now, strict=False))
    graph.device_idxs = type(graph.device_idxs)(moved.get(index, index) for index in graph.device_idxs)
    if isinstance(graph, LinkedGraph):
        graph._fxpool_surroundings = surroundings
    else:
        surroundings.missed("wrapper")


def kernel_digest(argument_types: Sequence[str], source: str) -> str:
    """Return a kernel's digest: of its source and the types of its arguments.

    Trailing blanks are ignored: a template that is requested early still has them.
    """
    lines = [line.rstrip() for line in source.strip().splitlines()]
    return hashlib.sha256("\0".join((*argument_types, "\n".join(lines))).encode()).hexdigest()


def revive(graph: Any, constants: CompiledFxGraphConstants) -> None:
    """Load a linked graph: what Inductor does on a hit of its own cache, up to post-compile.

    Triton's binaries are written to the directory where their launchers look, counters and metrics change as if the
    graph had been compiled here, and logs and structured traces get the same texts.

    Raises:
        CorruptEntryError, OSError, ImportError: the kernels cannot be loaded.
    """
    if graph._triton_bundle:
        from torch._inductor.triton_bundler import TritonBundler

        TritonBundler.read_and_emit(graph._triton_bundle)
    name = graph.after_deserialization(constants)
    lowering = sys.modules.get("torch._inductor.graph")
    if lowering is not None and lowering.GraphLowering.save_output_code is not None:
        lowering.GraphLowering.save_output_code(graph.source_code)
    if graph._fxpool_tunes:
        AutotuneCacheBundler.begin_compile(inductor_meta_from_config(), code=graph.source_code)
        if hasattr(graph, "_set_compile_context_for_autotune_cache"):
            graph._set_compile_context_for_autotune_cache()
            if graph._compile_context is not None:
                importlib.import_module("torch._inductor.debug")  # the parent's __call__ reads it
    metrics.CachedMetricsHelper.apply_deltas(graph.metrics_deltas)
    counters["inductor"] += graph.counter_deltas
    _tell(graph, name)


def _tell(graph: Any, name: str) -> None:
    traces = graph.inductor_provenance_stack_traces_str
    if traces and get_metrics_context().in_progress():
        get_metrics_context().add_to_set("inductor_provenance", traces)
    if log_state.is_loading():
        return
    _output_code_log.debug("Output code: \n%s", graph.source_code)
    _output_code_log.debug("Output code written to: %s", name)
    _artifact("fx_graph_runnable", "string", lambda: _of_this_process(graph.runnable_graph_str))
    trace_structured("inductor_post_grad_graph", payload_fn=lambda: graph.inductor_post_grad_graph_str)
    trace_structured(
        "inductor_output_code",
        lambda: {"filename": name, "file_path": os.path.abspath(name)},
        payload_fn=lambda: graph.source_code,
    )
    _artifact("inductor_provenance_tracking_node_mappings", "json", lambda: graph.inductor_provenance_mapping_str)
    _artifact("inductor_provenance_tracking_kernel_stack_traces", "json", lambda: traces)


def _artifact(name: str, encoding: str, text: Callable[[], str | None]) -> None:
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": encoding}, payload_fn=text)


# ---------------------------------------------------------------------------------- the script that reproduces a graph


# torch's functions for the two parts.
_PARTS = {"generate_env_vars_string": "environment", "generate_config_string": "configuration"}
_MARKED = re.compile(r"^# (\w+) of the process:$.*?^# end of the \1$", re.DOTALL | re.MULTILINE)


@contextlib.contextmanager
def repro_text_marked() -> Iterator[None]:
    """Let scripts that torch makes in the block have marks around what is of this process."""
    from torch._dynamo.repro import after_aot

    def around(part: str, make: Callable[..., str]) -> Callable[..., str]:
        return lambda **options: f"# {part} of the process:\n{make(**options)}\n# end of the {part}"

    with contextlib.ExitStack() as stack:
        for name, part in _PARTS.items():
            stack.enter_context(patched(after_aot, name, around(part, getattr(after_aot, name))))
        yield


def _without_process(script: str | None) -> str | None:
    """Return a script without what its marks surround; an empty one if it has no marks."""
    if not script:
        return script
    emptied, found = _MARKED.subn(r"# \1 of the process:\n# end of the \1", script)
    return emptied if found == len(_PARTS) else ""


def _of_this_process(script: str | None) -> str | None:
    """Return a script of `_without_process` with this process's environment and configuration."""
    if not script:
        return script
    from torch._dynamo.repro import after_aot  # imports Inductor: only for a trace

    for name, part in _PARTS.items():
        empty = f"# {part} of the process:\n# end of the {part}"
        if empty in script:
            script = script.replace(empty, textwrap.dedent(getattr(after_aot, name)()))
    return script


class Constants(CompiledFxGraphConstants):
    """A loaded graph's constants: its own, and those of the caller's `tensors` that it refers to."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._given = tensors

    def unwrap(self, g: Any) -> dict[str, Any]:
        """Return the constants, by their names in the graph's code."""
        named: Mapping[str, int] = getattr(g, "_fxpool_given", {})
        return {**super().unwrap(g), **{name: self._given[number] for name, number in named.items()}}


def make_storable(graph: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Make a graph that `put_into` has prepared one that torch may save in its own caches, and load by itself.

    Its constants are with it, those among the caller's `tensors`, too, as torch's loader does not have these.

    Raises:
        ElsewhereError: torch has Triton kernels to load, and would replace them by those that it compiled here.
    """
    bundle = graph._triton_bundle
    if not is_linked(graph) and bundle is not None and any(vars(bundle).values()):
        raise ElsewhereError("a graph with Triton kernels can't be saved in torch's caches as torch loads it")
    named: Mapping[str, int] = getattr(graph, "_fxpool_given", {})
    graph.constants = {**(graph.constants or {}), **{name: tensors[number] for name, number in named.items()}}
    graph._fxpool_given = {}
    if is_linked(graph):
        graph._fxpool_stored = True


def leave_out_constants(graph: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Replace constants that are among `tensors` by their numbers, in a graph that is about to be pickled."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    constants = graph.constants or {}
    named = {name: numbers[id(value)] for name, value in constants.items() if id(value) in numbers}
    graph.constants = {name: value for name, value in constants.items() if name not in named}
    graph._fxpool_given = named
