"""The job functions that run in the pool, and the imports of the zygote before it forks.

A worker is forked from a zygote that has imported this module, runs one job and exits. It shares nothing with the
client's process but the request.
"""

from __future__ import annotations

import os
from concurrent.futures import Future

import msgspec

from fxpool import notices
from fxpool.codecache.key import build_digests
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CompileError, StoreError
from fxpool.lowering.artifact import lookup, publishing
from fxpool.lowering.artifact.entry_content import Decisions
from fxpool.lowering.artifact.entry_parts import COMPILER_CHANGED, Artifact, CompileReply, Reference, encode_reply
from fxpool.lowering.core.scratch_directories import scratch_directory
from fxpool.lowering.cpp import host_facts, kernels, precompiled_header
from fxpool.lowering.cpp.kernels import KernelJobs
from fxpool.lowering.cuda import autotune, devices, triton_kernels
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import compiler as compiling
from fxpool.lowering.worker import reused_graphs
from fxpool.pool import current_job
from fxpool.torch_compat.cuda import device_answers
from fxpool.torch_compat.cuda.padding import NotMeasuredError
from fxpool.torch_compat.dynamo import compile_times
from fxpool.torch_compat.inductor import debug_files, preload
from fxpool.torch_compat.operators import operator_tables

log = notices.logger(__name__)


def compile_job(payload: bytes) -> bytes:
    """Job: compile one `CompileRequest`, publish the entry, return its reference.

    If the entry was written since the client's lookup, its reference is returned without a compile. A result that may
    not be cached, or cannot be written, is returned inline.
    """
    return encode_reply(compile_loaded(CompileRequest.load(payload)))


def compile_loaded(request: CompileRequest) -> CompileReply:
    """Compile a request; see `compile_job`.

    Raises CompileError if the request was captured on a machine with other builds, or if the result depends on them.
    """
    job = current_job()
    assert job is not None, "compile_job runs in a pool"
    own = _compared_builds(request)
    if (entry := lookup.present(request)) is not None:
        assert request.store is not None
        reference = Reference(
            store=request.store, key=entry.key, name=entry.name, seconds=entry.metadata.compile_seconds, existing=True
        )
        return CompileReply(reference=reference)
    preload.settle_assembler()
    times = compile_times.CompileTimes()
    if request.devices:
        job.phase("building stand-ins for devices")
    try:
        with (
            scratch_directory(),
            devices.answered(request, job.ask) as measured,
            autotune.tuned(request, _submit) as tuned,
            debug_files.written(request.debug_files),
            compile_times.recorded(times),
        ):
            kernel_jobs = KernelJobs(
                _submit,
                lambda: 1 + job.slots_free(),
                patient=not host_facts.worth_preparing(),
                apart=True,
            )
            artifact = compiling.compile_request(request, kernel_jobs, phase=job.phase)
    except NotMeasuredError as error:
        return CompileReply(questions=error.questions)
    except Exception as error:
        if request.devices and (asked := device_answers.unanswered(error)):
            log.info("cannot compile %s without a device, which it needs for: %s", request.label, asked, exc_info=True)
            return CompileReply(unanswered=asked)
        raise
    if not artifact.reused:
        artifact.decisions = Decisions(
            measured=measured.record() if measured is not None else [],
            tuned=[*(tuned.record if tuned is not None else []), *artifact.decisions.tuned],
        )
    artifact.guessed = tuned is not None and tuned.guessed
    artifact.times = times
    if own is not None:
        _refuse_others_cpp(artifact, request, own)
    job.phase("publishing")
    return _published(artifact, request)


