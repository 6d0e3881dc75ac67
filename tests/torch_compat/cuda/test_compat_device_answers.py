"""`device_answers` lets a process without a GPU compile for one: torch and Triton are answered from facts.

Triton's part is in `triton_kernels`, in a process that has it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import device_interface

from fxpool.torch_compat.cuda import device_answers
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.cuda.device_answers import UnansweredError

H100, A100 = COMMON["NVIDIA H100 80GB HBM3"], COMMON["NVIDIA A100-SXM4-80GB"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for processes that see no device")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H100 and an A100, of which the second is current; without Triton's driver, which is not there."""
    monkeypatch.setattr(device_answers, "triton_driver", lambda *args: contextlib.nullcontext())
    with device_answers.answering([H100, A100], current=1):
        yield


def test_torch_is_answered_from_the_facts(answering: None) -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.current_device() == 1
    assert torch.cuda.get_device_name(0) == H100.name and torch.cuda.get_device_name() == A100.name
    assert torch.cuda.get_device_capability("cuda:0") == (9, 0) and torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.get_device_properties("cuda:0").multi_processor_count == 132
    assert torch.cuda.is_bf16_supported() and torch.version.cuda == H100.cuda
    assert torch.backends.cudnn.version() == H100.cudnn
    interface = device_interface.get_interface_for_device("cuda")
    assert interface.is_available() and interface.current_device() == 1
    assert interface.Worker.get_device_properties(0).multi_processor_count == 132
    with torch.cuda.device(0):
        torch.cuda.synchronize()


def test_everything_is_as_before_afterwards() -> None:
    names = ("is_available", "device_count", "get_device_properties", "current_stream", "device", "_lazy_init")

    def state() -> Any:
        functions = {name: getattr(torch.cuda, name) for name in names}
        return functions, torch.version.cuda, dict(vars(device_interface.CudaInterface))

    before = state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_answers, "triton_driver", lambda *args: contextlib.nullcontext())
        with device_answers.answering([H100]):
            assert torch.cuda.device_count() == 1
    assert state() == before
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("name", device_answers._REFUSED)
def test_what_only_a_device_can_tell_is_refused_by_name(name: str, answering: None) -> None:
    with pytest.raises(UnansweredError, match=f"torch.cuda for {name}"):
        getattr(torch.cuda, name)()


def test_a_property_that_was_not_captured_is_refused_by_name(answering: None) -> None:
    properties = torch.cuda.get_device_properties(0)
    with pytest.raises(UnansweredError, match="a device's properties for compat_unknown"):
        properties.compat_unknown  # noqa: B018
    assert getattr(properties, "compat_unknown", 3) == 3


def test_inductor_reads_the_facts(answering: None) -> None:
    from torch._inductor.runtime.hints import DeviceProperties

    made = DeviceProperties.create(torch.device("cuda", 0))
    assert (made.type, made.cc, made.multi_processor_count) == ("cuda", 90, 132)
    assert DeviceProperties.create(torch.device("cuda", 1)).cc == 80
    assert made.max_threads_per_multi_processor == 2048


def test_a_fake_tensor_of_the_device_touches_none(answering: None) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert torch.empty(3, device="cuda:0").device == torch.device("cuda", 0)


def test_constants_are_computed_on_the_cpu(answering: None) -> None:
    from torch.fx.experimental import proxy_tensor

    with proxy_tensor.unset_fake_temporarily():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
    with device_answers._OnCpu():
        moved = torch.ops.prims.device_put.default(torch.ones(2), torch.device("cuda"))
        assert moved.device.type == "cpu" and torch.equal(moved, torch.ones(2))


def test_the_question_behind_an_error_is_found() -> None:
    question = UnansweredError("torch.cuda for current_stream")
    outer = RuntimeError("of the backend")
    outer.__cause__ = question
    assert device_answers.unanswered(outer) == "torch.cuda for current_stream"
    wrapped: Any = ValueError("wrapped")
    wrapped.inner_exception = question  # as Inductor's errors have it
    assert device_answers.unanswered(wrapped) == "torch.cuda for current_stream"
    assert device_answers.unanswered(ValueError("another")) == ""
    circle = ValueError("its own cause")
    circle.__cause__ = circle
    assert device_answers.unanswered(circle) == ""


def test_torch_s_own_errors_about_a_missing_device_are_questions() -> None:
    """Raised by this build of torch, whatever it says."""
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        torch.zeros(1, device="cuda")
    assert device_answers.unanswered(caught.value).startswith("torch's C++, which found none: ")
    with pytest.raises(RuntimeError) as other:
        torch.empty(1, device="meta").item()
    assert device_answers.unanswered(other.value) == ""


GENERATED = """
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
kernel = async_compile.cpp_pybinding(['float*'], '''void kernel(float* x) {}''')
other = async_compile.triton('other', '''source''', device_str='cuda')
async_compile.wait(globals())
del async_compile
def call(args): raise ZeroDivisionError
runner = Runner(partitions=[])
"""


def test_a_generated_module_is_read_for_its_kernels(
    answering: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    asked: list[tuple[str, Any]] = []

    def cpp_pybinding(self: Any, *args: Any) -> object:
        asked.append(("cpp_pybinding", args))
        return types.SimpleNamespace()

    def triton(self: Any, *args: Any, **kwargs: Any) -> object:
        asked.append(("triton", (*args, kwargs)))
        return types.SimpleNamespace()

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", cpp_pybinding)
    monkeypatch.setattr(AsyncCompile, "triton", triton)
    path = tmp_path / "generated.py"
    path.write_text(GENERATED)
    module: Any = PyCodeCache.load_by_key_path("compat_generated", str(path))
    assert sorted(asked) == [
        ("cpp_pybinding", (["float*"], "void kernel(float* x) {}")),
        ("triton", ("other", "source", {"device_str": "cuda"})),
    ]
    assert module.__file__ == str(path)
    module.runner.recursively_apply_fns(None)
    with pytest.raises(RuntimeError, match="a graph was called in the process that compiled it"):
        module.call([])
    path.write_text("value = 7\n")
    assert PyCodeCache.load_by_key_path("compat_ordinary", str(path)).value == 7


def test_a_kernel_of_a_kind_that_takes_a_device_is_refused() -> None:
    with pytest.raises(UnansweredError, match="a kernel of the kind cutedsl"):
        device_answers._read("async_compile.cutedsl('name', 'source')", "path")


def test_triton_s_driver_is_answered_from_the_facts() -> None:
    driver = device_answers._Driver([H100, A100], 1)
    assert driver.get_current_device() == 1 and driver.is_active()
    assert driver.get_active_torch_device() == torch.device("cuda", 1)
    assert driver.utils.get_device_properties(0) == H100.driver
    assert driver.get_device_interface() is torch.cuda
    for owner, name in ((driver, "launcher_cls"), (driver.utils, "load_binary")):
        with pytest.raises(UnansweredError, match=name):
            getattr(owner, name)
