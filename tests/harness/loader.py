"""Runs measurements and programs in forks of a process that has made the imports common to all of them.

A fork of a process that has imported torch but no compiler is as fresh for compiling as a new interpreter, and saves
five seconds of imports.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fxpool import child_python
from fxpool.pool.host.processes import die_with_parent

from .children import LIMIT, ChildError, kill_group, result_of

__all__ = ["Loader", "serve"]


class Loader:
    """Runs measurements of a module in forks of a process that has made the imports common to all of them.

    The process runs ``python -m <module> --serve``; the module calls `serve` after its imports.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fxpool-loader-")
        self._errors = Path(self._directory.name, "loader.err")
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                child_python.command(module, "--serve"),
                bufsize=0,  # a second answer could wait in a buffer, unseen by the selector
                env=child_python.environment(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Idempotent."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)  # it reaps its fork, if that was killed, and exits
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._directory.cleanup()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], label: str, limit: float = LIMIT
    ) -> dict[str, Any]:
        """Run the module with `arguments` in a fork for at most `limit` seconds; return the last JSON object it prints.

        Raises `ChildError`.
        """
        output, errors = Path(self._directory.name, "out"), Path(self._directory.name, "err")
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "stdout": str(output),
            "stderr": str(errors),
        }
        assert self._process.stdin is not None
        child = None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            child = int(self._answer(limit))
            cause, code = "", int(self._answer(limit))
        except TimeoutError:
            cause, code = f"was killed after {limit:.0f} s", 0
            if child is not None:
                kill_group(child)
                self._answer(60.0)
        except (OSError, ValueError):
            raise ChildError(label, "could not be started", self._errors.read_text(errors="replace")) from None
        except BaseException:
            if child is not None:
                kill_group(child)
            raise
        return result_of(label, cause, code, output.read_text(errors="replace"), errors.read_text(errors="replace"))

    def _answer(self, limit: float) -> bytes:
        """Return one line from the process, empty if it has ended. Raises TimeoutError after `limit` seconds."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                raise TimeoutError
        # At most one line is buffered, as each line answers one request.
        return self._process.stdout.readline()


def _end_fork() -> NoReturn:
    """End this process without destroying its objects, which takes a fork with torch 0.9 s.

    Non-daemon threads are joined and exit handlers are called, as in an ordinary exit.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def serve(run: Callable[[list[str]], None]) -> None:
    """Serve a `Loader`: fork for every request, and call `run` with its arguments in the fork.

    A request is a line of JSON on standard input. It is answered by two lines, the fork's pid and its exit status.
    Returns at the end of input; in a fork it does not return.
    """
    loader = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()  # so that it can be killed with all its children
            die_with_parent(signal.SIGKILL, loader)
            for number, name in ((1, "stdout"), (2, "stderr")):
                file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(file, number)
                os.close(file)
            os.environ.clear()
            os.environ.update(request["environment"])
            tempfile.tempdir = None  # computed from the loader's environment
            run(request["arguments"])
            _end_fork()
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
