"""Nothing within reach: what a process asks of devices is answered without a driver, and nothing of that stays."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo import device_interface
from torch._subclasses import FakeTensorMode

from fxpool.torch_compat.cuda import no_devices
from fxpool.torch_compat.cuda.no_devices import OutOfReachError
from fxpool.torch_compat.inductor import preload


def test_no_device_is_found_and_none_is_asked() -> None:
    before = {name: getattr(torch.cuda, name) for name in ("is_available", "device_count", "current_device")}
    with no_devices.out_of_reach():
        assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
        assert not device_interface.CudaInterface.is_available()
        assert torch.accelerator.current_accelerator() is None
        for ask in (torch.cuda.current_device, torch.cuda._lazy_init, lambda: torch.cuda.get_device_properties(0)):
            with pytest.raises(OutOfReachError, match="within reach"):
                ask()
    assert before == {name: getattr(torch.cuda, name) for name in before}


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch may be using the guard meanwhile")
def test_torchs_cpp_finds_a_guard_inside_only() -> None:
    def part_of_a_tensor() -> torch.Tensor:
        with FakeTensorMode():
            return torch.empty(4, device="cuda:0")[:2]

    assert no_devices.guards_can_be_replaced()
    registry = no_devices._registry()
    assert registry is not None
    before = list(registry)
    with no_devices.out_of_reach():
        assert part_of_a_tensor().device == torch.device("cuda", 0)
        assert list(registry) != before
    assert list(registry) == before
    if torch.version.cuda is None:  # a build for CUDA has a guard of its own, that knows of no device here
        with pytest.raises(RuntimeError):
            part_of_a_tensor()


def test_what_classes_remember_of_devices_is_forgotten() -> None:
    """One of them makes the properties that go into a kernel."""
    from torch._inductor.runtime import hints

    made = hints.DeviceProperties.create(torch.device("cpu"))
    assert hints.DeviceProperties.create(torch.device("cpu")) is made
    preload.forget_devices()
    assert hints.DeviceProperties.create(torch.device("cpu")) is not made
