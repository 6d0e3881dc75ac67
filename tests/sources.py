"""The package's own source files, for tests that read them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["ROOT", "copy_checkout", "sources"]

ROOT = Path(__file__).parents[1]


def copy_checkout(target: Path) -> None:
    """Copy what a clone would have, with changes that are not committed; links stay links."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def sources(folder: str = "fxpool") -> list[Path]:
    """Return the Python files below a folder of the checkout, sorted, in linked folders too.

    The paths are those of the installed package: ``fxpool/pool/...``, not ``pool/...``.
    """
    return sorted(
        Path(directory, name)
        for directory, _, names in os.walk(ROOT / folder, followlinks=True)
        for name in names
        if name.endswith(".py")
    )
