"""Standard descriptors that are closed: ``python train.py 2>&-``, and what some daemons and schedulers start.

The next file or socket that such a process opens gets the number 0, 1 or 2. What a library then prints goes into it:
into an entry of the cache, into the connection to the server. A child that is given a socket of such a number has it
replaced by its own standard error.
"""

from __future__ import annotations

import os

__all__ = ["keep_standard"]


def keep_standard() -> None:
    """Have the numbers 0, 1 and 2 lead somewhere: to nowhere, if they are closed. Programs that this process starts
    have them closed as before. Python's own streams, None or closed, stay what they are."""
    for number in range(3):
        try:
            os.fstat(number)
            continue
        except OSError:
            pass
        try:
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # gets the lowest number that is free
        except OSError:
            return
        if opened > 2:
            os.close(opened)  # another thread was faster
