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
    """`call` is the pickle of a call of a function of torch's, `configuration` what is configured where it was made.

    `unseen`: it is to be made where no device is seen.
    """

    call: bytes
    configuration: Any
    unseen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphJob:
    """`graph` is Inductor's own pickle. `modules` and `libraries` register what it names, `code` is the program's.

    `known` are the instruction sets that the process has found usable, None where it has not asked. `devices` are those
    that a worker answers for instead of seeing them, `current` is the index of the current one; `sees` says that it
    does see them, because they have to be asked.
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
    """Stands for a result where a worker has other code than the program; the text is which."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a job came to: it `returned` `value`, or raised, with the traceback as `value`.

    `device_needed`: it did neither, as a device was asked for what nobody can answer for it; `value` is that question.
    """

    value: Any
    returned: bool = True
    device_needed: bool = False

    def dump(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
