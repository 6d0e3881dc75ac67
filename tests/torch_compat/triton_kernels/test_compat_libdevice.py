"""`libdevice` finds the library of functions that torch has Triton link where eager's rounding is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

from fxpool.torch_compat import versions
from fxpool.torch_compat.cuda import device_facts

SINCE_2_12 = pytest.mark.skipif(
    versions.parse(torch.__version__) < (2, 12), reason="torch 2.11 has Triton link its own library only"
)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit of CUDA's, for a torch that was built for it."""
    from torch.utils import cpp_extension

    path = tmp_path / "cuda" / "nvvm" / "libdevice" / "libdevice.10.bc"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"BC")
    monkeypatch.delenv(device_facts.LIBDEVICE_VARIABLE, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(device_facts, "_set_by_program", lambda: None)
    return path


def asking() -> Any:
    return inductor_config.patch({"eager_numerics.use_pytorch_libdevice": True})


def test_an_ordinary_program_asks_for_none(toolkit: Path) -> None:
    assert device_facts.requested_libdevice() is None


@SINCE_2_12
def test_the_toolkit_s_library_is_asked_for_by_an_option(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asking():
        assert device_facts.requested_libdevice() == str(toolkit)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(device_facts.LIBDEVICE_VARIABLE, "/mine.bc")  # a file is named already
            assert device_facts.requested_libdevice() is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.version, "cuda", None)  # this build has nothing to do with it
            assert device_facts.requested_libdevice() is None
        monkeypatch.setattr(device_facts, "_set_by_program", lambda: "/by/program.bc")
        assert device_facts.requested_libdevice() == "/by/program.bc"


@SINCE_2_12
def test_without_a_toolkit_there_is_none(toolkit: Path) -> None:
    toolkit.unlink()
    with asking():
        assert device_facts.requested_libdevice() is None


@SINCE_2_12
def test_torch_s_own_function_says_which_options_it_reads(toolkit: Path) -> None:
    from torch._inductor.runtime import compile_tasks

    reads = compile_tasks._set_triton_libdevice_path.__code__.co_names
    assert "use_pytorch_libdevice" in reads or "eager_numerics" in reads
    with inductor_config.patch(emulate_precision_casts=True):
        expected = str(toolkit) if "emulate_precision_casts" in reads else None
        assert device_facts.requested_libdevice() == expected


def test_only_torch_2_12_and_later_point_triton_at_a_library() -> None:
    from torch._inductor.runtime import compile_tasks

    newer = versions.parse(torch.__version__) >= (2, 12)
    assert hasattr(compile_tasks, "_set_triton_libdevice_path") is newer
