"""Requirements of rows: functions that return the reason why the machine does not meet them, or ""."""

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
# Packages that only rows need lie beside those of the ordinary environment.
PACKAGES = Path(sys.prefix) / "first-day"


def root() -> str:
    """For what only root may prepare."""
    return "" if os.geteuid() == 0 else "not root"


def no_root() -> str:
    """For what does not hold for root."""
    return "" if os.geteuid() != 0 else "does not hold for root"


def command(name: str) -> Need:
    """A program in PATH."""

    def missing() -> str:
        return "" if shutil.which(name) else f"no {name}"

    return missing


@functools.cache
def mounts() -> str:
    """Mounting a file system, in a separate name space."""
    if root():
        return root()
    with tempfile.TemporaryDirectory() as site:
        tried = subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "first-day", site],
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
