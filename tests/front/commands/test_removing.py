"""`fxpool stop --all && fxpool cache clear --everything`, as docs/install.md has it, leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

PROGRAM = """
import torch
torch.compile(lambda x: x.sin() + 1, backend="fxpool")(torch.randn(8))
"""
(REMOVE,) = re.findall(r"`(fxpool stop [^`]+)`", (ROOT / "docs" / "install.md").read_text())


def remove(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the documented line with `directory` as home, and answer its question with yes."""
    program = directory / "fxpool"
    program.write_text(f"#!{sys.executable}\nfrom fxpool.commands.main import main\nmain()\n")
    program.chmod(0o755)
    variables = {**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", REMOVE], env=variables, input="y\n", capture_output=True, text=True, timeout=200, check=False
    )


def test_where_nothing_is_there_is_nothing_to_remove(tmp_path: Path) -> None:
    done = remove(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "c").exists() and not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_compile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_IDLE_TIMEOUT", "300")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    subprocess.run([sys.executable, str(program)], check=True, timeout=200)
    assert (tmp_path / "c").exists() and any((tmp_path / "r").glob("host-*.socket"))
    done = remove(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "c").exists() and not (tmp_path / "r").exists()
    assert list((tmp_path / "t").glob("fxpool*")) == []
