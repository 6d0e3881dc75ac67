"""The byte format of a bundle: many entries and their blobs in one file, written and read as a stream.

    fxpool-bundle 1\\n     magic line with the format's version
    records               1 byte kind, 8 bytes length (big-endian), content; in this order:
        n                 32 bytes sha256, 8 bytes size: a blob that the importing store must have already
        b                 a blob
        e                 an entry, as `entry.py` writes it
        t                 the table: msgpack of `Table`
        s                 at most one: the sha256 of all before it, with a MAC (`authentication.py`)
    32 bytes              sha256 of all that precedes

Equal content gives equal bytes, so that container layers and other file stores can deduplicate bundles: blobs are
ordered by digest and entries by key and name, each is written once, and the only times are those in entries. A bundle
contains no paths. Later versions keep the magic line and the last digest, so that a bundle of another version can be
told from a damaged bundle.

A zip or tar archive has neither a digest and MAC that are checked before its directory is decoded, nor one order of
bytes, nor blobs that it expects elsewhere; a reader of those would need as much code for these checks as this format.

A record has to fit into memory, a bundle need not. `bundle.py` explains the records' meaning to a store.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from fxpool.codecache.bundle.authentication import OVERHEAD, Keyring
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import MAX_ENTRY, Entry, OtherVersionError, decode_entry
from fxpool.errors import BundleError, CorruptEntryError, NotAuthenticError

__all__ = [
    "FORMAT_VERSION",
    "Contents",
    "EntryRecord",
    "Table",
    "Writer",
    "digest_of",
    "read_blob",
    "read_entry",
    "verify",
]

FORMAT_VERSION = 1

_MAGIC = re.compile(rb"fxpool-bundle ([0-9]{1,9})\n")
_MAGIC_SIZE = len(b"fxpool-bundle \n") + 9
_DIGEST = hashlib.sha256().digest_size
_HEADER = 1 + 8
_NEED, _BLOB, _ENTRY, _TABLE, _SEAL = b"n", b"b", b"e", b"t", b"s"
_ORDER = _NEED + _BLOB + _ENTRY + _TABLE + _SEAL
_CHUNK = 1 << 20
# Per bundle; stores stay far below. Verifying takes about 300 bytes of memory per record.
_MAX_RECORDS = 2_000_000
# Bytes of the last record before the digest: the MAC of a digest.
_SEAL_RECORD = _HEADER + OVERHEAD + _DIGEST
_MAX_SMALL = 1 << 12  # of the table and the seal
# The name that the MAC covers, so that the MAC of other data does not pass for a bundle's.
_SEALED_AS = "fxpool bundle"


class Table(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many records of each kind a bundle has: entries, blobs, and blobs expected to be there."""

    entries: int
    blobs: int
    needs: int


@dataclass(frozen=True)
class EntryRecord:
    """Where an entry lies in a bundle, the sha256 of its record, and the blobs that it needs."""

    offset: int
    size: int
    digest: bytes
    blobs: tuple[BlobRef, ...]


@dataclass
class Contents:
    """The contents of a verified bundle: entries by (key, name), positions of blobs, and blobs it expects elsewhere."""

    name: str
    entries: dict[tuple[str, str], EntryRecord] = field(default_factory=dict)
    blobs: dict[BlobRef, int] = field(default_factory=dict)
    needs: set[BlobRef] = field(default_factory=set)
    sealed: bool = False
    bytes: int = 0


def digest_of(record: bytes) -> bytes:
    """Return the digest of a record, as in `EntryRecord.digest`."""
    return hashlib.sha256(record).digest()


