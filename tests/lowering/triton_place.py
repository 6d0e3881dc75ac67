"""Where Triton is: in the environment, or beside it, where `make test` puts it and nothing else imports it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

# Read once: a test's own environment has no settings of fxpool's.
BESIDE = os.environ.get("FXPOOL_TEST_TRITON", str(Path(sys.prefix) / "triton"))


def path_with_triton(*more: str) -> str:
    """PYTHONPATH for a child that needs Triton, with `more` behind it. Skips the test where there is none."""
    return os.pathsep.join(filter(None, [_place_of_triton(), *more, os.environ.get("PYTHONPATH")]))


def _place_of_triton() -> str:
    try:
        importlib.metadata.version("triton")
        return ""
    except importlib.metadata.PackageNotFoundError:
        if os.path.isdir(os.path.join(BESIDE, "triton")):
            return BESIDE
        pytest.skip(f"no Triton in {BESIDE}; `make test` puts it there")
