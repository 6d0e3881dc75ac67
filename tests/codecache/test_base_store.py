"""A store below the user's own: believed if it is root's or ours, read and not touched."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from another_user import as_nobody

from fxpool.codecache.store.base_store import BaseStore
from fxpool.codecache.store.entry import Component, Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError, UnsafeDirectoryError

KEY = hashlib.sha256(b"a graph").hexdigest()
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else, which only root can")


@pytest.fixture
def filled() -> Iterator[tuple[Path, Entry]]:
    """A store with an entry and a blob, which others may read."""
    # Not pytest's own place, which is closed to others.
    above = Path(tempfile.mkdtemp(prefix="fxpb-", dir="/tmp"))
    above.chmod(0o755)
    root = above / "base"
    entry = LocalStore(str(root)).publish(
        Entry(
            key=KEY,
            components=[Component("graph", "ab" * 32, "2 nodes")],
            guards=[],
            content={},
            metadata=Metadata(label="forward", created=12.5, compile_seconds=3.25, torch_version="2.13.0"),
        ),
        {"so": b"\x7fELF"},
    )
    open_to_readers(root)
    yield root, entry
    shutil.rmtree(above)


def open_to_readers(root: Path) -> None:
    for directory, _, names in os.walk(root):
        os.chmod(directory, 0o755)
        for name in names:
            os.chmod(os.path.join(directory, name), 0o644)


def state_of(root: Path) -> list[tuple[str, int, int, int]]:
    return sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_ctime_ns, path.stat().st_mode)
        for path in (root, *root.rglob("*"))
    )


def test_what_is_in_it_is_read_and_nothing_is_written(filled: tuple[Path, Entry]) -> None:
    root, entry = filled
    before = state_of(root)
    store = BaseStore(str(root))
    assert store.entries(KEY) == [entry] and store.complete(entry)
    assert store.read_blob(entry.blobs["so"]) == b"\x7fELF"
    assert store.has_blob(entry.blobs["so"])
    store.mark_used(entry)
    for write in (
        lambda: store.publish(entry, {}),
        lambda: store.put_blob(b"more"),
        lambda: store.remove(KEY),
        lambda: store.remove_blob(entry.blobs["so"]),
        store.clear,
    ):
        with pytest.raises(StoreError, match="read-only"):
            write()
    assert store.sweep() == 0
    assert state_of(root) == before


@pytest.mark.parametrize("part", ["entries", "blobs"])
def test_what_is_damaged_is_a_miss_and_stays_where_it_is(filled: tuple[Path, Entry], part: str) -> None:
    root, _ = filled
    (damaged,) = (path for path in (root / part).rglob("*") if path.is_file())
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    before = state_of(root)
    store = BaseStore(str(root))
    assert not [found for found in store.entries(KEY) if store.complete(found)]
    assert store.counters()["corrupt"] == 1
    assert state_of(root) == before


@AS_ROOT
def test_somebody_else_reads_what_root_filled(filled: tuple[Path, Entry]) -> None:
    root, entry = filled
    assert entry.key in as_nobody(lambda: [(one.key, BaseStore(str(root)).complete(one)) for one in
                                           BaseStore(str(root)).entries(KEY)])  # fmt: skip
    # As their own it is refused: they could not have written it.
    assert "UnsafeDirectoryError" in as_nobody(lambda: LocalStore(str(root)).entries(KEY))


@AS_ROOT
@pytest.mark.parametrize("closed", [".", "entries", "blobs", "file"])
def test_what_can_t_be_read_is_refused_with_what_to_do(filled: tuple[Path, Entry], closed: str) -> None:
    root, _ = filled
    if closed == "file":
        (file,) = (root / "entries").rglob("*.entry")
        file.chmod(0o600)
    else:
        (root / closed).chmod(0o700)
    said = as_nobody(lambda: BaseStore(str(root)))
    assert "Permission denied" in said and f"chmod -R go+rX {root}" in said


@AS_ROOT
def test_what_a_third_user_wrote_is_not_believed(filled: tuple[Path, Entry]) -> None:
    root, _ = filled
    (file,) = (root / "entries").rglob("*.entry")
    os.chown(file, 12345, 12345)
    assert BaseStore(str(root)).entries(KEY) == []
    assert as_nobody(lambda: BaseStore(str(root)).entries(KEY)) == "[]"
    os.chown(root, 12345, 12345)
    for said in (as_nobody(lambda: BaseStore(str(root))), str(_refusal(root))):
        assert "belongs to" in said and "FXPOOL_CACHE_BASE" in said


@AS_ROOT
def test_what_a_trusted_owner_wrote_is_a_base_and_no_cache(
    filled: tuple[Path, Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, entry = filled
    for path in (root, *root.rglob("*")):
        os.chown(path, 12345, 12345)
    _refusal(root)
    monkeypatch.setenv("FXPOOL_TRUSTED_OWNERS", "12345")
    assert BaseStore(str(root)).entries(KEY) == [entry] and BaseStore(str(root)).complete(entry)
    with pytest.raises(UnsafeDirectoryError):
        LocalStore(str(root))


def _refusal(root: Path) -> UnsafeDirectoryError:
    with pytest.raises(UnsafeDirectoryError) as caught:
        BaseStore(str(root))
    return caught.value


@pytest.mark.parametrize("mode", [0o775, 0o777])
def test_one_that_others_can_write_to_is_refused(filled: tuple[Path, Entry], mode: int) -> None:
    root, entry = filled
    root.chmod(mode)
    assert f"chmod go-w {root}" in str(_refusal(root))
    root.chmod(0o755)
    (file,) = (root / "entries").rglob("*.entry")
    file.chmod(0o666)
    assert BaseStore(str(root)).entries(KEY) == []
    file.chmod(0o644)
    assert BaseStore(str(root)).entries(KEY) == [entry]


def test_one_in_whose_place_others_can_put_another_is_refused(filled: tuple[Path, Entry]) -> None:
    root, _ = filled
    above = root.parent / "above"
    above.mkdir()
    root.rename(above / "base")
    above.chmod(0o777)
    assert "could replace the directory" in str(_refusal(above / "base"))


def test_one_that_is_not_there_is_an_error_and_one_with_nothing_in_it_is_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist") as caught:
        BaseStore(str(tmp_path / "nothing"))
    assert "FXPOOL_CACHE_BASE" in caught.value.remedy
    (tmp_path / "empty").mkdir(mode=0o700)
    assert BaseStore(str(tmp_path / "empty")).is_empty()
