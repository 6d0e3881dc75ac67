"""Supported releases of torch and Python, supported platforms, and the message for any other.

For a new torch release, docs/architecture/torch-releases.md lists what to read and to run before raising `NEWEST`.
"""

from __future__ import annotations

__all__ = ["NEWEST", "OLDEST", "PYTHONS", "parse", "refusal"]

OLDEST = (2, 11)
NEWEST = (2, 15)
PYTHONS = ((3, 10), (3, 14))


def parse(version: str) -> tuple[int, int]:
    """Return major and minor: ``"2.13.0+cpu"`` -> ``(2, 13)``; a development build counts as its release.

    Raises ValueError for any other text.
    """
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def refusal(torch_version: str, python: tuple[int, int], platform: str, *, untested: bool = False) -> str | None:
    """Return why this combination is refused, or None if it is supported.

    `untested` admits releases of torch that are newer than `NEWEST`.
    """
    oldest, newest = PYTHONS
    supported = (
        f"fxpool supports torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, "
        f"CPython {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}, on Linux"
    )
    try:
        release = parse(torch_version)
    except ValueError:
        return f"{supported}; this is torch {torch_version!r}, which can't be read as a version"
    if release < OLDEST:
        return f"{supported}; this is torch {torch_version}"
    if release > NEWEST and not untested:
        return (
            f"{supported}; this is torch {torch_version}, which is newer: "
            "FXPOOL_UNTESTED_TORCH=1 tries it, and has Inductor compile what does not fit"
        )
    if not oldest <= python <= newest:
        return f"{supported}; this is Python {python[0]}.{python[1]}"
    if platform != "linux":
        return f"{supported}; this is {platform}"
    return None
