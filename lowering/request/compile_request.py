"""One compile as plain data: everything that a worker needs, independent of the client process.

A request is pickled once. Its graph and inputs are the bytes that the key was computed from
(`codecache.graph.graph_codec`); data that is not hashed (most names, stack traces, sources, ids) is sent beside them.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fxpool.codecache.code.program_code import SentCode
from fxpool.codecache.key.key import GraphKey
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Origin
from fxpool.lowering.request.ambient_state import AmbientState
from fxpool.torch_compat.cuda.device_facts import DeviceFacts
from fxpool.torch_compat.cuda.padding import PaddingQuestion
from fxpool.torch_compat.dynamo import tensors, tracing
from fxpool.torch_compat.inductor.debug_files import DebugFiles

#: Queries that only a device can answer, with their answers.
Measured = Sequence[tuple[PaddingQuestion, bool]]

AOT = "aot"  # the graph as Dynamo made it; AOTAutograd runs in the compiling process
FX = "fx"  # a graph that AOTAutograd made
PACKAGE = "package"  # an exported program; its result is an AOTInductor package

#: The job that compiles a request, by the pool's naming.
COMPILE_JOB = "fxpool.lowering.worker.jobs:compile_job"
#: The job that compiles a stored request again, and compares.
RECOMPUTE_JOB = "fxpool.lowering.worker.recompute_job:recompute_job"
#: The job that probes this host's tool chain, on a host that has not been probed.
PREPARE_JOB = "fxpool.lowering.worker.jobs:prepare_job"

#: The reason for a graph whose code differs in the worker.
CODE_DIFFERS = "code_differs"

#: The priority of jobs that no caller waits for; others have 0.
BACKGROUND = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """Everything that a worker needs for one compile. Another try is another request (`dataclasses.replace`).

    `graph` and `inputs` are msgpack. `sources` and `parameter_sources` are Dynamo's; a missing source, or one that
    cannot be pickled, is sent as None.

    `packings` says of some constants what they are made from again in the worker: the number of another constant, and a
    number of rows (`torch_compat.dynamo.tensors`).

    `code` identifies the program's code that the worker's has to be equal to; None if that cannot be determined.

    `key` is None for a graph that may not be cached. If `key` is valid on any host, `host_key` is the key for hosts
    like this one, for an entry that turns out to have code for the CPU, too. `store` is the directory for the entry,
    `bounds` are its limits. `values` are the symbols' values in this call, `rejected_entries` the names of entries that
    the client could not use. `hints` are values of symbols if the graph was captured in a call with other values.
    `devices` are the CUDA devices that a worker answers for instead of seeing them, in the graph's order,
    `current_device` is the number of the current device, and `measured` answers the queries that lowering would have
    measured on them. `visible` is ``CUDA_VISIBLE_DEVICES`` for a worker that has to see devices, and `timing` the same
    for a worker that times candidates; None without a device. `origin` is for people who look at the entry.
    `debug_files` are those that Inductor has to write during the compile, and `logs` are the artifacts of torch's logs
    that the program wants (`torch_compat.dynamo.log_state`). `program` is the file of an exported program,
    whose `graph` and `inputs` are only used for the key. `keep_request`: the request is stored with the entry, so that
    it can be compiled again to verify the entry. `builds` are the digests that a machine needs to compile it
    (`codecache.key.build_digests`); None: it is compiled where it was captured.
    """

    level: str
    label: str
    graph: bytes
    inputs: bytes
    names: Sequence[Any]
    debug: Sequence[Any]
    constants: Sequence[torch.Tensor]
    packings: Mapping[int, tuple[int, int]]
    symbols: Sequence[str]
    shapes: bytes | None
    ambient: AmbientState
    sources: Sequence[Any]
    parameter_sources: Mapping[str, Any]
    from_dynamo: bool
    compile_id: Sequence[Any] | None
    arguments: dict[str, Any]
    modules: Sequence[str]
    libraries: Sequence[str]
    code: SentCode | None
    aot_id: int = 0
    key: GraphKey | None = None
    store: str | None = None
    bounds: Bounds | None = None
    toolchain_dir: str | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rejected_entries: tuple[str, ...] = ()
    hints: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    devices: tuple[DeviceFacts, ...] = ()
    current_device: int = 0
    visible: str | None = None
    measured: Measured = ()
    timing: str | None = None
    host_key: GraphKey | None = None
    group_sizes: tuple[int, ...] = ()
    origin: Origin | None = None
    debug_files: DebugFiles | None = None
    logs: dict[str, Any] | None = None
    program: str | None = None
    keep_request: bool = False
    builds: Mapping[str, str] | None = None

    @property
    def uses_gpu(self) -> bool:
        """Whether the graph is for CUDA devices of this host."""
        return self.timing is not None

    @property
    def times_templates(self) -> bool:
        """Whether Inductor chooses templates for CUDA devices by time, which only a worker that sees them can."""
        options = self.ambient.configuration["inductor"]
        return self.timing is not None and any(options.get(name) for name in ("max_autotune", "max_autotune_gemm"))

    def key_of(self, has_cpp: bool) -> GraphKey | None:
        """Return the key that an entry is published under; `has_cpp`: it contains C++ kernels."""
        return self.host_key if has_cpp and self.key is not None and self.host_key is not None else self.key

    def dump(self) -> bytes:
        """Return the request as bytes, for `load` in a worker."""
        names = tuple(self.parameter_sources)
        sources = tracing.dump_sources([*self.sources, *self.parameter_sources.values()])
        request = dataclasses.replace(
            self,
            sources=(),
            parameter_sources={},
            ambient=self.ambient.elsewhere() if self.devices else self.ambient,
        )
        with tensors.modes_disabled():  # constants are real, even inside a trace
            request = dataclasses.replace(request, constants=self._travelling_constants())
            return pickle.dumps(_Travelling(request, sources, len(self.sources), names), protocol=5)

    def _travelling_constants(self) -> list[Any]:
        return [
            tensors.to_travel(constant) if number not in self.packings else None
            for number, constant in enumerate(self.constants)
        ]

    @staticmethod
    def load(data: bytes) -> CompileRequest:
        """Return the request of `dump`. Raises TypeError for bytes of another object."""
        travelling = pickle.loads(data)
        if not isinstance(travelling, _Travelling):
            raise TypeError(f"not a compile request: {type(travelling).__name__}")
        sources = tracing.load_sources(travelling.sources)
        return dataclasses.replace(
            travelling.request,
            constants=_arrived(travelling.request.constants, travelling.request.packings),
            sources=sources[: travelling.inputs],
            parameter_sources=dict(zip(travelling.parameters, sources[travelling.inputs :], strict=True)),
        )


@dataclasses.dataclass(frozen=True)
class _Travelling:
    """A request without Dynamo's sources, and the sources as bytes: the first `inputs` belong to inputs, the others to
    `parameters`, which are names."""

    request: CompileRequest
    sources: Any
    inputs: int
    parameters: tuple[str, ...]


def _arrived(constants: Sequence[Any], packings: Mapping[int, tuple[int, int]]) -> list[torch.Tensor]:
    """Return the constants of a request; those that were packed are made again from their weights."""
    with tensors.modes_disabled():  # in this process too, a request may be loaded inside a trace
        arrived = [tensors.travelled(constant) if constant is not None else None for constant in constants]
        for number, (weight, rows) in packings.items():
            arrived[number] = tensors.pack_for_mkl(arrived[weight], rows)
    return arrived
