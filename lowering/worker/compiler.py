"""Compiles a request in this process: rebuild the graph, run AOTAutograd and Inductor, link, pack.

Runs in a worker for mode ``subprocess`` and in the client's process for ``serialize``. Lowering is torch's; this module
gives it the same graph, under the same state, as in the client's process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from fxpool import failures, notices
from fxpool.codecache.code.program_code import SentCode
from fxpool.codecache.graph import graph_decoder
from fxpool.codecache.key import probe_cache, source_toolchain, toolchain
from fxpool.codecache.key.cacheable import Bypass
from fxpool.codecache.store.kernel_files import KernelFiles
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CannotReturnError, CannotTravelError, StoreError
from fxpool.lowering.artifact import side_effects
from fxpool.lowering.artifact.entry_content import Decisions, Effects
from fxpool.lowering.artifact.entry_parts import COMPILER_CHANGED, HEADERS_UNLISTED, Artifact
from fxpool.lowering.cpp import cpu_tuning, host_facts, kernels, source_builds
from fxpool.lowering.cpp.built_libraries import BuiltLinking, inductors_builds
from fxpool.lowering.cpp.kernels import KernelJobs
from fxpool.lowering.cuda.triton_kernels import LinkedTriton, TritonLinking
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import AOT, CODE_DIFFERS, PACKAGE, CompileRequest
from fxpool.lowering.worker import wrapper_linking
from fxpool.lowering.worker.reused_graphs import EqualGraphs, OtherBackwardError
from fxpool.torch_compat.cpp import compile_commands
from fxpool.torch_compat.dynamo import log_state, process_groups, shape_env, tensors, tracing
from fxpool.torch_compat.inductor import aot, aot_graph, output_code
from fxpool.torch_compat.inductor.output_code import repro_text_marked
from fxpool.torch_compat.operators import operator_overrides, operators
from fxpool.torch_compat.operators.operator_overrides import OperatorOverride
from fxpool.torch_compat.operators.pickled_definitions import NotBroughtError
from fxpool.torch_compat.state import configs
from fxpool.torch_compat.triton import triton_compile

log = notices.logger(__name__)


def compile_request(
    request: CompileRequest, kernel_jobs: KernelJobs, *, phase: Callable[[str], None] = lambda name: None
) -> Artifact:
    """Compile a request; `phase` is called with the name of each phase.

    Triton kernels that cannot be compiled separately keep torch's loader.

    Raises:
        CannotTravelError: this process has other code than the client's program.
        CannotReturnError: the result, a guard or another effect cannot be sent to another process.
        Exception: any error of AOTAutograd, Inductor or the C++ compiler.
    """
    phase("loading code")
    others = load_code(request.modules, request.libraries, request.code, probe_cache.FactCache(request.toolchain_dir))
    if request.level == PACKAGE:
        from fxpool.lowering.worker import packages  # imports parts of torch that graphs do not need

        return packages.compile_package(request, others, unless_met, phase)
    try:
        return _compile(request, kernel_jobs, phase, others)
    except _NotAsClaimed:
        log.info("compiling %s again, torch asked what the tool chain can do", request.label, exc_info=True)
        return _compile(request, dataclasses.replace(kernel_jobs, patient=True), phase, others)
    except OtherBackwardError:
        log.info("compiling %s again, the entry of an equal forward has another backward", request.label)
        return _compile(request, kernel_jobs, phase, others, look_up=False)


class _NotAsClaimed(Exception):
    """The compiler rejected kernels for the instruction sets that the CPU claims."""


class _Compile:
    """One compile of a request: its kernels and libraries, and the time that it took so far.

    The request's state has to be in force: it names the compilers, and decides which kernels are collected.
    """

    def __init__(self, request: CompileRequest, jobs: KernelJobs) -> None:
        self._request, self._started = request, time.perf_counter()
        self._claims = not jobs.patient
        self.cpp = kernels.Linking(
            jobs.submit,
            units=jobs.units,
            toolchain_dir=request.toolchain_dir,
            patient=jobs.patient,
            stored=_kernel_files(request, cpp=True),
        )
        self._triton = TritonLinking(
            jobs.submit if jobs.apart and triton_compile.may_collect() else None,
            jobs.units,
            _kernel_files(request, cpp=False) if jobs.apart else None,
        )

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    @contextlib.contextmanager
    def tools(self) -> Iterator[None]:
        """Use the host's tools, and its facts about them, in the ``with`` block."""
        request, directory = self._request, self._request.toolchain_dir
        with (
            contextlib.closing(BuiltLinking(directory)) as self._building,
            toolchain.failures_explained(directory),
            host_facts.answering(directory, claims=self._claims) as self._claimed,
            inductors_builds(directory),
            source_builds.kept_in(request.store, directory),
            cpu_tuning.tuned(directory, lambda: ambient_state.shaping(request.ambient)) as self._tuned,
        ):
            yield

    @contextlib.contextmanager
    def lowering(self) -> Iterator[list[str]]:
        """Collect the kernels that are generated in the block.

        A pass that asks Dynamo to trace again ends the block: the list that is yielded has the sources to specialize.
        """
        sources: list[str] = []
        try:
            with (
                compile_commands.collecting(self.cpp.take, self.cpp.begin),
                self._building.collecting(),
                self._triton.collecting(),
                repro_text_marked(),
            ):
                yield sources
        except Exception as error:
            sources.extend(tracing.restart_request(error) or ())
            if not sources:
                raise

    def restart(self, sources: list[str]) -> Artifact:
        """Return an artifact without code: the next process with this graph traces again at once."""
        return Artifact(level=self._request.level, result=b"", effects=Effects(restart=sources), seconds=self.seconds())

    def artifact(
        self,
        output: _Result | _Output,
        indices: Sequence[int],
        context: tracing.TracingContext | None,
        env: shape_env.ShapeEnv | None,
    ) -> Artifact:
        """Link and pack the output of a compile for the devices `indices`. Errors as `compile_request`."""
        request = self._request
        triton = self._triton.part()
        output.link(_name(request), Names(self.cpp.names, triton, self._building.names), indices)
        result, recorded = output.pack(context)
        guards = side_effects.encoded_guards(env, set(request.symbols)) if env is not None else []
        try:
            library = self.cpp.library()
        except kernels.CppCompileError as error:
            if self._claimed:
                raise _NotAsClaimed from error
            raise
        built = self._building.libraries()
        unlisted = self.cpp.unlisted | self._building.unlisted
        unkept = _why_unkept(request, library is not None or bool(built), unlisted)
        # A graph has to take long enough for its kernels to be stored (`cache_min_seconds`).
        if not unkept and (request.bounds is None or self.seconds() >= request.bounds.min_seconds):
            self.cpp.keep()
            self._triton.keep()
        return Artifact(
            level=request.level,
            result=result,
            library=library,
            triton=triton.encoded(),
            built=built,
            guards=guards,
            effects=recorded,
            decisions=Decisions(tuned=self._tuned.record),
            seconds=self.seconds(),
            unkept=unkept,
        )


