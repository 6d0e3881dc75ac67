"""`debug_files` has a worker write the files that a program asked for by ``TORCH_COMPILE_DEBUG=1``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch._inductor.config as inductor_config

from fxpool.torch_compat.inductor import debug_files
from fxpool.torch_compat.inductor.debug_files import DebugFiles


def test_nothing_is_asked_for_by_default() -> None:
    assert debug_files.requested() is None


def test_the_program_s_directory_and_options_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.utils import get_debug_dir

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    with (
        dynamo_config.patch(debug_dir_root=str(tmp_path / "debug")),
        inductor_config.patch({"trace.enabled": True, "trace.graph_diagram": True, "trace.debug_dir": "mine"}),
    ):
        files = debug_files.requested()
        assert files is not None
        assert files.directory == os.path.abspath(get_debug_dir()) and files.log
        assert files.directory.startswith(str(tmp_path / "debug"))
    assert files.options["trace.graph_diagram"] is True and files.options["trace.fx_graph"] in (True, False)
    assert files.options["trace.debug_dir"] == str(tmp_path / "mine")
    assert "trace.upload_tar" not in files.options or files.options["trace.upload_tar"] is None


def test_a_function_of_the_program_s_stays() -> None:
    with inductor_config.patch({"trace.enabled": True, "trace.upload_tar": print}):
        files = debug_files.requested()
    assert files is not None and "trace.upload_tar" not in files.options


def test_files_are_written_as_they_were_asked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import debug

    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "0")
    original = debug.get_debug_dir
    files = DebugFiles("/somewhere/else", {"trace.enabled": True, "trace.fx_graph": False}, log=True)
    with debug_files.written(files):
        assert debug.get_debug_dir() == "/somewhere/else" and os.environ["TORCH_COMPILE_DEBUG"] == "1"
        assert inductor_config.trace.enabled is True and inductor_config.trace.fx_graph is False
    assert debug.get_debug_dir is original and os.environ["TORCH_COMPILE_DEBUG"] == "0"
    assert inductor_config.trace.enabled is False
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    with debug_files.written(DebugFiles("/somewhere", {}, log=False)):
        assert os.environ["TORCH_COMPILE_DEBUG"] == "0"
    with debug_files.written(None):
        assert debug.get_debug_dir is original


def test_inductor_writes_where_that_function_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its debug context asks it for the folder of each graph."""
    from torch._inductor.debug import DebugContext

    with debug_files.written(DebugFiles(str(tmp_path), {"trace.debug_dir": None}, log=False)):
        made = DebugContext.create_debug_dir("compat")
    assert made is not None and Path(made).is_dir() and Path(made).is_relative_to(tmp_path)
