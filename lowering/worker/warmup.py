"""Small compiles in the zygote, so that a worker's first job is as fast as later ones.

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

from fxpool.codecache.key import system, toolchain
from fxpool.lowering.core.scratch import scratch_directory
from fxpool.lowering.cuda.triton_kernels import PendingKernel
from fxpool.torch_compat.cpp import commands, instruction_sets
from fxpool.torch_compat.cuda import device_answers, no_devices
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.dynamo import tensors, tracing
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.inductor import aot, preload
from fxpool.torch_compat.triton import triton_compile

_MODEL = "NVIDIA H200"


def _block(tokens: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.embedding(tokens, table)
    query, key, value = torch.nn.functional.linear(x, weight, bias).view(2, 4, 2, 12).transpose(1, 2).split(4, -1)
    hidden = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 4, 8)
    hidden = torch.nn.functional.layer_norm(torch.nn.functional.gelu(hidden, approximate="tanh") + x, (8,))
    return (hidden @ weight.t()).softmax(-1).sum(0)


def _layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Without attention, of which only a device can tell how it is computed."""
    hidden = torch.nn.functional.gelu(x @ weight)
    return torch.nn.functional.layer_norm(hidden, (8,)).softmax(-1).sum(0)


def warm() -> None:
    """Half a second of every process that compiles a Triton kernel, and what every one asks of the installation.

    That is of the files as they are now, and no later: it is these that the workers have imported.
    """
    with no_devices.out_of_reach():
        preload.warm_triton()
    system.installed_facts()


def warm_up() -> None:
    """Compile a small block for the CPU, inference only. A failure costs the workers time, and nothing else."""
    _warm_up_on_cpu(training=False)


def warm_up_training() -> None:
    """The same with a backward.

    Autograd counts devices before its first one, and starts a thread for each. Where they can't be kept from it that
    is left to the workers.
    """
    if torch.version.cuda is None or no_devices.guards_can_be_replaced():
        _warm_up_on_cpu(training=True)


def warm_up_devices() -> None:
    """Compile a small layer for a GPU, if there is Triton: inference only, because a backward would start a thread."""
    if importlib.util.find_spec("triton") is None or torch.version.hip or not no_devices.guards_can_be_replaced():
        return
    with _apart() as fake_mode, device_answers.answering([COMMON[_MODEL]]):
        with fake_mode:
            inputs = [torch.empty(shape, device="cuda:0") for shape in ((4, 8), (8, 8))]
        aot.compile_graph(torch.fx.symbolic_trace(_layer), inputs, keep_result=True)


def _warm_up_on_cpu(*, training: bool) -> None:
    with _apart() as fake_mode:
        real = [torch.zeros((2, 4), dtype=torch.int64)]
        real += [torch.zeros(shape, requires_grad=training) for shape in ((16, 8), (24, 8), (24,))]
        inputs = [fake_mode.from_tensor(tensor, static_shapes=True) for tensor in real]
        aot.compile_graph(torch.fx.symbolic_trace(_block), inputs, keep_result=True)


@contextlib.contextmanager
def _apart() -> Iterator[Any]:
    """A fake mode, and a compile under it that leaves nothing but what is remembered."""
    with no_devices.out_of_reach():  # a fake mode asks for devices when it is made
        fake_mode = tensors.new_fake_mode(ShapeEnv())
        with _kept_apart(fake_mode):
            yield fake_mode


@contextlib.contextmanager
def _kept_apart(fake_mode: Any) -> Iterator[None]:
    toolchain.settle()  # what Inductor remembers from now on is of the compiler that most jobs have
    with (
        scratch_directory(),
        tracing.worker_context(fake_mode, None),
        instruction_sets.instruction_sets_known(instruction_sets.candidates()),
        commands.collecting(lambda kernels, last: None),
        triton_compile.collecting(lambda name, source: PendingKernel()),
        preload.counters_kept(),
        preload.no_progress_thread(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of what nobody asked for
        yield
