"""The fallback chain of one graph: the levels at which it can be compiled, in order.

    level "aot"           the graph as Dynamo made it    a worker runs AOTAutograd and Inductor
    level "fx"            the graphs AOTAutograd makes   a worker runs Inductor on each of them
    level "in_process"    this process                   as if fxpool were not used

Each level goes through the same guarded cache. A graph that killed workers leaves the chain and runs eagerly. The
user's own errors (a graph that Inductor cannot compile) are raised by the last level as without fxpool, with the
worker's error as their context.

Modules that only a miss needs are imported inside the functions that use them: they would add half to the 0.05 s of a
hit.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from fxpool import config, counters, failures, interruptions, notices
from fxpool.codecache.key import cacheable, toolchain
from fxpool.errors import (
    CannotReturnError,
    CannotTravelError,
    NotKeptError,
    PoolError,
    PoolUnavailableError,
    RecordedError,
)
from fxpool.lowering.artifact import load, lookup, sharing
from fxpool.lowering.artifact.entry_parts import Load, Parts, parts_of_artifact
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.core.options import Options
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.fallback import eager, failed_levels, recording, unimportable
from fxpool.lowering.fallback.eager import RUNS_EAGERLY, run_eagerly
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured import Captured
from fxpool.lowering.request.compile_request import AOT, CODE_DIFFERS, CompileRequest
from fxpool.torch_compat.dynamo import compile_times, standalone, torch_counters, tracing
from fxpool.torch_compat.inductor import aot
from fxpool.torch_compat.state import configs

if TYPE_CHECKING:
    import torch

    from fxpool.codecache.store.entry import Entry
    from fxpool.codecache.store.store import LocalStore
    from fxpool.lowering.background.compiles import Stage

__all__ = ["compile_captured", "compile_with_fallback", "complete", "options_in_force", "serve"]

log = notices.logger(__name__)

Call = Callable[..., Any]


class CutGraph(Protocol):
    """A graph in pieces: `regions.compile_pieces.InPieces`, which is above this module."""

    def now(self) -> Call: ...

    def found(self) -> Call | None: ...

    def later(self, attempt: Attempt) -> tuple[Call, list[Any]]: ...


#: Cuts a graph (with its inputs, for an attempt); None if it stays whole.
Cutter = Callable[["torch.fx.GraphModule", Sequence[Any], Attempt], "CutGraph | None"]


@contextlib.contextmanager
def options_in_force(options: Options) -> Iterator[None]:
    """Apply a call's options for Inductor inside the ``with`` block."""
    with configs.patched(options.inductor):
        yield


def compile_with_fallback(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    attempt: Attempt,
    begun: Callable[[], Any] | None = None,
    *,
    in_pieces: Cutter | None = None,
) -> Any:
    """Return the callable for one Dynamo graph, from the first level that works.

    `inputs` are the graph's, fake or real. `begun` waits for the first level's result, if the caller has already
    started that level; the result is returned unchanged. `in_pieces` cuts the graph if pieces are wanted. Raises what
    compiling in this process raises, and `attempt`'s errors under ``strict``.
    """
    cause: BaseException | None = None
    try:
        return begun() if begun is not None else _as_dynamo_made_it(gm, inputs, attempt, in_pieces)
    except CannotTravelError as error:
        attempt.step_down(error.reason, error)
    except CannotReturnError as error:
        attempt.step_down(f"return:{error.reason}", error)
        if failed_levels.compiles_nowhere(error):
            return _in_process(gm, inputs, attempt, None)
    except RUNS_EAGERLY as error:
        return run_eagerly(gm.forward, attempt, error)
    except PoolError as error:
        return _without_pool(gm, inputs, attempt, error)
    except tracing.control_flow_errors():
        raise
    except Exception as error:  # if it is AOTAutograd's or Inductor's, the levels below decide if it is the user's
        cause = error
        if attempt.failed(error) == "home":
            return _in_process(gm, inputs, attempt, cause)
    if standalone.is_bundle_requested():  # AOTAutograd has to bundle Inductor's output in this process
        return _in_process(gm, inputs, attempt, cause)
    from fxpool.lowering.fallback import aot_graphs  # a hit saves 0.01 s

    try:
        attempt.level = "fx"
        call = aot_graphs.compile_each(gm, inputs, attempt, compile_captured, at_home=cause is not None)
        attempt.outcome = Outcome.PARTS
        if cause is not None:  # the level failed, not the graph
            failed_levels.remember(attempt, cause)
        return call
    except CannotTravelError as error:
        attempt.step_down(error.reason, error)
        return _in_process(gm, inputs, attempt, cause or error)
    except RUNS_EAGERLY as error:
        return run_eagerly(gm.forward, attempt, error)
    except PoolError as error:
        return _without_pool(gm, inputs, attempt, error)
    except tracing.control_flow_errors():
        raise
    except Exception as error:
        interruptions.pass_on(error)
        if cause is None:
            raise
        if failures.of(error) is failures.Kind.GRAPH:  # not if this host has no compiler, or no memory at the moment
            failed_levels.remember(attempt, cause, nowhere=True)
        _raise(error, cause)


