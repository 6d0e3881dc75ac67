"""Names and bytes of the values in a remote cache.

    fxpool/<format>/entry/<key>                   index: digests of the guards of the entries under the key
    fxpool/<format>/entry/<key>/<guards digest>   an entry, as `entry.encode_entry` makes it
    fxpool/<format>/blob/<digest>-<size>          a blob
    fxpool/<format>/lease/<key>                   the token of the process that compiles a graph (`leases`), not sealed

A value is sealed under its full name (`authentication.Keyring`), so that a value stored under another name is refused.
The sealed data is one byte for the packing (0 none, 1 zstandard) and the content. An index is a set of names and is not
authenticated: a wrong name in it only leads to a value that is missing or does not verify.

Two sizes are limited: that of the value, before it is read, and that of its content, before it is unpacked. Packing
never makes a value larger, so the size of a blob, which is in its name, limits the bytes that are read for it.

zstandard is imported inside functions: a hit in the local store does not need it.
"""

from __future__ import annotations

from fxpool.codecache.bundle.authentication import OVERHEAD, Keyring
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import FORMAT_VERSION, MAX_ENTRY
from fxpool.errors import CorruptEntryError

__all__ = [
    "MOST_BLOB_BYTES",
    "MOST_ENTRY_BYTES",
    "NAMESPACE",
    "blob_name",
    "entry_index",
    "entry_name",
    "lease_name",
    "pack",
    "sealed_bytes",
    "unpack",
]

# Of the values' own form; the entries have theirs.
_VALUES = 1
NAMESPACE = f"fxpool/{FORMAT_VERSION}.{_VALUES}"
#: Bytes of content. A string in Redis has 512 MB at most.
MOST_ENTRY_BYTES = MAX_ENTRY
MOST_BLOB_BYTES = 500 << 20

_PLAIN, _ZSTD = b"\0", b"\1"


def entry_index(key: str) -> str:
    """Return the name under which the entries of a key are listed."""
    return f"{NAMESPACE}/entry/{key}"


def entry_name(key: str, guards: str) -> str:
    """Return the name of the entry of a key with these guards."""
    return f"{entry_index(key)}/{guards}"


def blob_name(ref: BlobRef) -> str:
    """Return the name of a blob."""
    return f"{NAMESPACE}/blob/{ref.name}"


def lease_name(key: str) -> str:
    """Return the name of the lease on a key."""
    return f"{NAMESPACE}/lease/{key}"


def sealed_bytes(content: int) -> int:
    """Return the most bytes that a value may have for `content` bytes."""
    return OVERHEAD + len(_PLAIN) + content


def pack(keyring: Keyring, name: str, content: bytes) -> bytes:
    """Return a content compressed and sealed under a name."""
    import zstandard

    packed = zstandard.ZstdCompressor(level=3).compress(content)
    body = _ZSTD + packed if len(packed) < len(content) else _PLAIN + content
    return keyring.seal(name, body)


def unpack(keyring: Keyring, name: str, sealed: bytes, most: int) -> bytes:
    """Return the content of a value, at most `most` bytes.

    Raises NotAuthenticError: it was not sealed under this name; CorruptEntryError: it does not unpack, or is larger.
    """
    body = keyring.open(name, sealed)
    packing, content = body[:1], body[1:]
    if packing == _ZSTD:
        content = _unpacked(name, content, most)
    elif packing != _PLAIN:
        raise CorruptEntryError(f"{name} is compressed in an unknown format")
    if len(content) > most:
        raise CorruptEntryError(f"{name} has {len(content)} bytes, over its maximum of {most}")
    return content


def _unpacked(name: str, packed: bytes, most: int) -> bytes:
    import zstandard

    try:
        # The frame says how large its content is, and unpacking takes that much memory at once.
        claimed = zstandard.frame_content_size(packed)
        if not 0 <= claimed <= most:
            raise CorruptEntryError(f"{name} claims {claimed} bytes decompressed, over its maximum of {most}")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=most)
    except zstandard.ZstdError as error:
        raise CorruptEntryError(f"{name} cannot be decompressed: {error}") from error
