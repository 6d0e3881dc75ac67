"""A cache that was filled before, below the user's own: `cache_base`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiling import compiled_total, total
from processes import HERE, run_python

import fxpool
from fxpool import counters, notices
from fxpool.lowering.core.runtime import runtime

NOBODY = 65534


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    runtime.forget_stores()
    notices.forget()
    yield
    runtime.forget_stores()
    notices.forget()


@pytest.fixture
def base(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the fixture `cache` made, as a base; the user's own is another."""
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (own / "toolchain").symlink_to((cache / "toolchain").resolve())
    return cache


def state_of(root: Path) -> list[tuple[str, int]]:
    return sorted(
        (str(path), path.stat().st_ctime_ns) for part in ("entries", "blobs") for path in (root / part).rglob("*")
    )


def switch_over(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From filling the base to using it."""
    monkeypatch.setenv("FXPOOL_CACHE_BASE", str(base))
    monkeypatch.setenv("FXPOOL_CACHE_DIR", str(base.parent / "own"))
    runtime.forget_stores()
    return base.parent / "own"


def test_it_is_looked_into_first_and_never_written_to(
    shared_pool: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_total()
    before = state_of(base)
    own = switch_over(base, monkeypatch)
    compiled_total(6, 200)
    stats = fxpool.stats()
    assert (stats["hits"], stats["misses"], stats["compiles"]["worker"]) == (1, 1, 1)
    assert not list(own.glob("entries/*/*/*.entry"))
    compiled_total(4, 5000)  # beyond a guard of the entry in the base
    stats = fxpool.stats()
    assert (stats["hits"], stats["guard_misses"], stats["compiles"]["worker"]) == (1, 1, 2)
    assert len(list(own.glob("entries/*/*/*.entry"))) == 1
    compiled_total(5, 6000)  # in our own
    compiled_total(7, 300)  # in the base
    stats = fxpool.stats()
    assert (stats["hits"], stats["guard_misses"], stats["compiles"]["worker"]) == (3, 1, 2)
    assert stats["store"] is not None and stats["store"]["entries"] == 1, "the base's is not counted as ours"
    assert (stats["switched_off"], stats["bypasses"]) == ({}, {})
    assert state_of(base) == before


@pytest.mark.slow
def test_it_serves_where_the_users_own_may_not_be_used(
    shared_pool: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_total()
    own = switch_over(base, monkeypatch)
    own.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="running without a cache"):
        compiled_total(6, 200)
    compiled_total(6, 200, lambda x: total(x) * 2)
    stats = counters.snapshot()  # without the size of a store that may not be used
    assert (stats["hits"], stats["compiles"]["worker"]) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["writable by others", "not there"])
def test_one_that_may_not_be_used_is_said_once_and_ignored(
    how: str, shared_pool: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_total()
    if how == "writable by others":
        base.chmod(0o777)
    switch_over(base, monkeypatch)
    if how == "not there":
        monkeypatch.setenv("FXPOOL_CACHE_BASE", str(base / "else"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled_total()
        compiled_total()
    base.chmod(0o700)
    (said,) = [str(one.message) for one in caught if "fxpool" in str(one.message)]
    assert "cache base" in said and ("chmod go-w" in said or "FXPOOL_CACHE_BASE" in said)
    stats = fxpool.stats()
    assert (stats["hits"], stats["compiles"]["worker"]) == (1, 2), "ours serves the second call"
    assert stats["switched_off"] == {"cache_base_refused": 1}


PROGRAM = """
import json, os, torch, fxpool
x = torch.linspace(0, 1, 400).reshape(4, 100)
function = lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]).softmax(-1).sum(0)
assert torch.allclose(torch.compile(function, backend="fxpool")(x), function(x), atol=1e-5)
stats = fxpool.stats()
names = ("hits", "compiles", "fallbacks", "bypasses", "switched_off", "store")
print(json.dumps([os.getuid(), {name: stats[name] for name in names}]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_what_root_filled_serves_another_user(base: Path) -> None:
    """An image: root fills the cache when it is made, and whoever runs it has another cache, empty and their own."""
    # Not pytest's own place, which is closed to others.
    place = Path(tempfile.mkdtemp(prefix="fxpb-", dir="/tmp"))
    try:
        place.chmod(0o755)
        user, report = json.loads(run_python(["-c", PROGRAM]).splitlines()[-1])
        assert (user, report["compiles"]["worker"]) == (0, 1)
        for part in ("entries", "blobs"):
            shutil.copytree(base / part, place / "base" / part)
        subprocess.run(["chmod", "-R", "go+rX", place / "base"], check=True)
        before = state_of(place / "base")
        (place / "home").mkdir(mode=0o700)
        os.chown(place / "home", NOBODY, NOBODY)
        home = str(place / "home")
        done = subprocess.run(
            [sys.executable, str(HERE / "second_user.py"), str(NOBODY), PROGRAM],
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                **dict.fromkeys(("HOME", "TMPDIR"), home),
                **{f"FXPOOL_{name}": f"{home}/{name}" for name in ("CACHE_DIR", "RUNTIME_DIR")},
                "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor",
                "FXPOOL_CACHE_BASE": str(place / "base"),
            },
        )
        if done.returncode == 77:
            pytest.skip(f"another user's process can't be made here: {done.stderr}")
        assert done.returncode == 0, done.stderr
        user, report = json.loads(done.stdout.splitlines()[-1])
        assert (user, report["hits"], report["compiles"]) == (NOBODY, 1, {"worker": 0, "in_process": 0})
        assert (report["fallbacks"], report["bypasses"], report["switched_off"]) == ({}, {}, {})
        assert (report["store"] or {"entries": 0})["entries"] == 0
        assert state_of(place / "base") == before
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_workers_store_below_a_directory_of_a_trusted_owner(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    share = tmp_path / "share"
    (share / "cache").mkdir(parents=True, mode=0o700)
    (share / "cache/toolchain").symlink_to((cache / "toolchain").resolve())
    os.chown(share, NOBODY, -1)
    program = (
        "import json, torch, fxpool\n"
        "torch.compile(lambda x: x.sin() + 5, backend='fxpool')(torch.ones(3))\n"
        "print(json.dumps(fxpool.stats()))\n"
    )
    for hits in (0, 1):
        printed = run_python(["-c", program], FXPOOL_CACHE_DIR=str(share / "cache"), FXPOOL_TRUSTED_OWNERS=str(NOBODY))
        stats = json.loads(printed)
        assert (stats["hits"], stats["compiles"]["worker"], stats["switched_off"]) == (hits, 1 - hits, {})
