"""Builds a request that can be sent to a worker, and its key, from the arguments of a backend call.

Capture only reads: it changes nothing of the graph, its inputs or the tracing context, because Dynamo continues to use
them after the backend has returned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxpool import notices
from fxpool.codecache.code import program_code
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.graph import graph_codec, placed_inputs
from fxpool.codecache.guards import guards
from fxpool.codecache.key import (
    cacheable,
    compiler_examination,
    components,
    key,
    probe_cache,
    source_toolchain,
    system_facts,
)
from fxpool.codecache.key.key import GraphKey
from fxpool.errors import CannotTravelError
from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import ambient_state, device_placement, overlapping_inputs
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import AOT, FX, PACKAGE, CompileRequest
from fxpool.lowering.request.device_placement import Placement, placement_of
from fxpool.lowering.request.worker_requirements import needed
from fxpool.torch_compat.dynamo import frames, log_state, shape_env, tensors, tracing
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.dynamo.tracing import TracingContext
from fxpool.torch_compat.inductor import aot, debug_files
from fxpool.torch_compat.state import configs

log = notices.logger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Traced:
    """One graph, encoded: the intermediate result that all ways of capturing share.

    `values` are the encoded inputs, `constraints` further facts about inputs, `fakes` the inputs as fake tensors with
    those of `lifted` first, `origins` Dynamo's sources of both.
    """

    level: str
    label: str
    encoded: graph_codec.EncodedGraph
    values: Sequence[Any]
    env: ShapeEnv | None
    context: TracingContext | None
    fakes: Sequence[Any]
    frame: frames.Frame | None
    constraints: Sequence[Any] = ()
    layout: overlapping_inputs.Layout = ()
    lifted: Sequence[torch.Tensor] = ()
    origins: Sequence[Any] = ()
    sources: Sequence[Any] = ()
    parameter_sources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    from_dynamo: bool = False
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)

    def placeless(self) -> Sequence[Any]:
        """Return `values` without the place of inputs in memory."""
        if self.level == FX:
            inputs, arguments = self.values
            return [placed_inputs.without_place(inputs), arguments]
        return placed_inputs.without_place(self.values)


def capture(gm: torch.fx.GraphModule, inputs: Sequence[Any], *, label: str, into: Destination) -> Captured:
    """Capture a graph as Dynamo made it: `gm` is a ``GraphModule`` or an object that holds one, `inputs` are its fake
    or real inputs.

    Raises:
        CannotTravelError: the graph, an input or the ambient state cannot be sent to another process.
    """
    graph = aot.graph_of(gm)
    if graph is None:
        raise CannotTravelError("not_a_graph", type(gm).__name__)
    context = tracing.current_context()
    fake_mode = tracing.fake_mode_of(context, inputs)
    if context is None or fake_mode is None:
        raise CannotTravelError("no_tracing_context", "the backend was called outside Dynamo")
    if tracing.real_inputs_expected(context):
        raise CannotTravelError("fakify_first_call", "DDPOptimizer traces the inputs of the first call again")
    if aot.asks_other_ranks():
        raise CannotTravelError("cross_rank_decisions", "AOTAutograd consults the other ranks during the compile")
    if configs.freezing() and not torch.is_grad_enabled():
        raise CannotTravelError("freezing", "freezing folds the values of parameters after AOTAutograd")
    env = fake_mode.shape_env
    if shape_env.translation_validation(env):
        raise CannotTravelError("translation_validation")
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(inputs):
        raise CannotTravelError("inputs", f"{len(placeholders)} placeholders, {len(inputs)} inputs")

    lifted = aot.parameters_and_buffers(graph)
    named_sources = aot.parameter_sources(graph)
    from_dynamo = named_sources is not None
    origins = [tracing.placeholder_source(node) for node in placeholders]
    fakes = [tracing.fakify(fake_mode, context, value, source) for value, source in zip(inputs, origins, strict=True)]
    fake_lifted = {
        name: tracing.fakify(fake_mode, context, value, (named_sources or {}).get(name))
        for name, value in lifted.items()
    }

    encoder = graph_codec.GraphEncoder(own_indices=configs.calls_through_cpp())
    values = [encoder.value(fake) for fake in fakes]
    encoded = encoder.encode(graph, fake_lifted)
    real = [*lifted.values(), *inputs]
    traced = _Traced(
        level=AOT,
        label=label,
        encoded=encoded,
        values=values,
        env=env,
        context=context,
        fakes=[*fake_lifted.values(), *fakes],
        frame=frames.current_frame(),
        constraints=[tracing.constraints(context, value) for value in inputs],
        layout=overlapping_inputs.layout(real),
        lifted=list(lifted.values()),
        origins=[*((named_sources or {}).get(name) for name in lifted), *origins],
        sources=origins,
        parameter_sources=dict(named_sources or {}),
        from_dynamo=from_dynamo,
    )
    return _finish(traced, into, lambda: cacheable.check(graph, context))


def capture_inner(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    *,
    label: str,
    into: Destination,
    frame: frames.Frame | None = None,
) -> Captured:
    """Capture a graph that AOTAutograd made; `inputs` are fake, `arguments` plain. Errors as `capture`.

    `frame` is the function that Dynamo traced it from, which a backward compiled later cannot find.
    """
    context = tracing.current_context()
    fake_mode = tracing.fake_mode_of(context, inputs)
    env = fake_mode.shape_env if fake_mode is not None else None
    if shape_env.translation_validation(env):
        raise CannotTravelError("translation_validation")
    encoder = graph_codec.GraphEncoder(own_indices=configs.calls_through_cpp())
    values = [encoder.value(value) for value in tensors.with_opaque_inputs(gm.graph, list(inputs))]
    encoded = encoder.encode(gm)
    traced = _Traced(
        level=FX,
        label=label,
        encoded=encoded,
        # Without the graph's number in this process, which does not affect the code.
        values=[values, encoder.value(sorted((k, v) for k, v in arguments.items() if k != "graph_id"))],
        env=env,
        context=context,
        fakes=list(inputs),
        frame=frame,
        arguments=arguments,
    )
    return _finish(traced, into, lambda: cacheable.check(gm, context, after_autograd=True))


def capture_program(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], facts: Mapping[str, Any], *, label: str, into: Destination
) -> Captured:
    """Capture an exported program: its graph, its inputs as fake tensors, and further plain `facts`.

    A worker reads the program from a file (`Captured.read_program`). Errors as `capture`.
    """
    fake_mode = tracing.fake_mode_of(None, inputs)
    encoder = graph_codec.GraphEncoder()
    values = [encoder.value(value) for value in inputs]
    traced = _Traced(
        level=PACKAGE,
        label=label,
        encoded=encoder.encode(gm),
        values=[values, key.canonical(dict(facts))],
        env=fake_mode.shape_env if fake_mode is not None else None,
        context=None,
        fakes=list(inputs),
        frame=None,
    )
    return _finish(traced, into, lambda: cacheable.check(gm, None))


def surroundings(into: Destination) -> str:
    """Return the digest of all that the key of each graph has besides the graph. Errors as `capture`, and Bypass."""
    encoder = graph_codec.GraphEncoder(own_indices=configs.calls_through_cpp())
    traced = _Traced(
        level=AOT,
        label="",
        encoded=encoder.encode(torch.fx.GraphModule({}, torch.fx.Graph())),
        values=[],
        env=None,
        context=None,
        fakes=[],
        frame=None,
    )
    captured = _finish(traced, into, lambda: None)
    if captured.stays is not None:
        raise captured.stays
    if captured.bypass is not None or captured.key is None:
        raise captured.bypass or cacheable.Bypass("source")
    return captured.key.digest


@compiler_examination.under_way()
def _finish(traced: _Traced, into: Destination, check: Callable[[], None]) -> Captured:
    """Return the captured graph, with a key unless `check` raises Bypass."""
    level, encoded, toolchain_dir = traced.level, traced.encoded, into.toolchain_dir
    source_toolchain.require(encoded.devices)
    device_placement.require_movable(encoded)
    state = ambient_state.capture(before_autograd=level == AOT, toolchain_dir=toolchain_dir)
    if device_placement.through_cpp(encoded):
        state = state.configured_with(configs.KERNELS_AT_COMPILE_TIME)
    modules, libraries, operators, stays = needed(encoded.dependencies)
    code: program_code.ProgramCode | None = None
    sent: program_code.SentCode | None = None
    unproven: cacheable.Bypass | None = None
    try:
        code = program_code.of(
            encoded.dependencies, after_autograd=level == FX, answers=probe_cache.FactCache(toolchain_dir)
        )
    except UnprovenError as error:
        stays = CannotTravelError("code_unknown", error.part)
        unproven = cacheable.Bypass("source", error.part)
    else:
        modules = [*code.modules, *(name for name in modules if name not in code.modules)]
        if code.changed:
            stays = CannotTravelError("torch_changed", f"the program replaced {', '.join(code.changed)}")
        try:
            configured = ambient_state.code_digests(state)
            sent = program_code.SentCode.of(
                code, encoded.dependencies, configured, after_autograd=level == FX, operators=operators
            )
        except UnprovenError as error:
            stays = CannotTravelError("code_unknown", error.part)
            unproven = cacheable.Bypass("custom_pass_without_uuid", error.part)
    if code is not None and _is_blind(traced, state, code):
        traced = dataclasses.replace(traced, values=traced.placeless())
    graph_bytes = key.canonical(encoded.description)
    input_bytes = key.canonical(list(traced.values))
    shapes = _dump_shapes(traced.env) if encoded.symbols and traced.env is not None else None
    placed = placement_of(encoded, state.switches["default_device"], toolchain_dir)
    request = CompileRequest(
        level=level,
        label=traced.label,
        graph=graph_bytes,
        inputs=input_bytes,
        names=encoded.names,
        debug=encoded.debug,
        constants=encoded.constants,
        packings=encoded.packings,
        symbols=sorted(encoded.symbols),
        shapes=shapes,
        ambient=state,
        sources=traced.sources,
        parameter_sources=traced.parameter_sources,
        from_dynamo=traced.from_dynamo,
        compile_id=tracing.dump_compile_id(),
        arguments=traced.arguments,
        modules=modules,
        libraries=libraries,
        code=sent,
        store=into.store,
        bounds=into.bounds,
        toolchain_dir=toolchain_dir,
        devices=placed.facts if not placed.needed else (),
        current_device=placed.current,
        visible=placed.visible() if placed.needed else None,
        timing=placed.names() if placed.facts else None,
        group_sizes=tuple(encoded.groups.values()),
        debug_files=debug_files.requested(),
        logs=log_state.wanted(),
    )
    captured = Captured(
        request=request,
        context=traced.context,
        env=traced.env,
        fakes=traced.fakes,
        lifted=traced.lifted,
        sources=traced.origins,
        layout=traced.layout,
        placement=placed,
        stays=stays,
        frame=traced.frame,
        groups=tuple(encoded.groups),
    )
    try:
        if not into.keep:
            raise cacheable.Bypass("cache_off", "switched off by an option, or no cache directory can be used")
        check()
        if unproven is not None or code is None:
            raise unproven or cacheable.Bypass("source")
        try:
            parts = key_parts(traced, request, code, placed)
            portable = components.without_host(parts) if request.devices else parts
            made = key.GraphKey.of(portable)
        except (TypeError, ValueError) as error:
            raise cacheable.Bypass("configuration", str(error)) from error
    except cacheable.Bypass as bypass:
        captured.bypass = bypass
        return captured

    captured.request = dataclasses.replace(request, key=made)
    captured.system = parts["system"]
    captured.describe = functools.partial(_described, traced, request, portable)
    if portable is not parts:

        def complete() -> dict[str, Any]:
            """Return the components with the headers of C++, which a graph for GPUs needs only for a miss."""
            with contextlib.suppress(cacheable.Bypass):  # with unknown headers, no worker keeps what has C++
                return {**parts, "toolchain": _toolchain(traced, request)}
            return parts

        captured.make_host_key = lambda: key.GraphKey.of(complete())
        captured.describe_with_host = lambda graph_key: _described(traced, request, complete(), graph_key)
    return captured


def _described(traced: _Traced, request: CompileRequest, parts: dict[str, Any], graph_key: GraphKey) -> GraphKey:
    """Return a key with the descriptions and details of its parts that an entry stores."""
    from fxpool.codecache.key import key_detail  # for misses

    texts = {"graph": f"{len(traced.encoded.description[1])} nodes", "inputs": _readable_inputs(traced.layout)}
    covered: program_code.Covered = {}
    with contextlib.suppress(UnprovenError):
        program_code.of(traced.encoded.dependencies, after_autograd=traced.level == FX, covered=covered)
    detail = key_detail.packed(
        parts,
        level=traced.level,
        graph=request.graph,
        names=request.names,
        inputs=request.inputs,
        layout=[list(pair) for pair in traced.layout],
        constraints=list(traced.constraints),
        covered=covered,
    )
    return graph_key.described(parts, texts, detail)


def _dump_shapes(env: ShapeEnv) -> bytes:
    try:
        return shape_env.dump(env)
    except Exception as error:  # a source that names an unpicklable object
        raise CannotTravelError("shapes", f"{type(error).__name__}: {error}") from error


def key_parts(
    traced: _Traced, request: CompileRequest, code: program_code.ProgramCode, placement: Placement
) -> dict[str, Any]:
    """Return the components of a key, by name, as plain data or bytes.

    Raises:
        Bypass: a component has no form that is equal in every process.
    """
    ambient_part, configuration = ambient_state.key_parts(request.ambient)
    layout = [list(pair) for pair in traced.layout]
    # AOTAutograd's names have meanings (`primals_1`), and a package contains the program's.
    named = traced.level != AOT or _reads_graphs(request, code)
    return {
        "graph": key.canonical([traced.level, request.graph, request.names if named else []]),
        "inputs": key.canonical([request.inputs, layout, list(traced.constraints)]),
        "shapes": _shape_facts(traced.env, traced.encoded.symbols),
        "ambient": ambient_part,
        "configuration": configuration,
        "code": code.digests,
        "system": {
            **system_facts.system_facts(request.toolchain_dir),
            **system_facts.device_facts(traced.encoded.devices, named=bool(placement.facts)),
            **placement.key_part(),
        },
        "toolchain": _toolchain(traced, request, headers=not request.devices),
    }


def _reads_graphs(request: CompileRequest, code: program_code.ProgramCode) -> bool:
    """Return whether the program has passes, patterns or replaced functions, which may read the names in a graph."""
    return bool(request.ambient.configured) or any(map(program_code.is_of_any_graph, code.digests))


def _is_blind(traced: _Traced, state: ambient_state.AmbientState, code: program_code.ProgramCode) -> bool:
    """Return whether neither a graph nor code that runs while it is compiled can see the place of inputs in memory."""
    graph = traced.encoded
    if traced.level == PACKAGE or traced.lifted or graph.sees_place or graph.dependencies or state.configured:
        return False
    return not code.changed and not any(map(program_code.is_registered, code.digests))


def _toolchain(traced: _Traced, request: CompileRequest, *, headers: bool = True) -> dict[str, Any]:
    package = traced.level == PACKAGE
    return source_toolchain.key_facts(request.toolchain_dir, headers=headers, package=package, gpu=request.uses_gpu)


def _shape_facts(env: ShapeEnv | None, symbols: set[str]) -> list[Any]:
    if env is None or not symbols:
        return []
    rows: list[Any] = []
    try:
        for name, lower, upper, size_like, override, replacement in shape_env.facts(env, symbols):
            bounds = [guards.encode(lower), guards.encode(upper)]
            replaced = guards.encode(replacement) if replacement is not None else None
            rows.append([name, *bounds, size_like, override, replaced])
    except guards.UnknownGuardError as error:
        raise cacheable.Bypass("symbolic_expression", str(error)) from error
    return rows


def _readable_inputs(layout: overlapping_inputs.Layout) -> str:
    return f"overlapping inputs: {[list(pair[:2]) for pair in layout]}" if layout else "no overlapping inputs"
