"""Compiles a graph's Triton kernels side by side into one part of its entry.

Each kernel is a sub-job that starts as soon as Inductor has generated its text. It compiles all candidate
configurations for the device that the text names, and touches no GPU. It returns plain data: binaries, and the text of
the function that launches them. The fastest candidate is chosen in the process that has the device, see
`triton_library`.

    generated text ──▶ `TritonLinking.take` ──▶ sub-jobs (Triton, ptxas) ──▶ `TritonLinking.part` ──▶ entry
                                              └▶ compiled for an earlier graph ─▲
"""

from __future__ import annotations

import contextlib
import hashlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from fxpool.lowering.core.scratch_directories import scratch_directory
from fxpool.torch_compat.inductor import output_code, preload
from fxpool.torch_compat.triton import triton_compile

if TYPE_CHECKING:
    from fxpool.codecache.store.kernel_files import KernelFiles
    from fxpool.lowering.cpp.kernels import Submit, Units

COMPILE_KERNEL = "fxpool.lowering.cuda.triton_kernels:compile_kernel"

# A `CompiledKernel` is stored under the digest of its `KernelSource`.
_KERNEL = "triton kernel"
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class Candidate(msgspec.Struct, array_like=True, frozen=True):
    """One configuration of a kernel.

    `code` defines ``launch`` and ``run``; `shared` is in bytes, `report` has its block sizes by name, for people.
    """

    binary: bytes
    symbol: str
    shared: int
    code: str
    report: dict[str, Any]


class Kernel(msgspec.Struct, array_like=True, frozen=True):
    """A kernel, and the data needed to choose between its candidates.

    `parameters` are those that a wrapper passes by position; those in `written` are copied before a candidate is
    measured, those in `zeroed` are set to zero. Candidates with more than `spill_limit` spilled registers are not
    measured.
    """

    name: str
    parameters: list[str]
    written: list[str]
    zeroed: list[str]
    optimize_memory: bool
    spill_limit: int | None
    candidates: list[Candidate]


class KernelSource(msgspec.Struct, array_like=True, frozen=True):
    """Payload of the sub-job. It may compile `width` candidates at a time."""

    name: str
    source: str
    lookup: dict[str, Any]
    width: int = 1


class CompiledKernel(msgspec.Struct, array_like=True, frozen=True):
    """Result of the sub-job: a kernel, or the reason why it could not be linked and the files for Triton to load."""

    kernel: Kernel | None
    reason: str = ""
    files: bytes = b""


class PendingKernel:
    """A placeholder for a kernel in a generated module. It cannot be called in the worker."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a kernel was called in the process that compiled it")


class TritonLinking:
    """Compiles the Triton kernels of one graph. Without `submit`, they are left to Inductor.

    `units` returns the number of processes that may run now, `stored` has the kernels of earlier graphs.
    """

    def __init__(self, submit: Submit | None, units: Units = lambda: 1, stored: KernelFiles | None = None) -> None:
        self._submit, self._units, self._stored = submit, units, stored
        self._pending: dict[str, tuple[str, Future[bytes]]] = {}
        self._new: dict[str, str] = {}  # names of kernels to store
        self._lookup = triton_compile.lookup_table()

    def collecting(self) -> contextlib.AbstractContextManager[None]:
        """Pass Inductor's kernels to `take` inside the ``with`` block."""
        return triton_compile.collecting(self.take) if self._submit is not None else contextlib.nullcontext()

    def take(self, name: str, source: str) -> PendingKernel:
        """Start to compile a kernel, unless it was started before."""
        key = output_code.kernel_digest([name], source)
        if key not in self._pending:
            assert self._submit is not None
            wanted = KernelSource(name, source, self._lookup)
            # `key` ignores trailing blanks, which are part of the compiled text.
            digest = hashlib.sha256(_ENCODER.encode(wanted)).hexdigest()
            found = self._stored.find(_KERNEL, digest) if self._stored is not None else None
            if found is not None:
                self._pending[key] = name, Future()
                self._pending[key][1].set_result(found)
            else:
                self._new[key] = digest
                payload = msgspec.msgpack.encode(msgspec.structs.replace(wanted, width=self._units()))
                self._pending[key] = name, self._submit(COMPILE_KERNEL, payload, name)
        return PendingKernel()

    def keep(self) -> None:
        """Store the kernels of `part` that were compiled, for later graphs."""
        if self._stored is not None:
            for key, digest in self._new.items():
                self._stored.keep(self._pending[key][1].result(), _KERNEL, digest)

    def part(self) -> LinkedTriton:
        """Return all kernels that were taken. Raises what a sub-job raised."""
        linked = LinkedTriton()
        for key, (name, future) in self._pending.items():
            compiled = msgspec.msgpack.decode(future.result(), type=CompiledKernel)
            if compiled.kernel is not None:
                linked.names[key] = attribute(len(linked.kernels))
                linked.kernels.append(compiled.kernel)
            else:
                linked.left[name] = compiled.files
        return linked


