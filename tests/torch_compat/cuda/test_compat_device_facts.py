"""`device_facts` captures as data what compiling for a CUDA device depends on; `common_devices` has known GPUs."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from fxpool.torch_compat.cuda import device_facts
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.cuda.device_facts import DeviceFacts

H100 = COMMON["NVIDIA H100 80GB HBM3"]


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device whose answers are known, in a process that may have none."""
    properties = types.SimpleNamespace(
        **{**H100.properties, "uuid": "GPU-1", "_private": 1, "method": lambda: 1}, compat_of_another_kind=(1, 2)
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(device_facts, "_driver_properties", lambda index: dict(H100.driver))
    device_facts.capture.cache_clear()
    yield
    device_facts.capture.cache_clear()


def test_plain_properties_of_a_device_are_captured(one_device: None) -> None:
    facts = device_facts.capture(0)
    assert (facts.name, facts.capability, facts.target) == (H100.name, (9, 0), "sm_90")
    assert facts.properties == {**H100.properties, "uuid": "GPU-1"}
    assert facts.driver == H100.driver
    assert facts.cuda == str(torch.version.cuda)
    assert device_facts.capture(0) is facts


def test_facts_travel_as_data() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(H100), type=DeviceFacts) == H100
    plain = device_facts.plain(H100)
    assert json.loads(json.dumps(plain)) == {**plain, "capability": [9, 0]}
    assert plain["target"] == "sm_90" and plain["described"] == H100.described()


def test_what_differs_between_devices_of_one_kind_is_not_in_a_key() -> None:
    def with_properties(**changed: Any) -> str:
        return msgspec.structs.replace(H100, properties={**H100.properties, **changed}).described()

    for name in ("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id"):
        assert with_properties(**{name: 7}) == H100.described()
    assert with_properties(total_memory=1) == H100.described()
    assert with_properties(multi_processor_count=7) != H100.described()
    assert msgspec.structs.replace(H100, cuda="11.0").described() != H100.described()
    assert msgspec.structs.replace(H100, driver={**H100.driver, "warpSize": 64}).described() != H100.described()


def test_clock_and_memory_have_their_units() -> None:
    assert H100.clock == 1980  # MHz
    assert H100.memory == 81_079 << 20  # bytes


@pytest.mark.parametrize("name", COMMON)
def test_a_common_gpu_has_all_that_is_asked(name: str) -> None:
    facts = COMMON[name]
    assert facts.name == facts.properties["name"] == name
    assert facts.capability == (facts.properties["major"], facts.properties["minor"])
    assert facts.driver.keys() == device_facts._ATTRIBUTES.keys()
    for driver, properties in (("multiprocessor_count", "multi_processor_count"), ("warpSize", "warp_size")):
        assert facts.driver[driver] == facts.properties[properties]
    assert facts.driver["max_shared_mem"] == facts.properties["shared_memory_per_block_optin"]


def test_inductor_finds_its_properties_in_the_facts() -> None:
    """Of those that ``DeviceProperties.create`` reads of a CUDA device."""
    import dataclasses

    from torch._inductor.runtime.hints import DeviceProperties

    names = (
        {field.name for field in dataclasses.fields(DeviceProperties)}
        if dataclasses.is_dataclass(DeviceProperties)
        else set(DeviceProperties._fields)
    )
    read = {"multi_processor_count", "regs_per_multiprocessor", "max_threads_per_multi_processor", "warp_size"}
    assert read <= names
    for facts in COMMON.values():
        assert read <= facts.properties.keys()
