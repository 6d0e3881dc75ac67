"""Small compiles and comparisons in the zygote, so that a worker's first job is as fast as later ones.

A first compile registers pattern tables and decompositions, imports the back ends that it needs, and fills sympy's and
torch's caches. Without the warm-up this would take half a second to a second in every worker, because each worker runs
one job and exits. The results of the small graphs are discarded; no C++ or Triton kernel is compiled, and no thread is
started.

A zygote must not touch a GPU: any call of CUDA's driver starts a thread, and a process with threads cannot be forked
safely. So devices are out of reach, and the warm-up for a device is answered from the facts of a common model. The
model does not matter: only state that does not depend on a device remains (`preload.forget_devices`), and pattern
tables, which are stored by device index.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from fxpool.codecache.code import program_code
from fxpool.codecache.key import system_facts, toolchain
from fxpool.lowering.core.scratch_directories import scratch_directory
from fxpool.lowering.cuda.triton_kernels import PendingKernel
from fxpool.torch_compat.cpp import compile_commands, instruction_sets
from fxpool.torch_compat.cuda import device_answers, no_devices
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.dynamo import tensors, tracing
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.inductor import aot, preload
from fxpool.torch_compat.state import compile_flags
from fxpool.torch_compat.triton import triton_compile

_MODEL = "NVIDIA H200"
_MOMENT = 0.1  # seconds


def _block(tokens: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.embedding(tokens, table)
    query, key, value = torch.nn.functional.linear(x, weight, bias).view(2, 4, 2, 12).transpose(1, 2).split(4, -1)
    hidden = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 4, 8)
    hidden = torch.nn.functional.layer_norm(torch.nn.functional.gelu(hidden, approximate="tanh") + x, (8,))
    return (hidden @ weight.t()).softmax(-1).sum(0)


def _layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute a layer without attention, whose implementation only a device can choose."""
    hidden = torch.nn.functional.gelu(x @ weight)
    return torch.nn.functional.layer_norm(hidden, (8,)).softmax(-1).sum(0)


def warm() -> None:
    """Import Triton, which saves half a second in each process that compiles a kernel, and read the installed files.

    The files are read now, and not later, because the workers have imported these versions.
    """
    with no_devices.out_of_reach():
        preload.warm_triton()
    system_facts.installed_facts()


def warm_up() -> None:
    """Compile a small block for the CPU, inference only. A failure costs the workers only time."""
    _warm_up_on_cpu(training=False)


def warm_up_training() -> None:
    """Compile the same block with a backward.

    Before its first backward, autograd counts devices and starts a thread for each. If devices cannot be hidden from
    it, this warm-up is left to the workers.
    """
    if torch.version.cuda is None or no_devices.guards_can_be_replaced():
        _warm_up_on_cpu(training=True)


def warm_up_devices() -> None:
    """Compile a small layer for a GPU, if Triton is installed: inference only, as a backward would start a thread."""
    if importlib.util.find_spec("triton") is None or torch.version.hip or not no_devices.guards_can_be_replaced():
        return
    with _apart() as fake_mode, device_answers.answering([COMMON[_MODEL]]):
        with fake_mode:
            inputs = [torch.empty(shape, device="cuda:0") for shape in ((4, 8), (8, 8))]
        aot.compile_graph(torch.fx.symbolic_trace(_layer), inputs, keep_result=True)


def examine_torch() -> bool:
    """Compare a part of torch's modules with their sources, as each job does; return whether more is left.

    All of it takes half a second, in which no worker can be forked.
    """
    return program_code.examine_torch(_MOMENT)


def _warm_up_on_cpu(*, training: bool) -> None:
    with _apart() as fake_mode:
        real = [torch.zeros((2, 4), dtype=torch.int64)]
        real += [torch.zeros(shape, requires_grad=training) for shape in ((16, 8), (24, 8), (24,))]
        inputs = [fake_mode.from_tensor(tensor, static_shapes=True) for tensor in real]
        aot.compile_graph(torch.fx.symbolic_trace(_block), inputs, keep_result=True)


@contextlib.contextmanager
def _apart() -> Iterator[Any]:
    """Yield a fake mode for a compile that leaves only filled caches behind."""
    with no_devices.out_of_reach():  # creating a fake mode checks for devices
        fake_mode = tensors.new_fake_mode(ShapeEnv())
        with _kept_apart(fake_mode):
            yield fake_mode


@contextlib.contextmanager
def _kept_apart(fake_mode: Any) -> Iterator[None]:
    toolchain.settle()  # Inductor's caches from now on belong to the compiler of most jobs
    with (
        scratch_directory(),
        tracing.worker_context(fake_mode, None),
        compile_flags.session(),
        instruction_sets.instruction_sets_known(instruction_sets.candidates()),
        compile_commands.collecting(lambda kernels, last: None),
        triton_compile.collecting(lambda name, source: PendingKernel()),
        preload.counters_kept(),
        preload.no_progress_thread(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # warnings about the warm-up graphs do not concern the user
        yield
