"""What lies in a remote cache: names, and bytes within bounds."""

from __future__ import annotations

import os

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fxpool.codecache.bundle.authentication import KEY_BYTES, Keyring
from fxpool.codecache.remote import remote_values
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import FORMAT_VERSION
from fxpool.errors import CorruptEntryError, NotAuthenticError

RING = Keyring([b"k" * KEY_BYTES])


def test_names_carry_the_format_s_version() -> None:
    key, ref = "ab" * 32, BlobRef.of(b"content")
    assert remote_values.entry_index(key) == f"fxpool/{FORMAT_VERSION}.1/entry/{key}"
    assert remote_values.entry_name(key, "cd" * 32) == f"fxpool/{FORMAT_VERSION}.1/entry/{key}/{'cd' * 32}"
    assert remote_values.blob_name(ref) == f"fxpool/{FORMAT_VERSION}.1/blob/{ref.digest}-7"


@given(st.binary(max_size=3000))
def test_values_come_back_and_are_never_larger_than_their_bound(content: bytes) -> None:
    sealed = remote_values.pack(RING, "name", content)
    assert remote_values.unpack(RING, "name", sealed, len(content)) == content
    assert len(sealed) <= remote_values.sealed_bytes(len(content))


def test_what_compresses_is_compressed() -> None:
    assert len(remote_values.pack(RING, "name", b"x" * 100_000)) < 1000


def test_a_value_in_the_place_of_another_does_not_pass() -> None:
    sealed = remote_values.pack(RING, "one", b"content")
    with pytest.raises(NotAuthenticError):
        remote_values.unpack(RING, "other", sealed, 100)


def test_content_that_is_larger_than_it_may_be_is_refused() -> None:
    for content in (b"x" * 101, os.urandom(101)):
        with pytest.raises(CorruptEntryError, match="maximum of 100"):
            remote_values.unpack(RING, "name", remote_values.pack(RING, "name", content), 100)


NONSENSE = pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\2packed otherwise",
        b"\1no frame of zstandard",
        b"\1" + zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 50),
        # A frame of 20 bytes that says it has 256 TB.
        b"\1" + bytes.fromhex("28b52ffd") + b"\xe0" + (1 << 48).to_bytes(8, "little") + b"\1\0\0",
        b"\1" + zstandard.ZstdCompressor().compress(b"x" * 50)[:-3],
    ],
)


@NONSENSE
def test_nonsense_from_who_has_the_key_is_an_error_and_takes_no_memory(body: bytes) -> None:
    with pytest.raises(CorruptEntryError):
        remote_values.unpack(RING, "name", RING.seal("name", body), 100)


@NONSENSE
def test_of_a_value_by_another_key_only_the_mac_is_looked_at(body: bytes) -> None:
    """Anything that is done with its content before would say that it is corrupt."""
    other = Keyring([b"o" * KEY_BYTES])
    for sealed in (other.seal("name", body), RING.seal("another name", body), body):
        with pytest.raises(NotAuthenticError):
            remote_values.unpack(RING, "name", sealed, 100)
