"""`fxpool.once` in one process: its keys, its results, errors, threads and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from once_processes import lines, start

import fxpool
from fxpool import errors, notices, temporary
from fxpool.codecache.bundle import bundle, bundle_file
from fxpool.codecache.store import layout
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main
from fxpool.dashboard import metrics
from fxpool.jits import product_keys


class Point(NamedTuple):
    x: int
    y: int


class Builder:
    """Builds bytes, and counts that."""

    def __init__(self, content: bytes = b"built", seconds: float = 0.0) -> None:
        self.content, self.seconds, self.count = content, seconds, 0

    def __call__(self) -> bytes:
        self.count += 1
        time.sleep(self.seconds)
        return self.content


@pytest.fixture(autouse=True)
def _warned_of_nothing_yet() -> Iterator[None]:
    notices.forget()
    yield
    notices.forget()


def _counted(**numbers: int) -> bool:
    counted = {name: count for name, count in fxpool.stats()["once"].items() if count}
    assert counted == numbers
    return True


def test_bytes_are_built_once_and_then_served(tmp_path: Path) -> None:
    build = Builder(seconds=0.2)
    assert [fxpool.once("k", build) for _ in range(3)] == [b"built"] * 3
    assert build.count == 1 and _counted(hits=2, misses=1, builds=1)
    assert fxpool.stats()["seconds_saved"] > 0.3
    assert fxpool.once("other", Builder(b"")) == b"" and fxpool.once("other", Builder(b"x")) == b""
    from fxpool.lowering.core import host_report

    host_report.report()
    assert fxpool.stats()["host"]["once"] == {"hits": 3, "misses": 2, "builds": 2}
    source = metrics.Source(tmp_path / "r", tmp_path / "c")
    assert 'fxpool_once_calls{outcome="hits"} 3.0' in source.text().decode()
    source.close()


# ---------------------------------------------------------------- keys

DIFFERENT: list[Any] = [
    None, True, False, 1, 0, -1, 1.0, 0.0, -0.0, float("inf"), "1", "", b"1", b"", [], [[]], {}, set(), ["1"], [b"1"],
    ["ab", "c"], ["a", "bc"], ["abc"], {"a": "b"}, [["a", "b"]], {"a": {"b": None}}, [1, [2, 3]], [[1, 2], 3],
    [1, 2, 3], {1, 2, 3}, 2**70, "\ud800", "é", "e\u0301", {"a": 1, "b": 2}, {"a": 2, "b": 1}, Point(1, 2),
]  # fmt: skip


def test_different_keys_have_different_digests() -> None:
    digests = {product_keys.digest(key, None, product_keys.BYTES) for key in DIFFERENT}
    assert len(digests) == len(DIFFERENT)
    assert len({product_keys.digest("k", version, form) for version in (None, 1, "1") for form in ("a", "b")}) == 6


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ([1, "a"], (1, "a")),
        (Point(1, 2), [1, 2]),
        (signal.SIGKILL, 9),
        (type("Version", (str,), {"__str__": lambda self: "?"})("2.13"), "2.13"),
        ({"a": 1, "b": [2]}, {"b": (2,), "a": 1}),
        ({1, 2, "c"}, frozenset(["c", 2, 1])),
        (b"ab", bytearray(b"ab")),
    ],
)
def test_equal_keys_have_equal_digests(value: Any, other: Any) -> None:
    assert product_keys.digest(value, None, "bytes") == product_keys.digest(other, None, "bytes")


def test_a_digest_is_the_same_in_every_process_and_release(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from fxpool.jits import product_keys as keys; import platform; platform.machine = lambda: 'x86_64'; "
        "print(keys.digest(['op', {'b': 1.5, 'a': {'x', 'y', 'z'}}, b'c'], (2, 13), 'bytes'))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert digests == {"8a197ae5155c6d20f91895d4611d758c7cd3f9c25b220e860f9210ef0cfeb98f"}
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert product_keys.digest(1, None, "bytes") not in digests


@pytest.mark.parametrize("key", [object(), Path("/x"), [1, {"a": len}], {"a": 1j}, range(3), sys])
def test_other_values_are_no_keys(key: Any) -> None:
    with pytest.raises(TypeError, match="no stable digest"):
        fxpool.once(key, Builder())
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(TypeError, match="contains itself"):
        fxpool.once(itself, Builder())


def test_the_version_and_the_form_are_in_the_key() -> None:
    build = Builder()
    for version in (None, "1", "2", "1"):
        fxpool.once("k", build, version=version)
    assert build.count == 3
    assert os.listdir(fxpool.once("k", lambda directory: Path(directory, "a").touch())) == ["a"]


# ---------------------------------------------------------------- errors


def test_an_error_reaches_its_caller_and_is_not_remembered() -> None:
    def fails() -> bytes:
        raise ZeroDivisionError("of the build")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="of the build"):
            fxpool.once("k", fails)
    assert fxpool.once("k", Builder()) == b"built"
    assert _counted(misses=3, failed=2, builds=1)


def test_arguments_and_results_that_do_not_fit_are_named() -> None:
    once: Any = fxpool.once
    with pytest.raises(TypeError, match="returned str instead of bytes"):
        once("k", lambda: "text")
    with pytest.raises(TypeError, match="needs others"):
        once("k", lambda one, two: b"")
    with pytest.raises(TypeError, match="needs the directory to build in"):
        once("k", lambda directory: None, in_place=True)
    with pytest.raises(TypeError, match="cannot tell the parameters"):
        once("k", type("Opaque", (), {"__signature__": 3}))


def test_a_build_may_use_other_products_but_not_its_own() -> None:
    inner = Builder(b"inner")
    assert fxpool.once("outer", lambda: fxpool.once("inner", inner) + b" and outer") == b"inner and outer"
    with pytest.raises(errors.RecursiveBuildError, match="the build of op, 3 calls fxpool"):
        fxpool.once(("op", 3), lambda: fxpool.once(["op", 3], inner))
    assert fxpool.once(("op", 3), Builder()) == b"built", "the turn of the failed build is over"


# ---------------------------------------------------------------- threads and forks


def _threads(count: int, work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_threads_share_a_build() -> None:
    build, results = Builder(seconds=0.3), []
    _threads(8, lambda: results.append(fxpool.once("k", build)))
    assert build.count == 1 and results == [b"built"] * 8
    assert _counted(hits=7, misses=8, builds=1, waits=7)


def test_threads_share_a_build_without_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fxpool.configure(cache_dir=tmp_path / "file" / "c")
    build, results = Builder(seconds=0.3), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _threads(4, lambda: results.append(fxpool.once("k", build)))
    assert build.count == 1 and results == [b"built"] * 4
    assert len([one for one in caught if "fxpool" in str(one.message)]) == 1
    assert fxpool.stats()["once"]["not_stored"] == 1


def test_threads_that_waited_for_a_failed_build_try_themselves() -> None:
    tries: list[int] = []
    outcomes: list[str] = []

    def build() -> bytes:
        tries.append(threading.get_ident())
        time.sleep(0.3)
        if len(tries) == 1:
            raise OSError("the first fails")
        return b"built"

    def work() -> None:
        try:
            outcomes.append(fxpool.once("k", build).decode())
        except OSError as error:
            outcomes.append(str(error))

    _threads(4, work)
    assert sorted(outcomes) == ["built"] * 3 + ["the first fails"]
    assert len(tries) == len(set(tries)) == 2


def _status_of(child: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = child()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_during_a_build_waits_and_shares_it(tmp_path: Path) -> None:
    begun = threading.Event()

    def build() -> bytes:
        begun.set()
        time.sleep(1.0)
        return b"of the parent"

    thread = threading.Thread(target=lambda: fxpool.once("k", build))
    thread.start()
    begun.wait()
    assert _status_of(lambda: int(fxpool.once("k", Builder(b"of the child")) == b"of the parent")) == 1
    thread.join()
    assert list((tmp_path / "c" / "building").iterdir()) == [], "the child has not taken the parent's lock"


def test_a_child_that_a_builder_forks_does_not_wait_for_it() -> None:
    def child() -> int:
        try:
            fxpool.once("k", Builder())
        except errors.RecursiveBuildError:
            return 7
        return 1

    assert fxpool.once("k", lambda: str(_status_of(child)).encode()) == b"7"


def test_a_builder_s_child_that_outlives_it_blocks_nothing(tmp_path: Path) -> None:
    """The builder is killed, while a process that it forked has all its descriptors."""
    code = """
