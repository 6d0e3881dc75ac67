"""Bundles: what is exported comes back in another directory; what is not whole is refused as a whole."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard
from another_user import as_nobody

from fxpool.codecache.bundle import bundle, bundle_file
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.store import layout
from fxpool.codecache.store.blobs import BlobRef, StoreWriteError
from fxpool.codecache.store.entry import FORMAT_VERSION, Entry, Metadata, decode_entry, encode_entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import BundleError, CorruptEntryError, NotAuthenticError, StoreError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
KEYS = Keyring([b"k" * 32])
SHARED = b"a library that two graphs have in common"
GUARD = ["StrictLessThan", ["symbol", "s0", "integer", "positive"], 8]


def add(store: LocalStore, *numbers: int) -> list[Entry]:
    """Publish an entry for each number: a blob of its own, and one that all share."""
    return [
        store.publish(
            Entry(
                key=hashlib.sha256(str(number).encode()).hexdigest(),
                guards=[GUARD] if number % 2 else [],
                metadata=Metadata(label=f"graph {number}", created=1000.0 + number, compile_seconds=2.0),
            ),
            {"result": f"the code of graph {number}".encode(), "kernels": SHARED},
        )
        for number in numbers
    ]


def entries_of(store: LocalStore) -> list[Entry]:
    return [one.entry for one in store.scan() if one.entry is not None]


def bytes_of(store: LocalStore, earlier: bundle.Earlier | None = None, keyring: Keyring | None = None) -> bytes:
    out = io.BytesIO()
    bundle.write(out, store, entries_of(store), earlier=earlier, keyring=keyring)
    return out.getvalue()


def earlier_of(*bundles: bytes) -> bundle.Earlier:
    earlier = bundle.Earlier()
    for data in bundles:
        earlier.add(bundle_file.verify(io.BytesIO(data), "earlier"))
    return earlier


def resigned(body: bytes) -> bytes:
    """A bundle's bytes up to the last digest, with the digest that they should have."""
    return body + hashlib.sha256(body).digest()


def record(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(8, "big") + content


def body_of(*records: bytes) -> bytes:
    return b"fxpool-bundle 1\n" + b"".join(records)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "from"))


@pytest.fixture
def target(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "to"))


def nothing_in(store: LocalStore) -> bool:
    return store.sizes() == {"entries": 0, "blobs": 0, "bytes": 0}


# ---------------------------------------------------------------- there and back


def test_what_is_exported_comes_back_elsewhere(store: LocalStore, target: LocalStore) -> None:
    published = add(store, 1, 2, 3)
    restored = bundle.restore_bytes(bytes_of(store), "b", target)
    assert restored == bundle.Restored(entries=3, blobs=4, present=0)
    for entry in published:
        assert target.entries(entry.key) == [entry]
        assert target.complete(entry)
        assert target.read_blob(entry.blobs["kernels"]) == SHARED


def test_a_second_import_changes_nothing(store: LocalStore, target: LocalStore) -> None:
    add(store, 1, 2)
    data = bytes_of(store)
    bundle.restore_bytes(data, "b", target)
    (entry,) = target.entries(add(store, 1)[0].key)
    changed = target.publish(Entry(key=entry.key, guards=entry.guards, content={"measured": 1}, blobs=entry.blobs), {})
    assert bundle.restore_bytes(data, "b", target) == bundle.Restored(entries=0, blobs=0, present=2)
    assert target.entries(entry.key) == [changed], "what is there, and may know more, is not replaced"


def test_an_entry_that_lost_a_blob_is_mended(store: LocalStore, target: LocalStore) -> None:
    (entry,) = add(store, 1)
    data = bytes_of(store)
    bundle.restore_bytes(data, "b", target)
    target.remove_blob(entry.blobs["result"])
    assert bundle.restore_bytes(data, "b", target) == bundle.Restored(entries=1, blobs=1, present=0)
    assert target.complete(entry)


def test_equal_content_gives_equal_bytes(store: LocalStore, target: LocalStore) -> None:
    add(store, 1, 2, 3)
    add(target, 3, 1)
    os.utime(layout.blob_path(target.root, BlobRef.of(SHARED)), (1.0, 1.0))
    add(target, 2)
    assert bytes_of(store) == bytes_of(target)


