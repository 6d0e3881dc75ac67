"""Chooses templates by time (`max_autotune`): workers without a GPU compile them, a worker that sees it times them.

    lowering ──▶ candidates ──▶ sub-jobs that compile, side by side, no GPU ──▶ binaries in the job's directory
        └──▶ a query ──▶ stored result, or a sub-job that sees the device and runs exclusively ──▶ milliseconds, stored

<tools>/measured/<digest of format, device, torch, switches and question>    milliseconds

The timing process holds a CUDA context while there are candidates to time, and some seconds longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from fxpool import notices
from fxpool.codecache.key.key import canonical
from fxpool.errors import WorkerDiedError
from fxpool.lowering.core.scratch_directories import in_directory
from fxpool.lowering.cuda import benchmark_cache
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.ambient_state import AmbientState
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.torch_compat.state import configs, global_state
from fxpool.torch_compat.triton import autotuning, benchmarks, triton_compile
from fxpool.torch_compat.triton.autotuning import Fused, TimingQuestion

log = notices.logger(__name__)

COMPILE_CANDIDATE = "fxpool.lowering.cuda.autotune:compile_candidate"
TIME_CANDIDATES = "fxpool.lowering.cuda.autotune:time_candidates"

# The version of stored times, increased when earlier ones may be wrong: 1 has torch's kernels as not running in 2.15.
_FORMAT = 2


class Submit(Protocol):
    def __call__(self, function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
        """Start a sub-job. With `devices` (as in ``CUDA_VISIBLE_DEVICES``) it sees these, and runs exclusively."""


class _Source(msgspec.Struct, array_like=True, frozen=True):
    """Payload of the sub-job that compiles a candidate into `directory`."""

    name: str
    source: str
    directory: str


class _Asked(msgspec.Struct, array_like=True, frozen=True):
    """Payload of the sub-job that times; `state` is the submitting worker's ambient state, pickled."""

    question: TimingQuestion
    state: bytes
    directory: str


class Tuning:
    """The timings of one compile. `directory` is the job's, for files of both sub-jobs."""

    def __init__(self, request: CompileRequest, submit: Submit, directory: str) -> None:
        self._submit, self._directory = submit, directory
        self._facts, self._tools, self._devices = (
            request.devices[request.current_device],
            request.toolchain_dir,
            request.timing,
        )
        self._state = pickle.dumps(request.ambient)
        # Times under other switches (for example another precision of products) do not apply.
        self._surroundings = [one.described() for one in request.devices] + [_digest(request.ambient)]
        self._compiling: dict[str, Future[bytes]] = {}
        self.record: list[list[Any]] = []
        #: Whether a choice was made without timing.
        self.guessed = False

    def compile(self, name: str, source: str) -> Future[bytes]:
        """See `autotuning.Measure`."""
        if source not in self._compiling:
            payload = msgspec.msgpack.encode(_Source(name, source, self._directory))
            self._compiling[source] = self._submit(COMPILE_CANDIDATE, payload, f"candidate {name}")
        return self._compiling[source]

    def times(self, question: TimingQuestion) -> list[float] | None:
        """See `autotuning.Measure`."""
        times = self._kept(question)
        if times is None:
            times = self._timed(question)
            if times is not None and any(map(math.isfinite, times)):
                self._keep(question, times)
        self._note(question, times)
        return times

    def is_known(self, question: TimingQuestion) -> bool:
        """See `autotuning.Measure`."""
        return self._kept(question) is not None

    def _kept(self, question: TimingQuestion) -> list[float] | None:
        known = self._all_kept(question)
        return [known[one] for one in question.candidates()] if known.keys() >= set(question.candidates()) else None

    def _all_kept(self, question: TimingQuestion) -> dict[str, float]:
        data = benchmark_cache.find(self._tools, self._facts, self._asked(question))
        try:
            return msgspec.msgpack.decode(data, type=dict[str, float]) if data is not None else {}
        except msgspec.DecodeError:
            return {}

    def _keep(self, question: TimingQuestion, times: list[float]) -> None:
        known = {**self._all_kept(question), **dict(zip(question.candidates(), times, strict=True))}
        benchmark_cache.keep(self._tools, self._facts, self._asked(question), msgspec.msgpack.encode(known))

    def _asked(self, question: TimingQuestion) -> list[Any]:
        return [_FORMAT, self._surroundings, question.identity()]

    def _timed(self, question: TimingQuestion) -> list[float] | None:
        if self._devices is None:
            return None
        left = list(range(len(question.candidates())))
        times: list[float | None] = [None] * len(left)
        step = len(left)
        while left:
            some = left[:step]
            part = _part(question, some)
            try:
                answer = self._ask(part)
            except WorkerDiedError as error:
                if step > 1:  # a candidate kills the worker; timing each separately finds out which
                    step = 1
                else:
                    log.warning("%s: the worker that timed a candidate died: %s", question.describe(), error)
                    times[some[0]] = math.inf
                    left = left[1:]
                continue
            if not answer.device:
                log.warning("not timing templates: the pool's workers see no device %s", self._devices)
                self._devices = None
                return None
            for number, milliseconds in zip(some, answer.milliseconds, strict=True):
                times[number] = milliseconds
            left = [number for number in left if times[number] is None]
        return [math.inf if one is None else one for one in times]

    def _ask(self, question: TimingQuestion) -> benchmarks.Times:
        payload = msgspec.msgpack.encode(_Asked(question, self._state, self._directory))
        timing = self._submit(TIME_CANDIDATES, payload, f"timing of {question.describe()}", self._devices or "")
        return msgspec.msgpack.decode(timing.result(), type=benchmarks.Times)

    def _note(self, question: TimingQuestion, times: list[float] | None) -> None:
        """Record the question and the fastest candidate, for people who look at the entry."""
        row: list[Any] = [question.describe()]
        if times is None:
            self.guessed = True
            row.append("not timed")
        else:
            best = min(range(len(times)), key=times.__getitem__)
            row += [len(times), question.candidates()[best], times[best] if math.isfinite(times[best]) else None]
        self.record.append(row)


