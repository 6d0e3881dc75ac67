"""An operator that does something terrible to the process that compiles it, unless that is the user's.

Its rule is proven, so that graphs with it are sent to workers. A worker that imports this module wraps Inductor's inner
compile, which is not among the functions that are compared, as programs wrap it to count.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import torch

from fxpool.pool import current_job


def _do(how: str) -> None:
    kind, _, argument = how.partition(" ")
    if argument == "in stage 1":
        from torch._inductor import config

        if config.unroll_reductions_threshold != 3:  # what the tests' stage 1 has
            return
    if kind == "segfault" or (kind == "unless" and not os.path.exists(argument)):
        ctypes.string_at(0)
    elif kind == "exit":
        sys.exit(3)
    elif kind == "_exit":
        os._exit(4)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "abort":
        os.abort()
    elif kind == "hang":
        time.sleep(600)
    elif kind == "take":  # so many seconds
        time.sleep(float(argument))
    elif kind == "hold":  # so many megabytes, for a second
        held = bytearray(b"x" * (int(argument) << 20))
        time.sleep(1.0)
        del held
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "eat":
        eaten: list[bytearray] = []
        while True:
            eaten.append(bytearray(b"x" * (32 << 20)))
            time.sleep(0.01)


@torch.library.custom_op("fxpool_test::deadly", mutates_args=())
def deadly(x: torch.Tensor, how: str) -> torch.Tensor:
    return x + 1


@deadly.register_fake
def _(x: torch.Tensor, how: str) -> torch.Tensor:
    return torch.empty_like(x)


def _arm() -> None:
    from torch._inductor import compile_fx

    original = compile_fx.compile_fx_inner

    def armed(gm: Any, *arguments: Any, **named: Any) -> Any:
        for node in gm.graph.nodes:
            if node.target is torch.ops.fxpool_test.deadly.default:
                _do(node.args[1])
        return original(gm, *arguments, **named)

    compile_fx.compile_fx_inner = armed


if current_job() is not None:
    _arm()
