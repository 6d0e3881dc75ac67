"""The local store: what is published comes back, and nothing else does."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fxpool.codecache.store import blobs as blob_files
from fxpool.codecache.store import catalogue, layout
from fxpool.codecache.store import store as store_module
from fxpool.codecache.store.blobs import BlobRef, StoreWriteError, check_directory
from fxpool.codecache.store.entry import Component, Entry, Metadata, OtherVersionError, decode_entry, encode_entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, StoreError, UnsafeDirectoryError

KEY = hashlib.sha256(b"a graph").hexdigest()
OTHER_KEY = hashlib.sha256(b"another graph").hexdigest()
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
GUARD = ["StrictLessThan", ["symbol", "s0", "integer", "positive"], 8]


def make_entry(key: str = KEY, guards: Sequence[Any] = (), **fields: Any) -> Entry:
    return Entry(
        key=key,
        components=[Component("graph", "ab" * 32, "2 nodes"), Component("torch", "cd" * 32, "2.13.0")],
        guards=list(guards),
        content={"strides": [[4, 1]], "bytes": b"\0\1", "none": None},
        metadata=Metadata(label="forward", created=12.5, compile_seconds=3.25, torch_version="2.13.0"),
        **fields,
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def no_temporaries_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith(".tmp-")]
    assert not left


def entry_file(store: LocalStore, entry: Entry) -> str:
    return os.path.join(store.root, "entries", entry.key[:2], entry.key, entry.name + ".entry")


def blob_file(store: LocalStore, ref: BlobRef) -> str:
    return os.path.join(store.root, "blobs", ref.digest[:2], f"{ref.digest}-{ref.size}")


def opened_content(store: LocalStore, ref: BlobRef) -> bytes | None:
    """Return the bytes that the loader would map."""
    descriptor = store.open_blob(ref)
    if descriptor is None:
        return None
    with open(descriptor, "rb") as file:
        return file.read()


# ---------------------------------------------------------------- there and back


def test_round_trip(store: LocalStore) -> None:
    contents = {"so": b"\x7fELF" * 1000, "module": b"def call(args): ...", "empty": b""}
    published = store.publish(make_entry(guards=[GUARD]), contents)
    assert published.blobs == {role: BlobRef.of(content) for role, content in contents.items()}
    for reader in (store, LocalStore(store.root)):
        (entry,) = reader.entries(KEY)
        assert entry == published
        assert reader.complete(entry)
        for role, content in contents.items():
            assert reader.read_blob(entry.blobs[role]) == content
            assert opened_content(reader, entry.blobs[role]) == content
    assert store.entries(OTHER_KEY) == []
    assert store.counters()["published"] == 1
    assert store.counters()["write_failed"] == {}
    assert store.sizes()["entries"] == 1 and store.sizes()["blobs"] == 3


def test_everything_is_ours_alone(store: LocalStore) -> None:
    old = os.umask(0)
    try:
        store.publish(make_entry(), {"so": b"x"})
    finally:
        os.umask(old)
    for directory, _, names in os.walk(store.root):
        assert os.stat(directory).st_mode & 0o077 == 0
        for name in names:
            assert os.stat(os.path.join(directory, name)).st_mode & 0o077 == 0


def test_large_and_small_entries(store: LocalStore) -> None:
    for size in (0, 4000, 4096, 200_000):
        entry = store.publish(msgspec.structs.replace(make_entry(), content="e" * size), {})
        assert store.entries(KEY) == [entry]
    assert os.path.getsize(entry_file(store, entry)) < 10_000


def test_other_guards_coexist_and_the_same_ones_are_replaced(store: LocalStore) -> None:
    first = store.publish(make_entry(guards=[GUARD]), {"so": b"1"})
    second = store.publish(make_entry(guards=[["Not", GUARD]]), {"so": b"2"})
    assert sorted(entry.name for entry in store.entries(KEY)) == sorted([first.name, second.name])
    again = store.publish(make_entry(guards=[GUARD]), {"so": b"3"})
    assert {entry.name: entry.blobs["so"] for entry in store.entries(KEY)} == {
        again.name: BlobRef.of(b"3"),
        second.name: BlobRef.of(b"2"),
    }


def test_most_recently_used_first(store: LocalStore) -> None:
    entries = [store.publish(make_entry(guards=[["Equality", 1, n]]), {}) for n in range(3)]
    for age, entry in zip((30, 10, 20), entries, strict=True):
        stamp = time.time() - age
        os.utime(entry_file(store, entry), (stamp, stamp))
    assert store.entries(KEY) == [entries[1], entries[2], entries[0]]
    store.mark_used(entries[0])
    assert store.entries(KEY)[0] == entries[0]
    store.mark_used(make_entry(key=OTHER_KEY))  # not there: nothing happens


def test_blobs_are_shared_and_references_kept(store: LocalStore) -> None:
    first = store.publish(make_entry(), {"kernel": b"k" * 99})
    inode = os.stat(blob_file(store, first.blobs["kernel"])).st_ino
    second = store.publish(make_entry(key=OTHER_KEY, blobs=dict(first.blobs)), {"kernel2": b"k" * 99, "m": b"m"})
    assert set(second.blobs) == {"kernel", "kernel2", "m"}
    assert os.stat(blob_file(store, first.blobs["kernel"])).st_ino == inode
    assert store.sizes()["blobs"] == 2
    assert store.counters()["blobs_written"] == 2 and store.counters()["blobs_shared"] == 1


def test_a_bad_blob_is_written_again(store: LocalStore) -> None:
    ref = store.put_blob(b"content")
    with open(blob_file(store, ref), "wb") as file:
        file.write(b"CONTENT")
    assert store.publish(make_entry(), {"so": b"content"}).blobs["so"] == ref
    assert store.read_blob(ref) == b"content"


def test_a_copied_directory_works(store: LocalStore, tmp_path: Path) -> None:
    entry = store.publish(make_entry(guards=[GUARD]), {"so": b"x" * 5000})
    shutil.copytree(store.root, tmp_path / "copy")
    os.chmod(tmp_path / "copy", 0o700)
    copy = LocalStore(str(tmp_path / "copy"))
    shutil.rmtree(store.root)
    assert copy.entries(KEY) == [entry] and copy.complete(entry)
    assert opened_content(copy, entry.blobs["so"]) == b"x" * 5000


def test_missing_blobs_make_an_entry_incomplete(store: LocalStore) -> None:
    entry = store.publish(make_entry(), {"so": b"x", "module": b"y"})
    os.unlink(blob_file(store, entry.blobs["so"]))
    assert not store.complete(entry)
    assert store.read_blob(entry.blobs["so"]) is None and not store.has_blob(entry.blobs["so"])
    assert store.counters()["corrupt"] == 0


def test_names_nobody_knows_are_ignored(store: LocalStore) -> None:
    entry = store.publish(make_entry(), {})
    directory = os.path.dirname(entry_file(store, entry))
    for name in ("README", ".hidden", "x.tmp"):
        with open(os.path.join(directory, name), "w"):
            pass
    assert store.entries(KEY) == [entry]
    assert store.counters()["corrupt"] == 0
    assert os.path.exists(os.path.join(directory, "README"))


@pytest.mark.parametrize("key", ["", "..", "../../etc/passwd", KEY.upper(), KEY[:-1], KEY + "\n"])
def test_what_is_no_key_is_refused(store: LocalStore, key: str) -> None:
    for function in (store.entries, store.remove, lambda key: store.publish(make_entry(key=key), {})):
        with pytest.raises(ValueError):
            function(key)


@pytest.mark.parametrize("digest", ["../../../etc/passwd", "ab", "AB" * 32, "ab" * 32 + "\n"])
def test_a_reference_names_no_other_place(store: LocalStore, digest: str) -> None:
    ref = BlobRef(digest, 3)
    assert store.read_blob(ref) is None and store.open_blob(ref) is None
    with pytest.raises(CorruptEntryError):
        decode_entry(encode_entry(make_entry(blobs={"so": ref})))


# ---------------------------------------------------------------- damage


def test_an_entry_cut_or_flipped_anywhere_is_refused() -> None:
    for entry in (make_entry(guards=[GUARD]), msgspec.structs.replace(make_entry(), content="e" * 5000)):
        good = encode_entry(entry)
        assert decode_entry(good) == entry
        for cut in range(len(good)):
            with pytest.raises(CorruptEntryError):
                decode_entry(good[:cut])
        for position in range(len(good)):
            for bit in (0x01, 0x80):
                bad = bytearray(good)
                bad[position] ^= bit
                with pytest.raises(CorruptEntryError):
                    decode_entry(bytes(bad))
        with pytest.raises(CorruptEntryError):
            decode_entry(good + b"\0")


def test_a_right_digest_over_nonsense_is_refused() -> None:
    for rest in (
        b"",
        b"\0",
        b"\x07\x80",
        b"\0\x80",
        b"\0\xc1",
        b"\x01nonsense",
        b"\0" + msgspec.msgpack.encode({"key": 3}),
    ):
        magic = b"fxpool-entry 2\n"
        with pytest.raises(CorruptEntryError):
            decode_entry(magic + hashlib.sha256(magic + rest).digest() + rest)


def test_an_entry_of_another_version_is_let_be(store: LocalStore) -> None:
    entry = store.publish(make_entry(), {})
    magic, rest = b"fxpool-entry 3\n", b"whatever they write"
    with open(entry_file(store, entry), "wb") as file:
        file.write(magic + hashlib.sha256(magic + rest).digest() + rest)
    assert store.entries(KEY) == []
    assert store.counters()["other_version"] == 1 and store.counters()["corrupt"] == 0
    assert os.path.exists(entry_file(store, entry))
    with pytest.raises(OtherVersionError):
        decode_entry(magic + hashlib.sha256(magic + rest).digest() + rest)


def test_damaged_entries_are_set_aside_and_counted(store: LocalStore) -> None:
    whole = store.publish(make_entry(guards=[GUARD]), {})
    damages: list[Callable[[bytes], bytes]] = [lambda d: b"", lambda d: d[: len(d) // 2], lambda d: d[:-1] + b"\xff"]
    for number, damage in enumerate(damages, start=1):
        entry = store.publish(make_entry(), {})
        path = entry_file(store, entry)
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(damage(data))
        assert [found.name for found in store.scan() if found.entry is None] == [entry.name]
        assert store.entries(KEY) == [whole]
        assert store.counters()["corrupt"] == number
        assert not os.path.exists(path)
        assert len(os.listdir(os.path.join(store.root, "aside"))) == number
    assert store.entries(KEY) == [whole]


def test_an_entry_moved_to_another_key_or_name_is_not_served(store: LocalStore) -> None:
    entry = store.publish(make_entry(), {})
    moved = os.path.join(store.root, "entries", OTHER_KEY[:2], OTHER_KEY, entry.name + ".entry")
    os.makedirs(os.path.dirname(moved))
    shutil.copy(entry_file(store, entry), moved)
    shutil.copy(entry_file(store, entry), os.path.join(os.path.dirname(entry_file(store, entry)), "ab" * 32 + ".entry"))
    assert store.entries(OTHER_KEY) == []
    assert store.entries(KEY) == [entry]
    assert store.counters()["corrupt"] == 2


def test_damaged_blobs_are_set_aside_and_counted(store: LocalStore) -> None:
    content = b"machine code"
    damaged = [content[:cut] for cut in range(len(content))]
    damaged += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]
    for number, bad in enumerate(damaged, start=1):
        ref = store.put_blob(content)
        with open(blob_file(store, ref), "wb") as file:
            file.write(bad)
        assert (store.read_blob if number % 2 else store.open_blob)(ref) is None
        assert store.counters()["corrupt"] == number
        assert not os.path.exists(blob_file(store, ref))


def test_a_blob_changed_after_it_was_verified_is_noticed(store: LocalStore) -> None:
    ref = store.put_blob(b"abcdef")
    path = blob_file(store, ref)
    assert store.has_blob(ref)
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"X")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had happened
    assert not store.has_blob(ref)


def test_a_blob_is_read_once_for_dlopen(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = store.put_blob(b"abcdef")
    assert store.has_blob(ref)
    monkeypatch.setattr(blob_files, "_content", lambda *args: pytest.fail("read again"))
    assert store.has_blob(ref) and store.complete(make_entry(blobs={"so": ref}))


def test_the_pile_of_damaged_files_is_bounded(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MAX_ASIDE", 2)
    for _ in range(5):
        entry = store.publish(make_entry(), {})
        os.truncate(entry_file(store, entry), 5)
        assert store.entries(KEY) == []
        assert not os.path.exists(entry_file(store, entry))
    assert len(os.listdir(os.path.join(store.root, "aside"))) == 2


# ---------------------------------------------------------------- others


@pytest.mark.parametrize("part", sorted(layout.DIRECTORIES))
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_in_it_that_others_can_write_to_is_refused(store: LocalStore, part: str, mode: int) -> None:
    entry = store.publish(make_entry(), {"so": b"x"})
    os.makedirs(os.path.join(store.root, part), exist_ok=True)
    os.chmod(os.path.join(store.root, part), mode)
    with pytest.raises(
        UnsafeDirectoryError, match=f"{part}, in the cache directory, belongs to .* writable by"
    ) as caught:
        LocalStore(store.root)
    assert f"chmod go-w {store.root}/{part}" in caught.value.remedy
    os.chmod(os.path.join(store.root, part), 0o700)
    assert LocalStore(store.root).entries(KEY) == [entry]


@AS_ROOT
@pytest.mark.parametrize("part", ["entries", "blobs"])
def test_a_link_in_it_leads_to_nobody_elses_directory(store: LocalStore, part: str, tmp_path: Path) -> None:
    store.publish(make_entry(), {"so": b"x"})
    (tmp_path / "disk").mkdir(mode=0o755)
    os.rename(os.path.join(store.root, part), tmp_path / "disk" / part)
    os.symlink(tmp_path / "disk" / part, os.path.join(store.root, part))
    (entry,) = LocalStore(store.root).entries(KEY)
    assert LocalStore(store.root).complete(entry)
    os.chown(tmp_path / "disk", 12345, 12345)
    with pytest.raises(UnsafeDirectoryError, match="other users could replace"):
        LocalStore(store.root)


@pytest.mark.parametrize("kind", ["entry", "blob"])
def test_files_in_a_directory_that_others_can_write_to_are_not_served(store: LocalStore, kind: str) -> None:
    entry = store.publish(make_entry(), {"so": b"x"})
    path = entry_file(store, entry) if kind == "entry" else blob_file(store, entry.blobs["so"])
    os.chmod(os.path.dirname(path), 0o777)
    assert store.entries(KEY) == [] if kind == "entry" else not store.complete(entry)
    assert store.counters()["unsafe"] == 1


def test_the_verified_file_is_loaded(store: LocalStore) -> None:
    """Another file has its name by the time the loader maps it."""
    ref = store.put_blob(b"verified")
    descriptor = store.open_blob(ref)
    assert descriptor is not None
    path = blob_file(store, ref)
    with open(path + ".other", "wb") as file:
        file.write(b"another!")
    os.rename(path + ".other", path)
    with open(descriptor, "rb") as file:
        assert file.read() == b"verified"
    assert not store.has_blob(ref)


@pytest.mark.parametrize("what", ["entry", "blob"])
@pytest.mark.parametrize("how", [pytest.param("owner", marks=AS_ROOT), "group", "world", "link", "fifo"])
def test_files_open_to_others_are_not_served(store: LocalStore, what: str, how: str, tmp_path: Path) -> None:
    entry = store.publish(make_entry(), {"so": b"x"})
    path = entry_file(store, entry) if what == "entry" else blob_file(store, entry.blobs["so"])
    if how == "owner":
        os.chown(path, 12345, -1)
    elif how == "group":
        os.chmod(path, 0o660)
    elif how == "world":
        os.chmod(path, 0o602)
    elif how == "link":
        os.rename(path, tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", path)
    else:
        os.unlink(path)
        os.mkfifo(path, 0o600)
    assert store.entries(KEY) == [] if what == "entry" else not store.complete(entry)
    assert store.counters()["unsafe"] == 1
    assert store.publish(make_entry(), {"so": b"x"}) == entry  # put right by whoever compiles it again
    assert store.entries(KEY) == [entry] and store.complete(entry)


@pytest.mark.parametrize(
    ("mode", "owner"), [(0o720, None), (0o702, None), (0o777, None), pytest.param(0o700, 12345, marks=AS_ROOT)]
)
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int, owner: int | None) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    os.chmod(root, mode)
    if owner:
        os.chown(root, owner, -1)
    with pytest.raises(UnsafeDirectoryError) as caught:
        LocalStore(str(root))
    assert f"{mode:04o}" in str(caught.value) and "uid" in str(caught.value)
    assert caught.value.remedy


def test_a_directory_opened_to_others_later_is_not_used(store: LocalStore) -> None:
    entry = store.publish(make_entry(), {"so": b"x"})
    os.chmod(store.root, 0o777)
    assert store.entries(KEY) == [] and not store.complete(entry)
    with pytest.raises(UnsafeDirectoryError):
        store.publish(make_entry(), {})
    assert store.counters()["unsafe"] >= 2
    os.chmod(store.root, 0o700)
    assert store.entries(KEY) == [entry]


def test_a_parent_that_others_can_write_to_is_refused_unless_sticky(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    os.chmod(parent, 0o777)
    with pytest.raises(UnsafeDirectoryError, match="shared"):
        check_directory(str(parent / "cache"))
    os.chmod(parent, 0o1777)
    check_directory(str(parent / "cache"))
    (tmp_path / "link").symlink_to(parent)
    check_directory(str(tmp_path / "link" / "cache"))
    os.chmod(parent, 0o777)
    with pytest.raises(UnsafeDirectoryError):
        check_directory(str(tmp_path / "link" / "cache"))


@AS_ROOT
def test_a_link_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    assert LocalStore(str(tmp_path / "cache")).publish(make_entry(), {})
    os.chown(tmp_path / "cache", 12345, -1, follow_symlinks=False)
    with pytest.raises(UnsafeDirectoryError, match="link"):
        LocalStore(str(tmp_path / "cache"))


# ---------------------------------------------------------------- what can't be written


def test_no_space(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if len(data) > 10:
            return real(fd, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreWriteError, match="ENOSPC") as caught:
        store.publish(make_entry(), {"so": b"x" * 1000})
    assert caught.value.reason == "ENOSPC" and "FXPOOL_CACHE_DIR" in str(caught.value)
    assert store.counters()["write_failed"] == {"ENOSPC": 1}
    monkeypatch.undo()
    assert store.sizes() == {"entries": 0, "blobs": 0, "bytes": 0}


@AS_ROOT
def test_a_full_disk_and_a_read_only_one(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "fxpool-test", disk]).returncode:
        pytest.skip("can't mount here")
    try:
        store = LocalStore(str(disk / "cache"))
        kept = store.publish(make_entry(), {"so": b"small"})
        with pytest.raises(StoreError, match="ENOSPC"):
            store.publish(make_entry(key=OTHER_KEY), {"so": os.urandom(1 << 20)})
        assert store.entries(KEY) == [kept] and store.complete(kept) and store.entries(OTHER_KEY) == []
        assert not [name for _, _, names in os.walk(disk) for name in names if name.startswith(".tmp-")]
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(StoreError, match="EROFS"):
            store.publish(make_entry(key=OTHER_KEY), {"so": b"y"})
        store.mark_used(kept)
        assert store.entries(KEY) == [kept] and store.complete(kept)
        with pytest.raises(StoreError, match="EROFS"):
            store.clear()
        assert store.counters()["write_failed"] == {"ENOSPC": 1, "EROFS": 1}
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_root_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError):
        LocalStore(str(tmp_path / "file")).publish(make_entry(), {})
    store = LocalStore(str(tmp_path / "file" / "cache"))
    assert store.entries(KEY) == []
    with pytest.raises(StoreError, match=r"ENOTDIR|EEXIST"):
        store.publish(make_entry(), {})


def test_effects_that_are_no_plain_data(store: LocalStore) -> None:
    for effects in (object(), {"n": 2**80}, {"f": lambda: 0}):
        with pytest.raises(StoreError):
            store.publish(msgspec.structs.replace(make_entry(), content=effects), {})


# ---------------------------------------------------------------- keeping house


def test_reading_makes_nothing(store: LocalStore) -> None:
    assert store.entries(KEY) == [] and list(store.scan()) == [] and store.sizes()["bytes"] == 0
    store.clear()
    assert not os.path.exists(store.root)


def test_a_directory_removed_under_the_store_is_made_again(store: LocalStore) -> None:
    for _ in range(2):
        entry = store.publish(make_entry(), {"so": b"x"})
        assert store.entries(KEY) == [entry] and store.complete(entry)
        shutil.rmtree(store.root)
        assert store.entries(KEY) == [] and not store.complete(entry)


def test_scan_remove_clear(store: LocalStore) -> None:
    first = store.publish(make_entry(guards=[GUARD]), {"so": b"1"})
    store.publish(make_entry(), {"so": b"2"})
    other = store.publish(make_entry(key=OTHER_KEY), {"so": b"1"})
    found = list(store.scan())
    entries = [one.entry for one in found if one.entry is not None]
    assert [(one.key, one.name) for one in found] == [(entry.key, entry.name) for entry in entries]
    assert len(found) == 3 and all(one.bytes == os.path.getsize(os.path.join(store.root, one.path)) for one in found)
    assert {blob.name for blob in catalogue.blobs(store.root)} == {BlobRef.of(b"1").name, BlobRef.of(b"2").name}
    assert store.sizes()["bytes"] == sum(one.bytes for one in found) + 2
    assert store.remove(KEY, first.name) == 1 and store.remove(KEY) == 1 and store.remove(KEY) == 0
    assert not os.path.exists(os.path.dirname(entry_file(store, first)))
    assert store.remove_blob(BlobRef.of(b"2")) and not store.remove_blob(BlobRef.of(b"2"))
    assert store.entries(OTHER_KEY) == [other] and store.complete(other)
    store.clear()
    assert store.sizes() == {"entries": 0, "blobs": 0, "bytes": 0}
    assert store.publish(other, {"so": b"1"}) == other


def test_leftovers_of_dead_writers_are_swept(store: LocalStore) -> None:
    entry = store.publish(make_entry(), {"so": b"x"})
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = blob_files._host_tag()
    directory = os.path.dirname(entry_file(store, entry))
    names = {
        f".tmp-{host}-{dead.pid}-aa": True,
        ".tmp-otherhost-1-bb": True,
        ".tmp-nonsense": True,
        f".tmp-{host}-{os.getpid()}-cc": False,  # alive
        f".tmp-{host}-{dead.pid}-dd": False,  # young
    }
    for place in (directory, os.path.dirname(blob_file(store, entry.blobs["so"]))):
        for name, _ in names.items():
            path = os.path.join(place, name)
            with open(path, "w"):
                pass
            if not name.endswith("dd"):
                os.utime(path, (time.time() - 7200,) * 2)
    assert store.sweep() == 6
    for place in (directory, os.path.dirname(blob_file(store, entry.blobs["so"]))):
        for name, gone in names.items():
            assert os.path.exists(os.path.join(place, name)) is not gone
            if not gone:
                os.unlink(os.path.join(place, name))


def test_publishing_sweeps_now_and_then(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[int] = []

    def sweep(self: LocalStore) -> int:
        swept.append(1)
        return 0

    monkeypatch.setattr(LocalStore, "sweep", sweep)
    for _ in range(3):
        store.publish(make_entry(), {})
    LocalStore(store.root).publish(make_entry(), {})  # another process: the stamp is young
    assert len(swept) == 1


# ---------------------------------------------------------------- many at once

_WORKER = """
import hashlib, random, sys, time
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
root, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
store = LocalStore(root)
random.seed(number)
keys = [hashlib.sha256(b"key %d" % n).hexdigest() for n in range(6)]
end = time.monotonic() + seconds
hits = 0
while time.monotonic() < end:
    n = random.randrange(6)
    if random.random() < 0.5:
        content = b"%d" % n * (1 + 40000 * (n % 3))
        store.publish(Entry(key=keys[n], guards=[n], content=n), {"so": content, "shared": b"the same for all"})
    for entry in store.entries(keys[n]):
        assert entry.content == n and entry.guards == [n]
        content = store.read_blob(entry.blobs["so"])
        if content is not None:
            assert content == b"%d" % n * (1 + 40000 * (n % 3))
            hits += 1
    if number == 0 and random.random() < 0.2:
        store.clear()
counters = store.counters()
assert not counters["corrupt"] and not counters["unsafe"] and not counters["unreadable"], counters
assert not counters["write_failed"], counters
assert hits, "nothing was ever read"
"""


@pytest.mark.slow
def test_eight_processes_write_and_read_while_one_clears(tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, root, str(n), "1.5"]) for n in range(8)]
    assert [worker.wait(timeout=60) for worker in workers] == [0] * 8
    store = LocalStore(root)
    for found in store.scan():
        assert found.entry is not None
    store.clear()
    assert store.sizes()["bytes"] == 0