def test_an_empty_store_is_a_bundle_too(store: LocalStore, target: LocalStore) -> None:
    assert bundle.restore_bytes(bytes_of(store), "b", target) == bundle.Restored(0, 0, 0)


def test_a_bundle_of_one_entry(store: LocalStore, target: LocalStore) -> None:
    first, _ = add(store, 1, 2)
    bundle.restore_bytes(bundle.entry_as_bundle(first, store), "b", target)
    assert entries_of(target) == [first] and target.complete(first)
    store.remove_blob(first.blobs["result"])
    with pytest.raises(BundleError, match="no longer in the cache"):
        bundle.entry_as_bundle(first, store)


# ---------------------------------------------------------------- increments


def test_an_increment_holds_what_is_new(store: LocalStore, target: LocalStore) -> None:
    add(store, 1, 2)
    first = bytes_of(store)
    add(store, 3)
    second = bytes_of(store, earlier_of(first))
    contents = bundle_file.verify(io.BytesIO(second), "second")
    assert (len(contents.entries), len(contents.blobs)) == (1, 1)
    assert contents.needs == {BlobRef.of(SHARED)}
    add(store, 4)
    third = bytes_of(store, earlier_of(first, second))
    assert len(bundle_file.verify(io.BytesIO(third), "third").entries) == 1
    for data in (first, second, third):
        bundle.restore_bytes(data, "b", target)
    assert {entry.key for entry in entries_of(target)} == {entry.key for entry in entries_of(store)}
    assert all(map(target.complete, entries_of(target)))


def test_an_increment_without_its_base_is_refused(store: LocalStore, target: LocalStore) -> None:
    add(store, 1)
    first = bytes_of(store)
    add(store, 2)
    second = bytes_of(store, earlier_of(first))
    with pytest.raises(BundleError, match="1 blob that it builds on") as caught:
        bundle.restore_bytes(second, "second", target)
    assert caught.value.reason == "needs_earlier" and nothing_in(target)
    # Both in one call, in order: what the first brings counts.
    contents = [bundle_file.verify(io.BytesIO(data), "b") for data in (first, second)]
    bundle.check_needs(contents, target)
    with pytest.raises(BundleError):
        bundle.check_needs(contents[::-1], target)


def test_an_entry_that_was_changed_is_in_the_increment(store: LocalStore) -> None:
    (entry,) = add(store, 1)
    first = bytes_of(store)
    store.publish(Entry(key=entry.key, guards=entry.guards, content={"choices": 1}, blobs=entry.blobs), {})
    contents = bundle_file.verify(io.BytesIO(bytes_of(store, earlier_of(first))), "b")
    assert (len(contents.entries), len(contents.blobs), len(contents.needs)) == (1, 0, 2)


# ---------------------------------------------------------------- refused as a whole


@pytest.mark.parametrize("keyring", [None, KEYS], ids=["plain", "sealed"])
def test_cut_at_every_byte_and_every_byte_flipped(
    store: LocalStore, target: LocalStore, keyring: Keyring | None
) -> None:
    add(store, 1)
    data = bytes_of(store, keyring=keyring)
    damaged = [data[:end] for end in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :] for at in range(len(data))]
    damaged += [data + b"\0", data + data]
    for number, one in enumerate(damaged):
        # Without the key a seal can't be checked, its bytes still are.
        for accepted in {keyring, None}:
            with pytest.raises((BundleError, NotAuthenticError)):
                bundle_file.verify(io.BytesIO(one), f"damaged {number}", accepted)
        with pytest.raises(BundleError):
            bundle.restore_bytes(one, f"damaged {number}", target)
    assert nothing_in(target)


