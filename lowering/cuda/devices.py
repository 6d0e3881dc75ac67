"""The CUDA devices of a graph: the facts that its worker gets, and the devices that its code runs on.

A worker compiles for devices that it does not see. Their facts are sent with the request. Indices are not: which of
several equal devices the code uses is decided when it is loaded. If lowering needs an answer that only a device can
give, the graph is compiled by a worker that sees the devices; this is counted under the reason.

    parent: `device_placement`  ──▶ facts, in the key and the request ──▶ worker: `answered`
               └─▶ indices ──▶ load: the code's devices
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import filelock
import torch

from fxpool import directories, forks, notices
from fxpool.codecache.key import toolchain
from fxpool.codecache.store import blobs
from fxpool.errors import StoreError
from fxpool.lowering.cuda.benchmark_cache import Ask, KnownAnswers
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.torch_compat.cuda import device_guard, padding
from fxpool.torch_compat.cuda.device_facts import DeviceFacts
from fxpool.torch_compat.state import configs

log = notices.logger(__name__)

# The longest wait, in seconds, for another process that builds the same library.
_PATIENCE = 120.0


@contextlib.contextmanager
def unseen(facts: Sequence[DeviceFacts], current: int, toolchain_dir: str | None) -> Iterator[None]:
    """Compile for devices with these facts without seeing them. Does nothing without facts. Errors as `answered`."""
    if not facts:
        yield
        return
    with _answering(facts, current, _library(toolchain_dir)):
        yield


@contextlib.contextmanager
def _answering(facts: Sequence[DeviceFacts], current: int, library: str) -> Iterator[None]:
    from fxpool.torch_compat.cuda import device_answers  # imports Inductor and Triton, which only a compile needs

    device_guard.install(library, len(facts), facts[0].capability[0], facts[0].cudnn)
    with device_answers.answering(facts, current):
        yield


@contextlib.contextmanager
def answered(request: CompileRequest, ask: Ask | None = None) -> Iterator[KnownAnswers | None]:
    """In a worker: compile for the request's devices without seeing them. Yields None for a graph without devices.

    `ask` queries the process that has them.

    Raises:
        NotMeasuredError: a measurement is needed first.
        UnansweredError: the library that replaces the devices does not compile here.
    """
    facts, toolchain_dir = request.devices, request.toolchain_dir
    if not facts:
        if request.timing is not None:  # it sees devices, but torch has cached that its zygote saw none
            from fxpool.torch_compat.inductor import preload  # as in `_answering`

            preload.forget_devices()
        yield None
        return
    answers = KnownAnswers(facts[0], request.measured, toolchain_dir, ask)
    with configs.entered(request.ambient.configuration):  # it names the compiler
        library = _library(toolchain_dir)
    with _answering(facts, request.current_device, library), padding.asking(answers):
        yield answers


OnStart = Callable[["subprocess.Popen[str]"], None]


def _library(toolchain_dir: str | None, on_start: OnStart | None = None) -> str:
    """Return the path of the library that answers torch's C++; build it if it is missing. `on_start` is called with the
    compiler's process, which then has its own process group."""
    version: Any = torch.version
    tool_facts = sorted(toolchain.toolchain_facts(toolchain_dir).items())
    wanted = [device_guard.SOURCE, torch.__version__, version.git_version, tool_facts]
    name = hashlib.sha256(repr(wanted).encode()).hexdigest()[:32]
    if toolchain_dir is not None:
        directory = os.path.join(toolchain_dir, "devices")
        try:
            directories.make_private(directory)
            with filelock.FileLock(os.path.join(directory, f"{name}.lock"), timeout=_PATIENCE, mode=0o600):
                return _kept(directory, name) or _made(directory, name, on_start)
        except (OSError, StoreError) as error:  # full, read-only, or another process never finishes it
            log.warning("could not store the library that stands in for GPUs: %s", error)
    return _made(os.environ["TORCHINDUCTOR_CACHE_DIR"], name)  # the job's own


def library_ahead(toolchain_dir: str | None) -> None:
    """Start to build the library if cores are free at a cold start; a worker that needs it waits for the build.

    Does nothing in a process that uses no CUDA device, or if the library exists.
    """
    if (
        toolchain_dir is None
        or torch.version.hip
        or not torch.cuda.is_initialized()
        or len(os.sched_getaffinity(0)) <= 2
    ):
        return

    running: list[subprocess.Popen[str]] = []
    ending = forks.event()

    def on_start(compiler: subprocess.Popen[str]) -> None:
        running.append(compiler)
        if ending.is_set():
            end()

    def make() -> None:
        try:
            if toolchain.find_compiler(toolchain_dir) is not None:
                _library(toolchain_dir, on_start)
        except Exception as error:  # the first graph that needs it reports the error
            log.debug("could not build the library ahead of the first graph: %s", error)

    def end() -> None:
        """Kill the compiler: a process that exits does not wait for it."""
        ending.set()
        for compiler in running:
            if compiler.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(compiler.pid, signal.SIGKILL)

    thread = threading.Thread(target=make, name="fxpool-devices", daemon=True)
    thread.start()
    atexit.register(thread.join)
    atexit.register(end)  # called before the one above


def _kept(directory: str, name: str) -> str | None:
    path = os.path.join(directory, f"{name}.so")
    try:
        digest = blobs.read_stored(os.path.join(directory, f"{name}.sha256"))[0].decode()
        held = hashlib.sha256(blobs.read_stored(path)[0]).hexdigest()
    except (OSError, StoreError, ValueError):
        return None
    return path if digest == held else None


def _made(directory: str, name: str, on_start: OnStart | None = None) -> str:
    compiler = toolchain.require_compiler()
    path = os.path.join(directory, f"{name}.so")
    with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as scratch:
        source, made = os.path.join(scratch, "devices.cpp"), os.path.join(scratch, "devices.so")
        with open(source, "w") as file:
            file.write(device_guard.SOURCE)
        command = device_guard.command(compiler.path, source, made)
        running = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=on_start is not None,
        )
        if on_start is not None:
            on_start(running)
        _, complaint = running.communicate()
        if running.returncode != 0:
            from fxpool.torch_compat.cuda.device_answers import UnansweredError  # as in `_answering`

            said = f"{' '.join(command)}\n{complaint[-4000:]}"
            raise UnansweredError(
                f"torch's C++ for devices, and the library that would answer does not compile:\n{said}"
            )
        with open(made, "rb") as library:
            data = library.read()
    blobs.write_private(path, data)
    blobs.write_private(os.path.join(directory, f"{name}.sha256"), hashlib.sha256(data).hexdigest().encode())
    return path