class LinkedTriton:
    """The kernels of a graph; `names` maps digests to names in the library, `left` has files of unlinked kernels."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.names: dict[str, str] = {}
        self.left: dict[str, bytes] = {}

    def encoded(self) -> bytes | None:
        return msgspec.msgpack.encode(self.kernels) if self.kernels else None

    def give_files(self, graph: Any) -> None:
        """Attach to a graph, before it is stored, the files of kernels that Triton loads."""
        triton_compile.drop_empty_bundle(graph)
        for name, files in self.left.items():
            if f"'{name}'" in graph.source_code:
                triton_compile.add_files(graph, files)


def attribute(number: int) -> str:
    """Return the library's attribute for kernel `number`."""
    return f"t{number}"


def decode(data: bytes) -> list[Kernel]:
    """Decode the kernels of `LinkedTriton.encoded`. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=list[Kernel])


def compile_kernel(payload: bytes) -> bytes:
    """Job: compile one `KernelSource`, return a `CompiledKernel`. Raises what Triton raises."""
    wanted = msgspec.msgpack.decode(payload, type=KernelSource)
    preload.settle_assembler()
    with scratch_directory():
        try:
            compiled = triton_compile.compile_kernel(wanted.name, wanted.source, wanted.lookup, wanted.width)
            answer = CompiledKernel(_kernel(wanted.name, compiled))
        except triton_compile.NotLaunchableError as error:
            files = triton_compile.compile_for_triton(wanted.name, wanted.source, wanted.lookup)
            answer = CompiledKernel(None, str(error), files)
    return msgspec.msgpack.encode(answer)


def _kernel(name: str, compiled: triton_compile.Compiled) -> Kernel:
    return Kernel(
        name,
        list(compiled.candidates[0].parameters),
        compiled.written,
        compiled.zeroed,
        compiled.optimize_memory,
        compiled.spill_limit,
        [_candidate(one, compiled.report) for one in compiled.candidates],
    )


def _candidate(candidate: triton_compile.Candidate, report: dict[str, Any]) -> Candidate:
    values = ",".join(f"{name}={value}" for name, value in candidate.values.items())
    report = {**report, "num_warps": candidate.warps, "num_stages": candidate.stages, "kernel_kwargs": values}
    return Candidate(candidate.binary, candidate.symbol, candidate.shared, _code(candidate), report)


def _code(candidate: triton_compile.Candidate) -> str:
    """Return code of ``launch``, and of ``run``, which reports to profilers and debug modes first if any are active.

    Names with an underscore are added to its namespace when the binary is loaded.
    """
    parameters = "".join(f"{name}, " for name in candidate.parameters)
    arguments = "".join(f"{name}, " for name in candidate.arguments)
    sizes = ", ".join((*candidate.grid, str(candidate.warps), str(candidate.shared)))
    launch = [
        *candidate.prefix,
        f"_launch(_function, {sizes}, {candidate.types!r}, ({arguments}), stream)",
    ]
    run = [
        "if _profiler._is_profiler_enabled or _debug_mode() is not None:",
        f"    return _observed(launch, _names, _told, ({parameters}), stream)",
        *launch,
    ]
    functions = [(f"def {name}({parameters}stream):", body) for name, body in (("launch", launch), ("run", run))]
    return "".join(f"{head}\n" + "".join(f"    {line}\n" for line in body) for head, body in functions)
