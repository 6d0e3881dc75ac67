"""Which C++ compilers Inductor would try, in its order.

Inductor 2.11 to 2.13 go through `config.cpp.cxx` (by default None and then $CXX or g++, read when the module was
imported) and take the first that runs; None stands for one that it downloads, if told to by TORCH_INDUCTOR_INSTALL_GXX.
"""

from __future__ import annotations


def compiler_candidates() -> list[str]:
    """Names or paths of compilers, first choice first. The one that Inductor would download is left out."""
    from torch._inductor import config

    cxx = config.cpp.cxx
    candidates = cxx if isinstance(cxx, (list, tuple)) else (cxx,)
    return [str(candidate) for candidate in candidates if candidate]