# ---------------------------------------------------------------- level "aot"


def _as_dynamo_made_it(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt, in_pieces: Cutter | None = None
) -> Call:
    into = attempt.destination()

    def captured() -> Captured:
        made = capture.capture(gm, inputs, label=attempt.label, into=into)
        _require_kept(made, attempt)
        return made

    def loader(made: Captured) -> Load:
        def load_parts(parts: Parts) -> Call:
            with attempt.timed("load"):
                call = load.load_aot(parts, made, gm.forward)
                return _written_by_dynamo(gm, call, parts, made) if written else call

        return load_parts

    written = standalone.is_bundle_requested()
    if written:  # Dynamo writes a file: it needs the whole graph, compiled when this returns
        in_pieces = None
    here = written or attempt.options.mode != "subprocess" or config.current().pool == "off"
    if here or not (attempt.options.asynchronous or attempt.options.stages):
        cut = in_pieces(gm, inputs, attempt) if in_pieces is not None else None
        served = _now(cut, attempt) if cut is not None else None
        if served is not None:
            return served
        with attempt.timed("capture"):
            only = captured()
        if attempt.options.mode == "normal":
            return _keeping(gm, inputs, only, attempt, loader(only))
        if only.bypass is not None and only.bypass.reason in cacheable.OF_DYNAMOS_GRAPH:
            # The whole graph cannot be cached; the graphs that AOTAutograd makes of it can.
            if only.bypass.reason not in cacheable.SWITCHED_OFF:
                torch_counters.bypass_before_autograd(only.bypass.reason)
            raise CannotTravelError(only.bypass.reason, only.bypass.detail)
    else:
        from fxpool.lowering.background import stages  # threads and swaps, which plain modes do not need

        with attempt.timed("capture"):
            call_stages = stages.of_call(attempt, captured, attempt.store())
        if recording.is_on():
            _record_all(call_stages, attempt)
        only = call_stages[0].captured
        if only.stays is None:
            cutter = functools.partial(in_pieces, gm, inputs, attempt) if in_pieces is not None else None
            return _by_stages(gm, call_stages, attempt, loader, cutter)
    try:
        return compile_captured(only, attempt, loader(only))
    except CannotTravelError as error:
        # The worker has other code than the program. This process compiles with the right code, and caches the result.
        if only.key is None or not _is_of_code(error, only):
            raise
        attempt.step_down(error.reason, error)
    except PoolUnavailableError as error:
        # The next process may find no workers either: the result of compiling here is cached for it.
        if only.key is None:
            raise
        attempt.step_down(switched_off.counted_as(error), error)
        switched_off.say_without_pool(error)
    return _keeping(gm, inputs, only, attempt, loader(only), looked_up=True)


def _record_all(stages: Sequence[Stage], attempt: Attempt) -> NoReturn:
    """Record the graph under the options of each stage; see `recording.record`."""
    for stage in stages:
        complete(stage.captured)
        with contextlib.suppress(RecordedError):
            recording.record(stage.captured, attempt)
    raise RecordedError(attempt.label)


def _written_by_dynamo(gm: torch.fx.GraphModule, call: Call, parts: Parts, captured: Captured) -> Call:
    """Let Dynamo write `call` into a file, unless it has its own parameters: the file would not contain them."""
    from fxpool.lowering.artifact import portable  # only for programs that write such files

    if captured.lifted:
        return call
    return standalone.give_precompile_bundle(gm, call, functools.partial(portable.bundle, parts, captured))


