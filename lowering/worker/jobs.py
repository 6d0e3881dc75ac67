"""What runs in the pool: the job functions, and what the zygote imports before it forks.

A worker is forked from a zygote that has imported this module, serves one job and ends. It shares
nothing with the process that asks but the request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from concurrent.futures import Future

import torch

from fxpool.codecache.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.artifact import lookup
from fxpool.lowering.artifact.entry_parts import Answer, Reference, encode_answer, publish
from fxpool.lowering.core.scratch import scratch_directory
from fxpool.lowering.cpp import host_facts, kernels, precompiled_header
from fxpool.lowering.cuda import autotune, devices, triton_kernels
from fxpool.lowering.request import ambient
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import compiler as compiling
from fxpool.pool import current_job
from fxpool.torch_compat.cuda import device_answers
from fxpool.torch_compat.cuda.padding import NotMeasuredError
from fxpool.torch_compat.inductor import preload

log = logging.getLogger("fxpool.lowering")


def compile_job(payload: bytes) -> bytes:
    """Job: compile one `CompileRequest`, publish the entry, answer with its reference.

    An entry that was written since the asker looked is the answer, too. What may not be kept, or can't be written, is
    answered inline.
    """
    job = current_job()
    assert job is not None, "compile_job runs in a pool"
    request = CompileRequest.load(payload)
    if (entry := lookup.present(request)) is not None:
        assert request.store is not None
        reference = Reference(request.store, entry.key, entry.name, entry.metadata.compile_seconds, found=True)
        return encode_answer(Answer(reference=reference))
    preload.settle_assembler()
    if request.devices:
        job.phase("standing in for devices")
    try:
        with (
            scratch_directory(),
            devices.answered(request) as measured,
            autotune.tuned(request, _submit) as tuned,
        ):
            artifact = compiling.compile_request(
                request,
                _submit,
                lambda: 1 + job.slots_free(),
                patient=not host_facts.worth_preparing(),
                apart=True,
                phase=job.phase,
            )
    except NotMeasuredError as error:
        return encode_answer(Answer(questions=error.questions))
    except Exception as error:
        if request.devices and (asked := device_answers.unanswered(error)):
            log.info("%s is not compiled without a device: it was asked %s", request.label, asked, exc_info=True)
            return encode_answer(Answer(unanswered=asked))
        raise
    if measured is not None and measured.given:
        artifact.effects["measured"] = measured.record()
    if tuned is not None and tuned.record:
        artifact.effects["tuned"], artifact.guessed = tuned.record, tuned.guessed
    job.phase("publishing")
    key = request.key_of(artifact.library is not None)
    if key is None or request.store is None:
        artifact.unkept = "not asked for"
        return encode_answer(Answer(artifact=artifact))
    if artifact.unkept:
        return encode_answer(Answer(artifact=artifact))
    try:
        entry = publish(
            artifact,
            key,
            LocalStore(request.store),
            label=request.label,
            created=time.time(),
            torch=str(torch.__version__),
            origin=request.origin,
        )
    except StoreError as error:
        artifact.unkept = str(error)
        return encode_answer(Answer(artifact=artifact))
    reference = Reference(
        request.store, entry.key, entry.name, artifact.seconds, artifact.unprepared, phases=artifact.phases,
        guessed=artifact.guessed,
    )  # fmt: skip
    return encode_answer(Answer(reference=reference))


def prepare_job(payload: bytes) -> bytes:
    """Job: find out what a host's tool chain can do, and precompile the header.

    The payload is the request of the host's first compile. It takes only what others leave of the cores.
    """
    os.nice(19)
    with contextlib.suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    request = CompileRequest.load(payload)
    job = current_job()
    assert job is not None, "prepare_job runs in a pool"
    with job.in_the_background(), scratch_directory(), ambient.entered(request.ambient):
        host_facts.find(request.tools)
        with host_facts.known(request.tools):  # the facts may have been kept, and the header be another
            precompiled_header.command(request.tools)
    return b""


# C++ is compiled by a process of its own. Of a Triton kernel its generated module stays, under a name of its own, and
# of what was timed the CUDA context.
_REUSED = (kernels.COMPILE_UNIT, triton_kernels.COMPILE_KERNEL, autotune.COMPILE_CANDIDATE, autotune.TIME_CANDIDATES)


def _submit(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
    job = current_job()
    assert job is not None
    reuse = function in _REUSED
    if not devices:
        return job.submit(function, payload, label=label, reuse=reuse)
    sees = {"CUDA_VISIBLE_DEVICES": devices}
    return job.submit(function, payload, label=label, reuse=reuse, retries=0, environment=sees, alone=True)


def import_compiler() -> None:
    """Called in the zygote, before it forks: import all that a compile needs."""
    preload.import_compiler()
