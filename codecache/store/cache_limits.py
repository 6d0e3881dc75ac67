"""The limits of a cache directory.

A separate module, because a hit imports the limits without the code that enforces them.
"""

from __future__ import annotations

import msgspec

__all__ = ["GRACE", "Bounds"]

#: Seconds. Longer than it takes to write a graph's blobs, or to load it, on a slow network file system.
GRACE = 120.0


class Bounds(msgspec.Struct, frozen=True):
    """Limits of a cache directory; None means unlimited.

    `max_bytes` counts blocks on the disk. Graphs that compiled in less than `min_seconds` are not stored. Files that
    were used in the last `grace` seconds are not evicted.
    """

    max_bytes: int | None = None
    max_files: int | None = None
    min_seconds: float = 0.0
    grace: float = GRACE
