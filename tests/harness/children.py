"""Runs child processes with a time limit, each in its own session, so that it can be killed with all it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fxpool.errors import FxpoolError

__all__ = ["LIMIT", "ChildError", "Children", "Finished", "kill_group", "orderly_end", "result_of"]

LIMIT = 900.0  # seconds; ten times as long as the slowest measurement on two slow cores
_KEPT_OUTPUT = 4000  # characters of a failed child's output
Item = TypeVar("Item")
Result = TypeVar("Result")


class ChildError(FxpoolError):
    """A child failed; `output` is the end of its output."""

    def __init__(self, label: str, cause: str, output: str) -> None:
        self.output = output
        super().__init__(f"{label}: the process {cause}")


@dataclass(frozen=True)
class Finished:
    """A child that has ended. `status` is None if it was killed at its time limit."""

    status: int | None
    output: str
    errors: str
    seconds: float


class Children:
    """The child processes of one run, from any thread. `end` kills those that are left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def each(self, work: Callable[[Item], Result], items: Iterable[Item], slots: int) -> Iterator[Result]:
        """Call `work` with every item, `slots` at a time; yield results as they come.

        Calls `end` if `work` raises, or if the caller stops before the last result.
        """
        with ThreadPoolExecutor(slots, thread_name_prefix="children") as executor:
            running = [executor.submit(work, item) for item in items]
            try:
                for future in as_completed(running):
                    yield future.result()
            except BaseException:
                for future in running:
                    future.cancel()
                self.end()
                raise

    def end(self) -> None:
        """Kill the running children, and those that start later: `run` raises CancelledError."""
        with self._lock:
            self._ended = True
            for process in self._running:
                kill_group(process.pid)

    def run(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        limit: float,
        *,
        cwd: Path | None = None,
        keep: Path | None = None,
    ) -> Finished:
        """Run `command` for at most `limit` seconds. `keep`: a directory for its files ``output`` and ``errors``."""
        with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory() as directory:
            output, errors = Path(directory, "output"), Path(directory, "errors")
            began = time.monotonic()
            status = self._wait(command, dict(environment), limit, cwd, output, errors)
            seconds = time.monotonic() - began
            said, errors_said = (file.read_text(encoding="utf-8", errors="replace") for file in (output, errors))
        return Finished(status, said, errors_said, seconds)

    def result(
        self, arguments: Sequence[str], environment: Mapping[str, str], label: str, limit: float = LIMIT
    ) -> dict[str, Any]:
        """Run Python with `arguments`; return the JSON object on its last line of output. Raises ChildError."""
        done = self.run([sys.executable, *arguments], environment, limit)
        cause = f"was killed after {limit:.0f} s" if done.status is None else ""
        return result_of(label, cause, done.status or 0, done.output, done.errors)

    def _wait(
        self,
        command: Sequence[str | Path],
        environment: dict[str, str],
        limit: float,
        cwd: Path | None,
        output: Path,
        errors: Path,
    ) -> int | None:
        # Files, not pipes: nothing waits for a daemon that keeps them open.
        with open(output, "wb") as to_output, open(errors, "wb") as to_errors:
            with self._lock:
                if self._ended:
                    raise CancelledError
                process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=to_output,
                    stderr=to_errors,
                    start_new_session=True,
                )
                self._running.add(process)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.returncode is None:
                kill_group(process.pid)
                process.wait()
            with self._lock:
                self._running.discard(process)
        if self._ended:
            raise CancelledError
        return status


def result_of(label: str, cause: str, code: int, text: str, noise: str) -> dict[str, Any]:
    """Return the JSON object on the last line of `text`. Raises ChildError if it failed (`cause`: why)."""
    if not cause and code != 0:
        cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    if not cause:
        with contextlib.suppress(IndexError, ValueError):
            result = json.loads(text.strip().splitlines()[-1])
            if isinstance(result, dict):
                return result
        cause = "printed no result"
    raise ChildError(label, cause, (text + noise)[-_KEPT_OUTPUT:].strip())


def kill_group(leader: int) -> None:
    """Kill a process that began a session, and all in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that this process ends its children and removes its directories."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
