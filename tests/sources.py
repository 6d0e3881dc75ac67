"""The package's own source files, for tests that read them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "sources"]

ROOT = Path(__file__).parents[1]


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
