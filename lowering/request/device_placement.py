"""The CUDA devices of a graph: their indices here, the facts for its worker, and reasons why a worker must see them."""

from __future__ import annotations

import dataclasses
import os

import torch

from fxpool.codecache.graph.graph_codec import EncodedGraph
from fxpool.codecache.key import system_facts, toolchain
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.cuda import device_facts
from fxpool.torch_compat.cuda.device_facts import DeviceFacts
from fxpool.torch_compat.state import configs

__all__ = ["Placement", "current_device", "placement_of", "require_movable", "through_cpp", "visible_devices"]


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a graph, in the order in which it names them.

    `indices` are those of this process, `facts` each device's facts; `current` is the number of the current device.
    `needed` is the reason why a worker has to see them, or empty. `by_memory`: their amount of memory matters.
    """

    indices: tuple[int, ...] = ()
    facts: tuple[DeviceFacts, ...] = ()
    current: int = 0
    needed: str = ""
    by_memory: bool = False

    def visible(self) -> str | None:
        """Return the ``CUDA_VISIBLE_DEVICES`` that makes the graph's device numbers indices; None to leave it unset."""
        return None if self.indices == tuple(range(len(self.indices))) else self.names()

    def names(self) -> str:
        """Return the graph's devices, in its order, as ``CUDA_VISIBLE_DEVICES`` names them."""
        seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        return ",".join(seen[index] if index < len(seen) else str(index) for index in self.indices)

    def key_part(self) -> dict[str, str]:
        if not self.facts:
            return {}
        rows = {f"cuda_device_{number}": one.described() for number, one in enumerate(self.facts)}
        if self.by_memory:
            rows |= {f"cuda_memory_{number}": str(one.memory) for number, one in enumerate(self.facts)}
        return {**rows, "cuda_current": str(self.current), "cuda_needed": self.needed}


def placement_of(encoded: EncodedGraph, default: str | None, toolchain_dir: str | None) -> Placement:
    """Return the CUDA devices of an encoded graph; `default` is the current default device."""
    if "cuda" not in encoded.devices or torch.version.hip or not torch.cuda.is_available():
        return Placement(tuple(encoded.indices))  # an argument can name a device that this host lacks
    system_facts.notice_machine()
    indices, current, here = list(encoded.indices), 0, torch.cuda.current_device()
    if (encoded.current_named or default is not None or not indices) and here not in indices:
        indices += range(len(indices), here + 1) if encoded.own_indices else [here]
    if here in indices:
        current = indices.index(here)
    facts = tuple(map(device_facts.capture, indices))
    if default is not None and torch.device(default).index not in (None, here):
        needed = "default_device"
    else:
        needed = _needed(encoded, toolchain_dir)
    return Placement(tuple(indices), facts, current, needed, configs.decides_by_memory())


def require_movable(encoded: EncodedGraph) -> None:
    """Raise CannotTravelError if a worker's result for the graph would not run in another process."""
    if through_cpp(encoded) and (torch.version.hip or configs.kernels_on_first_call()):
        raise CannotTravelError("gpu_cpp_wrapper", "the calling process compiles its kernels or looks them up")


def through_cpp(encoded: EncodedGraph) -> bool:
    """Return whether a graph for a GPU is called through C++: its library names devices by their index.

    False for a package, which contains its kernels: it is encoded as if the option were off.
    """
    return "cuda" in encoded.devices and encoded.own_indices


def _needed(encoded: EncodedGraph, toolchain_dir: str | None) -> str:
    if any(constant.device.type != "cpu" for constant in encoded.constants):
        return "constant"
    if encoded.attention_open:
        return "attention"
    if through_cpp(encoded):
        return "cpp_wrapper"  # its source contains the launch parameters, so kernels are timed before it is compiled
    if measured := configs.measures():
        return measured
    return "" if toolchain.find_compiler(toolchain_dir) is not None else "no_compiler"


def visible_devices(toolchain_dir: str | None) -> tuple[DeviceFacts, ...]:
    """Return the facts of all devices of this process, if it uses CUDA and a worker can answer for them."""
    if torch.version.hip or not torch.cuda.is_initialized() or toolchain.find_compiler(toolchain_dir) is None:
        return ()
    return tuple(map(device_facts.capture, range(torch.cuda.device_count())))


def current_device() -> int:
    """Return the index of this thread's current device."""
    return torch.cuda.current_device()