def _now(cut: CutGraph, attempt: Attempt) -> Call | None:
    """Return the callable for a graph in pieces; None if a piece fails, as the whole graph may still compile."""
    try:
        return cut.now()
    except tracing.control_flow_errors():
        raise
    except Exception as error:
        attempt.failed(error, "pieces:{}")
        return None


def _is_of_code(error: CannotTravelError, captured: Captured) -> bool:
    return error is captured.stays or error.reason in (CODE_DIFFERS, unimportable.REASON)


def _by_stages(
    gm: torch.fx.GraphModule,
    stages: Sequence[Stage],
    attempt: Attempt,
    loader: Callable[[Captured], Load],
    in_pieces: Callable[[], CutGraph | None] | None,
) -> Call:
    """Return the best stage in the cache; better stages, or all of them, are compiled in the background.

    If no stage is in the cache and the graph can be cut, its pieces come before the first stage.
    """
    # As in `_as_dynamo_made_it` and `compile_captured`.
    from fxpool.lowering.background import compiles
    from fxpool.lowering.fallback import remote

    store = attempt.store()
    served, at = None, len(stages)
    with attempt.timed("lookup"):
        while served is None and at:
            at -= 1
            # An asynchronous call waits for neither a compile nor the remote: the background thread looks there.
            shared = not attempt.options.asynchronous
            load_stage = loader(stages[at].captured)
            served = serve(stages[at].captured, attempt, load_stage, count_misses=at == 0, shared=shared)
    attempt.stage = stages[at].number
    cut: CutGraph | None = None
    if served is None:
        eager.check(store, attempt.key, attempt.label)
        if in_pieces is not None:
            cut = in_pieces()
        if cut is not None:
            served = cut.found() if attempt.options.asynchronous else _now(cut, attempt)
        if served is not None:
            cut = None
            at, attempt.stage = -1, compiles.PIECES
        elif attempt.options.asynchronous:
            at = -1
        else:
            cut = None
            first = stages[0].captured
            complete(first)
            served = remote.compile_in_worker(first, attempt, store, loader(first))
    rest = stages[at + 1 :]
    if not rest:
        assert served is not None
        return served
    for stage in rest:
        complete(stage.captured)
    if served is not None:
        attempt.report()

    def compile_stage(stage: Stage, later: Attempt, load_parts: Load) -> Any:
        if stage.captured.key is not None:
            later.key = stage.captured.key.digest
            eager.check(store, later.key, later.label)
        if attempt.options.asynchronous and sharing.address(say=False) is not None:
            found = find_stage(stage, later, load_parts)
            if found is not None:
                return found
        return remote.compile_in_worker(stage.captured, later, store, load_parts)

    def find_stage(stage: Stage, later: Attempt, load_parts: Load) -> Any | None:
        return serve(stage.captured, later, load_parts, count_misses=False)

    compiler = compiles.StageCompiler(compile_stage, find_stage, cut.later if cut is not None else None)
    return compiles.begin(gm, rest, attempt, compiler, served)


# ---------------------------------------------------------------- levels "aot" and "fx"


def compile_captured(captured: Captured, attempt: Attempt, load_parts: Load) -> Any:
    """Serve a captured graph from a store, or compile it; return the result of `load_parts`."""
    store = attempt.store()
    with attempt.timed("lookup"):
        served = serve(captured, attempt, load_parts)
    if served is not None:
        return served
    eager.check(store, attempt.key, attempt.label)
    complete(captured)
    if recording.is_on() or (attempt.options.mode == "subprocess" and config.current().pool != "off"):
        from fxpool.lowering.fallback import remote  # with the pool's client: only a miss needs it

        return remote.compile_in_worker(captured, attempt, store, load_parts)
    with attempt.timed("compile"):
        parts = _through_bytes(captured, attempt)
    with compile_times.compiled_here():
        return load_parts(parts)


def serve(
    captured: Captured, attempt: Attempt, load_parts: Load, *, count_misses: bool = True, shared: bool = True
) -> Any | None:
    """Return the result of `load_parts` for the entry that fits this call; None is a miss.

    With `shared` false, the remote cache is skipped, because the call must not wait for it.
    """
    place = sharing.address()
    if captured.key is None:
        if count_misses:
            reason = captured.bypass.reason if captured.bypass is not None else "unknown"
            attempt.bypass(reason, captured.bypass.detail if captured.bypass is not None else "")
            if reason not in cacheable.SWITCHED_OFF:
                before = captured.request.level == AOT
                torch_counters.bypass(before_autograd=before, inputs=captured.fakes, reason=reason)
        return None
    attempt.key = captured.key.digest
    if recording.is_on():
        return None  # it is recorded even if it has been compiled before
    own = attempt.store()

    def from_remote() -> tuple[LocalStore, Entry] | None:
        if own is None or place is None:
            return None
        entry = sharing.fetch(captured, own, place)
        return None if entry is None else (own, entry)

    ask = from_remote if shared and place is not None else None
    served = lookup.serve(captured, attempt.stores(), load_parts, misses=count_misses, elsewhere=ask)
    if served is not None:
        attempt.outcome = Outcome.HIT
    return served