import os, sys, time, fxpool
def build():
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    print("builds", flush=True)
    time.sleep(1000)
fxpool.once("k", build)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "builds\n"
    process.kill()
    process.wait()
    start_time = time.monotonic()
    assert fxpool.once("k", Builder()) == b"built" and time.monotonic() - start_time < 10
    os.killpg(process.pid, 9)
    process.stdout.close()


# ---------------------------------------------------------------- the store


def _blobs(root: Path) -> list[Path]:
    return [path for path in (root / "c" / "blobs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", [b"", b"built", b"other"])
def test_a_damaged_or_changed_blob_is_built_again(tmp_path: Path, damage: bytes) -> None:
    fxpool.once("k", Builder(b"right"))
    (blob,) = _blobs(tmp_path)
    blob.write_bytes(damage)
    build = Builder(b"right")
    assert fxpool.once("k", build) == b"right" and build.count == 1
    assert fxpool.stats()["once"]["damaged"] >= 1
    assert start(tmp_path / "log", key="k", form="bytes").report()["once"]["hits"] == 1


def test_a_file_that_others_can_write_is_not_served(tmp_path: Path) -> None:
    fxpool.once("k", Builder(b"right"))
    _blobs(tmp_path)[0].chmod(0o666)
    build = Builder(b"right")
    assert fxpool.once("k", build) == b"right" and build.count == 1


def test_products_are_entries_like_others(tmp_path: Path) -> None:
    fxpool.once(("op", "sm_90"), Builder(b"x" * 5000))
    fxpool.once("files", lambda directory: Path(directory, "a").write_bytes(b"y"))
    runner = CliRunner()
    listed = runner.invoke(main, ["cache", "ls"]).output
    assert "op, sm_90" in listed and "files" in listed and "torch" not in listed
    key = next(line.split()[0] for line in listed.splitlines() if "sm_90" in line)
    shown = runner.invoke(main, ["cache", "show", key]).output
    assert "content: " in shown and "op, sm_90" in shown
    assert runner.invoke(main, ["cache", "show", "--code", key]).exit_code == 0
    assert "2 sound, 0 unreadable, 0 incomplete" in runner.invoke(main, ["cache", "verify"]).output
    explained = runner.invoke(main, ["cache", "explain", key])
    assert explained.exit_code == 0, explained.output
    assert "once" in runner.invoke(main, ["stats"]).output or fxpool.stats()["host"]["once"] == {}
    assert "removed 1 entry and 1 blob" in runner.invoke(main, ["cache", "rm", key, "--yes"]).output
    build = Builder(b"z")
    assert fxpool.once(("op", "sm_90"), build) == b"z"


def test_a_graph_is_not_compared_with_products(tmp_path: Path) -> None:
    from fxpool.codecache.explain.nearest import Side, nearest
    from fxpool.codecache.store.entry import Component, Entry

    fxpool.once("k", Builder())
    fxpool.once("other", Builder())
    (product, other) = [one.entry for one in LocalStore(str(tmp_path / "c")).scan()]
    assert product is not None and other is not None
    graph = Entry(key="1" * 64, components=[Component("graph", "2" * 64)])
    assert nearest(Side.of(graph), [product, other]) is None
    near = nearest(Side.of(product), [graph, other])
    assert near is not None and near.key == other.key


def test_a_bundle_carries_products(tmp_path: Path) -> None:
    def files(directory: str) -> None:
        Path(directory, "a").write_bytes(b"y")

    fxpool.once("k", Builder(b"x"))
    fxpool.once("k", files)
    store = LocalStore(str(tmp_path / "c"))
    bundle.export(str(tmp_path / "b.fxb"), store, [one.entry for one in store.scan() if one.entry is not None])
    other = LocalStore(str(tmp_path / "other"))
    with bundle.open_trusted(str(tmp_path / "b.fxb")) as file:
        assert bundle.restore(file, bundle_file.verify(file, "b"), other).entries == 2
    fxpool.configure(cache_dir=tmp_path / "other")
    build = Builder()
    assert fxpool.once("k", build) == b"x" and build.count == 0
    assert os.listdir(fxpool.once("k", files)) == ["a"]
    assert fxpool.stats()["once"]["builds"] == 2


def test_a_read_only_cache_base_serves_products(tmp_path: Path) -> None:
    def files(directory: str) -> None:
        Path(directory, "a").write_bytes(b"y")

    fxpool.once("k", Builder(b"of the image"))
    fxpool.once("k", files)
    (tmp_path / "file").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fxpool.configure(cache_base=tmp_path / "c", cache_dir=tmp_path / "file" / "c")
        assert fxpool.once("k", Builder(b"new")) == b"of the image"
        path = fxpool.once("k", files)
    assert os.listdir(path) == ["a"] and not path.startswith(str(tmp_path / "c"))
    assert fxpool.stats()["once"]["builds"] == 2
    temporary._remove_at_exit()
    assert not os.path.exists(path)


def test_the_least_recently_used_products_go_over_the_limit(tmp_path: Path) -> None:
    from fxpool.codecache.store import collector
    from fxpool.codecache.store.cache_limits import Bounds

    for number in range(4):
        fxpool.once(number, Builder(os.urandom(100_000)))
        for path in (tmp_path / "c" / layout.ENTRIES).rglob("*.entry"):
            status = path.stat()
            os.utime(path, (status.st_atime, status.st_mtime - 1000))
        for path in _blobs(tmp_path):
            os.utime(path, (0, path.stat().st_mtime - 1000))
    collected = collector.collect(str(tmp_path / "c"), Bounds(max_bytes=300_000, grace=120))
    assert collected.entries >= 2
    build = Builder()
    assert fxpool.once(3, build) != b"built" and fxpool.once(0, build) == b"built"
    assert lines(tmp_path / "log") == []
