"""Every test has directories of its own, and leaves no process, socket or temporary file behind.

Time limits and warnings-as-errors stand in pyproject.toml. Tests that compile may ask for `shared_pool`: they share
one embedded pool, its runtime directory and Inductor's directory, because starting a pool and probing the
processor take seconds each; their fxpool cache is still their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

# torch asserts more, and raises where it would warn, where CI is set (in lowerings and functorch's configuration): the
# tests say the same on a developer's machine and on a CI's. Before torch is imported, which reads it.
os.environ.pop("CI", None)
# A shell starts what it runs in the background with SIGINT ignored, which every child would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from session import session_directory

import fxpool
from fxpool import config, counters
from fxpool.pool.client import hosts

# pytest rewrites the assertions of 400 modules in 12 s, and keeps the outcome where Python may write bytecode.
sys.dont_write_bytecode = False
# A server needs a moment to see that its client is gone; a loaded machine needs more of it.
GRACE = 30.0
# Started by libraries for the whole process, not by a test; they end with it.
NOT_OURS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch/_inductor/compile_worker")


@pytest.fixture(scope="session")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the pool that all tests of a run share. It is closed at the end; the last process checks it."""
    yield from _pool(tmp_path_factory, "s")


@pytest.fixture(scope="session")
def lone_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same for tests that kill a pool's processes: only those of this test process share it."""
    yield from _pool(tmp_path_factory, os.environ.get("PYTEST_XDIST_WORKER", "gw").replace("gw", "p"))


def _pool(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    with session_directory(factory, name, _make_directories) as (root, is_last):
        yield root
        fxpool.close()
        if is_last():
            left = _wait_until_nothing_is_left(lambda: _processes_of(root) + _files_of(root))
            assert not left, "the shared pool left behind: " + "; ".join(left)


@pytest.fixture(autouse=True)
def _own_directories_and_no_leaks(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    pools = [name for name in ("lone_pool", "shared_pool") if name in request.fixturenames]
    shared: Path | None = request.getfixturevalue(pools[0]) if pools else None
    _make_directories(tmp_path)
    home = shared or tmp_path
    for name in [name for name in os.environ if name.startswith("FXPOOL_")]:
        monkeypatch.delenv(name)
    # A server of the host's, which is the default, leaves soon after the test's last process.
    monkeypatch.setenv("FXPOOL_IDLE_TIMEOUT", "0.3")
    monkeypatch.delenv("TORCHINDUCTOR_FX_COMPILE_MODE", raising=False)
    monkeypatch.setenv("FXPOOL_CONFIG", os.devnull)
    monkeypatch.setenv("FXPOOL_CACHE_DIR", str(tmp_path / "c"))
    # One letter: a socket's path may have no more than 107 bytes.
    monkeypatch.setenv("FXPOOL_RUNTIME_DIR", str(home / "r"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(home / "i"))
    monkeypatch.setenv("TMPDIR", str(home / "t"))
    monkeypatch.setattr(tempfile, "tempdir", str(home / "t"))
    _reset()
    before = _descendants()
    yield
    _reset()

    def left() -> list[str]:
        if shared is not None:
            # The pool lives on, in the session's directories; the test's own must still be empty.
            return _files_of(tmp_path)
        return _new_children(before) + _processes_of(tmp_path) + _files_of(tmp_path)

    if shared is None and left():
        fxpool.close()  # what this process holds it may hold as long as it lives; here that is the test
    found = _wait_until_nothing_is_left(left, meanwhile=lambda: _end_preparing(tmp_path / "r"))
    if found:
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)


def _reset() -> None:
    """Forget what an earlier test had this process know. Its runtime is there only if a test has compiled."""
    config.reset()
    counters.reset()
    if (module := sys.modules.get("fxpool.lowering.core.runtime")) is not None:
        module.runtime.reset()


def _make_directories(root: Path) -> None:
    for name in "rt":
        (root / name).mkdir(mode=0o700, exist_ok=True)


def _end_preparing(runtime: Path) -> None:
    """Tell servers to end that stay to prepare their host for who comes later: a header takes them half a minute.

    Not one that has nothing to do: it has to leave by itself. One that is still starting does not say what it will do.
    """
    for link in hosts.links(runtime):
        facts = hosts.status(link)
        if facts.get("running") or facts.get("waiting"):
            hosts.stop(link)


def _wait_until_nothing_is_left(
    left: Callable[[], list[str]], meanwhile: Callable[[], object] = lambda: None
) -> list[str]:
    """Return what is left after `GRACE` seconds; `meanwhile` is called each second."""
    end = time.monotonic() + GRACE
    due = 0.0
    while found := left():
        now = time.monotonic()
        if now > end:
            return list(found)
        if now >= due:
            meanwhile()
            due = now + 1.0
        time.sleep(0.05)
    return []


def _new_children(before: set[int]) -> list[str]:
    """Children that a test started, but for those of processes which were there before it (a session's pool)."""
    return [
        text
        for pid in _descendants()
        if pid not in before and not _ancestors(pid) & before and (text := _describe(pid))
    ]


def _descendants() -> set[int]:
    """The pids of this process's children and of theirs. psutil reads all of the host's processes, for each test."""
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):  # not in every kernel
        return {process.pid for process in psutil.Process().children(recursive=True)}
    found: set[int] = set()
    look_at = [os.getpid()]
    while look_at:
        children = _children(look_at.pop())
        look_at += children - found
        found |= children
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    return found


def _ancestors(pid: int) -> set[int]:
    try:
        return {parent.pid for parent in psutil.Process(pid).parents()}
    except psutil.Error:
        return set()


def _processes_of(directory: Path) -> list[str]:
    """Processes that name the directory in their command line, whoever their parent is now."""
    return [text for pid in _naming(os.fsencode(directory)) if (text := _describe(pid))]


def _naming(text: bytes) -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if text in file.read():
                        yield int(name)


def _describe(pid: int) -> str:
    """Number and command line; empty if it has ended or is not ours to judge."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            # It has ended; subprocess and asyncio wait for their children late.
            return ""
        line = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return "" if any(name in line for name in NOT_OURS) else f"process {process.pid}: {line or process.pid}"


def _files_of(root: Path) -> list[str]:
    """What lies in the runtime directory, and fxpool's files in the temporary directory."""
    runtime, temporary = root / "r", root / "t"
    found = [path for path in runtime.iterdir() if path.name != "host.lock"] if runtime.is_dir() else []
    found += temporary.glob("fxpool*") if temporary.is_dir() else []
    return [f"file {path.relative_to(root)}" for path in found]


@pytest.fixture
def python() -> str:
    """The interpreter, for tests that need a fresh process."""
    return sys.executable
