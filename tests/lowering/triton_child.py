"""A process with Triton and without a GPU: compiles kernels as a sub-job does, and prints what came of it as JSON.

python triton_child.py DIRECTORY        (Triton is in the import path)
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from typing import Any

DEVICE = (
    "DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, "
    "max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32)"
)
HEAD = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties, ReductionHint
triton_helpers.set_driver_to_gpu()
"""
POINTWISE = """
@triton_heuristics.pointwise(
    size_hints={'x': 65536}, filename=__file__,
    triton_meta={'signature': {'a': '*fp32', 'n': 'i64', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DEVICE,
                 'constants': {}, 'configs': [{}] LAUNCH},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'doubled', 'mutated_arg_names': ['a'], 'optimize_mem': True,
                   'autotune_pointwise': True, 'spill_threshold': 16 META},
    min_elem_per_thread=0)
@triton.jit
def doubled(a, n, xnumel, XBLOCK: tl.constexpr):
    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(a + at, tl.load(a + at, mask=at < xnumel) * n, mask=at < xnumel)
"""
# Descriptors that the launcher makes, of torch 2.14.
BESIDE = (
    POINTWISE.replace("'a': '*fp32'", "'a': '*fp32', 'b': '*fp32'")
    .replace("doubled(a,", "doubled(a, b,")
    .replace(
        "    tl.store(a + at, tl.load(a + at, mask=at < xnumel) * n, mask=at < xnumel)\n",
        "    tl.store(b + at, a.load([tl.program_id(0) * XBLOCK]) * n, mask=at < xnumel)\n",
    )
)
FROM_HOST = """, 'host_tma_descriptor_args': {'a': {'block_shape': ['XBLOCK'], 'shape': [65536], 'strides': [1]}}"""
# Descriptors that are made on the device lie in scratch memory.
DESCRIBED = POINTWISE.replace(
    "    tl.store(a + at, tl.load(a + at, mask=at < xnumel) * n, mask=at < xnumel)\n",
    """    described = tl.make_tensor_descriptor(a, [xnumel], [1], [XBLOCK])
    described.store([tl.program_id(0) * XBLOCK], described.load([tl.program_id(0) * XBLOCK]) * n)
""",
)
TILED = """
@triton_heuristics.pointwise(
    size_hints={'y': 1024, 'x': 1024}, filename=__file__,
    triton_meta={'signature': {'a': '*fp32', 'b': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr',
                 'XBLOCK': 'constexpr'}, 'device': DEVICE, 'constants': {}, 'configs': [{}]},
    inductor_meta={'grid_type': 'Grid2DWithYZOverflow', 'kernel_name': 'turned', 'mutated_arg_names': [],
                   'optimize_mem': False, 'autotune_pointwise': True},
    min_elem_per_thread=0)
@triton.jit
def turned(a, b, ynumel, xnumel, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    inside = (y < ynumel) & (x < xnumel)
    tl.store(b + x * ynumel + y, tl.load(a + y * xnumel + x, mask=inside), mask=inside)
"""
# Sixteen sums at once take more registers than full occupancy leaves: Inductor then tries a smaller block besides.
REDUCTION = """
@triton_heuristics.reduction(
    size_hints={'x': 131072, 'r0_': 4096}, reduction_hint=ReductionHint.INNER, filename=__file__,
    triton_meta={'signature': {'a': '*fp32', 'b': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr',
                 'R0_BLOCK': 'constexpr'}, 'device': DEVICE, 'constants': {}, 'configs': [{}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'summed', 'mutated_arg_names': [], 'optimize_mem': False})
@triton.jit
def summed(a, b, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r = tl.arange(0, R0_BLOCK)[None, :]
SUMS
    for start in range(0, r0_numel, R0_BLOCK):
        at = x * r0_numel + start + r
        value = tl.load(a + at, mask=(start + r < r0_numel) & (x < xnumel), other=0.0)
ADDS
    tl.store(b + x, ALL, mask=x < xnumel)
""".replace("SUMS", "\n".join(f"    s{i} = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)" for i in range(16))).replace(
    "ADDS", "\n".join(f"        s{i} += value * {i + 1} - s{i} * value" for i in range(16))
).replace("ALL", " + ".join(f"tl.sum(s{i}, 1)[:, None]" for i in range(16)))  # fmt: skip


def kernel(text: str, launch: str = "", meta: str = "", device: str = DEVICE) -> str:
    return HEAD + text.replace("DEVICE", device).replace("LAUNCH", launch).replace("META", meta)


KERNELS = {"doubled": kernel(POINTWISE), "turned": kernel(TILED), "summed": kernel(REDUCTION)}
TRITONS = {
    "coordinate_descent_tuning": kernel(POINTWISE, meta=", 'coordinate_descent_tuning': True"),
    "launch_attributes": kernel(POINTWISE, launch=", 'launch_pdl': True"),
    "scratch": kernel(DESCRIBED),
    "device_agnostic": kernel(POINTWISE, device=DEVICE.replace("index=0", "index=None")),
}
HOST_TMA = {"host_tma": kernel(BESIDE, meta=FROM_HOST)}
NUMBERS = (1, 31, 1024, 70_001, 9_000_000)


