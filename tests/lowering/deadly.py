"""An operator that does something terrible to the process that compiles it, unless that is the user's.

What it does is the business of a filter of its log: a logger counts by its name, so that a graph with the operator can
be sent to a worker though this code reads the state of the process it runs in.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time

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


def _when_logged(record: logging.LogRecord) -> bool:
    if current_job() is not None:
        _do(record.getMessage())
    return True


_log = logging.getLogger("fxpool_test.deadly")
_log.setLevel(logging.CRITICAL)
_log.addFilter(_when_logged)


@torch.library.custom_op("fxpool_test::deadly", mutates_args=())
def deadly(x: torch.Tensor, how: str) -> torch.Tensor:
    return x + 1


@deadly.register_fake
def _(x: torch.Tensor, how: str) -> torch.Tensor:
    _log.critical(how)
    return torch.empty_like(x)
