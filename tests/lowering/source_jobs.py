"""A compile job whose graphs also call a library of CUDA or ROCm source, where no template is chosen without a GPU.

What the source's function does, it does on the host: it doubles the graph's first input. Everything else is as ever.
"""

from __future__ import annotations

import os
from typing import Any

from patched_lowering import while_lowering

from fxpool.lowering.worker import jobs

SOURCE = """
extern "C" __attribute__((visibility("default"))) int twice(float* values, int count) {
    if (count < 0) return 7;
    for (int i = 0; i < count; ++i) values[i] *= 2;
    return 0;
}
"""


def _compile(kind: str, payload: bytes) -> bytes:
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch.utils import cpp_extension

    cpp_extension.CUDA_HOME = os.environ.get("CUDA_HOME")  # builds of torch for the CPU look for none
    write_args = PythonWrapperCodegen.write_args
    write_wait: Any = PythonWrapperCodegen.write_async_compile_wait

    def with_library(self: Any) -> None:
        self.prefix.splice("from ctypes import c_int, c_void_p")
        self.prefix.splice(f"doubling = async_compile.{kind}(r'''{SOURCE}''', 'so', aot_compile=False)")
        write_wait(self)

    def with_call(self: Any, names: list[str]) -> None:
        write_args(self, names)
        self.prefix.writeline(f"doubling.twice(c_void_p({names[0]}.data_ptr()), c_int({names[0]}.numel()))")

    with while_lowering(PythonWrapperCodegen, write_args=with_call, write_async_compile_wait=with_library):
        return jobs.compile_job(payload)


def compile_with_cuda(payload: bytes) -> bytes:
    """Job: `compile_job`, with CUDA source."""
    return _compile("cuda", payload)


def compile_with_rocm(payload: bytes) -> bytes:
    """Job: `compile_job`, with ROCm source."""
    return _compile("rocm", payload)
