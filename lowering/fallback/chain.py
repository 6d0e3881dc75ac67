"""The ladder of one graph: where it is compiled, and what happens when that does not work.

    1  the graph as Dynamo made it    a worker runs AOTAutograd and Inductor      level "aot"
    2  the graphs AOTAutograd makes   a worker runs Inductor on each of them      level "fx"
    3  this process                   as if fxpool were not there

Each rung goes through the same guarded cache. A graph that killed workers leaves the ladder: it
runs eagerly. Errors of the user's own (a graph that Inductor can't compile) come out of the last
rung as they always did, with the worker's error as their context.

What only a miss needs is imported on the way down: a hit's 0.05 s should not grow by half of that.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fxpool import config, statistics
from fxpool.codecache import toolchain
from fxpool.codecache.store import LocalStore
from fxpool.errors import CannotReturnError, CannotTravelError, PoolError, PoolUnavailableError, ServerLostError
from fxpool.lowering.artifact import effects, load, lookup
from fxpool.lowering.artifact.entry_parts import (
    COMPILER_CHANGED,
    Parts,
    Reference,
    decode_answer,
    parts_of_artifact,
    parts_of_entry,
)
from fxpool.lowering.core import runtime
from fxpool.lowering.core.attempt import FINAL, Attempt
from fxpool.lowering.core.options import Options
from fxpool.lowering.fallback import eager, failed_levels
from fxpool.lowering.fallback.eager import DEADLY, run_eagerly
from fxpool.lowering.request import capture
from fxpool.lowering.request.capture import Captured
from fxpool.lowering.request.compile_request import BACKGROUND, CODE_DIFFERS, COMPILE_JOB, PREPARE_JOB, CompileRequest
from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.inductor import aot
from fxpool.torch_compat.state import configs
from fxpool.watch import events

if TYPE_CHECKING:
    from fxpool.lowering.background.compiles import Stage
    from fxpool.torch_compat.cuda.padding import Question

log = logging.getLogger("fxpool.lowering")

# How many servers a graph may lose before it is compiled here.
_SERVERS = 3
# How often a compile may come back with something that takes a device: once, unless sizes change what is asked.
_MEASURINGS = 4
# How the names of Inductor's options begin that go into a C++ compiler's command.
_OF_CPP = ("cpp", "aot")


@contextlib.contextmanager
def options_in_force(wanted: Options) -> Iterator[None]:
    with configs.patched(wanted.inductor):
        yield


def descend(gm: Any, inputs: Sequence[Any], attempt: Attempt) -> Callable[..., Any]:
    """The callable for one Dynamo graph, from the first rung that holds."""
    cause: BaseException | None = None
    try:
        return _direct(gm, inputs, attempt)
    except CannotTravelError as error:
        attempt.step_down(error.reason, error)
    except CannotReturnError as error:
        attempt.step_down(f"return:{error.reason}", error)
    except DEADLY as error:
        return run_eagerly(gm.forward, attempt, error)
    except PoolError as error:
        return _without_pool(gm, inputs, attempt, error)
    except tracing.control_flow_errors():
        raise
    except FINAL:
        raise
    except Exception as error:  # AOTAutograd's or Inductor's own: the rungs below decide what it means
        attempt.step_down(f"compile_error:{type(error).__name__}", error)
        cause = error
    from fxpool.lowering.fallback import aot_graphs

    try:
        attempt.level = "fx"
        found = aot_graphs.compile_each(gm, inputs, attempt, compile_captured)
        if cause is not None:  # it was that level's failure, and none of the graph's own
            failed_levels.remember(attempt, cause)
        return found
    except CannotTravelError as error:
        attempt.step_down(error.reason, error)
        return in_process(gm, inputs, attempt, cause or error)
    except DEADLY as error:
        return run_eagerly(gm.forward, attempt, error)
    except PoolError as error:
        return _without_pool(gm, inputs, attempt, error)


def _direct(gm: Any, inputs: Sequence[Any], attempt: Attempt) -> Callable[..., Any]:
    """Rung 1."""
    store = runtime.store() if attempt.wanted.cache else None

    def captured() -> Captured:
        return capture.capture(
            gm,
            inputs,
            label=attempt.label,
            store=store.root if store is not None else None,
            tools=runtime.tools_directory(store),
            keep=bool(runtime.stores(cache=attempt.wanted.cache)),
        )

    def loader(made: Captured) -> Callable[[Parts], Callable[..., Any]]:
        def loaded(parts: Parts) -> Callable[..., Any]:
            with attempt.timed("load"):
                return load.load_aot(parts, made, gm.forward)

        return loaded

    here = attempt.wanted.mode != "subprocess" or config.current().pool == "off"
    if here or not (attempt.wanted.asynchronous or attempt.wanted.stages):
        with attempt.timed("capture"):
            only = captured()
        if attempt.wanted.mode == "normal":
            return _here(gm, inputs, only, attempt, loader(only))
    else:
        from fxpool.lowering.background import stages

        with attempt.timed("capture"):
            found = stages.of_call(attempt, captured, store)
        only = found[0].captured
        if only.stays is None:
            return _by_stages(gm, found, attempt, store, loader)
    try:
        return compile_captured(only, attempt, loader(only))
    except CannotTravelError as error:
        # A worker's code is not the program's. Here it is, and what is made of it is kept under its key.
        if only.key is None or not _is_of_code(error, only):
            raise
        attempt.step_down(error.reason, error)
    except PoolUnavailableError as error:
        # The next process may be refused its workers as well: what is compiled here is kept for it.
        if only.key is None:
            raise
        attempt.step_down(runtime.counted_as(error), error)
        runtime.say_without_pool(error)
    return _here(gm, inputs, only, attempt, loader(only), looked=True)


def _by_stages(
    gm: Any,
    stages: Sequence[Stage],
    attempt: Attempt,
    store: LocalStore | None,
    loader: Callable[[Captured], Callable[[Parts], Any]],
) -> Callable[..., Any]:
    """The best stage that is there; the better ones, or all of them, are compiled in the background."""
    from fxpool.lowering.background import compiles

    served, at = None, len(stages)
    with attempt.timed("lookup"):
        while served is None and at:
            at -= 1
            served = _served(stages[at].captured, attempt, loader(stages[at].captured), misses=at == 0)
    attempt.stage = stages[at].number
    if served is None:
        eager.check(store, attempt.key, attempt.label)
        if attempt.wanted.asynchronous:
            at = -1
        else:
            first = stages[0].captured
            _to_be_compiled(first)
            served = _in_worker(first, attempt, store, loader(first))
    rest = stages[at + 1 :]
    if not rest:
        assert served is not None
        return served  # type: ignore[no-any-return]
    for stage in rest:
        _to_be_compiled(stage.captured)
    if served is not None:
        attempt.tell()

    def compile_it(stage: Stage, later: Attempt, loaded: Callable[[Parts], Any]) -> Any:
        if stage.captured.key is not None:
            later.key = stage.captured.key.digest
            eager.check(store, later.key, later.label)
        return _in_worker(stage.captured, later, store, loaded)

    def find_it(stage: Stage, later: Attempt, loaded: Callable[[Parts], Any]) -> Any | None:
        return _served(stage.captured, later, loaded, misses=False)

    return compiles.begin(gm, rest, attempt, compiles.Compile(compile_it, find_it), served)


def _to_be_compiled(captured: Captured) -> None:
    captured.to_be_compiled()
    if captured.placement.needed:
        statistics.count("fallbacks", f"device_needed:{captured.placement.needed}")
    captured.request.aot_id = tracing.next_aot_id() if captured.request.level == "aot" else 0


def compile_captured(captured: Captured, attempt: Attempt, loaded: Callable[[Parts], Any]) -> Any:
    """Serve a captured graph from the store, or have it compiled and load that. Either level."""
    store = runtime.store() if attempt.wanted.cache else None
    with attempt.timed("lookup"):
        served = _served(captured, attempt, loaded)
    if served is not None:
        return served
    eager.check(store, attempt.key, attempt.label)
    _to_be_compiled(captured)
    if attempt.wanted.mode == "subprocess" and config.current().pool != "off":
        return _in_worker(captured, attempt, store, loaded)
    with attempt.timed("compile"):
        parts = _serialized(captured, attempt, store)
    return loaded(parts)


def _served(captured: Captured, attempt: Attempt, loaded: Callable[[Parts], Any], *, misses: bool = True) -> Any | None:
    if captured.key is None:
        if misses:
            attempt.bypass(captured.bypass.reason if captured.bypass is not None else "unknown")
        return None
    attempt.key = captured.key.digest
    served = lookup.serve(captured, runtime.stores(cache=attempt.wanted.cache), loaded, misses=misses)
    if served is not None:
        attempt.how = "hit"
    return served


def _is_of_code(error: CannotTravelError, captured: Captured) -> bool:
    return error is captured.stays or error.reason in (CODE_DIFFERS, "code_not_importable")


# Pieces of code, with their digests, that workers of this process's were found to have otherwise.
_differing: set[tuple[str, str]] = set()


def _refuse_other_code(captured: Captured) -> None:
    """Raises CannotTravelError if a worker can't have the program's code, or is known not to have it."""
    if captured.stays is not None:
        raise captured.stays
    code = captured.request.code
    for name in _differing.intersection(code.digests.items() if code is not None else ()):
        raise CannotTravelError(CODE_DIFFERS, name[0])


def _remember_other_code(captured: Captured, error: CannotTravelError) -> None:
    code = captured.request.code
    if error.reason == CODE_DIFFERS and code is not None and error.detail in code.digests:
        _differing.add((error.detail, code.digests[error.detail]))


def _in_worker(captured: Captured, attempt: Attempt, store: LocalStore | None, loaded: Callable[[Parts], Any]) -> Any:
    _refuse_other_code(captured)
    failed_levels.refuse(captured, store)
    flights = [""]
    if captured.key is not None and store is not None:
        # Somebody may be compiling the same now. What comes of it may have guards that do not hold here: then once
        # more, for these sizes only.
        sizes = hashlib.sha256(repr(sorted(captured.values().items())).encode()).hexdigest()
        flights = [captured.key.digest, f"{captured.key.digest} {sizes}", ""]
    for flight in flights:
        found = _once(captured, attempt, store, flight, loaded)
        if found is not None:
            return found
        if flight != flights[0]:
            captured.request.store = None  # evicted, cleared or damaged before we came: carried inline
    raise PoolUnavailableError(f"the worker of {attempt.label} sent no result")


def _once(
    captured: Captured, attempt: Attempt, store: LocalStore | None, flight: str, loaded: Callable[[Parts], Any]
) -> Any | None:
    """What one job comes to. None if its result is gone, or was made for somebody else and does not fit this call."""
    request = captured.request
    for _ in range(_MEASURINGS):
        with attempt.timed("compile"):
            try:
                data, joined = _submit(request, attempt, flight)
            except DEADLY as error:
                eager.add(store, attempt.key, attempt.label, error)
                raise
            except CannotTravelError as error:
                _remember_other_code(captured, error)
                raise
            except CannotReturnError as error:
                failed_levels.remember(attempt, error)
                raise
        answer = decode_answer(data)
        if answer.questions:
            with attempt.timed("measure"):
                _measure(captured, answer.questions)
        elif answer.unanswered:
            _let_see(captured, answer.unanswered)
        else:
            eager.passed(store, attempt.key)
            break
    made = answer.reference or answer.artifact
    if made is None:
        return None
    others = joined or (answer.reference is not None and answer.reference.found)
    attempt.how = "joined" if others else "worker"
    if not others:
        statistics.count("compiles", "worker")
        for phase, seconds in made.phases.items():
            attempt.spent(f"worker_{phase}", seconds)
        if made.guessed:
            statistics.count("fallbacks", "templates_not_timed")
    if made.unprepared:
        _prepare(request, request.dump(), _place(request))
    if answer.artifact is not None:
        if others and not effects.guards_hold(answer.artifact.guards, captured.values()):
            return None
        if answer.artifact.unkept and captured.key is not None and request.store is not None:
            changed = answer.artifact.unkept == COMPILER_CHANGED
            attempt.bypass("compiler_changed" if changed else "store_write_failed")
            if changed:
                runtime.say_compiler_changed()
            else:
                runtime.say_not_kept(answer.artifact.unkept)
        found = loaded(parts_of_artifact(answer.artifact))
    else:
        assert answer.reference is not None
        found = _referred(answer.reference, captured, store, loaded, others)
    if found is not None and others:
        statistics.count("joined")
    return found


def _measure(captured: Captured, questions: Sequence[Question]) -> None:
    """Answer what lowering asks a clock for, for the next try."""
    from fxpool.lowering.cuda import benchmark_cache

    facts, index = captured.placement.facts[0], captured.placement.indices[0]
    captured.request.measured += benchmark_cache.measure(questions, facts, index, captured.request.tools)


def _let_see(captured: Captured, asked: str) -> None:
    """Let the next worker see the devices."""
    log.warning("%s is compiled by a worker that sees its devices: one was asked %s", captured.request.label, asked)
    statistics.count("fallbacks", "device_needed:unanswered")
    captured.request.devices, captured.request.visible = (), captured.placement.visible()


def _referred(
    reference: Reference, captured: Captured, store: LocalStore | None, loaded: Callable[[Parts], Any], others: bool
) -> Any | None:
    if store is None:
        return None
    if not others:
        statistics.count("entries_written")
    entry = lookup.published(reference, store)
    if entry is None:
        return None
    if not others:
        return loaded(parts_of_entry(entry, store))
    if not effects.guards_hold(entry.guards, captured.values()):
        return None
    found = lookup.load_entry(entry, store, loaded)
    if found is None:
        captured.request.unfit.append(entry.name)
    return found


def _place(request: CompileRequest) -> dict[str, Any]:
    environment = (request.ambient.elsewhere() if request.devices else request.ambient).environment
    if request.visible is not None:
        environment = {**environment, "CUDA_VISIBLE_DEVICES": request.visible}
    return {
        "environment": runtime.job_environment(environment),
        "sys_path": runtime.import_path(),
        "cwd": runtime.working_directory(),
    }


def _submit(request: CompileRequest, attempt: Attempt, flight: str) -> tuple[bytes, bool]:
    """(the worker's answer, whether it is an answer to somebody who asked for the same before).

    A server that is lost meanwhile is not the graph's fault: another is asked.
    """
    payload = request.dump()
    for _ in range(_SERVERS - 1):
        try:
            return _asked(request, payload, attempt, flight)
        except ServerLostError as error:
            log.warning("%s is asked for again: %s", attempt.label, error)
    return _asked(request, payload, attempt, flight)


def _asked(request: CompileRequest, payload: bytes, attempt: Attempt, flight: str) -> tuple[bytes, bool]:
    from fxpool.lowering.cpp import host_facts

    bounds = runtime.bounds()
    pool = runtime.pool()
    follow = None
    if events.listening():
        from fxpool.lowering.core.job_progress import Following

        follow = Following(attempt.label, attempt.stage, pool)
    job = pool.submit(
        COMPILE_JOB,
        payload,
        label=attempt.label,
        flight=flight,
        priority=attempt.priority,
        on_step=follow,
        **bounds,
        **_place(request),
    )
    if attempt.submitted is not None:
        attempt.submitted(job)
    if request.tools is not None and not host_facts.are_kept(request.tools):
        _prepare(request, payload, _place(request))
    return job.result(), job.joined


def _prepare(request: CompileRequest, payload: bytes, place: dict[str, Any]) -> None:
    """Have this host's tool chain asked what it can do and the header precompiled, once per process.

    In a worker of its own, in time to spare: for the processes that come later, and nobody waits for it. Those that
    come while it is being done ask for the same.
    """
    if request.tools is None or not runtime.first_of_host(request.tools):
        return
    flags = {name: value for name, value in request.ambient.configuration["inductor"].items() if name[:3] in _OF_CPP}
    wanted = repr((request.tools, sorted(toolchain.toolchain_facts(request.tools).items()), sorted(flags.items())))
    runtime.pool().submit(
        PREPARE_JOB,
        payload,
        label="this host's tool chain",
        retries=0,
        priority=BACKGROUND,
        flight=f"host {hashlib.sha256(wanted.encode()).hexdigest()}",
        spare=True,
        **place,
    )


def _serialized(captured: Captured, attempt: Attempt, store: Any | None) -> Parts:
    """Mode ``serialize`` (and a pool that is off): the worker's way, through bytes, in this process."""
    from fxpool.lowering.worker import compiler as compiling

    request = CompileRequest.load(captured.request.dump())
    with compiling.local_kernels() as (submit, units):
        artifact = compiling.compile_request(request, submit, units)
    statistics.count("compiles", "in_process")
    attempt.how = "in_process"
    compiling.publish_if_kept(artifact, request, store, attempt.bypass)
    return parts_of_artifact(artifact)


def _here(
    gm: Any,
    inputs: Sequence[Any],
    captured: Captured,
    attempt: Attempt,
    loaded: Callable[[Parts], Any],
    *,
    looked: bool = False,
) -> Callable[..., Any]:
    """Mode ``normal``: the graph itself is compiled in this process, and kept if it may be.

    `looked`: it was looked for in the store.
    """
    store = runtime.store() if attempt.wanted.cache else None
    served = _served(captured, attempt, loaded) if not looked else None
    if served is not None:
        return served
    eager.check(store, attempt.key, attempt.label)
    from fxpool.lowering.worker import compiler as compiling

    captured.to_be_compiled()
    with compiling.local_kernels() as (submit, units):
        artifact = compiling.compile_live(captured, aot.copy_of(gm), inputs, submit, units)
    statistics.count("compiles", "in_process")
    attempt.how = "in_process"
    compiling.publish_if_kept(artifact, captured.request, store, attempt.bypass)
    return loaded(parts_of_artifact(artifact))


def in_process(gm: Any, inputs: Sequence[Any], attempt: Attempt, cause: BaseException | None) -> Callable[..., Any]:
    """Rung 3: what ``backend="inductor"`` does."""
    attempt.level, attempt.how = "in_process", "in_process"
    statistics.count("compiles", "in_process")
    try:
        tools = runtime.tools_directory(runtime.store() if attempt.wanted.cache else None)
        with toolchain.failures_explained(tools):
            toolchain.settle(tools)
            compiled = aot.compile_graph(gm, inputs, keep_result=False)
    except Exception as error:
        if cause is not None and type(cause) is type(error):
            raise cause from None  # the worker's, with the worker's frames
        raise error from cause
    assert compiled.callable is not None
    return compiled.callable


def _without_pool(gm: Any, inputs: Sequence[Any], attempt: Attempt, error: PoolError) -> Callable[..., Any]:
    attempt.step_down(runtime.counted_as(error), error)
    runtime.say_without_pool(error)
    return in_process(gm, inputs, attempt, error)