def _require_kept(captured: Captured, attempt: Attempt) -> None:
    """Raise NotKeptError for a graph that cannot be cached, if the program asks for that error."""
    bypass = captured.bypass
    if bypass is None or bypass.reason in cacheable.SWITCHED_OFF:
        return
    if attempt.options.strict or configs.must_be_kept():
        raise NotKeptError(bypass.reason, bypass.detail)


def complete(captured: Captured) -> None:
    """Fill in the data that only a compile needs; count the reason if the worker has to see a device."""
    captured.complete()
    if captured.placement.needed:
        counters.count("fallbacks", f"device_needed:{captured.placement.needed}")


# ---------------------------------------------------------------- in this process


def _through_bytes(captured: Captured, attempt: Attempt) -> Parts:
    """Mode ``serialize`` (and a disabled pool): compile as a worker does, through bytes, in this process."""
    # Inductor's compiler takes seconds to import, and a hit does not need it.
    from fxpool.lowering.artifact import publishing
    from fxpool.lowering.worker import compiler

    request = CompileRequest.load(captured.request.dump())
    with interruptions.let_through(), compiler.local_kernels() as kernels:
        artifact = compiler.compile_request(request, kernels)
    counters.count("compiles", "in_process")
    attempt.outcome = Outcome.IN_PROCESS
    publishing.publish_if_kept(artifact, request, attempt.store(), attempt.bypass)
    return parts_of_artifact(artifact)


def _keeping(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    captured: Captured,
    attempt: Attempt,
    load_parts: Load,
    *,
    looked_up: bool = False,
) -> Call:
    """Mode ``normal``: compile the graph itself in this process, and cache it if possible.

    `looked_up`: the graph has been looked up, and is not in the store.
    """
    served = serve(captured, attempt, load_parts) if not looked_up else None
    if served is not None:
        return served
    eager.check(attempt.store(), attempt.key, attempt.label)
    # As in `_through_bytes`.
    from fxpool.lowering.artifact import publishing
    from fxpool.lowering.worker import compiler

    captured.complete()
    with attempt.timed("compile"), interruptions.let_through(), compiler.local_kernels() as kernels:
        artifact = compiler.compile_live(captured, aot.copy_of(gm), inputs, kernels)
    counters.count("compiles", "in_process")
    attempt.outcome = Outcome.IN_PROCESS
    if not captured.groups:  # otherwise the code contains this process's group names
        publishing.publish_if_kept(artifact, captured.request, attempt.store(), attempt.bypass)
    with compile_times.compiled_here():
        return load_parts(parts_of_artifact(artifact))


def _in_process(gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt, cause: BaseException | None) -> Call:
    """The last level: compile as ``backend="inductor"`` does."""
    attempt.level, attempt.outcome = "in_process", Outcome.IN_PROCESS
    counters.count("compiles", "in_process")
    try:
        with (
            attempt.timed("compile"),
            toolchain.of_stock(runtime.toolchain_directory(attempt.store())),
            interruptions.let_through(),
        ):
            with configs.without_torchs_caches() if attempt.has_own_code else contextlib.nullcontext():
                compiled = aot.compile_graph(gm, inputs, keep_result=False)
    except Exception as error:
        _raise(error, cause)
    assert compiled.callable is not None
    return compiled.callable


def _raise(error: Exception, cause: BaseException | None) -> NoReturn:
    """Raise what compiling here raised; if it is of the class of the worker's error, that one, with its frames."""
    if cause is not None and type(cause) is type(error):
        raise cause from None
    raise error from cause


def _without_pool(gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt, error: PoolError) -> Call:
    attempt.step_down(switched_off.counted_as(error), error)
    switched_off.say_without_pool(error)
    return _in_process(gm, inputs, attempt, error)
