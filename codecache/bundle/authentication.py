"""Authenticates data from a network, or from another user's file, before any of it is decoded.

    fxpool-sealed 1\\n     magic line
    8 bytes               which key: the beginning of the sha256 of the key
    32 bytes              HMAC-SHA-256 of the magic line, the length of the name, the name and the data
    data

Compiled graphs are code, and a digest only shows that bytes are undamaged. Anyone who has the key can make others run
code, so the key is in a file that only its owner can read. The MAC covers the name under which the data was requested,
so a value stored under another name is refused.

The data is not encrypted, and an old value is not told from the newest value of the same name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence

from fxpool.codecache.store.blobs import UnsafeFileError, read_private
from fxpool.errors import ConfigurationError, NotAuthenticError

__all__ = ["KEY_BYTES", "OVERHEAD", "Keyring", "is_sealed", "keyring_of", "new_key"]

#: Bytes of a key, written as twice as many hexadecimal digits.
KEY_BYTES = 32

_MAGIC = b"fxpool-sealed 1\n"
_KEY_NAME = 8
_MAC = hashlib.sha256().digest_size
#: Bytes that sealing adds.
OVERHEAD = len(_MAGIC) + _KEY_NAME + _MAC
_LINE = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")


def new_key() -> str:
    """Return a key for a line of a key file."""
    return secrets.token_hex(KEY_BYTES)


def is_sealed(data: bytes) -> bool:
    """Return whether data claims to have a MAC."""
    return data.startswith(_MAGIC)


class Keyring:
    """Keys that are accepted; the first one seals. To rotate, add the new one in front, and later drop the old one."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Raises ValueError if there is no key, or if a key does not have `KEY_BYTES` bytes."""
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a keyring needs at least one key of {KEY_BYTES} bytes")
        self._keys = [(hashlib.sha256(key).digest()[:_KEY_NAME], key) for key in keys]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Keyring:
        """Read a key file: a key per line as hexadecimal digits; empty lines and lines with ``#`` in front don't count.

        Raises ConfigurationError if it can't be read, if other users can read it, or if a line is not a key.
        """
        name = os.fspath(path)
        try:
            data, status = read_private(name)
        except UnsafeFileError as error:
            raise ConfigurationError(
                f"the key file cannot be trusted: {error.message}", remedy=f"chown {name} to your user and chmod 600 it"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the key file {name}: {error.strerror}", remedy="create one with `fxpool cache key FILE`"
            ) from error
        if status.st_mode & 0o077:
            raise ConfigurationError(f"other users can read the key file {name}", remedy=f"chmod 600 {name}")
        lines = [line.strip() for line in data.decode("ascii", "replace").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        for number, line in enumerate(lines, 1):
            if not _LINE.fullmatch(line):  # the line itself may be a secret
                raise ConfigurationError(
                    f"key {number} of {name} is not {2 * KEY_BYTES} hexadecimal digits",
                    remedy="create a key file with `fxpool cache key FILE`",
                )
        if not lines:
            raise ConfigurationError(
                f"the key file {name} holds no key", remedy="create a key file with `fxpool cache key FILE`"
            )
        return cls([bytes.fromhex(line) for line in lines])

    def seal(self, name: str, data: bytes) -> bytes:
        """Return `data` with a MAC of it and of `name`."""
        key_name, key = self._keys[0]
        return b"".join((_MAGIC, key_name, _mac(key, name, data), data))

    def open(self, name: str, sealed: bytes) -> bytes:
        """Return the data that was sealed under `name`. Raises NotAuthenticError for another name or an unknown key."""
        if not is_sealed(sealed) or len(sealed) < OVERHEAD:
            raise NotAuthenticError(name, "it has no MAC")
        start = len(_MAGIC)
        key_name = sealed[start : start + _KEY_NAME]
        mac, data = sealed[start + _KEY_NAME : OVERHEAD], sealed[OVERHEAD:]
        for known, key in self._keys:
            if hmac.compare_digest(known, key_name):
                if hmac.compare_digest(mac, _mac(key, name, data)):
                    return data
                raise NotAuthenticError(name, "its MAC is wrong")
        raise NotAuthenticError(name, "it was signed with a key that is not accepted here")


def keyring_of(path: str | os.PathLike[str] | None) -> Keyring | None:
    """Return the keys of a file; None without one. Raises ConfigurationError."""
    return Keyring.load(path) if path is not None else None


def _mac(key: bytes, name: str, data: bytes) -> bytes:
    encoded = name.encode()
    made = hmac.new(key, _MAGIC + len(encoded).to_bytes(8, "big") + encoded, hashlib.sha256)
    made.update(data)
    return made.digest()
