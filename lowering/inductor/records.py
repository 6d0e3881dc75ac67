"""The input and the result of an Inductor job, shared by both sides."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

from fxpool.codecache.code.program_code import SentCode
from fxpool.lowering.request.ambient import AmbientState
from fxpool.torch_compat.cpp.instruction_sets import InstructionSet
from fxpool.torch_compat.cuda.device_facts import DeviceFacts

__all__ = ["GRAPH_JOB", "KERNEL_JOB", "GraphJob", "KernelJob", "OtherCode", "Result"]

KERNEL_JOB = "fxpool.lowering.inductor.jobs:run_kernel"
GRAPH_JOB = "fxpool.lowering.inductor.jobs:run_graph"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelJob:
    """`call` is a pickled call of a torch function, `configuration` the sender's configuration.

    `unseen`: it runs without visible devices.
    """

    call: bytes
    configuration: Any
    unseen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphJob:
    """`graph` is Inductor's pickle. `modules` and `libraries` register its operators, `code` is the program's code.

    `known` are the instruction sets that the sender has found usable, None if it has not probed. `devices` are those
    that a worker answers for instead of seeing them, `current` is the index of the current device. `sees`: the worker
    sees the devices, because only they can answer.
    """

    graph: bytes
    modules: Sequence[str]
    libraries: Sequence[str]
    code: SentCode
    state: AmbientState
    known: Sequence[InstructionSet] | None
    devices: Sequence[DeviceFacts]
    current: int
    sees: bool
    toolchain_dir: str | None


class OtherCode(str):
    """Replaces a result if the worker has other code than the program; the text names the code."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a job: it `returned` `value`, or raised, with the traceback as `value`.

    `device_needed`: it did neither, because it needs an answer that only a device can give; `value` is the query.
    """

    value: Any
    returned: bool = True
    device_needed: bool = False

    def dump(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
