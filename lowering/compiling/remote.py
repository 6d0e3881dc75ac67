"""The compile of one captured graph by a worker: submit the job, answer its queries, yield results to load.

    submit ──▶ worker ──▶ an entry in the store         loaded from there
                      ├─▶ the result inline             if it may not be cached, or could not be written
                      ├─▶ queries for a device          timed here while the worker waits (`on_ask`); if it cannot
                      │                                 ask, timed here, and submitted again with the answers
                      ├─▶ a device that it has to see   submitted again with the devices visible
                      └─▶ a farm's result               authenticated, and published here (`farm`)

Several processes may want the same graph. They share one compile (single-flight), and its guards may not hold for all
of them. Those processes submit a job again, for their own sizes.

Only a miss imports this module, with the pool's client: 0.05 s.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from fxpool import config, counters, notices
from fxpool.codecache.key import toolchain
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import FRESH
from fxpool.errors import (
    CannotReturnError,
    CannotTravelError,
    CorruptEntryError,
    NotAuthenticError,
    ServerLostError,
)
from fxpool.lowering.artifact import lookup, sharing, side_effects
from fxpool.lowering.artifact.entry_parts import Artifact, CompileReply, Reference, decode_reply
from fxpool.lowering.compiling import eager, farm, graph_recording, refusals
from fxpool.lowering.compiling.eager import DEADLY
from fxpool.lowering.core import pool_environment
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.cpp import host_facts
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import (
    AOT,
    BACKGROUND,
    COMPILE_JOB,
    PACKAGE,
    PREPARE_JOB,
    CompileRequest,
)
from fxpool.torch_compat.dynamo import log_state, torch_counters
from fxpool.torch_compat.dynamo.compile_times import CompileTimes
from fxpool.watch import events

if TYPE_CHECKING:
    from fxpool.pool import Job, JobSpec, PoolClient
    from fxpool.pool.wire.farm import Away
    from fxpool.pool.wire.messages import JobEvent
    from fxpool.torch_compat.cuda.padding import PaddingQuestion

__all__ = ["MEASURINGS", "Result", "require_possible", "results", "spec_of", "submit"]

log = notices.logger(__name__)

#: Answers a query of a worker's.
Answer = Callable[[bytes], bytes]

# The number of servers that a graph may lose before it is compiled here.
_SERVERS = 3
#: The number of times a compile may return queries for a device: once, unless sizes change the queries.
MEASURINGS = 4
# Prefixes of Inductor's options that affect a C++ compiler's command.
_OF_CPP = ("cpp", "aot")


@dataclasses.dataclass(frozen=True)
class Result:
    """A worker's result: an `entry` of the attempt's store, or an `artifact` that came inline.

    `for_others`: it was compiled for another process, so it may not load here. `times` is torch's record of it.
    """

    entry: Entry | None
    artifact: Artifact | None
    for_others: bool
    times: CompileTimes


def require_possible(captured: Captured, attempt: Attempt) -> None:
    """Raise the reason why no worker is to compile a graph: it is recorded instead, or known to fail there."""
    if graph_recording.is_on(attempt.settings) and captured.request.level != PACKAGE:
        graph_recording.record(captured, attempt)
    refusals.refuse(captured, attempt)


def results(captured: Captured, attempt: Attempt) -> Iterator[Result]:
    """Compile a complete request in a worker, and yield the result; to go on means that it could not be loaded.

    Another process may be compiling the same graph. If the guards of its result do not hold here, the graph is compiled
    again, for these sizes only. If the entry is evicted, cleared or damaged before it is loaded, the last try gets the
    result inline. Raises what `graph_compile.GraphCompile.compile` raises.
    """
    store = attempt.store
    if captured.key is None or store is None or captured.request.debug_files is not None:
        flights = [""]  # another process's compile would write no debug files here
    else:
        sizes = hashlib.sha256(repr(sorted(captured.values().items())).encode()).hexdigest()
        flight = captured.key.digest
        if os.path.basename(store.root) == FRESH:  # share no compile with processes outside `fresh_cache()`
            flight = f"{flight} {store.root}"
        flights = [flight, f"{flight} {sizes}", ""]
    for flight, inline in zip(flights, (False, False, True), strict=False):
        with attempt.timed("compile"):
            reply, job = _reply(captured, attempt, flight, inline)
        result = _result(reply, job, captured, attempt)
        if result is not None:
            yield result


def _result(reply: CompileReply, job: Job, captured: Captured, attempt: Attempt) -> Result | None:
    """Count a reply, and publish it if it came inline; None if it is gone, or its guards do not hold here."""
    compiled = reply.reference or reply.artifact
    if compiled is None:
        return None
    others = job.joined or (reply.reference is not None and reply.reference.existing)
    attempt.outcome = Outcome.JOINED if others else Outcome.FARM if job.machine else Outcome.WORKER
    if not others:
        if job.machine:
            counters.count("farm", "compiled")
        else:
            counters.count("compiles", "worker")
        for phase, seconds in compiled.phases.items():
            attempt.spent(f"worker_{phase}", seconds)
        if compiled.guessed:
            counters.count("fallbacks", "templates_not_timed")
    if compiled.unprepared and not job.machine:
        _prepare_host(captured.request, attempt.settings)
    if reply.reference is not None:
        entry = _published(reply.reference, captured, attempt, others)
        fits = entry is not None and (not others or side_effects.guards_hold(entry.guards, captured.values()))
        return Result(entry, None, others, compiled.times) if fits else None
    assert reply.artifact is not None
    # A farm may have compiled it for another host's sizes.
    fits = not (others or job.machine) or side_effects.guards_hold(reply.artifact.guards, captured.values())
    if not others and captured.key is not None and attempt.store is not None:
        from fxpool.lowering.artifact import publishing  # not needed for a hit

        publishing.publish_if_kept(reply.artifact, captured.request, attempt.store, attempt)
    return Result(None, reply.artifact, others, compiled.times) if fits else None


def _published(reference: Reference, captured: Captured, attempt: Attempt, others: bool) -> Entry | None:
    """Return the entry that a worker has written or met; None if it is gone by now."""
    store = attempt.store
    if store is None:
        return None
    if not others:
        counters.count("entries_written")
        if captured.request.level != PACKAGE:  # torch has no cache of packages
            torch_counters.saved(before_autograd=captured.request.level == AOT)
    entry = lookup.published(reference, store, saved_by_torch=captured.saved_by_torch)
    if entry is not None and not others:
        sharing.offer(entry, store, attempt.settings)
    return entry


# ---------------------------------------------------------------- asking


def _reply(captured: Captured, attempt: Attempt, flight: str, inline: bool) -> tuple[CompileReply, Job]:
    """Return the worker's final reply, and the job that it is of.

    If the reply has queries, they are answered, and the job is submitted again with the answers.
    """
    for _ in range(MEASURINGS):
        request = dataclasses.replace(captured.request, store=None) if inline else captured.request
        name = flight
        if flight and request.measured:  # the result depends on the answers
            name = f"{flight} {hashlib.sha256(repr(request.measured).encode()).hexdigest()}"
        try:
            on_ask = functools.partial(_answer, captured, attempt) if request.devices else None
            data, job = submit(request, attempt, name, on_ask)
        except DEADLY as error:
            eager.add(attempt, error, captured.request.origin)
            raise
        except CannotTravelError as error:
            refusals.remember_code(captured, error)
            raise
        except CannotReturnError as error:
            refusals.remember_level(attempt, error)
            raise
        reply = decode_reply(data)
        if reply.questions:
            with attempt.timed("measure"):
                _measure(captured, reply.questions)
        elif reply.unanswered:
            _retry_with_visible_devices(captured, reply.unanswered)
        else:
            eager.passed(attempt)
            break
    return reply, job


def _answer(captured: Captured, attempt: Attempt, question: bytes) -> bytes:
    """Answer a worker's query by timing, while the worker waits; runs in the pool client's thread for queries."""
    from fxpool.lowering.cuda import benchmark_cache  # imports the CUDA part: only for queries

    facts, index = captured.placement.facts[0], captured.placement.indices[0]
    with attempt.timed("measure"), ambient_state.entered_by_thread(captured.request.ambient):
        return benchmark_cache.answer(question, facts, index, captured.request.toolchain_dir)


def _measure(captured: Captured, questions: Sequence[PaddingQuestion]) -> None:
    """Answer the queries of a compile by timing; the next try has the answers."""
    from fxpool.lowering.cuda import benchmark_cache  # imports the CUDA part: only for queries

    facts, index = captured.placement.facts[0], captured.placement.indices[0]
    captured.answer(benchmark_cache.measure(questions, facts, index, captured.request.toolchain_dir))


def _retry_with_visible_devices(captured: Captured, query: str) -> None:
    log.warning("compiling %s in a worker that sees its devices, which it needs for: %s", captured.request.label, query)
    counters.count("fallbacks", "device_needed:unanswered")
    captured.show_devices()


def submit(request: CompileRequest, attempt: Attempt, flight: str, on_ask: Answer | None = None) -> tuple[bytes, Job]:
    """Return the worker's encoded reply, and its job; `on_ask` answers its queries for a device.

    A farm may run the job instead, if others may share it (`flight`). Raises what `results` raises.

    Losing a server is not the graph's fault: the job is submitted to another server. If a farm's result cannot be
    trusted, the job is submitted for this host.
    """
    payload = request.dump()
    settings = attempt.settings
    away = farm.away(request, flight, payload, settings) if flight and farm.may_take(request, settings) else None
    lost = 0
    while True:
        try:
            data, job = _submit_once(request, payload, attempt, flight, away, on_ask)
        except ServerLostError as error:
            lost += 1
            if lost == _SERVERS:
                raise
            log.warning("submitting %s again: %s", attempt.label, error)
            continue
        if job.stayed and not job.joined and not job.machine:
            farm.report_stayed(job.stayed, job.why, settings)
        if not job.machine or away is None:
            return data, job
        try:
            return farm.opened(away.key, data, settings), job
        except (NotAuthenticError, CorruptEntryError) as error:
            log.warning("compiling %s here, machine %s of the farm: %s", attempt.label, job.machine, error)
            counters.count("farm", "home:not_authentic")
            away = None


def _submit_once(
    request: CompileRequest,
    payload: bytes,
    attempt: Attempt,
    flight: str,
    away: Away | None,
    on_ask: Answer | None,
) -> tuple[bytes, Job]:
    pool = runtime.pool()
    progress = _Progress(attempt.label, attempt.stage, pool) if events.listening() else None
    spec = msgspec.structs.replace(
        spec_of(request, attempt.settings), label=attempt.label, dedup_key=flight, priority=attempt.priority, away=away
    )
    job = pool.submit(COMPILE_JOB, payload, spec, on_event=progress, on_ask=on_ask, on_record=log_state.prepare)
    if attempt.submitted is not None:
        attempt.submitted(job)
    if away is None and request.toolchain_dir is not None and not host_facts.are_kept(request.toolchain_dir):
        _prepare_host(request, attempt.settings, payload)
    return job.result(), job


def spec_of(request: CompileRequest, settings: config.Settings | None = None) -> JobSpec:
    """Return the job specification of a request: environment, limits, and the modules that its workers import."""
    environment = (request.ambient.elsewhere() if request.devices else request.ambient).environment
    if request.visible is not None:
        environment = {**environment, "CUDA_VISIBLE_DEVICES": request.visible}
    return pool_environment.job_spec(request.label, environment, request.modules, request.libraries, settings=settings)


def _prepare_host(request: CompileRequest, settings: config.Settings, payload: bytes | None = None) -> None:
    """Have a worker probe this host's tool chain and precompile the header. `payload` is the request if it is dumped.

    The job has low priority and benefits later graphs; this process does not wait for it. All processes share one job,
    and each graph that went without asks again: that is how the pool learns that the job is worth a busy core.
    """
    toolchain_dir = request.toolchain_dir
    if toolchain_dir is None or not host_facts.worth_preparing() or not runtime.may_ask_to_prepare(toolchain_dir):
        return
    flags = {name: value for name, value in request.ambient.configuration["inductor"].items() if name[:3] in _OF_CPP}
    facts = repr((toolchain_dir, sorted(toolchain.toolchain_facts(toolchain_dir).items()), sorted(flags.items())))
    spec = msgspec.structs.replace(
        spec_of(request, settings),
        label="this host's toolchain",
        preparation=None,
        timeout=None,
        memory=None,
        retries=0,
        priority=BACKGROUND,
        dedup_key=f"host {hashlib.sha256(facts.encode()).hexdigest()}",
        best_effort=True,
    )
    runtime.pool().submit(PREPARE_JOB, payload or request.dump(), spec)


# ---------------------------------------------------------------- progress


class _Progress:
    """A callback that reports the events of one job to displays and traces. Runs in the connection's thread."""

    def __init__(self, label: str, stage: int, pool: PoolClient) -> None:
        self._label = label
        self._stage = stage
        self._pool = pool
        self._queued: dict[int, float] = {}
        self._started: dict[int, float] = {}
        self._phases: dict[int, tuple[str, float]] = {}
        self._away = 0.0

    def __call__(self, event: JobEvent) -> None:
        if event.kind == "queued":
            self._queued[event.part] = event.at
            self._say(event, "queued", "")
        elif event.kind == "begun":
            self._waited(event)
            self._started[event.part] = event.at
            self._say(event, "compiling", f"in worker {event.worker}")
        elif event.kind == "phase":
            self._end_phase(event)
            self._phases[event.part] = (event.name, event.at)
            self._say(event, "compiling", f"in worker {event.worker}: {event.name}")
        elif event.kind == "away":
            self._away = event.at
            self._say(event, "compiling", "by the farm")
        elif event.kind == "returned":
            self._returned(event)
        else:
            self._end_phase(event)
            since = self._started.pop(event.part, None)
            if since is not None:
                self._span(event, event.label, since, {"how": event.name} if event.name else {})

    def _say(self, event: JobEvent, state: str, detail: str) -> None:
        if event.part == 0:
            events.state(self._label, state, detail, stage=self._stage, at=event.at)

    def _waited(self, event: JobEvent) -> None:
        since, server = self._queued.pop(event.part, None), self._pool.server_pid
        if since is not None and server is not None:
            facts = {"graph": self._label}
            events.tell(events.Span(event.label, since, event.at, server, server, "fxpool server: queue", True, facts))

    def _returned(self, event: JobEvent) -> None:
        server = self._pool.server_pid
        if server is not None:
            facts = {"graph": self._label, "stage": self._stage, "machine": event.name}
            events.tell(
                events.Span(event.label, self._away, event.at, server, server, "fxpool server: farm", True, facts)
            )

    def _end_phase(self, event: JobEvent) -> None:
        name, since = self._phases.pop(event.part, ("", 0.0))
        if name:
            self._span(event, name, since, {})

    def _span(self, event: JobEvent, name: str, since: float, facts: dict[str, object]) -> None:
        if event.worker is not None:
            facts = {"graph": self._label, "stage": self._stage, **facts}
            events.tell(events.Span(name, since, event.at, event.worker, event.worker, "fxpool worker", facts=facts))
