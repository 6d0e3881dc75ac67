"""A hit enters the fallback chain once, and runs none of the modules that only a miss needs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "hit_walk.py"
_OF_MISSES = ("pool/", "lowering/worker/", "lowering/compiling/remote.py", "lowering/background/", "lowering/regions/")


@pytest.fixture
def walk(lone_pool: Path) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("hit_walk", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hit_walk"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["hit_walk"]


@pytest.mark.slow
def test_a_hit_enters_the_chain_once_and_runs_no_module_of_misses(walk: Any) -> None:
    for files, entries in walk.hits():
        assert walk.CHAIN in files and entries == 1
        assert "lowering/artifact/load.py" in files, "it is no hit"
        assert [file for file in files if file.startswith(_OF_MISSES)] == []
