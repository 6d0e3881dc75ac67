"""Failures of the moment are told from those of graphs and hosts; compilers that failed this way are called again."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fxpool import failures
from fxpool.errors import CannotReturnError, NoCompilerError, ShortageError, StoreError, WorkerDiedError
from fxpool.failures import Kind


def inside(error: BaseException, *, of: type[Exception] = RuntimeError) -> BaseException:
    """An error that was raised because of another one."""
    try:
        try:
            raise error
        except BaseException as cause:
            raise of("the graph could not be compiled") from cause
    except Exception as outer:
        return outer


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


MOMENTS: dict[str, tuple[BaseException, str]] = {
    "no process": (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "EAGAIN"),
    "no descriptor": (OSError(errno.EMFILE, "Too many open files"), "EMFILE"),
    "disk full": (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "ENOSPC"),
    "no memory": (MemoryError(), "ENOMEM"),
    "no GPU memory": (OutOfMemoryError("CUDA out of memory."), "ENOMEM"),
    "no thread": (RuntimeError("can't start new thread"), "EAGAIN"),
    "torch's allocator": (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "ENOMEM"),
    "compiler killed": (subprocess.CalledProcessError(-signal.SIGKILL, ["g++"]), "SIGKILL"),
    "compiler ended": (subprocess.CalledProcessError(-signal.SIGTERM, ["g++"]), "SIGTERM"),
    "cc1plus killed": (RuntimeError("g++: fatal error: Killed signal terminated program cc1plus\n"), "SIGKILL"),
    "ld killed": (RuntimeError("collect2: fatal error: ld terminated with signal 9 [Killed]"), "SIGKILL"),
    "clang killed": (RuntimeError("clang: error: unable to execute command: Killed"), "SIGKILL"),
    "nvcc's": (RuntimeError("nvcc error   : 'cicc' died due to signal 9 (Kill signal)"), "SIGKILL"),
    "assembler": (
        subprocess.CalledProcessError(1, ["g++"], stderr="/tmp/x.s: No space left on device\n"),
        "ENOSPC",
    ),
    "cc1plus's memory": (
        subprocess.CalledProcessError(1, ["g++"], stderr=b"cc1plus: out of memory allocating 65536 bytes"),
        "ENOMEM",
    ),
    "said so": (ShortageError("g++", "EAGAIN"), "EAGAIN"),
}  # fmt: skip

OTHERS: dict[str, tuple[BaseException, Kind]] = {
    "a graph's": (ValueError("no such lowering"), Kind.GRAPH),
    "a compiler's": (RuntimeError("error: expected ';' before '}' token"), Kind.GRAPH),
    "a compiler's crash": (
        RuntimeError("g++: internal compiler error: Segmentation fault signal terminated program cc1plus"),
        Kind.GRAPH,
    ),
    "a crash": (subprocess.CalledProcessError(-signal.SIGSEGV, ["g++"]), Kind.GRAPH),
    "a file": (FileNotFoundError(errno.ENOENT, "No such file"), Kind.HOST),
    "no compiler": (NoCompilerError(["g++"]), Kind.FINAL),
    "the pool": (WorkerDiedError("graph 1"), Kind.POOL),
    "the store": (StoreError("it is full"), Kind.STORE),
    "the result": (CannotReturnError("unpicklable"), Kind.RESULT),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_a_failure_of_the_moment(name: str) -> None:
    error, code = MOMENTS[name]
    for raised in (error, inside(error), inside(inside(error))):
        assert failures.of(raised) is Kind.MOMENT
        assert failures.shortage(raised) == code


@pytest.mark.parametrize("name", OTHERS)
def test_another_failure(name: str) -> None:
    error, kind = OTHERS[name]
    assert failures.of(error) is kind
    assert failures.shortage(error) is None


def test_only_failures_of_graphs_and_results_are_remembered() -> None:
    remembered = {kind: follows.remembered for kind, follows in failures.FOLLOWS.items() if follows.remembered}
    assert remembered == {Kind.GRAPH: 24 * 3600.0, Kind.RESULT: math.inf}
    assert set(failures.FOLLOWS) == set(Kind)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a program that counts its calls in $n."""
    monkeypatch.setattr(failures, "_short_until", 0.0)

    def write(lines: str) -> str:
        path = tmp_path / "compiler"
        calls = tmp_path / "calls"
        path.write_text(f"#!/bin/sh\necho >> {calls}\nn=$(wc -l < {calls})\n{lines}\n")
        path.chmod(0o755)
        return str(path)

    return write


def calls(script: str) -> int:
    return (Path(script).parent / "calls").read_text().count("\n")


@pytest.mark.parametrize("fault", ["echo 'Cannot allocate memory' >&2; exit 1", "kill -KILL $$", "kill -TERM $$"])
def test_a_compiler_is_called_again(fault: str, script: Callable[[str], str]) -> None:
    path = script(f"[ $n -gt 2 ] || {{ {fault}; }}\necho done; exit 3")
    done = failures.run([path])
    assert (done.returncode, done.stdout, calls(path)) == (3, b"done\n", 3)


def test_a_host_that_stays_short(script: Callable[[str], str]) -> None:
    path = script("kill -KILL $$")
    with pytest.raises(ShortageError, match=r"compiler was ended \(SIGKILL\)") as caught:
        failures.run([path])
    assert calls(path) == 4
    assert caught.value.code == "SIGKILL"
    assert "FXPOOL_WORKERS" in caught.value.remedy
    started = time.monotonic()
    with pytest.raises(ShortageError):  # without pauses: each graph would wait for seconds
        failures.run([path])
    assert (calls(path), time.monotonic() - started < 1.0) == (5, True)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, script: Callable[[str], str]) -> None:
    path = script("echo done")
    really, refused = subprocess.run, [errno.EAGAIN, errno.ENOMEM]

    def run(*arguments: Any, **options: Any) -> Any:
        if refused:
            raise OSError(refused[-1], os.strerror(refused.pop()))
        return really(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", run)
    assert failures.run([path]).stdout == b"done\n"


def test_what_stays_wrong_is_not_tried_again(script: Callable[[str], str], tmp_path: Path) -> None:
    path = script("echo 'error: expected ;' >&2; exit 1")
    assert failures.run([path]).returncode == 1
    assert calls(path) == 1
    with pytest.raises(FileNotFoundError):
        failures.run([str(tmp_path / "missing")])


def test_messages_are_not_translated(script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert failures.run([script('printf "$LC_ALL"')]).stdout == b"C"


def test_calls_of_several_threads(script: Callable[[str], str]) -> None:
    path = script("[ $n -gt 4 ] || kill -KILL $$\nexit 0")
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(failures.run([path]).returncode)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [0, 0, 0]