def _records(store: LocalStore) -> Iterable[tuple[str, bytes]]:
    (entry,) = add(store, 1)
    encoded, blobs = encode_entry(entry), [b"the code of graph 1", SHARED]
    table = record(b"t", b"\x93\x01\x02\x00")
    own, shared = (record(b"b", content) for content in blobs)
    one = record(b"e", encoded)
    other_version = encode_entry(Entry(key=entry.key, format_version=FORMAT_VERSION + 1))
    yield "a blob twice", body_of(own, own, shared, one, record(b"t", b"\x93\x01\x03\x00"))
    yield "an entry twice", body_of(own, shared, one, one, record(b"t", b"\x93\x02\x02\x00"))
    yield (
        "a blob both there and expected",
        body_of(
            record(b"n", hashlib.sha256(SHARED).digest() + len(SHARED).to_bytes(8, "big")), own, shared, one, table
        ),
    )
    yield "a missing blob", body_of(own, one, record(b"t", b"\x93\x01\x01\x00"))
    yield "entries before blobs", body_of(one, own, shared, table)
    yield "no table", body_of(own, shared, one)
    yield "another table", body_of(own, shared, one, record(b"t", b"\x93\x02\x02\x00"))
    yield "a table that does not decode", body_of(own, shared, one, record(b"t", b"\x93\x02"))
    yield "two tables", body_of(own, shared, one, table, table)
    yield "records behind the table", body_of(own, shared, table, one)
    yield "an unknown kind", body_of(own, shared, one, record(b"x", b""), table)
    yield "a path for a name", body_of(own, shared, one, record(b"p", b"../../etc/passwd"), table)
    yield "an entry that is none", body_of(own, shared, record(b"e", b"nothing"), table)
    yield "an entry of another version", body_of(own, shared, record(b"e", other_version), table)
    yield "a length beyond the end", body_of(b"b" + b"\xff" * 8)
    yield "a name of another length", body_of(record(b"n", b"short"), own, shared, one, table)
    yield "a size that no blob has", body_of(record(b"n", b"\0" * 32 + b"\xff" * 8), own, shared, one, table)
    yield "a long table", body_of(own, shared, one, record(b"t", b"\0" * 5000))
    yield "a seal without a table", body_of(own, shared, one, record(b"s", b""))


def test_records_that_do_not_fit_are_refused_though_the_digest_holds(store: LocalStore, target: LocalStore) -> None:
    for what, body in _records(store):
        with pytest.raises(BundleError) as caught:
            bundle.restore_bytes(resigned(body), what, target)
        assert what in str(caught.value) and caught.value.reason in ("damaged", "other_version")
    assert nothing_in(target)


def test_another_format_is_told_from_damage(store: LocalStore, target: LocalStore) -> None:
    add(store, 1)
    body = bytes_of(store)[:-32].replace(b"fxpool-bundle 1\n", b"fxpool-bundle 2\n", 1)
    with pytest.raises(BundleError, match="format 2") as caught:
        bundle.restore_bytes(resigned(body), "b", target)
    assert caught.value.reason == "other_version"
    with pytest.raises(BundleError, match="digest") as caught:
        bundle.restore_bytes(body + b"\0" * 32, "b", target)
    assert caught.value.reason == "damaged" and nothing_in(target)


def test_a_file_that_changes_after_it_was_verified(store: LocalStore, target: LocalStore) -> None:
    add(store, 1)
    data = bytes_of(store)
    contents = bundle_file.verify(io.BytesIO(data), "b")
    for what in (b"the code of graph 1", encode_entry(entries_of(store)[0])):
        at = data.index(what)
        other = io.BytesIO(data[:at] + b"!" + data[at + 1 :])
        with pytest.raises(BundleError, match="changed while"):
            bundle.restore(other, contents, target)
    assert not entries_of(target)


# ---------------------------------------------------------------- whom to trust


def test_a_seal_is_demanded_where_there_are_keys(store: LocalStore) -> None:
    add(store, 1)
    sealed = bytes_of(store, keyring=KEYS)
    assert bundle_file.verify(io.BytesIO(sealed), "b", KEYS).sealed
    assert bundle_file.verify(io.BytesIO(sealed), "b").sealed, "without keys, its digest is checked"
    with pytest.raises(NotAuthenticError, match="not accepted here"):
        bundle_file.verify(io.BytesIO(sealed), "b", Keyring([b"o" * 32]))
    with pytest.raises(BundleError, match="no MAC") as caught:
        bundle_file.verify(io.BytesIO(bytes_of(store)), "b", KEYS)
    assert caught.value.reason == "unsealed"


