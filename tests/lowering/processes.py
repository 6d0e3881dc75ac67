"""Child processes of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_python(arguments: list[str], timeout: float = 280, /, **environment: str) -> str:
    """Standard output of a child; what it printed is in the failure when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=HERE,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", **environment},
        check=False,
    )
    if done.returncode:
        pytest.fail(f"child failed ({done.returncode}):\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return done.stdout
