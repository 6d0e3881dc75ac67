"""Kills the processes that a killed process has left, including stopped ones.

    python -m fxpool.bench.guard MARK        standard input: a pipe whose other end the watched process holds

It waits until the watched process has ended, and then kills every process with its mark (see `marks`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from fxpool import child_python
from fxpool.pool.host import processes

__all__ = ["Guard"]


class Guard:
    """Watches this process from a second process until `end` or `dismiss`. `mark` identifies its children."""

    def __init__(self, mark: str) -> None:
        reader, self._writer = os.pipe2(os.O_CLOEXEC)
        command = child_python.command("fxpool.bench.guard", mark)
        try:
            # In a new session, so that Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                command, stdin=reader, env=child_python.environment(os.environ), start_new_session=True
            )
        finally:
            os.close(reader)

    def dismiss(self) -> None:
        """End the guard without killing any process."""
        if self._writer >= 0:
            os.write(self._writer, b".")
            self.end()

    def end(self) -> None:
        """Let the guard kill the remaining processes, and wait for that. Idempotent."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
            self._process.wait()


def main(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after the watched process
    if not os.read(0, 1):  # a byte dismisses it
        processes.kill_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])
