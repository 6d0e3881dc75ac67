"""Compiles recorded requests of another machine (`compiling.graph_recording`) into this machine's store.

    files ──▶ request ──▶ for this machine's directories, and another device if asked
                 ├─▶ an entry that is in the store already
                 └─▶ the pool, or the farm ──▶ the entry, under the key of the machine that captured the graph

A worker compiles a request only if this machine's builds are those that it was captured with. Queries for a device have
no answer here: no product is padded, and graphs whose templates are chosen by time are not recorded.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fxpool.codecache.bundle.capture_directory import Capture
from fxpool.codecache.key import build_digests, system_facts
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CompileError, FxpoolError, StoreError
from fxpool.lowering.artifact import lookup, publishing, sharing
from fxpool.lowering.artifact.entry_parts import CompileReply, decode_reply
from fxpool.lowering.compiling import farm, remote
from fxpool.lowering.core import options, shared_remote
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request import environment_variables
from fxpool.lowering.request.compile_request import CompileRequest

if TYPE_CHECKING:
    from fxpool.codecache.store.entry import Entry
    from fxpool.torch_compat.cuda.device_facts import DeviceFacts

__all__ = ["Built", "build"]

# Graphs that are waited for at a time; the pool decides how many are compiled.
_THREADS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """The outcome for a recorded request: its `entry`, or in `error` the reason why it was not compiled.

    `compiled` is false for an entry that was in the store. `machine` is the farm's machine that compiled it, or "".
    `unmeasured` is the number of products that were not padded because no device could time them.
    """

    capture: Capture
    entry: Entry | None = None
    compiled: bool = False
    machine: str = ""
    unmeasured: int = 0
    error: str = ""


def build(captures: Sequence[Capture], store: LocalStore, device: DeviceFacts | None = None) -> Iterator[Built]:
    """Compile requests that are not in `store`, and yield the outcome of each as it comes; uploads new entries.

    With `device`, graphs for CUDA devices are compiled for devices with these facts instead of those that captured
    them. Raises PoolError if there is no pool.
    """
    tools = runtime.toolchain_directory(store)
    runtime.pool()
    with concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="fxpool-build") as threads:
        waiting = {}
        for capture in captures:
            try:
                # One after the other: unpickling imports the program's modules.
                request = _for_this_machine(capture, store, tools, device)
            except Exception as error:  # a missing module, another release of torch
                yield Built(capture=capture, error=_words(error))
                continue
            waiting[threads.submit(_one, capture, request, store)] = capture
        for done in concurrent.futures.as_completed(waiting):
            try:
                yield done.result()
            except Exception as error:  # a compile may raise anything
                yield Built(capture=waiting[done], error=_words(error))
    shared_remote.flush(None)


def _for_this_machine(
    capture: Capture, store: LocalStore, tools: str | None, device: DeviceFacts | None
) -> CompileRequest:
    request = CompileRequest.load(capture.request)
    recorded = {
        name: value for name, value in request.ambient.environment.items() if environment_variables.in_key(name)
    }
    ambient = dataclasses.replace(
        request.ambient.on_this_machine(), environment={**environment_variables.of_machine(), **recorded}
    )
    request = dataclasses.replace(
        request, ambient=ambient, store=store.root, bounds=store.bounds, toolchain_dir=tools, timing=None
    )
    return request if device is None or not request.devices else _for_device(request, capture, device)


def _for_device(request: CompileRequest, capture: Capture, device: DeviceFacts) -> CompileRequest:
    """Return the request that a machine with other devices would have captured."""
    before = request.devices[0]
    if (device.cuda, device.cudnn) != (before.cuda, before.cudnn):
        raise CompileError(
            f"the facts of {device.name} are of CUDA {device.cuda} with cuDNN {device.cudnn}, and the graph was "
            f"captured with CUDA {before.cuda} and cuDNN {before.cudnn}"
        )
    facts = {**capture.system}
    for number in range(len(request.devices)):
        facts[f"cuda_device_{number}"] = device.described()
        if f"cuda_memory_{number}" in facts:
            facts[f"cuda_memory_{number}"] = str(device.memory)
    assert request.key is not None
    everywhere = {name: value for name, value in facts.items() if name not in system_facts.OF_CPU}
    return dataclasses.replace(
        request,
        devices=(device,) * len(request.devices),
        key=request.key.with_part("system", everywhere),
        host_key=request.host_key.with_part("system", facts) if request.host_key is not None else None,
    )


def _one(capture: Capture, request: CompileRequest, store: LocalStore) -> Built:
    entry = lookup.present(request)
    if entry is not None:
        return Built(capture=capture, entry=entry)
    attempt = Attempt(capture.function or capture.label, options.parse())
    assert request.key is not None
    if not farm.may_take(request, attempt.settings):
        _require_builds(request)
    unmeasured = 0
    for _ in range(remote.MEASURINGS):
        # Compiles for other sizes have other guards.
        flight = f"{request.key.digest} {sorted(request.values.items())!r} {request.measured!r}"
        data, job = remote.submit(request, attempt, flight)
        reply = decode_reply(data)
        if not reply.questions:
            break
        unmeasured += len(reply.questions)
        request = dataclasses.replace(
            request, measured=(*request.measured, *((question, False) for question in reply.questions))
        )
    entry = _entry_of(reply, request, store, attempt)
    return Built(capture=capture, entry=entry, compiled=True, machine=job.machine, unmeasured=unmeasured)


def _require_builds(request: CompileRequest) -> None:
    """Raise CompileError if this machine would compile with other builds: earlier than its worker would."""
    if differing := build_digests.differing(build_digests.digests(request.toolchain_dir), request.builds or {}):
        raise CompileError(f"this machine has other builds than the one that captured it: {', '.join(differing)}")


def _entry_of(reply: CompileReply, request: CompileRequest, store: LocalStore, attempt: Attempt) -> Entry:
    """Return the new entry. Raises CompileError with the reason if it was not stored."""
    if reply.unanswered:
        raise CompileError(f"a worker has to see the device, which it asks for: {reply.unanswered}")
    if reply.artifact is not None:
        publishing.publish_if_kept(reply.artifact, request, store, attempt)
    entry = lookup.present(request)
    if entry is None:
        why = reply.artifact.unkept if reply.artifact is not None else ""
        raise CompileError(why or ", ".join(attempt.reasons) or "its entry is gone")
    if reply.reference is not None:
        sharing.offer(entry, store, attempt.settings)
    return entry


def _words(error: Exception) -> str:
    message = error.message if isinstance(error, FxpoolError) else str(error)
    return message if isinstance(error, (CompileError, StoreError)) else f"{type(error).__name__}: {message}"
