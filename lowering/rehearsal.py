"""One small compile in the zygote, so that a worker's first job costs what its second does.

A first compile registers pattern tables and decompositions, imports the back ends that it asks for, and fills sympy's
and torch's own memories: half a second to a second in every worker otherwise, because each one serves one job and ends.
Nothing of the small graph is kept; no C++ is compiled and no thread is started.
"""

from __future__ import annotations

import os

import torch

from fxpool.lowering import compile as compiling
from fxpool.torch_compat import aot, cpp, instruction_sets, preload, tensors, tracing
from fxpool.torch_compat.shape_env import ShapeEnv

# Patterns are traced once for each kind of device, and the zygote sees no GPU: where there is one, its workers do it.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/dxg")


def _block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.linear(x, weight, bias)
    hidden = torch.nn.functional.layer_norm(torch.nn.functional.gelu(hidden), (8,))
    return (hidden + x).softmax(-1).sum(0)


def rehearse() -> None:
    """Compile a small block for the CPU, inference only: tracing a backward starts autograd's threads in torch 2.11.

    A failure costs the workers time, and nothing else.
    """
    if any(os.path.exists(path) for path in _GPU_DRIVERS):
        return
    fake_mode = tensors.new_fake_mode(ShapeEnv())
    with (
        compiling.scratch_directory(),
        tracing.worker_context(fake_mode, None),
        instruction_sets.instruction_sets_known(instruction_sets.candidates()),
        cpp.collecting(lambda kernels, last: None),
        preload.counters_kept(),
        preload.no_progress_thread(),
    ):
        inputs = [fake_mode.from_tensor(torch.zeros(shape), static_shapes=True) for shape in ((4, 8), (8, 8), (8,))]
        aot.compile_graph(torch.fx.symbolic_trace(_block), inputs, keep_result=True)