def main(directory: str) -> None:
    os.environ |= {"TMPDIR": directory, "TORCH_WARM_POOL": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    import msgspec
    import triton
    from torch._inductor.runtime.triton_heuristics import CompileResult, StaticTritonCompileResult

    from fxpool.lowering.cuda import triton_kernels
    from fxpool.torch_compat.triton import triton_compile

    results: list[Any] = []
    original = triton_compile.Candidate.__init__

    def noted(self: Any, result: Any) -> None:
        results.append(result)
        original(self, result)

    triton_compile.Candidate.__init__ = noted  # type: ignore[method-assign]

    def compiled(name: str, source: str, width: int = 1) -> Any:
        results.clear()
        payload = msgspec.msgpack.encode(triton_kernels.KernelSource(name, source, {}, width))
        answer = triton_kernels.compile_kernel(payload)
        return msgspec.msgpack.decode(answer, type=triton_kernels.CompiledKernel)

    report: dict[str, Any] = {"kernels": {}, "left": {}, "driver": []}
    tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")
    for name, source in KERNELS.items():
        one = compiled(name, source).kernel
        mine, theirs, counted, said = [], [], [], []
        for candidate, result in zip(one.candidates, results, strict=True):
            assert isinstance(result, StaticTritonCompileResult)
            place = os.path.join(directory, "kernel.cubin")
            with open(place, "wb") as file:
                file.write(candidate.binary)
            shown = subprocess.run([tool, "--dump-resource-usage", place], capture_output=True, text=True, check=True)
            said.append(int(re.findall(r"REG:(\d+)", shown.stdout)[0]))
            counted.append(triton_compile.registers(candidate.binary, candidate.symbol))
            for sizes in itertools.product(NUMBERS, repeat=len(one.parameters) - 2):
                arguments = [*("pointer", "other")[: len(one.parameters) - len(sizes)], *sizes]
                mine.append(launched(candidate, arguments))
                theirs.append(launched_by_torch(result, arguments))
        report["kernels"][name] = {
            "candidates": len(one.candidates), "values": [c.report["kernel_kwargs"] for c in one.candidates],
            "parameters": one.parameters, "written": one.written, "spill_limit": one.spill_limit,
            "launches": len(mine), "same": mine == theirs, "example": mine[0], "registers": [counted, said],
        }  # fmt: skip
    has_host_tma = hasattr(CompileResult, "_host_tma_pre_runner_lines")
    for reason, source in {**TRITONS, **(HOST_TMA if has_host_tma else {})}.items():
        answer = compiled("doubled", source)
        report["left"][reason] = [answer.kernel is None, answer.reason, len(answer.files)]
    try:
        compiled("doubled", kernel(POINTWISE).replace("* n,", "* nobody,"))
    except Exception as error:
        report["error"] = [type(error).__name__, str(error)]
    report["beside"] = {str(width): compiled_in(width, compiled) for width in (1, 2, 8)}
    from triton.runtime import driver

    report["driver"] = driver._active is None
    print(json.dumps(report))


def compiled_in(width: int, compiled: Any) -> list[Any]:
    """What a kernel's candidates are, and of how many this very process made the binary."""
    from triton.backends.nvidia.compiler import CUDABackend

    made = []
    original = CUDABackend.make_cubin

    def make_cubin(self: Any, *args: Any) -> Any:
        made.append(args)
        return original(self, *args)

    CUDABackend.make_cubin = make_cubin
    try:
        kernel = compiled("turned", KERNELS["turned"], width).kernel
    finally:
        CUDABackend.make_cubin = original
    return [[[one.code, one.symbol, one.shared, one.report, len(one.binary)] for one in kernel.candidates], len(made)]


def launched(candidate: Any, arguments: list[Any]) -> list[Any]:
    calls: list[Any] = []
    space: dict[str, Any] = {"_launch": lambda *call: calls.append(call), "_function": 7}
    exec(candidate.code, space)
    space["launch"](*arguments, 5)
    return json.loads(json.dumps(calls))


def launched_by_torch(result: Any, arguments: list[Any]) -> list[Any]:
    """The same through torch's own launcher of that kernel, its loader and its C function noted down instead."""
    calls: list[Any] = []
    kernel = result.kernel
    kernel.cubin_path, kernel.n_spills = "loaded", 0
    kernel.load_kernel = lambda device: None
    kernel.function = 7
    kernel.__dict__["C_impl"] = type("C", (), {"_launch_kernel": staticmethod(lambda *call: calls.append(call))})
    result.make_launcher()(*arguments, stream=5)
    return json.loads(json.dumps(calls))


if __name__ == "__main__":
    main(sys.argv[1])
