"""Replaces names of temporary folders in built libraries: an entry names no path of the host that made it."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["placeless"]


def placeless(library: bytes, places: Iterable[str | None]) -> bytes:
    """Return a library with other names for `places`, of the same lengths. g++ was told to leave them out."""
    for place in sorted(filter(None, places), key=len, reverse=True):
        name = os.fsencode(place)
        library = library.replace(name, b"/" + b"-" * (len(name) - 1))
    return library
