"""Runs measurement processes with separate caches and a time limit, and kills them with all their children.

`run_child` starts a fresh interpreter. A `Loader` is an interpreter that has imported torch and the models' code but no
compiler, and forks for each measurement. For compiling, a fork is as fresh as a new interpreter, but it saves five
seconds of imports.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fxpool import own_python
from fxpool.errors import FxpoolError
from fxpool.pool.host.processes import die_with_parent

__all__ = ["ChildError", "Loader", "child_environment", "orderly_end", "result_of", "run_child", "serve"]

CHILD_LIMIT = 900.0  # seconds; ten times as long as the slowest child on two slow cores
KEPT_OUTPUT = 4000  # characters of a failed child's output that are shown


class ChildError(FxpoolError):
    """A measurement's process failed; `output` is the end of its output."""

    def __init__(self, what: str, how: str, output: str) -> None:
        self.what, self.how, self.output = what, how, output
        super().__init__(f"{what}: the process {how}")


def child_environment(directory: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a child's environment, in which all caches are under `directory` and the user's settings are removed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FXPOOL_", "TORCHINDUCTOR_", "TORCH_COMPILE_"))
    }
    return {
        **kept,
        "FXPOOL_CONFIG": os.devnull,
        "FXPOOL_CACHE_DIR": str(directory / "fxpool"),
        "FXPOOL_RUNTIME_DIR": str(directory / "run"),
        "FXPOOL_POOL": "embedded",  # so that a cold start does not find another run's server
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **(extra or {}),
    }


def run_child(
    arguments: Sequence[str], environment: Mapping[str, str], what: str, limit: float = CHILD_LIMIT
) -> dict[str, Any]:
    """Run `python <arguments>` for at most `limit` seconds; return the JSON object on its last line of output.

    Raises `ChildError`.
    """
    with tempfile.TemporaryFile() as errors:
        # In a new session, so that killing the group of the child also kills its compilers.
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        how = ""
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            output, _ = process.communicate()
            how = f"was killed after {limit:.0f} s"
        except BaseException:
            _kill_group(process.pid)
            process.wait()
            raise
        errors.seek(0)
        noise = errors.read().decode(errors="replace")
    return result_of(what, how, process.returncode, output.decode(errors="replace"), noise)


def result_of(what: str, how: str, code: int, text: str, noise: str) -> dict[str, Any]:
    """Return the JSON object on the last line of `text`. Raises ChildError if the process failed; `how` may say why."""
    if not how and code != 0:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    if not how:
        with contextlib.suppress(IndexError, ValueError):
            result = json.loads(text.strip().splitlines()[-1])
            if isinstance(result, dict):
                return result
        how = "printed no result"
    raise ChildError(what, how, (text + noise)[-KEPT_OUTPUT:].strip())


class Loader:
    """Runs measurements of a module in forks of a process that has made the imports common to all of them.

    The process runs ``python -m <module> --serve``; the module calls `serve` after its imports.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fxpool-loader-")
        self._errors = Path(self._directory.name, "loader.err")
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                own_python.command(module, "--serve"),
                bufsize=0,  # a second answer could wait in a buffer, unseen by the selector
                env=own_python.environment(environment),
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
        self, arguments: Sequence[str], environment: Mapping[str, str], what: str, limit: float = CHILD_LIMIT
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
            how, code = "", int(self._answer(limit))
        except TimeoutError:
            how, code = f"was killed after {limit:.0f} s", 0
            if child is not None:
                _kill_group(child)
                self._answer(60.0)
        except (OSError, ValueError):
            raise ChildError(what, "could not be started", self._errors.read_text(errors="replace")) from None
        except BaseException:
            if child is not None:
                _kill_group(child)
            raise
        return result_of(what, how, code, output.read_text(errors="replace"), errors.read_text(errors="replace"))

    def _answer(self, limit: float) -> bytes:
        """Return one line from the process, empty if it has ended. Raises TimeoutError after `limit` seconds."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                raise TimeoutError
        # At most one line is buffered, as each line answers one request.
        return self._process.stdout.readline()


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that this process ends its child and removes its directories."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_fork() -> NoReturn:
    """End this process without destroying its objects, which takes a fork with torch 0.9 s.

    Non-daemon threads are joined and exit handlers are called, as in an ordinary exit.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


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
