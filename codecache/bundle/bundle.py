"""Exports entries into a bundle, a single file for images, CI or another machine, and imports them.

    store ──▶ choose ──▶ write ──▶ file ──▶ verify ──▶ restore ──▶ another store
              entries               │                  missing entries and blobs
                                    └─ a later bundle leaves out the contents of earlier ones (`earlier`)

Bundles may build on each other like the layers of an image. An increment has only entries and blobs that no earlier
bundle has, and the names of the earlier blobs that its entries need. These must be in the store, or in another bundle
of the same import, before the increment is used.

A bundle is code, as the cache is. It is refused as a whole, before anything is written, if any byte is damaged, if its
MAC is wrong, or if it has no MAC although a key file is set. Without keys, it is refused if other users could have
written it (`open_trusted`). The format is in `bundle_file.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from fxpool import quantities
from fxpool.codecache.bundle import bundle_file
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.bundle.bundle_file import Contents, Writer
from fxpool.codecache.store.blobs import BlobRef, UnsafeFileError, open_private, write_error
from fxpool.codecache.store.entry import MAX_ENTRY, Entry, encode_entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import BundleError

__all__ = [
    "Earlier",
    "Restored",
    "Written",
    "check_needs",
    "entry_as_bundle",
    "export",
    "open_trusted",
    "restore",
    "restore_bytes",
    "write",
]


_EXPORT_REMEDY = "name a file in a writable directory with enough room"


@dataclass
class Earlier:
    """The contents of earlier bundles of a chain, which a later bundle leaves out."""

    entries: dict[tuple[str, str], bytes] = field(default_factory=dict)  # with the digest of their records
    blobs: set[BlobRef] = field(default_factory=set)

    def add(self, contents: Contents) -> None:
        """Add the contents of a bundle, and the blobs that it expects elsewhere."""
        self.entries |= {name: record.digest for name, record in contents.entries.items()}
        self.blobs |= contents.blobs.keys() | contents.needs


@dataclass(frozen=True)
class Written:
    """The numbers of records in a bundle, and of `incomplete` entries, which were left out."""

    entries: int
    blobs: int
    needs: int
    incomplete: int
    bytes: int


@dataclass(frozen=True)
class Restored:
    """How many entries and blobs of a bundle were written, and how many entries were `present` already."""

    entries: int
    blobs: int
    present: int


# ---------------------------------------------------------------- writing


def export(
    path: str,
    store: LocalStore,
    entries: Iterable[Entry],
    *,
    earlier: Earlier | None = None,
    keyring: Keyring | None = None,
) -> Written:
    """Write a bundle file, which replaces `path` when it is complete and is readable by its owner alone.

    Raises StoreWriteError; then `path` is as it was.
    """
    path = os.path.abspath(path)
    temporary = f"{path}.{secrets.token_hex(6)}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "wb", buffering=1 << 20) as file:
                written = write(file, store, entries, earlier=earlier, keyring=keyring)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise write_error(f"cannot write the bundle {path}", error, _EXPORT_REMEDY) from error
    return written


def write(
    out: BinaryIO,
    store: LocalStore,
    entries: Iterable[Entry],
    *,
    earlier: Earlier | None = None,
    keyring: Keyring | None = None,
) -> Written:
    """Write the complete ones of `entries` and their blobs, without the contents of `earlier`.

    If blobs disappear during the export (a concurrent clear), the entries that need them are left out. Errors of `out`
    are passed on.
    """
    earlier = earlier or Earlier()
    chosen: list[tuple[bytes, frozenset[BlobRef]]] = []
    incomplete = 0
    for entry in sorted(entries, key=lambda entry: (entry.key, entry.name)):
        record = encode_entry(entry)
        if not store.complete(entry) or len(record) > MAX_ENTRY:
            incomplete += 1
        elif earlier.entries.get((entry.key, entry.name)) != bundle_file.digest_of(record):
            chosen.append((record, frozenset(entry.blobs.values())))
    blobs = sorted({ref for _, refs in chosen for ref in refs}, key=lambda ref: (ref.digest, ref.size))
    writer = Writer(out, keyring)
    needed = [ref for ref in blobs if ref in earlier.blobs]
    for ref in needed:
        writer.need(ref)
    there = set(needed)
    for ref in blobs:
        if ref not in there and (content := store.read_blob(ref)) is not None:
            writer.blob(content)
            there.add(ref)
    added = 0
    for record, refs in chosen:
        if refs <= there:
            writer.entry(record)
            added += 1
        else:
            incomplete += 1
    writer.end()
    return Written(added, len(there) - len(needed), len(needed), incomplete, writer.bytes)


def entry_as_bundle(entry: Entry, store: LocalStore) -> bytes:
    """Return a bundle of one entry with all its blobs. Raises BundleError if a blob is missing or damaged."""
    out = io.BytesIO()
    if not write(out, store, [entry]).entries:
        raise BundleError(f"the entry {entry.key[:12]}", "gone", "one of its blobs is no longer in the cache")
    return out.getvalue()


# ---------------------------------------------------------------- reading


@contextlib.contextmanager
def open_trusted(path: str, *, keyring: Keyring | None = None, trust: bool = False) -> Iterator[BinaryIO]:
    """Open a bundle file. Without keys and `trust`, refuse a file that users other than us and root could have written.

    Raises BundleError if the file is refused or can't be read.
    """
    try:
        if trust or keyring is not None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        else:
            fd, _ = open_private(os.path.realpath(path), owners=(os.geteuid(), 0))
    except UnsafeFileError as error:
        raise BundleError(path, "untrusted", f"other users could have written to it: {error.message}") from error
    except OSError as error:
        raise BundleError(path, "unreadable", os.strerror(error.errno or 0)) from error
    try:
        file = os.fdopen(fd, "rb")
    except OSError as error:  # a directory
        raise BundleError(path, "unreadable", os.strerror(error.errno or 0)) from error
    with file:
        if not file.seekable():
            raise BundleError(path, "unreadable", "it is not a regular file")
        yield file


def check_needs(bundles: Sequence[Contents], store: LocalStore) -> None:
    """Check that the blobs each bundle expects are in the store, or in a bundle before it. Raises BundleError."""
    there: set[BlobRef] = set()
    for contents in bundles:
        missing = sum(not store.has_blob(ref) for ref in contents.needs - there)
        if missing:
            lacks = f"the store lacks {quantities.counted(missing, 'blob')} that it builds on"
            raise BundleError(contents.name, "needs_earlier", lacks)
        there |= contents.blobs.keys()


def restore(file: BinaryIO, contents: Contents, store: LocalStore) -> Restored:
    """Write the contents that `bundle_file.verify` returned into a store. Existing entries stay unchanged.

    Blobs come first, so an entry that others see has them. Raises StoreError (StoreWriteError), BundleError.
    """
    missing = [record for (key, name), record in contents.entries.items() if store.entry(key, name) is None]
    blobs = {ref for record in missing for ref in record.blobs}
    written = 0
    for ref in contents.blobs:
        if ref in blobs and not store.has_blob(ref):
            store.put_blob(bundle_file.read_blob(file, contents, ref))
            written += 1
    for record in missing:
        store.publish(bundle_file.read_entry(file, contents, record), {})
    return Restored(len(missing), written, len(contents.entries) - len(missing))


def restore_bytes(data: bytes, name: str, store: LocalStore) -> Restored:
    """Verify a bundle in memory and put it into a store; the caller trusts where it comes from. Raises StoreError."""
    file = io.BytesIO(data)
    contents = bundle_file.verify(file, name)
    check_needs([contents], store)
    return restore(file, contents, store)
