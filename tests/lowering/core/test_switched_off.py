"""Whatever keeps a whole process from its cache or its workers is said once, with what to do, and nothing fails."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python
from tiers import first_tier

from fxpool import counters, notices
from fxpool.explanation import process
from fxpool.lowering.core.runtime import Runtime

# Two graphs; what is said of either is one warning.
PROGRAM = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, fxpool
    from fxpool.lowering.core import runtime
    from fxpool.lowering.fallback import dynamo_graph
    # What is compiled in this process is not the matter here, and takes a minute where the tool chain is not known.
    def compiled_here(graph, gm, inputs):
        fxpool.counters.count("compiles", "in_process")
        return gm.forward
    dynamo_graph._here = compiled_here
    exec(sys.argv[1] if len(sys.argv) > 1 else "")
    x = torch.ones(3)
    for function in (lambda x: x.relu() + 1, lambda x: x.relu() + 2):
        assert torch.equal(torch.compile(function, backend="fxpool")(x), function(x))
stats = fxpool.counters.snapshot()
said = [str(one.message) for one in caught if "fxpool" in str(one.message)]
print(json.dumps([said, {name: stats[name] for name in ("compiles", "fallbacks", "bypasses", "switched_off")}]))
"""


def run(before: str = "", **environment: str) -> tuple[str, dict[str, Any]]:
    """The one thing that a process said, and what it counted."""
    said, stats = json.loads(run_python(["-c", PROGRAM, before], **environment).splitlines()[-1])
    assert len(said) == 1, said
    return said[0], stats


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Any]:
    """Mounts small file systems for a test."""
    made: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount{len(made)}"
        place.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "none", str(place)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted here")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"), first_tier([("size=8k", "ENOSPC"), ("ro", "EROFS")], ("size=8k", "ENOSPC"))
)
def test_a_cache_that_can_t_be_written(options: str, why: str, mounted: Any) -> None:
    place = mounted(options)
    said, stats = run(FXPOOL_CACHE_DIR=str(place))
    assert "cannot store" in said and why in said and "FXPOOL_CACHE_DIR" in said and str(place) in said
    assert stats["switched_off"] == {"cache_not_written": 2}
    assert stats["compiles"] == {"worker": 2, "in_process": 0}


