"""Tests here kill the pool's processes and count deaths, so no other test process may use their pool."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_pool(lone_pool: Path) -> Path:
    """The directory of the pool that these tests share."""
    return lone_pool
