"""Captures facts that compiling for a CUDA device depends on, as plain data.

Lowering and Triton query a device for a handful of facts. The process that has the device reads them once (`capture`).
They are sent with each request and are part of its key, and a worker answers from them
(`torch_compat.cuda.device_answers`) without touching a device.

Another such fact is the math library. If a configuration requests eager's rounding, torch points Triton at the CUDA
toolkit's libdevice in the process that compiles, through an environment variable and a Triton global. Here the path is
sent as the variable, the file's content is in the key, and the program's own environment is not changed.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import msgspec
import torch

Plain = bool | int | float | str


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device, as one build of torch sees it.

    `properties` are those of ``torch.cuda.get_device_properties``, `driver` those of Triton's driver (both in
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
        """The compilers' name for it, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def clock(self) -> int:
        """The highest clock rate of its processors in MHz."""
        return self.driver["sm_clock_rate"] // 1000

    @property
    def memory(self) -> int:
        """Its memory in bytes, which differs a little between devices of one kind."""
        return int(self.properties["total_memory"])

    def described(self) -> str:
        """Return the facts in one line, for a key, without those that differ between devices of one kind."""
        properties = {k: v for k, v in self.properties.items() if k not in _OF_ONE_DEVICE and k != "name"}
        rest = {**properties, **self.driver, "cuda": self.cuda, "cudnn": self.cudnn}
        return " ".join([self.name, self.target, *(f"{name}={value}" for name, value in sorted(rest.items()))])


def plain(facts: DeviceFacts) -> dict[str, Any]:
    """Return the facts in JSON's types."""
    return {**msgspec.to_builtins(facts), "target": facts.target, "described": facts.described()}


# Usable memory depends on the driver's share, and is part of a key only if lowering decides by it
# (`device_placement`). The other properties identify or locate one device.
_OF_ONE_DEVICE = frozenset(("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id", "total_memory"))


@functools.cache
def capture(index: int) -> DeviceFacts:
    """Return the facts of CUDA device `index` of this process. Opens a context on it, if necessary.

    Raises:
        RuntimeError: there is no such device, or its driver does not answer.
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


def forget() -> None:
    """Have `capture` read the facts again: this process may go on with other devices."""
    capture.cache_clear()


# Numbers of CUdevice_attribute (CUDA's driver API) for the facts of Triton's driver, by Triton's names. Triton itself
# takes a second to import, and compiles a module to read them.
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
    properties = {}
    for name, attribute in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
            raise RuntimeError(f"CUDA's driver does not tell {name} of device {index}")
        properties[name] = value.value
    return properties


LIBDEVICE_VARIABLE = "TRITON_LIBDEVICE_PATH"


def requested_libdevice() -> str | None:
    """Return the file that torch would make Triton link as configured, or None for Triton's own.

    Also None if the environment already names a file, or if this machine has no toolkit. Source: torch 2.12 to 2.15,
    `_inductor/runtime/compile_tasks.py`; torch 2.11 does not support this.
    """
    from torch._inductor import config
    from torch._inductor.runtime import compile_tasks

    function = getattr(compile_tasks, "_set_triton_libdevice_path", None)
    if function is None or torch.version.cuda is None or LIBDEVICE_VARIABLE in os.environ:
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
