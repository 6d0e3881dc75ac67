"""The explanation that docs/troubleshooting.md shows, of the program that it is about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

MODEL = (
    "import torch\n"
    + "\n" * 27
    + """
class Encoder(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x * FACTOR)


class Pooler(torch.nn.Module):
    def forward(self, x):
        return x.sum(-1)
"""
)
TRAIN = """\
import sys

import torch
from model import Encoder, Pooler

import fxpool


@torch.compiler.allow_in_graph
def helper(x):
    return x + 1


# A function of the main script.
@torch.compile(backend="fxpool")
def step(x):
    return helper(x).cos()


x = torch.randn(4, int(sys.argv[1]))
torch.compile(Encoder(), backend="fxpool")(x[:, :8].contiguous())
torch.compile(Pooler(), backend="fxpool", dynamic=True)(x)
step(x[:, :8].contiguous())
print(fxpool.explain())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sample_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_IDLE_TIMEOUT", "10")
    (tmp_path / "train.py").write_text(TRAIN)

    def run(factor: int, length: int) -> str:
        (tmp_path / "model.py").write_text(MODEL.replace("FACTOR", str(factor)))
        done = subprocess.run(
            [sys.executable, "train.py", str(length)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return _without_digests(done.stdout)

    run(2, 100)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    (sample,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert run(3, 10000) == _without_digests(sample)


def _without_digests(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{12}\b", "", text)
