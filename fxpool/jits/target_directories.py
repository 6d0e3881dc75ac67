"""Directories that a caller of `fxpool.once` named: filled from an entry, or built in.

    <directory>/.fxpool-once      the key, and the digest of the content that fxpool put there

A directory with another key's stamp is replaced as a whole, by renames; one without a stamp is the user's and stays. A
stamp without content means that a builder died in it. After the directory is filled, its files are the program's:
fxpool does not look at them again, because build tools write to them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator

import msgspec

from fxpool import config, directories, temporary
from fxpool.codecache.store.blobs import read_private
from fxpool.errors import StoreError, TargetDirectoryError, UnsafeDirectoryError
from fxpool.jits.tree_content import STAMP

__all__ = ["Stamp", "beside", "building_in", "check", "put", "read", "write_stamp"]


# Processes with other cache directories may fill the same directory at the same time.
_TRIES = 20


class Stamp(msgspec.Struct, frozen=True):
    """The key whose product a directory has, and a digest of its content; no content while it is being built.

    `seconds`: how long the build took.
    """

    key: str
    content: str = ""
    seconds: float = 0.0


def read(path: str) -> Stamp | None:
    """Return the stamp of a directory; None if this user has not written one."""
    with contextlib.suppress(OSError, StoreError, msgspec.DecodeError):
        return msgspec.json.decode(read_private(os.path.join(path, STAMP))[0], type=Stamp)
    return None


def check(path: str) -> None:
    """Check that a directory may be filled.

    Raises:
        TargetDirectoryError: it has files of the user's, or is a file.
        UnsafeDirectoryError: other users could change or replace it.
        OSError: it cannot be read.
    """
    trusted = config.trusted_owners()
    danger = directories.danger_above(path, trusted)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        status = None
    if danger is None and status is not None and stat.S_ISDIR(status.st_mode):
        danger = directories.danger_of(path, status, trusted)
    if danger is not None:
        raise UnsafeDirectoryError(
            f"{danger.path} {danger.fault}: other users could change the files in {path}", remedy=danger.mend
        )
    if status is None:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise TargetDirectoryError(path, "it is not a directory")
    if os.listdir(path) and read(path) is None:
        raise TargetDirectoryError(path, "it has files that fxpool did not put there")


@contextlib.contextmanager
def beside(path: str) -> Iterator[str]:
    """Make an empty directory on the disk of `path`, to be filled and then `put`. Raises OSError."""
    above = os.path.dirname(path)
    os.makedirs(above, exist_ok=True)
    with temporary.directory("built", above) as scratch:
        content = os.path.join(scratch, "content")
        os.mkdir(content, 0o700)
        yield content


def put(filled: str, path: str, stamp: Stamp) -> None:
    """Rename a filled directory to `path`; the one that is there is removed.

    Raises as `check`: files of the user's may have come since.
    """
    write_stamp(filled, stamp)
    check(path)
    for number in range(_TRIES):
        before = os.path.join(os.path.dirname(filled), f"before-{number}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, before)
        try:
            os.rename(filled, path)
            break
        except OSError as error:  # another process has filled it in this moment
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or number + 1 == _TRIES:
                raise
    # The enclosing temporary directory goes with those that were there before.


def building_in(path: str, key: str, build: Callable[[str], object]) -> None:
    """Call `build` with `path`, emptied first. If it raises, the directory is empty. Raises as `check`."""
    check(path)
    directories.make_private(path)
    write_stamp(path, Stamp(key))
    _empty(path)
    try:
        build(path)
    except BaseException:
        _empty(path)
        raise


def write_stamp(path: str, stamp: Stamp) -> None:
    """Write the stamp of a directory; it replaces an earlier one. Raises OSError."""
    name = os.path.join(path, STAMP)
    new = f"{name}-{secrets.token_hex(8)}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(stamp))
        os.rename(new, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _empty(path: str) -> None:
    for name in os.listdir(path):
        if name == STAMP:
            continue
        full = os.path.join(path, name)
        if stat.S_ISDIR(os.lstat(full).st_mode):
            shutil.rmtree(full)
        else:
            os.unlink(full)