def _published(artifact: Artifact, request: CompileRequest) -> CompileReply:
    """Write the entry of an artifact; return the reference to it, or the artifact if it may not be cached."""
    key = request.key_of(artifact.has_cpp())
    if key is None or request.store is None or artifact.unkept or not publishing.is_admitted(artifact, request):
        return CompileReply(artifact=artifact)
    full: list[LocalStore] = []  # the client has another job evict, for this one's answer is waited for
    try:
        store = LocalStore(request.store, request.bounds, on_full=full.append)
        entry = publishing.publish(artifact, key, store, request)
    except StoreError as error:
        artifact.unkept = str(error)
        return CompileReply(artifact=artifact)
    reused_graphs.record(entry, store, artifact)
    reference = Reference(
        store=request.store,
        key=entry.key,
        name=entry.name,
        seconds=artifact.seconds,
        unprepared=artifact.unprepared,
        phases=artifact.phases,
        guessed=artifact.guessed,
        times=artifact.times,
        existing=artifact.reused,
        full=bool(full),
    )
    return CompileReply(reference=reference)


def _compared_builds(request: CompileRequest) -> dict[str, str] | None:
    """Return this machine's builds for a request of another machine, else None. Raises CompileError if they differ."""
    if request.builds is None:
        return None
    # A zygote does not know the job's $CXX, so the worker's default is another compiler than the one that will run.
    with ambient_state.compiler_entered(request.ambient):
        own = build_digests.digests(request.toolchain_dir)
    if differing := build_digests.differing(own, request.builds):
        raise CompileError(f"this machine has other builds than the host: {', '.join(differing)}")
    return own


def _refuse_others_cpp(artifact: Artifact, request: CompileRequest, own: dict[str, str]) -> None:
    """Refuse C++ for a host that has asked for device code only: its processor or compiler may be another."""
    assert request.builds is not None
    if artifact.unkept == COMPILER_CHANGED:
        raise CompileError("this machine's C++ compiler is not the host's")
    if artifact.has_cpp() and own.keys() - request.builds.keys():
        raise CompileError(f"{request.label} has C++, which depends on this machine's processor")


def prepare_job(payload: bytes) -> bytes:
    """Job: probe the host's tool chain, and precompile the header.

    The payload is the request of the host's first compile. Where all cores are busy, the job takes a small share: with
    none, a busy host would compile every graph without the header.
    """
    prepare(CompileRequest.load(payload))
    return b""


def evict_job(payload: bytes) -> bytes:
    """Job: evict from a cache directory down to its limits. Raises StoreError: it may not be used."""
    root, bounds = msgspec.msgpack.decode(payload, type=tuple[str, Bounds])
    os.nice(10)
    LocalStore(root, bounds).evict()
    return b""


def prepare(request: CompileRequest) -> None:
    """Prepare the host; see `prepare_job`."""
    os.nice(10)
    job = current_job()
    assert job is not None, "prepare_job runs in a pool"
    with job.in_the_background(), scratch_directory(), ambient_state.entered(request.ambient):
        host_facts.find(request.toolchain_dir)
        with host_facts.answering(request.toolchain_dir):  # the facts may be stored while the header is not
            precompiled_header.command(request.toolchain_dir)


def tables_job(_: bytes) -> bytes:
    """Job: return torch's entries in Inductor's tables, which this process recorded."""
    return operator_tables.as_bytes()


# Jobs whose worker can be reused. C++ is compiled by a separate process; a Triton kernel leaves its generated module,
# under a unique name, and timing leaves the CUDA context.
_REUSED = (kernels.COMPILE_UNIT, triton_kernels.COMPILE_KERNEL, autotune.COMPILE_CANDIDATE, autotune.TIME_CANDIDATES)


def _submit(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
    job = current_job()
    assert job is not None
    reuse = function in _REUSED
    if not devices:
        return job.submit(function, payload, label=label, reuse=reuse)
    sees = {"CUDA_VISIBLE_DEVICES": devices}
    return job.submit(function, payload, label=label, reuse=reuse, retries=0, environment=sees, exclusive=True)


def import_compiler() -> None:
    """Import everything that a compile needs; called in the zygote before it forks."""
    preload.import_compiler()
