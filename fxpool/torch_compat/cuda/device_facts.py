"""What compiling for a CUDA device depends on, as plain data.

Lowering and Triton ask a device for a handful of facts. They are asked once, of the real device, by the process that
has it (`capture`); they travel with each request, are part of its key, and are what a worker answers from
(`torch_compat.device_answers`), which then touches no device.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import torch

Plain = bool | int | float | str


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device, seen by one build of torch.

    `properties` are those of ``torch.cuda.get_device_properties``, `driver` those that Triton's driver knows (both in
    bytes, kHz, bits). `cuda` and `cudnn` are the releases that torch was built with.
    """

    name: str
    capability: tuple[int, int]
    properties: dict[str, Plain]
    driver: dict[str, int]
    cuda: str
    cudnn: int | None

    @property
    def target(self) -> str:
        """As compilers call it."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def clock(self) -> int:
        """The highest clock of its processors in MHz."""
        return self.driver["sm_clock_rate"] // 1000

    def described(self) -> str:
        """One line, for a key. What differs between devices of one kind is not in it."""
        properties = {k: v for k, v in self.properties.items() if k not in _OF_ONE_DEVICE and k != "name"}
        rest = {**properties, **self.driver, "cuda": self.cuda, "cudnn": self.cudnn}
        return " ".join([self.name, self.target, *(f"{name}={value}" for name, value in sorted(rest.items()))])


def plain(facts: DeviceFacts) -> dict[str, Any]:
    """As JSON has it."""
    return {**msgspec.to_builtins(facts), "target": facts.target, "described": facts.described()}


# Memory differs by what the driver keeps for itself; the rest says which device it is, or where.
_OF_ONE_DEVICE = frozenset(("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id", "total_memory"))


@functools.cache
def capture(index: int) -> DeviceFacts:
    """The facts of CUDA device `index` of this process. Opens a context on it, if there is none.

    Raises:
        RuntimeError: there is no such device.
    """
    properties: Any = torch.cuda.get_device_properties(index)
    plain = {}
    for name in dir(properties):
        value = getattr(properties, name)
        if not name.startswith("_") and isinstance(value, bool | int | float | str):
            plain[name] = value
    return DeviceFacts(
        name=str(properties.name),
        capability=(properties.major, properties.minor),
        properties=plain,
        driver=_driver_properties(index),
        cuda=str(torch.version.cuda),
        cudnn=torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
    )


# cudaDeviceGetAttribute's numbers of what Triton's driver tells, by Triton's names. Source: CUDA's driver API,
# CUdevice_attribute. Triton itself takes a second to import, and compiles a module to be asked.
_ATTRIBUTES = {
    "max_shared_mem": 97,  # per block, opt-in
    "max_num_regs": 12,  # per block
    "multiprocessor_count": 16,
    "warpSize": 10,
    "sm_clock_rate": 13,
    "mem_clock_rate": 36,
    "mem_bus_width": 37,
}


def _driver_properties(index: int) -> dict[str, int]:
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")  # torch has loaded and started it
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        raise RuntimeError(f"CUDA's driver does not know device {index}")
    found = {}
    for name, attribute in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
            raise RuntimeError(f"CUDA's driver does not tell {name} of device {index}")
        found[name] = value.value
    return found