@pytest.mark.parametrize("keyring", [KEYS, Keyring([b"o" * 32])], ids=["no seal", "another key's"])
def test_nothing_of_an_unauthenticated_bundle_is_decoded(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, keyring: Keyring
) -> None:
    bundle = bytes_of(store, keyring=None if keyring is KEYS else KEYS)
    for name in ("decode_entry", "_decode_table"):
        monkeypatch.setattr(bundle_file, name, lambda *args: pytest.fail("decoded"))
    with pytest.raises((BundleError, NotAuthenticError)):
        bundle_file.verify(io.BytesIO(bundle), "b", keyring)


@pytest.mark.parametrize("claimed", [1 << 30, -1], ids=["claims it", "does not say"])
def test_an_entry_that_would_take_gigabytes_is_damaged(claimed: int) -> None:
    packing = zstandard.ZstdCompressor(level=3).compressobj(size=claimed)
    body = b"\1" + b"".join(packing.compress(bytes(1 << 20)) for _ in range(1 << 10)) + packing.flush()
    magic = b"fxpool-entry %d\n" % FORMAT_VERSION
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptEntryError, match="claims a size"):
        decode_entry(magic + hashlib.sha256(magic + body).digest() + body)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KB"


def test_a_large_entry_is_neither_written_nor_read(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="bytes, over"):
        encode_entry(Entry(key="ab" * 32, content=["x" * (17 << 20)]))
    with pytest.raises(CorruptEntryError, match="over the maximum"):
        decode_entry(b"fxpool-entry 1\n" + bytes(17 << 20))


