"""Inductor's jobs, in a worker: a call of a torch function, or the compile of a graph."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from fxpool.codecache.key import toolchain
from fxpool.errors import CannotTravelError
from fxpool.lowering.cuda import devices
from fxpool.lowering.inductor.pools import GraphJob, KernelJob, KernelPool, OtherCode, Result, Sent
from fxpool.lowering.request import ambient_state
from fxpool.lowering.worker import compiler
from fxpool.pool import current_job
from fxpool.torch_compat.cpp import instruction_sets
from fxpool.torch_compat.cuda import device_answers
from fxpool.torch_compat.inductor import hooks, preload
from fxpool.torch_compat.state import configs
from fxpool.torch_compat.triton import triton_compile

__all__ = ["run_graph", "run_kernel"]


def run_kernel(payload: bytes) -> bytes:
    """Job: run the call of a `KernelJob`; the result is a `Result`."""
    job: KernelJob = pickle.loads(payload)
    preload.settle_assembler()
    no_driver = triton_compile.no_driver() if job.unseen else contextlib.nullcontext()
    with configs.entered(job.configuration), no_driver:
        return _result(lambda: pickle.loads(job.call)(), job.unseen)


def run_graph(payload: bytes) -> bytes:
    """Job: compile a `GraphJob`, with its kernels on the cores that are free; the result is a `Result`."""
    graph_job: GraphJob = pickle.loads(payload)
    try:
        others = compiler.load_code(graph_job.modules, graph_job.libraries, graph_job.code)
    except CannotTravelError as error:
        return Result(OtherCode(error.detail), returned=False).dump()
    job = current_job()
    assert job is not None, "run_graph runs in a pool"
    preload.settle_assembler()

    def send(function: str, data: bytes, label: str, *, unseen: bool = False) -> Sent:
        return job.submit(function, data, label=label)

    hooks.take_in_worker(KernelPool(send), 1 + job.slots_free())
    with ambient_state.entered(graph_job.state), contextlib.ExitStack() as stack:
        toolchain.settle(graph_job.toolchain_dir)
        if graph_job.usable_sets is not None:
            stack.enter_context(instruction_sets.instruction_sets_known(graph_job.usable_sets))
        if graph_job.sees:
            preload.forget_devices()  # as in `devices.answered`
        stack.enter_context(devices.unseen(graph_job.devices, graph_job.current, graph_job.toolchain_dir))
        try:
            compiler.compare_configured(graph_job.code)
            with compiler.unless_met(others):
                return _result(lambda: hooks.compile_graph(graph_job.graph), bool(graph_job.devices))
        except CannotTravelError as error:
            return Result(OtherCode(error.detail), returned=False).dump()


def _result(work: Callable[[], Any], unseen: bool) -> bytes:
    """Encode the return value or error of `work`, or (if devices are `unseen`) its query for a device."""
    try:
        return Result(work()).dump()
    except Exception as error:
        if unseen and (asked := device_answers.unanswered(error)):
            return Result(asked, returned=False, device_needed=True).dump()
        return Result(traceback.format_exc(), returned=False).dump()
