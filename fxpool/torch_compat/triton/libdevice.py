"""The math library that torch makes Triton link if a configuration requests eager's rounding.

torch points Triton at the CUDA toolkit's libdevice in the process that compiles, through an environment variable and a
Triton global. Here that is a fact of the request: the path is sent as the variable, the file's content is in the key,
and the program's own environment is not changed.
"""

from __future__ import annotations

import os
import sys

import torch

VARIABLE = "TRITON_LIBDEVICE_PATH"


def asked_for() -> str | None:
    """Return the file that torch would make Triton link as configured, or None for Triton's own.

    Also None if the environment already names a file, or if this machine has no toolkit. Source: torch 2.12 to 2.15,
    `_inductor/runtime/compile_tasks.py`; torch 2.11 does not support this.
    """
    from torch._inductor import config
    from torch._inductor.runtime import compile_tasks

    function = getattr(compile_tasks, "_set_triton_libdevice_path", None)
    if function is None or torch.version.cuda is None or VARIABLE in os.environ:
        return None
    # The options that request it differ between releases; the function's code shows which options it reads.
    reads = function.__code__.co_names
    by_precision = "emulate_precision_casts" in reads and config.emulate_precision_casts
    if not (by_precision or config.eager_numerics.use_pytorch_libdevice):
        return None
    return _set_by_program() or _of_toolkit()


def _set_by_program() -> str | None:
    knobs = sys.modules.get("triton.knobs")
    return getattr(getattr(knobs, "nvidia", None), "libdevice_path", None)


def _of_toolkit() -> str | None:
    # Importing it searches for the toolkit, which takes time, so it is imported only if the option is set.
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        return None
    path = os.path.join(cpp_extension.CUDA_HOME, "nvvm", "libdevice", "libdevice.10.bc")
    return path if os.path.isfile(path) else None