@pytest.mark.parametrize("limit", [3, 5, 6])
def test_the_number_of_records_is_limited(
    store: LocalStore, target: LocalStore, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    add(store, 1, 2)  # two entries and three blobs
    data = bytes_of(store)
    monkeypatch.setattr(bundle_file, "_MAX_RECORDS", limit)
    if limit < 5:
        with pytest.raises(BundleError, match="more records than any bundle"):
            bundle.restore_bytes(data, "b", target)
        assert nothing_in(target)
    else:
        assert bundle.restore_bytes(data, "b", target).entries == 2


def test_an_import_has_at_most_one_record_in_memory(store: LocalStore, target: LocalStore, tmp_path: Path) -> None:
    size, path = 8 << 20, tmp_path / "b.fxb"
    blobs = {f"part {number}": bytes([number]) * size for number in range(5)}
    store.publish(Entry(key=hashlib.sha256(b"large").hexdigest()), blobs)
    del blobs
    bundle.export(str(path), store, entries_of(store), keyring=KEYS)
    tracemalloc.start()
    try:
        with bundle.open_trusted(str(path)) as file:
            contents = bundle_file.verify(file, "b", KEYS)
            assert bundle.restore(file, contents, target).blobs == 5
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < peak < 2 * size


def test_the_seal_of_another_bundle(store: LocalStore, target: LocalStore) -> None:
    add(store, 1)
    add(target, 2)
    ours, theirs = bytes_of(store, keyring=KEYS), bytes_of(target, keyring=KEYS)
    size = 9 + 16 + 8 + 32 + 32 + 32  # the seal's record, and the last digest
    with pytest.raises(NotAuthenticError, match="of another bundle"):
        bundle_file.verify(io.BytesIO(resigned(ours[:-size] + theirs[-size:-32])), "b", KEYS)


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_file_that_others_could_have_written(store: LocalStore, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "b.fxb"
    bundle.export(str(path), store, entries_of(store), keyring=KEYS)
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    with bundle.open_trusted(str(link)) as file:
        bundle_file.verify(file, "b")
    path.chmod(mode)
    for name in (path, link):
        with (
            pytest.raises(BundleError, match="other users could have written") as caught,
            bundle.open_trusted(str(name)),
        ):
            pass
        assert "--trust" in str(caught.value)
    for allowed in (bundle.open_trusted(str(path), trust=True), bundle.open_trusted(str(path), keyring=KEYS)):
        with allowed as file:
            bundle_file.verify(file, "b", KEYS)


@AS_ROOT
def test_a_file_of_another_user(store: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / "b.fxb"
    bundle.export(str(path), store, entries_of(store), keyring=KEYS)
    os.chown(path, 12345, 12345)
    with pytest.raises(BundleError, match="other users could have written"), bundle.open_trusted(str(path)):
        pass
    for allowed in (bundle.open_trusted(str(path), trust=True), bundle.open_trusted(str(path), keyring=KEYS)):
        with allowed as file:
            bundle_file.verify(file, "b", KEYS)


@AS_ROOT
def test_a_file_of_root_s_is_everybody_s(store: LocalStore) -> None:
    def read() -> bytes:
        with bundle.open_trusted(str(path)) as file:
            return file.read(13)

    # Not pytest's own place, which is closed to others.
    with tempfile.TemporaryDirectory(prefix="fxpb-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        path = Path(place) / "b.fxb"
        bundle.export(str(path), store, entries_of(store))
        path.chmod(0o644)
        assert as_nobody(read) == "b'fxpool-bundle'"
        os.chown(path, 12345, 12345)
        assert as_nobody(read).startswith("BundleError")


def test_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path in (tmp_path / "missing", tmp_path, fifo):
        for trust in (False, True):
            with pytest.raises(BundleError), bundle.open_trusted(str(path), trust=trust):
                pass


# ---------------------------------------------------------------- others at work, directories that refuse


def test_a_failed_export_leaves_the_old_file(store: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / "b.fxb"
    path.write_bytes(b"the old one")

    def vanishing() -> Iterable[Entry]:
        yield from add(store, 1)
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreWriteError, match="ENOSPC"):
        bundle.export(str(path), store, vanishing())
    assert path.read_bytes() == b"the old one"
    assert sorted(os.listdir(tmp_path)).count("b.fxb") == 1 and not list(tmp_path.glob("*.tmp"))
    with pytest.raises(StoreWriteError, match="ENOENT"):
        bundle.export(str(tmp_path / "no" / "b.fxb"), store, [])


_FULL = """
import io, resource, signal, sys
from fxpool.codecache.bundle import bundle
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError
data = open(sys.argv[1], "rb").read()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    bundle.restore_bytes(data, "b", LocalStore(sys.argv[2]))
except StoreError as error:
    print(error)
"""


def test_a_directory_that_takes_nothing_more(store: LocalStore, target: LocalStore, tmp_path: Path) -> None:
    add(store, 1)
    path = tmp_path / "b.fxb"
    bundle.export(str(path), store, entries_of(store))
    said = subprocess.run(
        [sys.executable, "-c", _FULL, str(path), target.root], capture_output=True, text=True, timeout=60, check=True
    )
    assert "cannot write" in said.stdout and "EFBIG" in said.stdout and "FXPOOL_CACHE_DIR" in said.stdout
    assert not entries_of(target)


def test_a_directory_that_is_no_directory(store: LocalStore, tmp_path: Path) -> None:
    add(store, 1)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        bundle.restore_bytes(bytes_of(store), "b", LocalStore(str(tmp_path / "file" / "below")))


def test_import_while_somebody_clears(store: LocalStore, target: LocalStore) -> None:
    add(store, *range(20))
    data = bytes_of(store)
    over = threading.Event()

    def clear() -> None:
        while not over.wait(0.005):
            target.clear()

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        for _ in range(10):
            bundle.restore_bytes(data, "b", target)
    finally:
        over.set()
        thread.join()
    bundle.restore_bytes(data, "b", target)
    assert len(entries_of(target)) == 20 and all(map(target.complete, entries_of(target)))


def test_export_while_others_publish_and_clear(store: LocalStore) -> None:
    over = threading.Event()

    def change() -> None:
        other, number = LocalStore(store.root), 0
        while not over.is_set():
            add(other, *range(number, number + 5))
            number += 5
            if number % 20 == 0:
                other.clear()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        sizes: list[int] = []
        while len(sizes) < 30 or len(set(sizes)) < 3:  # until something was published and cleared meanwhile
            sizes.append(len(bundle_file.verify(io.BytesIO(bytes_of(store)), "b").entries))
    finally:
        over.set()
        thread.join()


def test_blobs_that_vanish_take_their_entries_along(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = add(store, 1, 2)
    complete = store.complete

    def then_removed(entry: Entry) -> bool:
        whole = complete(entry)
        if entry == second:
            store.remove_blob(second.blobs["result"])
        return whole

    monkeypatch.setattr(store, "complete", then_removed)
    written = bundle.export(str(tmp_path / "b.fxb"), store, [first, second])
    assert (written.entries, written.blobs, written.incomplete) == (1, 2, 1)