class Writer:
    """Writes one bundle; records in the order of the format. `keyring` seals it. Errors of `out` pass through."""

    def __init__(self, out: BinaryIO, keyring: Keyring | None = None) -> None:
        self._out, self._keyring = out, keyring
        self._digest = hashlib.sha256()
        self._counts = dict.fromkeys((_NEED, _BLOB, _ENTRY), 0)
        self.bytes = 0
        self._put(b"fxpool-bundle %d\n" % FORMAT_VERSION)

    def need(self, ref: BlobRef) -> None:
        """Name a blob that the importing store must already have."""
        self._record(_NEED, bytes.fromhex(ref.digest) + ref.size.to_bytes(8, "big"))

    def blob(self, content: bytes) -> None:
        """Add a blob."""
        self._record(_BLOB, content)

    def entry(self, record: bytes) -> None:
        """Add an entry, whose blobs were added or named before."""
        self._record(_ENTRY, record)

    def end(self) -> None:
        """Write table, seal and digest."""
        table = Table(entries=self._counts[_ENTRY], blobs=self._counts[_BLOB], needs=self._counts[_NEED])
        self._record(_TABLE, msgspec.msgpack.encode(table))
        if self._keyring is not None:
            self._record(_SEAL, self._keyring.seal(_SEALED_AS, self._digest.digest()))
        self._put(self._digest.digest())

    def _record(self, kind: bytes, content: bytes) -> None:
        self._put(kind + len(content).to_bytes(8, "big"))
        self._put(content)
        if kind in self._counts:
            self._counts[kind] += 1

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._digest.update(data)
        self.bytes += len(data)


class _Reader:
    """Reads a file from its beginning to the digest at its end, and hashes what it reads."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        self.left = file.seek(0, os.SEEK_END) - _DIGEST
        self.size = self.left + _DIGEST
        self.digest = hashlib.sha256()
        file.seek(0)
        if self.left < 0:
            raise self.damaged("it is shorter than any bundle")

    def damaged(self, why: str) -> BundleError:
        return BundleError(self.name, "damaged", why)

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises BundleError if fewer are left before the digest."""
        if size > self.left:
            raise self.damaged("it ends in the middle of a record")
        data = self._file.read(size)
        if len(data) != size:
            raise self.damaged("it was truncated while it was read")
        self.left -= size
        self.digest.update(data)
        return data

    def hash(self, size: int) -> str:
        """Read `size` bytes piece by piece; return their sha256."""
        digest = hashlib.sha256()
        while size:
            piece = self.read(min(size, _CHUNK))
            digest.update(piece)
            size -= len(piece)
        return digest.hexdigest()

    def at(self) -> int:
        return self.size - _DIGEST - self.left

    def skip(self, size: int) -> None:
        """Read `size` bytes for the digest only."""
        while size:
            size -= len(self.read(min(size, _CHUNK)))

    def end(self) -> None:
        """Read to the end. Raises BundleError if the digest is wrong."""
        self.skip(self.left)
        if self._file.read(_DIGEST + 1) != self.digest.digest():
            raise self.damaged("its digest is wrong")


def verify(file: BinaryIO, name: str, keyring: Keyring | None = None) -> Contents:
    """Read a whole bundle and return its contents. Digest and MAC are checked before anything is decoded.

    `name` is used in errors. With a `keyring`, the bundle must be sealed with one of its keys.

    Raises:
        BundleError: the bundle is damaged, of another format, or lacks a required seal.
        NotAuthenticError: its MAC is wrong.
        OSError: the file can't be read.
    """
    _check_ends(file, name, keyring)
    reader = _Reader(file, name)
    reader.read(_magic(file, name))
    contents = Contents(name, bytes=reader.size)
    table, stage = None, 0
    while reader.left:
        header = reader.read(_HEADER)
        kind, size = header[:1], int.from_bytes(header[1:], "big")
        place = _ORDER.find(kind)
        if place < stage or (table is not None and kind != _SEAL) or contents.sealed:
            raise reader.damaged("its records are out of order, or of an unknown kind")
        stage = place
        if len(contents.entries) + len(contents.blobs) + len(contents.needs) > _MAX_RECORDS:
            raise reader.damaged("it has more records than any bundle")
        if kind == _NEED:
            contents.needs.add(_need(reader, size, contents))
        elif kind == _BLOB:
            offset = reader.at()
            ref = BlobRef(reader.hash(size), size)
            if ref in contents.blobs or ref in contents.needs:
                raise reader.damaged(f"it holds the blob {ref.name} twice")
            contents.blobs[ref] = offset
        elif kind == _ENTRY:
            _add_entry(reader, size, contents)
        elif size > _MAX_SMALL:
            raise reader.damaged("its last record is too long")
        elif kind == _TABLE:
            table = _decode_table(reader, reader.read(size))
        else:
            reader.read(size)
            contents.sealed = True
    if table != Table(len(contents.entries), len(contents.blobs), len(contents.needs)):
        raise reader.damaged("its table does not match its records")
    reader.end()
    if keyring is not None and not contents.sealed:
        raise _unsealed(name)
    return contents


