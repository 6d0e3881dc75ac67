"""Environments of processes that measure: their caches are separate from the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["child_environment", "fresh_caches"]


def fresh_caches(directory: Path) -> dict[str, str]:
    """Return environment variables that name caches in `directory`, so that the user's caches are not touched."""
    return {
        "FXPOOL_CACHE_DIR": str(directory / "fxpool"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
    }


def child_environment(directory: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a child's environment, in which all caches are under `directory` and the user's settings are removed."""
    ours = ("FXPOOL_", "TORCHINDUCTOR_", "TORCH_COMPILE_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        **fresh_caches(directory),
        "FXPOOL_CONFIG": os.devnull,
        "FXPOOL_RUNTIME_DIR": str(directory / "run"),
        "FXPOOL_POOL": "embedded",  # so that a cold start does not find another run's server
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **(extra or {}),
    }
