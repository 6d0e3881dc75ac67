"""Handles standard descriptors that are closed or write to a full disk.

They are closed in ``python train.py 2>&-``, and in processes started by some daemons and schedulers.

The next file or socket opened by such a process gets the number 0, 1 or 2. Prints of a library then go into a cache
entry or into the connection to the server. In a child that inherits a socket with such a number, its own standard
error replaces the socket.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

__all__ = ["drop_unwritable", "keep_standard"]


def keep_standard() -> None:
    """Open closed descriptors 0, 1 and 2 to /dev/null. They stay closed in programs started by this process.
    Python's streams, which are None or closed, do not change."""
    for number in range(3):
        try:
            os.fstat(number)
            continue
        except OSError:
            pass
        try:
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # takes the lowest free number
        except OSError:
            return
        if opened > 2:
            os.close(opened)  # another thread was faster


class _Dropping(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def drop_unwritable() -> None:
    """Drop printed text that cannot be written (the log's disk is full), instead of raising in print. For
    processes of the pool, whose streams are their log."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw: Any = _Dropping(number, "w", closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
        setattr(sys, name, stream)