def _check_ends(file: BinaryIO, name: str, keyring: Keyring | None) -> None:
    """Check the last digest, and the MAC before it if there are keys. Errors as `verify`."""
    reader = _Reader(file, name)
    _magic(file, name)
    reader.skip(max(0, reader.left - _SEAL_RECORD))
    before = reader.digest.digest()
    last = reader.read(reader.left)
    reader.end()
    file.seek(0)
    match = _MAGIC.match(file.read(_MAGIC_SIZE))
    if match is not None and int(match[1]) != FORMAT_VERSION:
        raise BundleError(
            name, "other_version", f"it has format {int(match[1])}, this version of fxpool reads {FORMAT_VERSION}"
        )

    if keyring is not None:
        header = _SEAL + (_SEAL_RECORD - _HEADER).to_bytes(8, "big")
        if not last.startswith(header):
            raise _unsealed(name)
        try:
            sealed = keyring.open(_SEALED_AS, last[_HEADER:])
        except NotAuthenticError as error:
            raise NotAuthenticError(name, error.why) from error
        if sealed != before:
            raise NotAuthenticError(name, "its MAC is that of another bundle")


def _unsealed(name: str) -> BundleError:
    return BundleError(name, "unsealed", "it has no MAC, and a key file is set")


def _magic(file: BinaryIO, name: str) -> int:
    """Return the length of the magic line. Raises BundleError if it is missing."""
    file.seek(0)
    match = _MAGIC.match(file.read(_MAGIC_SIZE))
    file.seek(0)
    if match is None:
        raise BundleError(name, "damaged", "it does not start like a bundle")
    return match.end()


def _need(reader: _Reader, size: int, contents: Contents) -> BlobRef:
    if size != _DIGEST + 8:
        raise reader.damaged("the name of a blob has the wrong length")
    data = reader.read(size)
    ref = BlobRef(data[:_DIGEST].hex(), int.from_bytes(data[_DIGEST:], "big"))
    if ref in contents.needs or BlobRef.from_name(ref.name) is None:
        raise reader.damaged(f"the blob {ref.name} is listed twice, or its name is invalid")
    return ref


def _add_entry(reader: _Reader, size: int, contents: Contents) -> None:
    if size > MAX_ENTRY:
        raise reader.damaged("one of its entries is too long")
    offset, data = reader.at(), reader.read(size)
    try:
        entry = decode_entry(data)
    except OtherVersionError as error:
        raise BundleError(reader.name, "other_version", f"it holds an {error.message}") from error
    except CorruptEntryError as error:
        raise reader.damaged(error.message) from error
    if (entry.key, entry.name) in contents.entries:
        raise reader.damaged(f"it holds the entry {entry.key[:12]} twice")
    blobs = tuple(entry.blobs.values())
    for ref in blobs:
        if ref not in contents.blobs and ref not in contents.needs:
            raise reader.damaged(f"it lacks a blob of the entry {entry.key[:12]}")
    contents.entries[entry.key, entry.name] = EntryRecord(offset, size, digest_of(data), blobs)


def _decode_table(reader: _Reader, data: bytes) -> Table:
    try:
        return msgspec.msgpack.decode(data, type=Table)
    except msgspec.DecodeError as error:
        raise reader.damaged("its table cannot be decoded") from error


def read_blob(file: BinaryIO, contents: Contents, ref: BlobRef) -> bytes:
    """Return a blob of a verified bundle. Raises BundleError if the file has changed since."""
    file.seek(contents.blobs[ref])
    content = file.read(ref.size)
    if BlobRef.of(content) != ref:
        raise _changed(contents)
    return content


def read_entry(file: BinaryIO, contents: Contents, record: EntryRecord) -> Entry:
    """Return an entry of a verified bundle. Raises BundleError if the file has changed since."""
    file.seek(record.offset)
    data = file.read(record.size)
    if digest_of(data) != record.digest:
        raise _changed(contents)
    return decode_entry(data)


def _changed(contents: Contents) -> BundleError:
    return BundleError(contents.name, "damaged", "it changed while it was read")
