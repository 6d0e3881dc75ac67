"""From what Dynamo hands to a backend to a request that can travel, and its key.

Everything is read; nothing of the graph, its inputs or the tracing context is changed, because
Dynamo goes on using them when the backend has returned.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fxpool.codecache import cacheable, graph_codec, guards, key, program_code, sources, system, toolchain
from fxpool.codecache.entry import Origin
from fxpool.codecache.key import GraphKey
from fxpool.errors import CannotTravelError
from fxpool.lowering.request import ambient, overlap
from fxpool.lowering.request.compile_request import AOT, FX, CompileRequest
from fxpool.lowering.request.placement import Placement, placement_of
from fxpool.torch_compat.dynamo import frames, shape_env, tracing
from fxpool.torch_compat.inductor import aot
from fxpool.torch_compat.operators import registrations
from fxpool.torch_compat.state import configs, switches

log = logging.getLogger("fxpool.lowering")


@dataclasses.dataclass
class Captured:
    """A request, and what of this process is needed to load its result.

    `stays` says why a worker can't have the program's code: it is compiled here, and kept if there is a key.
    `bypass` says why there is no key; `describe` gives the key with its components explained.
    `lifted` are the parameters and buffers that the graph carries as attributes; they lead the
    inputs of the compiled callable. `frame` is what Dynamo traced it from.
    """

    request: CompileRequest
    context: Any | None
    env: Any | None
    fakes: list[Any]
    lifted: list[torch.Tensor]
    sources: list[Any]
    layout: overlap.Layout
    placement: Placement
    stays: CannotTravelError | None = None
    bypass: cacheable.Bypass | None = None
    describe: Callable[[], key.GraphKey] | None = None
    describe_with_host: Callable[[], key.GraphKey] | None = None
    frame: frames.Frame | None = None

    @property
    def key(self) -> key.GraphKey | None:
        return self.request.key

    def all_keys(self) -> Iterator[GraphKey]:
        """What entries of this graph are under: for any host, and for hosts like this one."""
        if self.request.key is None:
            return
        yield self.request.key
        if self.describe_with_host is not None:
            self.request.host_key, self.describe_with_host = self.describe_with_host(), None
        if self.request.host_key is not None:
            yield self.request.host_key

    def to_be_compiled(self) -> None:
        """Complete the request: an entry that is written explains its key."""
        if self.describe is not None:
            self.request.key, self.describe = self.describe(), None
        if self.describe_with_host is not None:
            self.request.host_key, self.describe_with_host = self.describe_with_host(), None
        self.request.values = self.values()
        if self.request.origin is None:
            self.request.origin = self._origin()

    def _origin(self) -> Origin | None:
        """What a person would know the graph by. Never raises: nothing depends on it."""
        try:
            inputs, parameters = frames.shown_inputs(self.fakes[len(self.lifted) :], self.sources[len(self.lifted) :])
            arguments = self.request.arguments
            part = "" if self.request.level == AOT else "backward" if arguments.get("is_backward") else "forward"
            frame = self.frame._asdict() if self.frame is not None else {}
            return Origin(**frame, part=part, inputs=inputs, parameters=parameters + len(self.lifted))
        except Exception:
            log.debug("%s: what it is of can't be told", self.request.label, exc_info=True)
            return None

    def values(self) -> dict[str, Any]:
        """This call's value of every symbol."""
        return {**(shape_env.values(self.env) if self.env is not None else {}), **self.request.hints}

    def for_sizes(self, values: dict[str, Any]) -> Captured:
        """The same for a later call in which symbols have other values. Its key and request are complete."""
        request = dataclasses.replace(self.request, hints=values, unfit=[])
        other = dataclasses.replace(self, request=request)
        request.values = other.values()
        return other


