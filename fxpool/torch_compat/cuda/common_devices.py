"""Facts of common GPUs, for compiling where there is none.

In the form of `device_facts.capture`. Sources: NVIDIA's data sheets and the compute capability table of the CUDA
programming guide. A real device's answers take precedence: these are for tests, and to inspect compiled code.
"""

from __future__ import annotations

from fxpool.torch_compat.cuda.device_facts import DeviceFacts


def _facts(
    name: str,
    capability: tuple[int, int],
    *,
    processors: int,
    memory: int,
    clock: int,
    memory_clock: int,
    bus: int,
    shared: tuple[int, int],
    cache: int,
) -> DeviceFacts:
    """`memory` and `cache` in MiB, clocks in MHz, `bus` in bits, `shared` memory in KiB per (processor, block)."""
    of_processor, of_block = shared
    return DeviceFacts(
        name=name,
        capability=capability,
        properties={
            "name": name,
            "major": capability[0],
            "minor": capability[1],
            "multi_processor_count": processors,
            "total_memory": memory << 20,
            "warp_size": 32,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
            "regs_per_multiprocessor": 65536,
            "shared_memory_per_block": 48 << 10,
            "shared_memory_per_block_optin": of_block << 10,
            "shared_memory_per_multiprocessor": of_processor << 10,
            "L2_cache_size": cache << 20,
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
            "gcnArchName": name,
            "clock_rate": clock * 1000,
            "memory_clock_rate": memory_clock * 1000,
            "memory_bus_width": bus,
        },
        driver={
            "max_shared_mem": of_block << 10,
            "max_num_regs": 65536,
            "multiprocessor_count": processors,
            "warpSize": 32,
            "sm_clock_rate": clock * 1000,
            "mem_clock_rate": memory_clock * 1000,
            "mem_bus_width": bus,
        },
        cuda="13.0",
        cudnn=91300,
    )


COMMON = {
    facts.name: facts
    for facts in (
        _facts("NVIDIA A100-SXM4-80GB", (8, 0), processors=108, memory=81_050, clock=1410, memory_clock=1593, bus=5120,
               shared=(164, 163), cache=40),
        _facts("NVIDIA H100 80GB HBM3", (9, 0), processors=132, memory=81_079, clock=1980, memory_clock=2619, bus=5120,
               shared=(228, 227), cache=50),
        _facts("NVIDIA H200", (9, 0), processors=132, memory=143_156, clock=1980, memory_clock=3201, bus=6144,
               shared=(228, 227), cache=60),
        _facts("NVIDIA B200", (10, 0), processors=148, memory=182_642, clock=1965, memory_clock=3996, bus=7680,
               shared=(228, 227), cache=126),
    )
}  # fmt: skip
