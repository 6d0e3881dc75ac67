"""A configuration that asks for eager's rounding has Triton link the CUDA toolkit's functions: they are in the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from capturing import key_of
from torch._inductor import config
from torch._inductor.runtime import compile_tasks
from torch.utils import cpp_extension

from fxpool.lowering.request import ambient_state
from fxpool.torch_compat.cuda import device_facts

X = torch.ones(4, 4)

pytestmark = pytest.mark.skipif(
    not hasattr(compile_tasks, "_set_triton_libdevice_path"), reason="this torch leaves the library to Triton"
)


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A torch for CUDA and a toolkit; returns the toolkit's library."""
    library = tmp_path / "nvvm" / "libdevice" / "libdevice.10.bc"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"functions of one toolkit")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    monkeypatch.delenv(device_facts.LIBDEVICE_VARIABLE, raising=False)
    return library


def test_the_toolkits_library_is_for_those_who_ask(toolkit: Path) -> None:
    assert device_facts.requested_libdevice() is None
    with config.patch({"eager_numerics.use_pytorch_libdevice": True}):
        assert device_facts.requested_libdevice() == str(toolkit)
        assert ambient_state.capture(before_autograd=True).environment[device_facts.LIBDEVICE_VARIABLE] == str(toolkit)
    assert device_facts.LIBDEVICE_VARIABLE not in os.environ, "the program's own environment stays as it is"


def test_what_asks_is_what_torch_says(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch itself is asked: it sets a variable where an option asks for it."""
    asked: list[bool] = []
    monkeypatch.setattr(compile_tasks, "_set_triton_libdevice_path_impl", lambda: asked.append(True))
    for options in ({"emulate_precision_casts": True}, {"eager_numerics.use_pytorch_libdevice": True}, {}):
        asked.clear()
        with config.patch(options):
            compile_tasks._set_triton_libdevice_path()
            assert (device_facts.requested_libdevice() is not None) == bool(asked), options


def test_its_content_is_in_the_key(toolkit: Path) -> None:
    plain = key_of(torch.sin, X)
    with config.patch({"eager_numerics.use_pytorch_libdevice": True}):
        asked = key_of(torch.sin, X)
        toolkit.write_bytes(b"functions of another toolkit")
        assert key_of(torch.sin, X) != asked
    assert key_of(torch.sin, X) == plain, "who does not ask does not depend on it"


def test_a_file_that_the_environment_names_later_is_in_the_key(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch sets the variable in the middle of a process when Inductor compiles there."""
    plain = key_of(torch.sin, X)
    monkeypatch.setenv(device_facts.LIBDEVICE_VARIABLE, str(toolkit))
    named = key_of(torch.sin, X)
    assert named != plain
    assert device_facts.requested_libdevice() is None
    other = toolkit.with_name("other.bc")
    other.write_bytes(b"other functions")
    monkeypatch.setenv(device_facts.LIBDEVICE_VARIABLE, str(other))
    assert key_of(torch.sin, X) not in (plain, named)
