"""Directories that all test processes of a run share: what is in them takes seconds to make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest

__all__ = ["session_directory"]


@contextmanager
def session_directory(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Iterator[tuple[Path, Callable[[], bool]]]:
    """Yield a directory of the run, and a function that tells whether no other process uses it any more.

    The first process that asks calls `make` with the directory; others wait for that. The function takes this process
    off the list of users. A process that asks after the last one was gone finds the directory as that left it.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    root, users = base / name, base / f"{name}.users"
    lock = filelock.FileLock(base / f"{name}.lock")
    me = str(os.getpid())
    with lock:
        if not users.exists():
            root.mkdir(mode=0o700)
            make(root)
        users.write_text(f"{users.read_text() if users.exists() else ''}{me}\n")

    def is_last() -> bool:
        with lock:
            others = [line for line in users.read_text().splitlines() if line != me]
            users.write_text("".join(f"{line}\n" for line in others))
        return not others

    yield root, is_last
