"""Which C++ compilers Inductor would try, in its order, and what it remembers of the one that it found.

Inductor 2.11 to 2.13 go through `config.cpp.cxx` (by default None and then $CXX or g++, read when the module was
imported) and take the first that runs; None stands for one that it downloads, if told to by TORCH_INDUCTOR_INSTALL_GXX.
Which one that is, what kind it is of and what it says of itself are remembered for the life of a process, some of it
without the compiler's name: a process that goes on to another one (a worker, forked from a zygote that warmed up with
its own; a program that changes the configuration) would give that the flags of the first.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from types import ModuleType
from typing import Any

_CACHED = type(functools.cache(lambda: None))
#: the compiler that what Inductor remembers is of, as `settle` was told; None before that
_settled: Hashable = None


def compiler_candidates() -> list[str]:
    """Names or paths of compilers, first choice first. The one that Inductor would download is left out."""
    from torch._inductor import config

    cxx = config.cpp.cxx
    candidates = cxx if isinstance(cxx, (list, tuple)) else (cxx,)
    return [str(candidate) for candidate in candidates if candidate]


def settle(compiler: Hashable) -> None:
    """Have Inductor ask anew what it remembers of its compiler if that was another than `compiler`.

    Equal values are equal compilers. What was found out before the first call may be of any: all but the instruction
    sets, which take seconds and which nobody else changes, is asked anew then.
    """
    global _settled
    before, _settled = _settled, compiler
    if before == compiler:
        return
    builder = sys.modules.get("torch._inductor.cpp_builder")
    for function in _cached_in(builder) if builder is not None else ():
        function.cache_clear()
    sets = sys.modules.get("torch._inductor.cpu_vec_isa")
    for function in _cached_in(sets) if sets is not None and before is not None else ():
        function.cache_clear()


def _cached_in(module: ModuleType) -> list[Any]:
    """The functions of a module, and of its classes, that remember what they returned."""
    found = []
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        found += [member for member in members if isinstance(member, _CACHED)]
    return found
