"""Compile a request in this process: rebuild the graph, run AOTAutograd and Inductor, link, pack.

Runs in a worker for mode ``subprocess`` and in the asker's process for ``serialize``. Lowering is
torch's; everything around it here is about handing it the same graph, under the same state, as
the asking process has.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from fxpool import statistics
from fxpool.codecache import graph_codec, toolchain
from fxpool.codecache.store import LocalStore
from fxpool.errors import CannotReturnError, StoreError
from fxpool.lowering import ambient, effects, host_facts, kernels
from fxpool.lowering.artifact import Artifact, publish
from fxpool.lowering.capture import Captured
from fxpool.lowering.request import AOT, CompileRequest
from fxpool.torch_compat import aot, cpp, inner, operators, output_code, shape_env, tensors, tracing

log = logging.getLogger("fxpool.lowering")


def compile_request(request: CompileRequest, submit: kernels.Submit, units: int) -> Artifact:
    """The artifact of a request. Kernels are compiled through `submit`, in up to `units` units.

    Raises:
        CannotReturnError: the result, a guard or another effect has no form outside this process.
        Exception: whatever AOTAutograd, Inductor or the C++ compiler raise.
    """
    started = time.perf_counter()
    load_dependencies(request)
    env = shape_env.load(request.shapes) if request.shapes is not None else shape_env.ShapeEnv()
    fake_mode = tensors.new_fake_mode(env)
    collected: list[cpp.CollectedKernel] = []
    with (
        toolchain.failures_explained(request.tools),
        ambient.entered(request.ambient),
        host_facts.known(request.tools),
        tracing.worker_context(fake_mode, request.compile_id) as context,
        cpp.collecting(collected),
    ):
        decoder = graph_codec.GraphDecoder(tensors.Builder(fake_mode), env, request.constants)
        build = _aot if request.level == AOT else _inner
        with _restart_caught() as asked:
            result, recorded = build(request, decoder, context)
        if asked:
            # No code: the next process that comes here is told at once to trace again.
            return Artifact(request.level, b"", [], {}, [], effects.restart(asked), time.perf_counter() - started)
        found = effects.encoded_guards(env, set(request.symbols))
        linked = kernels.link(collected, tools=request.tools, units=units, submit=submit)
    return Artifact(
        level=request.level,
        result=result,
        libraries=linked.libraries,
        index=linked.index,
        guards=found,
        effects=recorded,
        seconds=time.perf_counter() - started,
    )


def load_dependencies(request: CompileRequest) -> None:
    """Import the modules and load the libraries that register what the graph names."""
    for library in request.libraries:
        operators.load_library(library)
    for module in request.modules:
        importlib.import_module(module)


@contextlib.contextmanager
def _restart_caught() -> Iterator[list[str]]:
    asked: list[str] = []
    try:
        yield asked
    except Exception as error:
        sources = tracing.restart_request(error)
        if not sources:
            raise
        asked.extend(sources)


def _sources(dumped: list[bytes | None]) -> list[Any]:
    return [
        tracing.load_source(data) if data is not None else tracing.positional_source(number)
        for number, data in enumerate(dumped)
    ]


def _aot(request: CompileRequest, decoder: graph_codec.GraphDecoder, context: Any) -> tuple[bytes, dict[str, Any]]:
    inputs = [decoder.value(value) for value in msgspec.msgpack.decode(request.inputs)]
    gm = decoder.decode(msgspec.msgpack.decode(request.graph), request.debug)
    sources = _sources(request.sources)
    parameter_sources = dict(
        zip(request.parameter_sources, _sources(list(request.parameter_sources.values())), strict=True)
    )
    if request.from_dynamo:
        aot.attach_dynamo_metadata(gm, sources, parameter_sources)
    with tracing.aot_id_is(request.aot_id):
        compiled = aot.compile_graph(gm, inputs, keep_result=True)
    if compiled.result is not None and request.from_dynamo:
        aot.as_from_real_inputs(compiled.result)
    lifted = [parameter_sources.get(name) for name in aot.parameters_and_buffers(gm)]
    return pack(compiled.result, context, [*lifted, *sources])


def pack(result: Any, context: Any, sources: list[Any]) -> tuple[bytes, dict[str, Any]]:
    """A bundled AOTAutograd result as bytes, and the compile's effects.

    Raises:
        CannotReturnError: there is none, it does not pickle, or an effect can't be replayed.
    """
    if result is None:
        raise CannotReturnError("no_result", "AOTAutograd made nothing that can be kept")
    for graph in aot.graphs_of(result):
        if not output_code.is_compiled_graph(graph):
            raise CannotReturnError("output_code", type(graph).__name__)
    mutated = aot.mutated_inputs(result)
    recorded = effects.record(context, sources, list(range(len(sources))) if mutated is None else mutated)
    try:
        return aot.dump_result(result), recorded
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise CannotReturnError("unpicklable", f"{type(error).__name__}: {error}") from error


def _inner(request: CompileRequest, decoder: graph_codec.GraphDecoder, context: Any) -> tuple[bytes, dict[str, Any]]:
    values, _ = msgspec.msgpack.decode(request.inputs)
    inputs = [decoder.value(value) for value in values]
    gm = decoder.decode(msgspec.msgpack.decode(request.graph), request.debug)
    compiled = inner.compile_inner(gm, inputs, inner.worker_arguments(request.arguments))
    if not output_code.is_compiled_graph(compiled):
        raise CannotReturnError("output_code", type(compiled).__name__)
    try:
        return inner.dump(compiled), {}
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise CannotReturnError("unpicklable", f"{type(error).__name__}: {error}") from error


def compile_live(captured: Captured, gm: Any, inputs: Sequence[Any], submit: kernels.Submit, units: int) -> Artifact:
    """The artifact of a graph that Dynamo is handing over in this process. Errors as `compile_request`."""
    started = time.perf_counter()
    request = captured.request
    collected: list[cpp.CollectedKernel] = []
    with toolchain.failures_explained(request.tools), host_facts.known(request.tools), cpp.collecting(collected):
        with _restart_caught() as asked:
            compiled = aot.compile_graph(gm, inputs, keep_result=True)
            result, recorded = pack(compiled.result, captured.context, captured.sources)
        if asked:
            return Artifact(request.level, b"", [], {}, [], effects.restart(asked), time.perf_counter() - started)
        found = effects.encoded_guards(captured.env, set(request.symbols)) if captured.env is not None else []
        linked = kernels.link(collected, tools=request.tools, units=units, submit=submit)
    return Artifact(
        request.level, result, linked.libraries, linked.index, found, recorded, time.perf_counter() - started
    )


@contextlib.contextmanager
def local_kernels() -> Iterator[tuple[kernels.Submit, int]]:
    """Compile kernels from threads of this process, one compiler per core it may use."""
    units = len(os.sched_getaffinity(0))
    submit, end = kernels.in_threads(units)
    try:
        yield submit, units
    finally:
        end()


def publish_if_kept(
    artifact: Artifact, request: CompileRequest, store: LocalStore | None, bypass: Callable[[str], None]
) -> None:
    """Publish what may be kept; a store that can't be written is a bypass, not an error."""
    if request.key is None or store is None:
        return
    try:
        publish(artifact, request.key, store, label=request.label, created=time.time(), torch=str(torch.__version__))
    except StoreError as error:
        artifact.unkept = str(error)
        bypass("store_write_failed")
        log.warning("%s is not kept: %s", request.label, error)
    else:
        statistics.count("entries_written")


@contextlib.contextmanager
def scratch_directory() -> Iterator[str]:
    """A place for the files Inductor writes while it compiles; gone afterwards."""
    before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    with tempfile.TemporaryDirectory(prefix="fxpool-scratch-", ignore_cleanup_errors=True) as directory:
        cpp.inductor_directory(directory)
        os.environ["TRITON_CACHE_DIR"] = os.path.join(directory, "triton")
        try:
            yield directory
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