def _compile(
    request: CompileRequest,
    jobs: KernelJobs,
    phase: Callable[[str], None],
    others: Sequence[OperatorOverride],
    *,
    look_up: bool = True,
) -> Artifact:
    env = shape_env.load(request.shapes, request.hints) if request.shapes is not None else shape_env.ShapeEnv()
    fake_mode = tensors.new_fake_mode(env)
    with ambient_state.entered(request.ambient), log_state.entered(request.logs), contextlib.ExitStack() as stack:
        compiling = _Compile(request, jobs)
        stack.enter_context(compiling.tools())
        context = stack.enter_context(tracing.worker_context(fake_mode, request.compile_id))
        has_default_group = request.ambient.switches.get("process_group", False)
        stack.enter_context(process_groups.shown(request.group_sizes, default=has_default_group))
        compare_configured(request.code)
        decoder = graph_decoder.GraphDecoder(tensors.Builder(fake_mode), env, request.constants)
        # An equal graph may have been lowered with operators that this client lowers in another way.
        equal = EqualGraphs(request, env, digests=not others, look_up=look_up)
        phase("lowering")
        with unless_met(others), compiling.lowering() as restart_sources:
            output = _aot(request, decoder, equal) if request.level == AOT else _inner(request, decoder)
        if restart_sources:
            return compiling.restart(restart_sources)
        if equal.entry is not None:
            result, recorded = output.pack(context)
            return equal.artifact(result, recorded, side_effects.encoded_guards(env, set(request.symbols)))
        lowered = compiling.seconds()
        phase("kernels")
        artifact = compiling.artifact(output, range(len(request.devices)), context, env)
    artifact.unprepared = compiling.cpp.without_header
    artifact.phases = {"lowering": lowered, "kernels": artifact.seconds - lowered}
    artifact.graphs = equal.digests if all(equal.digests) else []
    return artifact


