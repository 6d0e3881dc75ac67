"""A directory of recorded requests: graphs that one machine has captured, for another machine to compile.

    <directory>/<key>-<sizes>.request      one `Capture`, packed, sealed if the recording process has a key file

Processes that capture the same graph write the same name, so a directory that many ranks share has each graph once. A
request is pickled and names code to import, so anyone who can write one can run code where it is built. A file without
a MAC is read only if no other user could have written it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from fxpool.codecache.bundle import bundle
from fxpool.codecache.bundle.authentication import Keyring, is_sealed
from fxpool.codecache.store.blobs import write_private
from fxpool.errors import BundleError, CaptureError, NotAuthenticError

__all__ = ["SUFFIX", "Capture", "name_of", "paths", "read", "write"]

SUFFIX = ".request"
# The version of the form of a file.
_FORMAT = 1
_MAGIC = b"fxpool-capture %d\n" % _FORMAT
_KEY_DIGITS, _SIZE_DIGITS = 32, 8


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded request.

    `label` and `function` are for people. `system` is the component of the key with that name, and `devices` are the
    names of the CUDA devices that the graph is for. `request` is the dump of a `CompileRequest`.
    """

    key: str
    label: str
    function: str
    devices: tuple[str, ...]
    system: dict[str, str | int]
    request: bytes


def name_of(key: str, values: Mapping[str, Any]) -> str:
    """Return the file name for a graph with this key, captured in a call with these values of its symbols."""
    sizes = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
    return f"{key[:_KEY_DIGITS]}-{sizes[:_SIZE_DIGITS]}{SUFFIX}"


def write(directory: str, name: str, capture: Capture, keyring: Keyring | None) -> None:
    """Write a file, readable by its owner alone; it replaces one of the same name. Raises StoreWriteError."""
    data = msgspec.msgpack.encode(capture)
    data = keyring.seal(_sealed_as(name), data) if keyring is not None else data
    write_private(os.path.join(directory, name), _MAGIC + data)


def paths(directory: str) -> list[str]:
    """Return the files of a directory, sorted. Raises OSError."""
    with os.scandir(directory) as files:
        return sorted(file.path for file in files if file.name.endswith(SUFFIX))


def read(path: str, *, keyring: Keyring | None = None, trust: bool = False) -> Capture:
    """Return the capture in a file. With `keyring`, its MAC is required; without, `trust` accepts any owner.

    Raises CaptureError, before anything is decoded that is not trusted.
    """
    try:
        with bundle.open_trusted(path, keyring=keyring, trust=trust) as file:
            data = file.read()
    except BundleError as error:
        raise CaptureError(path, error.reason, error.why) from error
    if not data.startswith(_MAGIC):
        raise CaptureError(path, "other_version", "it is not a recorded request of this version of fxpool")
    data = data[len(_MAGIC) :]
    if keyring is not None:
        try:
            data = keyring.open(_sealed_as(os.path.basename(path)), data)
        except NotAuthenticError as error:
            raise CaptureError(path, "unsealed", error.message) from error
    elif is_sealed(data):
        raise CaptureError(path, "sealed", "it is sealed, and there is no key file to authenticate it with")
    try:
        return msgspec.msgpack.decode(data, type=Capture)
    except msgspec.DecodeError as error:
        raise CaptureError(path, "damaged", str(error)) from error


def _sealed_as(name: str) -> str:
    return f"fxpool/capture/{name}"
