"""Lists the C++ compilers that Inductor would try, in its order, and clears its cache of the compiler that it chose.

Inductor 2.11 to 2.13 go through `config.cpp.cxx` (by default None and then $CXX or g++, read when the module was
imported) and take the first that runs; None stands for a compiler that Inductor downloads if
TORCH_INDUCTOR_INSTALL_GXX is set. Inductor caches the choice, the compiler's kind and its version for the life of a
process, some of it without the compiler's name. So a process that changes to another compiler (a worker, forked from a
zygote that warmed up with a different one; a program that changes the configuration) would use the first one's flags
with it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Hashable
from typing import Any

import torch

from fxpool.torch_compat import versions
from fxpool.torch_compat.patching import clear_caches

#: The compiler that Inductor's caches belong to, as passed to `settle`; None before that.
_settled: Hashable = None


def compiler_candidates() -> list[str]:
    """Return names or paths of compilers, first choice first, without the one that Inductor would download."""
    from torch._inductor import config

    cxx = config.cpp.cxx
    candidates = cxx if isinstance(cxx, (list, tuple)) else (cxx,)
    return [str(candidate) for candidate in candidates if candidate]


def of_this_machine() -> dict[str, Any]:
    """Return the entries of Inductor's configuration that name this machine's compiler, as they are by default."""
    return {"cpp.cxx": (None, os.environ.get("CXX") or "g++")}


def takes_arguments() -> bool:
    """Return whether this torch splits a compiler's name like a shell, as in ``ccache g++``: 2.14 and later do."""
    return versions.parse(torch.version.__version__) >= (2, 14)


def words(candidate: str) -> list[str]:
    """Return the program and the arguments of a candidate; empty if it cannot be split."""
    if not takes_arguments():
        return [candidate]
    try:
        return shlex.split(candidate)
    except ValueError:  # an unterminated quote
        return []


def settle(compiler: Hashable) -> None:
    """Clear Inductor's cached facts about its compiler, unless they already belong to `compiler`.

    Equal values mean equal compilers. On the first call, cached facts may belong to any compiler: all are cleared
    except the instruction sets, which take seconds to find and are changed nowhere else.
    """
    global _settled
    before, _settled = _settled, compiler
    if before == compiler:
        return
    clear_caches("torch._inductor.cpp_builder")
    if before is not None:
        clear_caches("torch._inductor.cpu_vec_isa")