def _kernel_files(request: CompileRequest, *, cpp: bool) -> KernelFiles | None:
    """Return the kernels of earlier graphs, C++ or Triton's; None for a graph that may not be cached."""
    key = request.key_of(cpp)
    if key is None or request.store is None:
        return None
    try:
        store = LocalStore(request.store)
    except StoreError as error:
        log.info("compiling %s without the kernels of earlier graphs: %s", request.label, error)
        return None
    # C++ contains whatever the program's code made Inductor generate; a Triton kernel may import functions.
    return KernelFiles(store, key.kernel_conditions(but=("code",) if cpp else ()))


def _name(request: CompileRequest) -> str:
    """Return the name of a graph's wrapper in tracebacks."""
    name = request.key.digest[:16] if request.key is not None else request.label
    return "fxpool " + name.replace(" ", "_")


_imported: dict[bytes, CannotTravelError | None] = {}  # by argument


def import_code(argument: bytes) -> None:
    """Preparation of workers: import modules and load libraries of the program, named by `argument` (as msgpack).

    Raises CannotTravelError: one cannot be loaded; no second call in this process tries it again. An error of a host
    that is short of memory or descriptors is raised as it is, and says nothing about the module.
    """
    if argument not in _imported:
        modules, libraries = msgspec.msgpack.decode(argument)
        _imported[argument] = _import_code(modules, libraries)
        if modules or libraries:
            operator_overrides.forget_what_was_gathered()
    if (error := _imported[argument]) is not None:
        raise error


def _import_code(modules: Sequence[str], libraries: Sequence[str]) -> CannotTravelError | None:
    for library in libraries:
        try:
            operators.load_library(library)
        except (OSError, RuntimeError) as error:
            if failures.shortage(error):
                raise
            return _not_imported(f"{library}: {error}", error)
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a module of the program, which may raise anything
            if failures.shortage(error):
                raise
            return _not_imported(f"{module}: {type(error).__name__}: {error}", error)
    return None


def _not_imported(detail: str, cause: Exception) -> CannotTravelError:
    error = CannotTravelError("code_not_importable", detail)
    error.__cause__ = cause
    return error


def load_code(
    modules: Sequence[str],
    libraries: Sequence[str],
    code: SentCode | None,
    answers: probe_cache.FactCache | None = None,
) -> Sequence[OperatorOverride]:
    """Import the modules and load the libraries that register a graph's operators.

    `answers` are those of earlier processes about torch. Returns operators that the client would lower differently (see
    `unless_met`).
    Raises CannotTravelError: one cannot be loaded in this process, or has other code than the client's.
    """
    import_code(msgspec.msgpack.encode((modules, libraries)))
    if code is None:
        return []
    try:
        code.bring()
    except NotBroughtError as error:
        raise CannotTravelError("code_not_importable", str(error)) from error
    other, operators_otherwise = code.difference(answers, imported=bool(modules))
    if other:
        raise CannotTravelError(CODE_DIFFERS, other)
    return operators_otherwise


