"""The layout of a cache directory: paths of entries and blobs; lists and removes files.

    <root>/entries/<key[:2]>/<key>/<digest of the guards>.entry
    <root>/blobs/<digest[:2]>/<digest>-<size>

A directory that is missing, or disappears while it is listed, counts as empty: another process may clear the cache at
any time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from fxpool.codecache.store.blobs import BlobRef, write_error
from fxpool.codecache.store.entry import is_hex_digest

__all__ = [
    "BLOBS",
    "ENTRIES",
    "ENTRY_SUFFIX",
    "blob_path",
    "blob_paths",
    "blobs_below",
    "clear_tree",
    "entries_below",
    "entry_path",
    "entry_paths",
    "key_directory",
    "names",
    "remove_empty",
    "unlink",
]

ENTRIES, BLOBS = "entries", "blobs"
ENTRY_SUFFIX = ".entry"


def key_directory(root: str, key: str) -> str:
    return os.path.join(root, ENTRIES, key[:2], key)


def entry_path(root: str, key: str, name: str) -> str:
    return os.path.join(key_directory(root, key), name + ENTRY_SUFFIX)


def blob_path(root: str, ref: BlobRef) -> str:
    """Return the path of a blob. Raises CorruptEntryError if the reference is not a digest and a size."""
    return os.path.join(root, ref.relative_path())


def entry_paths(root: str) -> Iterator[str]:
    """Yield the path of every file that has the name of an entry."""
    top = os.path.join(root, ENTRIES)
    for prefix in names(top):
        yield from entries_below(os.path.join(top, prefix))


def entries_below(directory: str) -> Iterator[str]:
    """Yield the paths of entries in one directory of keys with the same prefix."""
    for key in names(directory):
        if is_hex_digest(key):
            within = os.path.join(directory, key)
            for name in names(within):
                if name.endswith(ENTRY_SUFFIX) and is_hex_digest(name[: -len(ENTRY_SUFFIX)]):
                    yield os.path.join(within, name)


def blob_paths(root: str) -> Iterator[str]:
    """Yield the path of every file that has the name of a blob."""
    top = os.path.join(root, BLOBS)
    for prefix in names(top):
        yield from blobs_below(os.path.join(top, prefix))


def blobs_below(directory: str) -> Iterator[str]:
    """Yield the paths of blobs in one directory of digests with the same prefix."""
    for name in names(directory):
        if BlobRef.from_name(name) is not None:
            yield os.path.join(directory, name)


def names(directory: str) -> list[str]:
    """Return the names in a directory; an empty list if it can't be listed."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def unlink(path: str) -> bool:
    """Remove a file; return whether it was there. Raises StoreWriteError."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise write_error(f"cannot remove {path}", error) from error
    return True


def remove_empty(directory: str) -> bool:
    """Remove a directory if it is empty; return whether it was removed."""
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def clear_tree(top: str) -> list[OSError]:
    """Remove a tree. Concurrent changes may leave parts of it; return the errors with other causes."""
    failures = []
    for directory, _, files in os.walk(top, topdown=False):
        try:
            for name in files:
                path = os.path.join(directory, name)
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass
            os.rmdir(directory)
        except OSError as error:
            # Another process may have removed the directory, or published into it.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                failures.append(error)
    return failures
