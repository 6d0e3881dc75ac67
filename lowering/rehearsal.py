"""One small compile in the zygote, so that a worker's first job costs what its second does.

A first compile registers pattern tables and decompositions, imports the back ends that it asks for, and fills sympy's
and torch's own memories: half a second to a second in every worker otherwise, because each one serves one job and ends.
Nothing of the small graph is kept; no C++ is compiled and no thread is started.
"""

from __future__ import annotations

import torch

from fxpool.lowering import compile as compiling
from fxpool.torch_compat import aot, cpp, instruction_sets, preload, tensors, tracing
from fxpool.torch_compat.shape_env import ShapeEnv


def _block(tokens: torch.Tensor, table: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.embedding(tokens, table)
    query, key, value = torch.nn.functional.linear(x, weight, bias).view(2, 4, 2, 12).transpose(1, 2).split(4, -1)
    hidden = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 4, 8)
    hidden = torch.nn.functional.layer_norm(torch.nn.functional.gelu(hidden, approximate="tanh") + x, (8,))
    return (hidden @ weight.t()).softmax(-1).sum(0)


def warm() -> None:
    """Half a second of every process that compiles a Triton kernel."""
    preload.warm_triton()


def rehearse() -> None:
    """Compile a small block for the CPU, inference only: tracing a backward starts autograd's threads in torch 2.11.

    A failure costs the workers time, and nothing else.
    """
    fake_mode = tensors.new_fake_mode(ShapeEnv())
    with (
        compiling.scratch_directory(),
        tracing.worker_context(fake_mode, None),
        instruction_sets.instruction_sets_known(instruction_sets.candidates()),
        cpp.collecting(lambda kernels, last: None),
        preload.counters_kept(),
        preload.no_progress_thread(),
    ):
        real = [torch.zeros((2, 4), dtype=torch.int64), *(torch.zeros(shape) for shape in ((16, 8), (24, 8), (24,)))]
        inputs = [fake_mode.from_tensor(tensor, static_shapes=True) for tensor in real]
        aot.compile_graph(torch.fx.symbolic_trace(_block), inputs, keep_result=True)