@contextlib.contextmanager
def unless_met(others: Sequence[OperatorOverride]) -> Iterator[None]:
    """Wrap a compile. Raises CannotTravelError: it met an operator that the client would lower differently."""
    with operator_overrides.watched(others) as met:
        try:
            yield
        except Exception as error:
            if what := met():
                raise CannotTravelError(CODE_DIFFERS, f"the graph uses {what}") from error
            raise
        if what := met():
            raise CannotTravelError(CODE_DIFFERS, f"the graph uses {what}")


def compare_configured(code: SentCode | None) -> None:
    """Raise CannotTravelError if the code that configured options name differs from the client's."""
    if code is not None and (other := code.other_configured(ambient_state.code_digests())):
        raise CannotTravelError(CODE_DIFFERS, other)


def _sources(travelled: Sequence[Any]) -> list[Any]:
    """Return the sources of inputs; a source that was not sent is identified by its position."""
    return [
        source if source is not None else tracing.positional_source(number) for number, source in enumerate(travelled)
    ]


@dataclasses.dataclass(frozen=True)
class Names:
    """The compiled kernels of a graph: C++ kernels and built libraries as names by digest, and Triton kernels."""

    kernels: Mapping[str, str]
    triton: LinkedTriton
    built: Mapping[str, str]


class _Result:
    """A bundled AOTAutograd result; `sources` belong to its inputs, lifted parameters first."""

    def __init__(self, result: Any, sources: Sequence[Any]) -> None:
        if result is None:
            raise CannotReturnError("no_result", "AOTAutograd returned no result that can be stored")
        self._result, self._sources = result, sources

    def link(self, name: str, names: Names, indices: Sequence[int]) -> None:
        """Link the code of its graphs. `indices` are the devices it was compiled for. Raises CannotReturnError."""
        for graph, part in zip(aot.graphs_of(self._result), ("forward", "backward"), strict=False):
            if not output_code.is_compiled_graph(graph):
                raise CannotReturnError("output_code", type(graph).__name__)
            _link(graph, f"{name} {part}", names, indices)

    def pack(self, context: tracing.TracingContext | None) -> tuple[bytes, Effects]:
        """Pickle the result; return the bytes and the compile's effects.

        Raises:
            CannotReturnError: it does not pickle, or an effect cannot be replayed.
        """
        output_code.link_result(self._result)
        mutated = aot.mutated_inputs(self._result)
        written = list(range(len(self._sources))) if mutated is None else mutated
        return _pickled(aot.dump_result, self._result), side_effects.record(context, self._sources, written)


class _Output:
    """Inductor's output for a graph after AOTAutograd; `constants` are the request's constants."""

    def __init__(self, output: Any, constants: Sequence[torch.Tensor]) -> None:
        if not output_code.is_compiled_graph(output):
            raise CannotReturnError("output_code", type(output).__name__)
        self._output, self._constants = output, constants

    def link(self, name: str, names: Names, indices: Sequence[int]) -> None:
        """Link its code, like `_Result.link`."""
        self._output = aot_graph.travelling(self._output)
        output_code.leave_out_constants(self._output, self._constants)
        _link(self._output, name, names, indices)

    def pack(self, context: tracing.TracingContext | None) -> tuple[bytes, Effects]:
        """Pickle the output, like `_Result.pack`; a graph after AOTAutograd has no effects."""
        return _pickled(aot_graph.dump, self._output), Effects()


def _link(graph: Any, name: str, names: Names, indices: Sequence[int]) -> None:
    # Entries of one key, which differ in their guards, may be loaded together: each needs its own name in tracebacks.
    name = f"<{name} {hashlib.sha256(graph.source_code.encode()).hexdigest()[:8]}>"
    names.triton.give_files(graph)
    output_code.compiled_for(graph, indices)
    try:
        linked = wrapper_linking.link(graph.source_code, name, names.kernels, names.triton.names, indices, names.built)
    except (SyntaxError, ValueError, RecursionError) as error:  # torch's loader takes it, counted where it is loaded
        log.warning("not linking the wrapper of %s: %s", name, error)
    else:
        output_code.link(graph, linked)


