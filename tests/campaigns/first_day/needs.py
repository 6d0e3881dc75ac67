"""What a row needs of the machine: each a function that returns why the machine has it not, or ""."""

from __future__ import annotations

import functools
import importlib.machinery
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["NOBODY", "PACKAGES", "Need", "command", "mounts", "no_root", "package", "root", "two_users"]

Need = Callable[[], str]

NOBODY = 65534
# What only rows need lies beside the ordinary environment's packages.
PACKAGES = Path(sys.prefix) / "first-day"


def root() -> str:
    """For what only root may prepare."""
    return "" if os.geteuid() == 0 else "not root"


def no_root() -> str:
    """For what does not hold for root."""
    return "" if os.geteuid() != 0 else "does not hold for root"


def command(name: str) -> Need:
    """A program in PATH."""

    def there() -> str:
        return "" if shutil.which(name) else f"no {name}"

    return there


@functools.cache
def mounts() -> str:
    """Mounting a file system, in a name space of its own."""
    if root():
        return root()
    with tempfile.TemporaryDirectory() as place:
        tried = subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "first-day", place],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return "" if tried.returncode == 0 else "can't mount"


def two_users() -> str:
    """Another user, to whom things may be given."""
    if root():
        return root()
    try:
        pwd.getpwuid(NOBODY)
    except KeyError:
        return f"no user {NOBODY}"
    return ""


def package(name: str) -> str:
    """A module that is installed here or beside."""
    found = importlib.machinery.PathFinder.find_spec(name, [str(PACKAGES), *sys.path])
    return "" if found is not None else f"no module {name} (make first-day installs it)"
