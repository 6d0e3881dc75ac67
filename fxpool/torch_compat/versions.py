"""Supported releases of torch and Python, supported platforms, and the message for any other."""

from __future__ import annotations

import functools
import sys

OLDEST = (2, 11)
NEWEST = (2, 13)


def parse(version: str) -> tuple[int, int]:
    """Return major and minor: ``"2.13.0+cpu"`` -> ``(2, 13)``; a development build counts as its release.

    Raises ValueError for any other text.
    """
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def refusal(torch_version: str, python: tuple[int, int], platform: str) -> str | None:
    """Return why this combination is refused, or None if it is supported."""
    wanted = f"fxpool supports torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, CPython 3.10 to 3.13, on Linux"
    try:
        version = parse(torch_version)
    except ValueError:
        return f"{wanted}; this is torch {torch_version!r}, which can't be read as a version"
    if not OLDEST <= version <= NEWEST:
        return f"{wanted}; this is torch {torch_version}"
    if not (3, 10) <= python <= (3, 13):
        return f"{wanted}; this is Python {python[0]}.{python[1]}"
    if platform != "linux":
        return f"{wanted}; this is {platform}"
    return None


@functools.cache
def current_refusal() -> str | None:
    """Return `refusal` for this process."""
    import torch

    return refusal(torch.__version__, sys.version_info[:2], sys.platform)