def capture(
    gm: Any, inputs: Sequence[Any], *, label: str, store: str | None, tools: str | None, keep: bool = True
) -> Captured:
    """Capture a graph as Dynamo made it. With `keep` false no key is made.

    Raises:
        CannotTravelError: the graph, an input or the ambient state has no form for another process.
    """
    graph = aot.graph_of(gm)
    if graph is None:
        raise CannotTravelError("not_a_graph", type(gm).__name__)
    context = tracing.current_context()
    fake_mode = tracing.fake_mode_of(context, inputs)
    if context is None or fake_mode is None:
        raise CannotTravelError("no_tracing_context", "the backend was called outside Dynamo")
    if tracing.real_inputs_expected(context):
        raise CannotTravelError("fakify_first_call", "the first call's inputs are traced again (DDPOptimizer)")
    if configs.freezing() and not torch.is_grad_enabled():
        raise CannotTravelError("freezing", "parameters' values are folded after AOTAutograd has run")
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

    encoder = graph_codec.GraphEncoder()
    values = [encoder.value(fake) for fake in fakes]
    encoded = encoder.encode(graph, fake_lifted)
    real = [*lifted.values(), *inputs]
    captured = _finish(
        level=AOT,
        label=label,
        encoded=encoded,
        values=values,
        constraints=[tracing.constraints(context, value) for value in inputs],
        layout=overlap.layout(real),
        env=env,
        context=context,
        fakes=[*fake_lifted.values(), *fakes],
        lifted=list(lifted.values()),
        origins=[*((named_sources or {}).get(name) for name in lifted), *origins],
        request_fields={
            "sources": origins,
            "parameter_sources": dict(named_sources or {}),
            "from_dynamo": from_dynamo,
            "arguments": {},
        },
        check=(lambda: cacheable.check(graph, context)) if keep else None,
        store=store,
        tools=tools,
    )
    captured.frame = frames.current_frame()
    return captured


def capture_inner(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    *,
    label: str,
    store: str | None,
    tools: str | None,
    keep: bool = True,
    frame: frames.Frame | None = None,
) -> Captured:
    """Capture a graph that AOTAutograd made; `inputs` are fake, `arguments` plain. Errors as `capture`.

    `frame` is what Dynamo traced it from, which a backward that is compiled later can't find any more.
    """
    context = tracing.current_context()
    fake_mode = tracing.fake_mode_of(context, inputs)
    env = fake_mode.shape_env if fake_mode is not None else None
    if shape_env.translation_validation(env):
        raise CannotTravelError("translation_validation")
    encoder = graph_codec.GraphEncoder()
    values = [encoder.value(value) for value in inputs]
    encoded = encoder.encode(gm)
    captured = _finish(
        level=FX,
        label=label,
        encoded=encoded,
        values=[values, encoder.value(sorted(arguments.items()))],
        constraints=[],
        layout=(),
        env=env,
        context=context,
        fakes=list(inputs),
        lifted=[],
        origins=[],
        request_fields={"sources": [], "parameter_sources": {}, "from_dynamo": False, "arguments": arguments},
        check=(lambda: cacheable.check(gm, context, after_autograd=True)) if keep else None,
        store=store,
        tools=tools,
    )
    captured.frame = frame
    return captured


def _finish(
    *,
    level: str,
    label: str,
    encoded: graph_codec.EncodedGraph,
    values: list[Any],
    constraints: list[Any],
    layout: overlap.Layout,
    env: Any | None,
    context: Any | None,
    fakes: list[Any],
    lifted: list[torch.Tensor],
    origins: list[Any],
    request_fields: dict[str, Any],
    check: Callable[[], None] | None,
    store: str | None,
    tools: str | None,
) -> Captured:
    state = ambient.capture(before_autograd=level == AOT, tools=tools)
    modules, libraries, stays = needed(encoded.dependencies)
    code: program_code.ProgramCode | None = None
    sent: program_code.SentCode | None = None
    unproven: cacheable.Bypass | None = None
    try:
        code = program_code.of(encoded.dependencies, after_autograd=level == FX)
        state = state.with_variables(code.environment)
    except sources.UndigestableError as error:
        stays = CannotTravelError("code_unknown", error.what)
        unproven = cacheable.Bypass("source", error.what)
    else:
        try:
            configured = ambient.code_digests(state)
            sent = program_code.SentCode.of(code, encoded.dependencies, configured, after_autograd=level == FX)
        except sources.UndigestableError as error:
            stays = CannotTravelError("code_unknown", error.what)
            unproven = cacheable.Bypass("custom_pass_without_uuid", error.what)
    graph_bytes = key.canonical(encoded.description)
    input_bytes = key.canonical(values)
    shapes = _dump_shapes(env) if encoded.symbols and env is not None else None
    placement = placement_of(encoded, state.switches["default_device"], tools)
    request = CompileRequest(
        level=level,
        label=label,
        graph=graph_bytes,
        inputs=input_bytes,
        debug=encoded.debug,
        constants=encoded.constants,
        symbols=sorted(encoded.symbols),
        shapes=shapes,
        ambient=state,
        compile_id=tracing.dump_compile_id(),
        aot_id=0,
        modules=modules,
        libraries=libraries,
        code=sent,
        store=store,
        tools=tools,
        devices=placement.facts if not placement.needed else (),
        current_device=placement.current,
        visible=placement.visible() if placement.needed else None,
        timing=placement.names() if placement.indices else None,
        **request_fields,
    )
    captured = Captured(request, context, env, fakes, lifted, origins, layout, placement, stays=stays)
    try:
        if check is None:
            raise cacheable.Bypass("cache_off", "options said so, or there is no usable cache directory")
        check()
        if unproven is not None or code is None:
            raise unproven or cacheable.Bypass("source")
        try:
            parts = key_parts(
                level, encoded, code, graph_bytes, input_bytes, constraints, layout, env, state, placement, tools
            )
            portable = without_host(parts) if request.devices else parts
            made = request.key = key.GraphKey.of(portable)
        except (TypeError, ValueError) as error:
            raise cacheable.Bypass("configuration", str(error)) from error

        def texts() -> dict[str, str]:
            return {"graph": _readable_graph(encoded), "inputs": _readable_inputs(layout)}

        captured.describe = lambda: made.described(portable, texts())
        if portable is not parts:
            captured.describe_with_host = lambda: key.GraphKey.of(parts).described(parts, texts())
    except cacheable.Bypass as bypass:
        captured.bypass = bypass
    return captured