@pytest.mark.slow
def test_a_cache_that_can_t_be_made() -> None:
    said, stats = run(FXPOOL_CACHE_DIR="/proc/nowhere/fxpool")
    assert "cannot create" in said and "ENOENT" in said and "set FXPOOL_CACHE_DIR" in said
    assert stats["switched_off"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a link", "a file", "open to others", "somebody else's"])
def test_a_runtime_directory_that_may_not_be_used(how: str, tmp_path: Path) -> None:
    place = tmp_path / "runtime"
    if how == "a link":
        place.symlink_to(tmp_path)
    elif how == "a file":
        place.touch()
    else:
        place.mkdir(mode=0o700)
        if how == "open to others":
            place.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(place, 12345, 12345)
        else:
            pytest.skip("only root can give a directory away")
    said, stats = run(FXPOOL_RUNTIME_DIR=str(place))
    assert "without workers" in said and str(place) in said and "set FXPOOL_RUNTIME_DIR" in said
    assert stats["switched_off"] == stats["fallbacks"] == {"runtime_directory_refused": 2}
    assert stats["compiles"] == {"worker": 0, "in_process": 2}


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "name"), [("CACHE_DIR", "cache_directory"), ("CACHE_BASE", "cache_base")])
def test_a_cache_that_others_can_write_to(setting: str, name: str, tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    said, stats = run(FXPOOL_POOL="off", **{f"FXPOOL_{setting}": str(place)})
    assert str(place) in said and "0777" in said and f"chmod go-w {place}" in said
    assert set(stats["switched_off"]) == {f"{name}_refused"}
    assert stats["compiles"] == {"worker": 0, "in_process": 2}
    assert list(place.iterdir()) == []


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of a process that has no home."""
    monkeypatch.setenv("HOME", "~")
    for name in ("XDG_CACHE_HOME", "FXPOOL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    notices.forget()
    return tmp_path / f"fxpool-cache-{os.geteuid()}"


def test_without_a_home_the_cache_is_in_the_temporary_directory(stand_in: Path) -> None:
    runtime = Runtime()
    with pytest.warns(RuntimeWarning) as caught:
        store, again = runtime.store(), runtime.store()
    assert store is not None and store is again and store.root == str(stand_in)
    (said,) = (str(one.message) for one in caught)
    assert str(stand_in) in said and "HOME is '~'" in said and "set FXPOOL_CACHE_DIR" in said
    assert counters.snapshot()["switched_off"] == {"cache_is_temporary": 1}
    store.put_blob(b"compiled")
    assert stat.S_IMODE(stand_in.stat().st_mode) == 0o700
    (reason,) = process.explain().reasons
    assert f"compiled graphs are stored in {stand_in}" in str(reason)


@pytest.mark.parametrize("kind", ["another user's", "open to others", "a link to ours", "a file"])
def test_a_name_that_was_taken_in_the_temporary_directory_is_not_used(kind: str, stand_in: Path) -> None:
    ours = stand_in.with_name("ours")
    ours.mkdir(mode=0o700)
    if kind == "a link to ours":
        stand_in.symlink_to(ours)
    elif kind == "a file":
        stand_in.touch()
    else:
        stand_in.mkdir(mode=0o700)
        stand_in.chmod(0o777 if kind == "open to others" else 0o755)
    if kind in ("another user's", "a link to ours"):
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(stand_in, 12345, 12345, follow_symlinks=False)
    with pytest.warns(RuntimeWarning) as caught:
        assert Runtime().store() is None
    (said,) = (str(one.message) for one in caught)
    assert f"{stand_in}" in said and "HOME is '~'" in said
    assert ("chmod go-w" if kind == "open to others" else "set FXPOOL_CACHE_DIR") in said
    reason = {"open to others": "writable by all users (mode 0777)", "a file": "is not a directory"}
    assert reason.get(kind, "uid 12345") in said
    assert counters.snapshot()["switched_off"] == {"cache_directory_refused": 1}
    assert list(ours.iterdir()) == []


@pytest.mark.slow
def test_a_key_file_that_others_can_read(tmp_path: Path) -> None:
    place = tmp_path / "key"
    place.write_text("ab" * 32)
    place.chmod(0o644)
    remote = {"FXPOOL_REMOTE_CACHE": "redis://127.0.0.1:1/0", "FXPOOL_REMOTE_KEY_FILE": str(place)}
    said, stats = run(FXPOOL_POOL="off", **remote)
    assert "without the remote cache" in said and f"chmod 600 {place}" in said and "abab" not in said
    assert set(stats["switched_off"]) == {"remote_refused"}
    assert stats["compiles"] == {"worker": 0, "in_process": 2}


LATER = """
import json, torch, fxpool
compiled = torch.compile(lambda x: x.sin() * 3, backend="fxpool")
torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() * 3)
stats = fxpool.counters.snapshot()
print(json.dumps({name: stats[name] for name in ("hits", "compiles", "fallbacks")}))
"""


@pytest.mark.slow
def test_what_a_process_without_workers_compiles_is_kept_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "runtime").touch()
    for hits in (0, 1):
        output = run_python(["-W", "ignore", "-c", LATER], FXPOOL_RUNTIME_DIR=str(tmp_path / "runtime"))
        assert json.loads(output.splitlines()[-1]) == {
            "hits": hits,
            "compiles": {"worker": 0, "in_process": 1 - hits},
            "fallbacks": {} if hits else {"runtime_directory_refused": 1},
        }


@pytest.mark.slow
def test_a_server_whose_zygote_can_t_start() -> None:
    said, stats = run('runtime._PRELOAD = ("no_such_module",)')
    assert "without workers" in said and "No module named 'no_such_module'" in said and "FXPOOL_POOL=off" in said
    assert stats["switched_off"] == {"pool_unavailable": 2}
    assert stats["compiles"] == {"worker": 0, "in_process": 2}


@pytest.mark.slow
def test_a_pool_that_is_switched_off_on_purpose_says_nothing() -> None:
    said, stats = json.loads(run_python(["-c", PROGRAM], FXPOOL_POOL="off").splitlines()[-1])
    assert (said, stats["switched_off"]) == ([], {})


@pytest.mark.slow
def test_in_the_background_it_is_said_once_too(tmp_path: Path) -> None:
    (tmp_path / "runtime").touch()
    wait = "import atexit; torch.compile(lambda x: x + 3, backend='fxpool')(torch.ones(3)); fxpool.wait()"
    said, stats = run(
        wait, FXPOOL_RUNTIME_DIR=str(tmp_path / "runtime"), TORCHINDUCTOR_FX_COMPILE_MODE="async+subprocess"
    )
    assert "graphs keep running as they are" in said
    assert stats["switched_off"]["runtime_directory_refused"] >= 1


@pytest.mark.slow
def test_a_filter_that_makes_warnings_errors_fails_no_compile(tmp_path: Path) -> None:
    (tmp_path / "runtime").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    program = """
import warnings, torch, fxpool
from fxpool.lowering.fallback import chain
class Compiled:
    def __init__(self, gm, inputs, keep_result):
        self.callable = gm.forward
chain.aot.compile_graph = Compiled  # no store: there is no key, and nothing is kept
x = torch.ones(3)
compiled = torch.compile(lambda x: x.relu() + 1, backend="fxpool")
with warnings.catch_warnings():
    warnings.filterwarnings("error", message="fxpool")
    assert torch.equal(compiled(x), x + 1)
print(sorted(fxpool.counters.snapshot()["switched_off"]))
"""
    output = run_python(
        ["-c", program], FXPOOL_RUNTIME_DIR=str(tmp_path / "runtime"), FXPOOL_CACHE_DIR=str(tmp_path / "open")
    )
    assert output.splitlines()[-1] == "['cache_directory_refused', 'runtime_directory_refused']"


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A cgroup of this test's own with 800 MB."""
    for top, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        place = Path(top, f"fxpool-test-{os.getpid()}")
        try:
            place.mkdir()
            (place / limit).write_text(str(800 << 20))
        except OSError:
            if place.is_dir():
                place.rmdir()
            continue
        yield place
        place.rmdir()
        return
    pytest.skip("no cgroup with a memory limit can be made here")


@pytest.mark.slow
def test_too_little_memory_for_workers(memory_group: Path, tmp_path: Path) -> None:
    enter = f"import os; open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    done = subprocess.run(
        [sys.executable, "-c", enter + PROGRAM], capture_output=True, text=True, check=False, cwd=HERE, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    (said,), stats = json.loads(done.stdout.splitlines()[-1])
    assert "not enough memory for workers" in said and "of 800 MB" in said and "free or add memory" in said
    assert stats["switched_off"] == {"pool_unavailable": 2}
    assert stats["compiles"] == {"worker": 0, "in_process": 2}
