"""Ends what a process that was killed has left, those of its processes that were stopped among them.

    python -m fxpool.bench.guard MARK        standard input: a pipe whose other end the watched process has

It waits for the end of that process, and then kills every process with its mark (see `marks`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from fxpool.pool.host import marks

__all__ = ["Guard"]


class Guard:
    """Watches this process from another one, from now until `end` or `dismiss`. `mark` is what its processes have."""

    def __init__(self, mark: str) -> None:
        reader, self._writer = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-m", "fxpool.bench.guard", mark]
        try:
            # A session of its own: Ctrl-C is not for it.
            self._process = subprocess.Popen(command, stdin=reader, start_new_session=True)
        finally:
            os.close(reader)

    def dismiss(self) -> None:
        """Have it end, and kill nothing."""
        if self._writer >= 0:
            os.write(self._writer, b".")
            self.end()

    def end(self) -> None:
        """Have it kill what is left, and wait for that. Idempotent."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
            self._process.wait()


def main(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the watched process has
    if not os.read(0, 1):  # a byte dismisses it
        marks.kill_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])