def _pickled(dump: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise CannotReturnError("unpicklable", f"{type(error).__name__}: {error}") from error


def _aot(request: CompileRequest, decoder: graph_decoder.GraphDecoder, equal: EqualGraphs) -> _Result:
    inputs = [decoder.value(value) for value in msgspec.msgpack.decode(request.inputs)]
    gm = decoder.decode(msgspec.msgpack.decode(request.graph), request.names, request.debug)
    if request.logs or configs.reads_example_values():
        aot.give_example_values(gm, inputs)
    sources = _sources(request.sources)
    parameter_sources = dict(
        zip(
            (decoder.parameters.get(name, name) for name in request.parameter_sources),
            _sources(list(request.parameter_sources.values())),
            strict=True,
        )
    )
    if request.from_dynamo:
        aot.attach_dynamo_metadata(gm, sources, parameter_sources)
    with tracing.aot_id_is(request.aot_id):
        compiled = aot.compile_graph(gm, inputs, keep_result=True, through=equal.compile)
    if compiled.result is not None and request.from_dynamo:
        aot.as_from_real_inputs(compiled.result)
    lifted = [parameter_sources.get(name) for name in aot.parameters_and_buffers(gm)]
    return _Result(compiled.result, [*lifted, *sources])


def _inner(request: CompileRequest, decoder: graph_decoder.GraphDecoder) -> _Output:
    values, _ = msgspec.msgpack.decode(request.inputs)
    inputs = [decoder.value(value) for value in values]
    gm = decoder.decode(msgspec.msgpack.decode(request.graph), request.names, request.debug)
    return _Output(
        aot_graph.compile_inner(gm, inputs, aot_graph.worker_arguments(request.arguments)), request.constants
    )


def compile_live(captured: Captured, gm: torch.fx.GraphModule, inputs: Sequence[Any], jobs: KernelJobs) -> Artifact:
    """Return the artifact of a graph that Dynamo is compiling in this process. Errors as `compile_request`."""
    request = captured.request
    inductor = request.ambient.configuration["inductor"]
    decided = {name: inductor[name] for name in configs.KERNELS_AT_COMPILE_TIME}
    with configs.entered({"inductor": decided}):  # the other entries are already in force
        compiling = _Compile(request, jobs)
        with compiling.tools():
            with compiling.lowering() as restart_sources:
                output = _Result(aot.compile_graph(gm, inputs, keep_result=True).result, captured.sources)
            if restart_sources:
                return compiling.restart(restart_sources)
            return compiling.artifact(output, captured.placement.indices, captured.context, captured.env)


@contextlib.contextmanager
def local_kernels() -> Iterator[KernelJobs]:
    """Compile kernels from threads of this process, with one compiler per available core."""
    units = len(os.sched_getaffinity(0))
    submit, end = kernels.in_threads(units)
    try:
        yield KernelJobs(submit, lambda: units)
    finally:
        end()


def _why_unkept(request: CompileRequest, has_cpp: bool, unlisted: Collection[str]) -> str:
    """Return the reason if the C++ compiler or its headers aren't those of the key: a graph may have waited long in the
    queue, and generated sources may include what no key covers.

    Call it only while the request's state is in force, which names the compiler.
    """
    key = request.key_of(has_cpp)
    if not has_cpp or key is None:
        return ""
    if unlisted:
        log.info("%s is not stored: its kernels include %s", request.label, ", ".join(sorted(unlisted)))
        return HEADERS_UNLISTED
    try:
        facts = source_toolchain.key_facts(request.toolchain_dir, gpu=request.uses_gpu)
        return "" if key.holds("toolchain", facts) else COMPILER_CHANGED
    except Bypass:
        return COMPILER_CHANGED
