"""What lies in a cache directory: sizes are du's, and clearing it leaves nothing but what is in use or not ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from fxpool.codecache.store import layout, quarantine, removal, small_records
from fxpool.codecache.store.catalogue import measure
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import UnsafeDirectoryError

STEM = "4b33600ccdbcbd9478c17412b41df304"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with something of every kind."""
    store = LocalStore(str(tmp_path / "c"))
    for n in range(3):
        key = hashlib.sha256(bytes([n])).hexdigest()
        store.publish(Entry(key=key), {"result": bytes([n]) * 5000})
    quarantine.add(store.root, key, label="g", error="it died", log=None)
    small_records.demoted.add(store.root, key, key)
    root = Path(store.root)
    headers = root / "toolchain" / "headers"
    headers.mkdir(parents=True)
    (headers / f"{STEM}.h").write_text("#include <x.h>\n")
    (headers / f"{STEM}.h.gch").write_bytes(b"h" * 3_000_000)
    (headers / f"{STEM}.json").write_text("{}")
    (headers / f"{STEM}.lock").touch()
    (headers / "building-abc").mkdir()
    (headers / "building-abc" / "header.gch").write_bytes(b"h" * 1_000_000)
    (root / "toolchain" / "instruction-sets-1.json").write_text("[]")
    (root / "aside").mkdir()
    (root / "aside" / "x.entry.1").write_text("damaged")
    (root / ".tmp-host-1-2").write_text("left by a dead writer")
    return root


def du(path: Path) -> int:
    done = subprocess.run(["du", "-s", "-B1", str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def unused(root: Path) -> None:
    """The header was used long ago."""
    long_ago = time.time() - 7 * 3600
    os.utime(root / "toolchain" / "headers" / f"{STEM}.json", (long_ago, long_ago))


def test_sizes_are_those_of_du(root: Path) -> None:
    os.link(root / "toolchain" / "instruction-sets-1.json", root / "toolchain" / "again.json")
    (root / "mine.txt").write_text("not fxpool's")
    found = measure(str(root))
    assert sum(share.bytes for share in found.values()) == du(root)
    assert found["precompiled headers"].bytes > 4_000_000
    assert found["entries"].files == 3 and found["blobs"].files == 3
    assert found["quarantine"].files == 1 and found["set aside"].files == 1
    assert found[layout.FOREIGN].files == 1


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert sum(share.bytes for share in measure(str(tmp_path / "none")).values()) == 0


def test_clear_leaves_nothing(root: Path) -> None:
    unused(root)
    before = du(root)
    cleared = removal.clear(str(root))
    assert list(root.iterdir()) == [] and cleared.in_use == []
    assert sum(share.bytes for share in cleared.removed.values()) == before - du(root)
    assert cleared.removed["entries"].files == 3 and cleared.removed["precompiled headers"].files == 5
    assert sum(share.files for share in cleared.left.values()) == 0


def test_clearing_everything_removes_the_directory_too(root: Path) -> None:
    headers = root / "toolchain" / "headers"
    removal.clear(str(root))
    assert [path.name for path in headers.iterdir()] == [f"{STEM}.h"], "used lately"
    removal.clear(str(root), everything=True)
    assert not root.exists()


def test_everything_but_a_header_in_use_and_foreign_files(root: Path) -> None:
    (root / "notes.txt").write_text("precious")
    headers = root / "toolchain" / "headers"
    with filelock.FileLock(headers / f"{STEM}.lock"):
        assert removal.clear(str(root), everything=True).in_use == [str(headers / STEM)]
    assert {path.name for path in root.iterdir()} == {"notes.txt", "toolchain"}


def test_what_is_not_ours_stays(root: Path) -> None:
    unused(root)
    (root / "mine").mkdir()
    (root / "mine" / "notes.txt").write_text("precious")
    cleared = removal.clear(str(root))
    assert (root / "mine" / "notes.txt").read_text() == "precious"
    assert [path.name for path in root.iterdir()] == ["mine"]
    assert cleared.left[layout.FOREIGN].files == 1


def test_what_a_link_leads_to_stays(root: Path, tmp_path: Path) -> None:
    unused(root)
    (root / "toolchain").rename(tmp_path / "elsewhere")
    (root / "toolchain").symlink_to(tmp_path / "elsewhere")
    kept = sorted((tmp_path / "elsewhere").rglob("*"))
    cleared = removal.clear(str(root))
    assert sorted((tmp_path / "elsewhere").rglob("*")) == kept and list(root.iterdir()) == []
    assert cleared.in_use == []


def test_a_header_that_is_being_compiled_stays(root: Path) -> None:
    unused(root)
    headers = root / "toolchain" / "headers"
    with filelock.FileLock(headers / f"{STEM}.lock"):
        cleared = removal.clear(str(root))
    assert cleared.in_use == [str(headers / STEM)]
    assert sorted(path.name for path in headers.iterdir()) == [
        f"{STEM}.{end}" for end in ("h", "h.gch", "json", "lock")
    ]
    assert cleared.left["precompiled headers"].files == 4
    assert not (root / "entries").exists()


def test_a_header_that_a_compiler_includes_stays(root: Path) -> None:
    unused(root)
    header = root / "toolchain" / "headers" / f"{STEM}.h"
    program = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "-include", str(header)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline()
        cleared = removal.clear(str(root))
        running.communicate(b"")
    assert len(cleared.in_use) == 1 and header.exists() and Path(f"{header}.gch").exists()
    assert removal.clear(str(root)).in_use == [] and not header.exists()


def test_of_a_header_that_was_used_lately_a_line_stays(root: Path) -> None:
    """A worker that was told of it has not started its compiler yet: what it includes is there, as text."""
    cleared = removal.clear(str(root))
    left = [path for path in root.rglob("*") if path.is_file()]
    assert [path.name for path in left] == [f"{STEM}.h"] and cleared.in_use == []
    assert cleared.left["precompiled headers"].files == 1


def test_somebody_elses_is_not_cleared(root: Path) -> None:
    root.chmod(0o777)
    with pytest.raises(UnsafeDirectoryError):
        removal.clear(str(root))
    assert (root / "entries").exists()
