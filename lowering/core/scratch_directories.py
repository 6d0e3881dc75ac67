"""Temporary directories that Inductor and Triton write to while they compile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fxpool import temporary
from fxpool.torch_compat.cpp import compile_commands

__all__ = ["in_directory", "scratch_directory"]


@contextlib.contextmanager
def scratch_directory() -> Iterator[str]:
    """Make Inductor and Triton write to a temporary directory, which is removed afterwards; yields its path."""
    with (
        temporary.directory("scratch") as directory,
        in_directory(directory),
    ):
        yield directory


@contextlib.contextmanager
def in_directory(directory: str) -> Iterator[None]:
    """Make Inductor and Triton write their files to `directory`."""
    before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    compile_commands.inductor_directory(directory)
    os.environ["TRITON_CACHE_DIR"] = os.path.join(directory, "triton")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
