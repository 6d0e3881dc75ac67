"""The record of one compiled graph, and its byte format.

    fxpool-entry 1\\n          magic line with the format's version
    32 bytes                  sha256 of the magic line and of all that follows the digest
    1 byte                    the body's packing: 0 none, 1 zstandard
    body                      msgpack of `Entry`

The digest is checked before anything is decoded. Later versions keep this frame, so that a program can tell an entry
of another version, which it ignores, from a damaged entry. An entry contains no paths and no host names, so a cache
directory can be copied anywhere.

zstandard is imported inside functions: small entries are not compressed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from fxpool.codecache.guards.guards import digest as guards_digest
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.errors import CorruptEntryError, StoreError

FORMAT_VERSION = 2

_MAGIC = re.compile(rb"fxpool-entry ([0-9]{1,9})\n")
_DIGEST_SIZE = hashlib.sha256().digest_size
_PLAIN, _ZSTD = 0, 1
# Bytes; below this, compressing costs more than the file system block it saves.
_COMPRESS_FROM = 4096
#: Most bytes of an entry, also before it is compressed. Real ones have some 10 KB; decoding may take 64 times as much.
MAX_BODY = 16 << 20
#: The same, with magic line, digest and packing.
MAX_ENTRY = MAX_BODY + 64


class Component(msgspec.Struct, frozen=True, array_like=True):
    """A named part of a key, with its digest and a short description for users."""

    name: str
    digest: str
    text: str = ""


class Origin(msgspec.Struct, frozen=True):
    """The function of the program that a graph comes from.

    `model` is the class of the module that has `function` as a method, or empty. `file` is relative to the directory it
    was imported from. `line` is where the function begins or, if it was `resumed`, where it continues after a graph
    break. `part` is ``forward`` or ``backward`` if the two were compiled separately. `inputs` has dtype and sizes of
    inputs other than parameters and buffers; `parameters` is the number of parameters and buffers.
    """

    model: str = ""
    function: str = ""
    file: str = ""
    line: int = 0
    resumed: bool = False
    part: str = ""
    inputs: list[str] = msgspec.field(default_factory=list)
    parameters: int = 0

    @property
    def name(self) -> str:
        """``GPT2LMHeadModel.forward``; empty if no function is known."""
        name = f"{self.model}.{self.function.rpartition('.')[2]}" if self.model else self.function
        return f"{name} ({self.part})" if self.part else name

    @property
    def location(self) -> str:
        """``train.py:12``, ``train.py:17 on`` after a graph break at line 17."""
        return f"{self.file}:{self.line}{' on' if self.resumed else ''}" if self.file else ""

    @property
    def described(self) -> str:
        """The name with the location: ``GPT2LMHeadModel.forward, model.py:12``."""
        return ", ".join(filter(None, (self.name, self.location)))


class Metadata(msgspec.Struct, frozen=True):
    """Information for users and statistics; no decision depends on it. `created` is Unix time in seconds.

    Fields added later have defaults, so that entries without them can be read; older programs ignore these fields.
    """

    label: str = ""
    created: float = 0.0
    compile_seconds: float = 0.0
    torch_version: str = ""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    origin: Origin | None = None

    @property
    def source(self) -> Origin:
        """`origin`, or one with empty fields."""
        return self.origin or Origin()

    @property
    def title(self) -> str:
        """The function, or the label of an entry that an earlier version wrote."""
        return self.source.name or self.label or "(no name)"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A graph compiled under one set of guards.

    `guards` is a list of encoded guards (`codecache.guards.encode`). `content` is plain data that only its writer
    understands (`lowering.artifact.entry_content`). `blobs` maps roles to blobs. `detail` has the details of the
    components (`key_detail`), packed because only comparisons of keys read it.
    """

    key: str
    components: list[Component] = msgspec.field(default_factory=list)
    detail: bytes = b""
    guards: list[Any] = msgspec.field(default_factory=list)
    content: Any = None
    blobs: dict[str, BlobRef] = msgspec.field(default_factory=dict)
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    format_version: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        """The digest of the guards, which distinguishes entries with the same key."""
        return guards_digest(self.guards)


class OtherVersionError(StoreError):
    """An undamaged entry in a format that this program can't read. The store ignores it and does not remove it."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry. Raises StoreError if its guards, content or metadata are not plain data."""
    try:
        body = _encoder.encode(entry)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"the entry {entry.metadata.label or entry.key} cannot be written: {error}") from error
    if len(body) > MAX_BODY:
        raise StoreError(f"the entry {entry.metadata.label or entry.key} has {len(body)} bytes, over {MAX_BODY}")
    packing = _PLAIN
    if len(body) > _COMPRESS_FROM:
        import zstandard

        packing, body = _ZSTD, zstandard.ZstdCompressor(level=3).compress(body)
    magic = b"fxpool-entry %d\n" % entry.format_version
    packed = bytes([packing]) + body
    return magic + hashlib.sha256(magic + packed).digest() + packed


def decode_entry(data: bytes) -> Entry:
    """Return the entry that `data` encodes.

    Raises CorruptEntryError if the bytes are damaged, OtherVersionError if they are intact but of another format.
    """
    match = _MAGIC.match(data)
    if match is None:
        raise CorruptEntryError("not an entry: the magic line is missing")
    if len(data) > MAX_ENTRY:
        raise CorruptEntryError(f"the entry has {len(data)} bytes, over the maximum of {MAX_ENTRY}")
    magic, digest, packed = match[0], data[match.end() :][:_DIGEST_SIZE], data[match.end() + _DIGEST_SIZE :]
    if hashlib.sha256(magic + packed).digest() != digest:
        raise CorruptEntryError("the digest of the entry is wrong")
    if int(match[1]) != FORMAT_VERSION:
        raise OtherVersionError(f"entry of format {int(match[1])}, this version of fxpool reads {FORMAT_VERSION}")
    try:
        entry = _decoder.decode(_unpack(packed))
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptEntryError(f"the entry cannot be decoded: {error}") from error
    if not is_hex_digest(entry.key):
        raise CorruptEntryError("the entry's key is not a digest")
    for ref in entry.blobs.values():
        ref.relative_path()  # raises CorruptEntryError for an invalid reference
    return entry


def _unpack(packed: bytes) -> bytes:
    if not packed or packed[0] not in (_PLAIN, _ZSTD):
        raise CorruptEntryError("the entry is compressed in an unknown format")
    if packed[0] == _PLAIN:
        return packed[1:]
    import zstandard

    try:
        # A frame states its unpacked size. A frame that claims more than any real entry has is not unpacked.
        if not 0 <= zstandard.frame_content_size(packed[1:]) <= MAX_BODY:
            raise CorruptEntryError("the entry claims a size above the maximum, or none")
        return zstandard.ZstdDecompressor().decompress(packed[1:], max_output_size=MAX_BODY)
    except zstandard.ZstdError as error:
        raise CorruptEntryError(f"the entry cannot be decompressed: {error}") from error
