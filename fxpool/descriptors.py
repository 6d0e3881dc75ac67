"""Handles standard descriptors that are closed or lead to a full disk.

They are closed in ``python train.py 2>&-``, and in processes that some daemons and schedulers start.

The next file or socket that such a process opens gets the number 0, 1 or 2. A library's prints then go into an entry of
the cache, or into the connection to the server. A child that is given a socket of such a number has it replaced by its
own standard error.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

__all__ = ["drop_unwritable", "keep_standard"]


def keep_standard() -> None:
    """Open closed descriptors 0, 1 and 2 to /dev/null. Programs that this process starts have them closed as before.
    Python's own streams, None or closed, stay as they are."""
    for number in range(3):
        try:
            os.fstat(number)
            continue
        except OSError:
            pass
        try:
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # gets the lowest free number
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
    """Drop printed text that can't be written (the log's disk is full), instead of raising where it was printed. For a
    process of the pool: its streams are its log."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw: Any = _Dropping(number, "w", closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
        setattr(sys, name, stream)