def _digest(state: AmbientState) -> str:
    shaping = {name: value for name, value in state.switches.items() if name not in global_state.OF_CPU}
    about = [shaping, configs.key_values(state.configuration)]
    return hashlib.sha256(canonical(about)).hexdigest()


def _part(question: TimingQuestion, numbers: Sequence[int]) -> TimingQuestion:
    if isinstance(question, Fused) or len(numbers) == len(question.choices):
        return question
    return msgspec.structs.replace(question, choices=[question.choices[number] for number in numbers])


@contextlib.contextmanager
def tuned(request: CompileRequest, submit: Submit) -> Iterator[Tuning | None]:
    """In a worker without devices: have templates timed by another worker. Yields None for a graph without a device."""
    if not request.devices:
        yield None
        return
    tuning = Tuning(request, submit, os.environ["TORCHINDUCTOR_CACHE_DIR"])
    with autotuning.measuring(tuning):
        yield tuning


def compile_candidate(payload: bytes) -> bytes:
    """Job: compile a candidate for the sub-job that times it. Raises what Triton raises."""
    from fxpool.torch_compat.inductor import preload  # imports Inductor's compiler, which a worker has loaded

    wanted = msgspec.msgpack.decode(payload, type=_Source)
    preload.settle_assembler()
    with in_directory(wanted.directory):
        benchmarks.compile_candidate(wanted.name, wanted.source)
    return b""


def time_candidates(payload: bytes) -> bytes:
    """Job: time the payload's candidates on this process's device; returns `Times`."""
    # As in `compile_candidate`.
    from fxpool.pool import current_job
    from fxpool.torch_compat.inductor import preload

    asked = msgspec.msgpack.decode(payload, type=_Asked)
    preload.settle_assembler()
    preload.forget_devices()  # the zygote sees no device
    state: AmbientState = pickle.loads(asked.state)  # pickled by the worker that compiles
    job = current_job()
    alone = benchmark_cache.alone_on(0, job.runtime_root if job is not None else None)
    with in_directory(asked.directory), ambient_state.entered(state), triton_compile.no_kept_choices(), alone:
        times = benchmarks.times(asked.question)
    if times.tainted and job is not None:
        job.spoil()
    return msgspec.msgpack.encode(times)