def _dump_shapes(env: Any) -> bytes:
    try:
        return shape_env.dump(env)
    except Exception as error:  # a source that names something unpicklable
        raise CannotTravelError("shapes", f"{type(error).__name__}: {error}") from error


def key_parts(
    level: str,
    encoded: graph_codec.EncodedGraph,
    code: program_code.ProgramCode,
    graph_bytes: bytes,
    input_bytes: bytes,
    constraints: list[Any],
    layout: overlap.Layout,
    env: Any | None,
    state: ambient.AmbientState,
    placement: Placement,
    tools: str | None,
) -> dict[str, Any]:
    """The components of a key, by name, as plain data or bytes.

    Raises:
        Bypass: a component has no form that is the same in every process.
    """
    ambient_part, configuration = ambient.key_parts(state)
    return {
        "graph": key.canonical([level, graph_bytes]),
        "inputs": key.canonical([input_bytes, [list(pair) for pair in layout], constraints]),
        "shapes": _shape_facts(env, encoded.symbols),
        "ambient": ambient_part,
        "configuration": configuration,
        "code": code.digests,
        "system": {
            **system.system_facts(tools),
            **system.device_facts(encoded.devices, named=bool(placement.facts)),
            **placement.key_part(),
        },
        "toolchain": toolchain.key_facts(tools),
    }


def without_host(parts: dict[str, Any]) -> dict[str, Any]:
    """The components of a key for code that runs on GPUs only: without what shapes C++."""
    return {
        **parts,
        "ambient": {name: value for name, value in parts["ambient"].items() if name not in switches.OF_CPU},
        "system": {name: value for name, value in parts["system"].items() if name not in system.OF_CPU},
        "toolchain": {},
    }


def _shape_facts(env: Any | None, symbols: set[str]) -> list[Any]:
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


def _readable_graph(encoded: graph_codec.EncodedGraph) -> str:
    nodes = encoded.description[1]
    lines = [f"{len(nodes)} nodes"]
    for op, name, target, *_ in nodes:
        shown = target if isinstance(target, str) else ".".join(map(str, target[1:]))
        lines.append(f"{name} = {op} {shown}")
    return "\n".join(lines)


def _readable_inputs(layout: overlap.Layout) -> str:
    return f"overlapping inputs: {[list(pair[:2]) for pair in layout]}" if layout else "no overlapping inputs"


def needed(dependencies: Mapping[str, Any]) -> tuple[list[str], list[str], CannotTravelError | None]:
    """Modules to import and libraries to load before a graph can be rebuilt elsewhere; and why it can't be, if so."""
    modules: set[str] = set()
    compiled: set[str] = set()
    for name, target in dependencies.items():
        if name.startswith("kernel:"):
            modules.add(name.split(":")[1])
            continue
        if not name.startswith("operator:"):
            modules.add(graph_codec.name_of(target)[0])
            continue
        try:
            registration = registrations.registration(target)
        except registrations.NotFoundError as error:
            return [], [], CannotTravelError("operator_of_unknown_source", str(error))
        compiled.update(registration.libraries)
        for path in registration.files:
            module = registrations.module_of_file(path)
            if module is None:
                return [], [], CannotTravelError("operator_in_main", f"{registration.name} is registered in {path}")
            modules.add(module)
        if not registration.files and not registration.libraries:
            return [], [], CannotTravelError("operator_of_unknown_source", registration.name)
    return sorted(modules), sorted(compiled), None
