"""Facts of common GPUs, to compile for them without a device.

They have the form of `device_facts.capture`. Sources: NVIDIA's data sheets and the compute capability table of the CUDA
programming guide. A real device's answers take precedence: these facts are for tests, and to inspect compiled code.
"""

from __future__ import annotations

import dataclasses

from fxpool.torch_compat.cuda.device_facts import DeviceFacts


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Model:
    """`memory` and `cache` in MiB, clocks in MHz, `bus` in bits, `shared` memory in KiB per (processor, block)."""

    name: str
    capability: tuple[int, int]
    processors: int
    memory: int
    clock: int
    memory_clock: int
    bus: int
    shared: tuple[int, int]
    cache: int


def _facts(model: _Model) -> DeviceFacts:
    of_processor, of_block = model.shared
    return DeviceFacts(
        name=model.name,
        capability=model.capability,
        properties={
            "name": model.name,
            "major": model.capability[0],
            "minor": model.capability[1],
            "multi_processor_count": model.processors,
            "total_memory": model.memory << 20,
            "warp_size": 32,
            "max_threads_per_block": 1024,
            "max_threads_per_multi_processor": 2048,
            "regs_per_multiprocessor": 65536,
            "shared_memory_per_block": 48 << 10,
            "shared_memory_per_block_optin": of_block << 10,
            "shared_memory_per_multiprocessor": of_processor << 10,
            "L2_cache_size": model.cache << 20,
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
            "gcnArchName": model.name,
            "clock_rate": model.clock * 1000,
            "memory_clock_rate": model.memory_clock * 1000,
            "memory_bus_width": model.bus,
        },
        driver={
            "max_shared_mem": of_block << 10,
            "max_num_regs": 65536,
            "multiprocessor_count": model.processors,
            "warpSize": 32,
            "sm_clock_rate": model.clock * 1000,
            "mem_clock_rate": model.memory_clock * 1000,
            "mem_bus_width": model.bus,
        },
        cuda="13.0",
        cudnn=91300,
    )


COMMON = {
    model.name: _facts(model)
    for model in (
        _Model(
            name="NVIDIA A100-SXM4-80GB",
            capability=(8, 0),
            processors=108,
            memory=81_050,
            clock=1410,
            memory_clock=1593,
            bus=5120,
            shared=(164, 163),
            cache=40,
        ),
        _Model(
            name="NVIDIA H100 80GB HBM3",
            capability=(9, 0),
            processors=132,
            memory=81_079,
            clock=1980,
            memory_clock=2619,
            bus=5120,
            shared=(228, 227),
            cache=50,
        ),
        _Model(
            name="NVIDIA H200",
            capability=(9, 0),
            processors=132,
            memory=143_156,
            clock=1980,
            memory_clock=3201,
            bus=6144,
            shared=(228, 227),
            cache=60,
        ),
        _Model(
            name="NVIDIA B200",
            capability=(10, 0),
            processors=148,
            memory=182_642,
            clock=1965,
            memory_clock=3996,
            bus=7680,
            shared=(228, 227),
            cache=126,
        ),
    )
}
