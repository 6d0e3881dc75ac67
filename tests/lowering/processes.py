"""Child processes of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from harness.children import Children
from harness.places import with_tests

HERE = Path(__file__).parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def run_python(arguments: list[str], timeout: float = 280, /, **environment: str) -> str:
    """Standard output of a child; what it printed is in the failure when it fails."""
    return run_with_errors(arguments, timeout, **environment)[0]


def run_with_errors(arguments: list[str], timeout: float = 280, /, **environment: str) -> tuple[str, str]:
    """Standard output and errors of a child, as `run_python`."""
    settings = {**os.environ, **OFFLINE, **environment}
    settings["PYTHONPATH"] = with_tests(settings.get("PYTHONPATH"))
    done = Children().run([sys.executable, *arguments], settings, timeout, cwd=HERE)
    if done.status != 0:
        how = f"killed after {timeout:.0f} s" if done.status is None else done.status
        pytest.fail(f"child failed ({how}):\n{done.output[-3000:]}\n{done.errors[-6000:]}")
    return done.output, done.errors
