"""The local store: a directory of entries and the blobs they need.

    <root>/entries/<key[:2]>/<key>/<digest of the guards>.entry     records, see `entry.py`
    <root>/blobs/<digest[:2]>/<digest>-<size>                       immutable content, shared between entries
    <root>/aside/                                                   files that failed verification, for inspection
    <root>/quarantine/                                              see `quarantine.py`

There is no index and no lock: a record is complete or absent (write, fsync, rename), its blobs are written before it,
and names are digests, so publishers of the same content can't harm one another. The digest of every byte is checked
before it is used. A file that fails verification is a miss, is counted, and never raises; a failed write raises
`StoreError`, which callers count and tolerate.

What this does not do: evict (nothing does: the directory grows until it is cleared), fetch from elsewhere, or evaluate
guards.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fxpool import forks
from fxpool.codecache.blobs import (
    BlobRef,
    StoreWriteError,
    UnsafeFileError,
    check_directory,
    make_private_directory,
    read_blob_file,
    read_private,
    sweep_temporaries,
    verify_blob_file,
    write_error,
    write_private,
)
from fxpool.codecache.entry import Entry, OtherVersionError, decode_entry, encode_entry, is_hex_digest
from fxpool.errors import CorruptEntryError, StoreError, UnsafeDirectoryError

ENTRY_SUFFIX = ".entry"
_SWEEP_INTERVAL = 3600.0
# Damaged files are kept for inspection, but a disk that damages everything must not fill up with them.
_MAX_ASIDE = 64
#: Name of a store in a scratch directory of torch's, which is not made again once that is gone.
FRESH = "fxpool-fresh-cache"
# Entries first, so that readers meet as few entries without blobs as possible.
_CLEARED = ("entries", "blobs", "aside", "quarantine", "slower", "failed")


@dataclass(frozen=True)
class StoredEntry:
    """One entry record as `scan` finds it. `entry` is None if it could not be decoded; `used` is Unix time."""

    key: str
    name: str
    path: str
    size: int
    used: float
    entry: Entry | None


@dataclass(frozen=True)
class StoredBlob:
    """One blob as `scan_blobs` finds it, not verified. `written` is Unix time of its last publication."""

    ref: BlobRef
    path: str
    written: float


class LocalStore:
    """A cache directory. Cheap to make; safe to use from many threads and processes at once."""

    #: Users besides ourselves whose files are trusted.
    owners: tuple[int, ...] = ()

    def __init__(self, root: str) -> None:
        """Raises UnsafeDirectoryError if the directory, or one above it, is writable by others."""
        self.root = os.path.abspath(os.path.expanduser(root))
        self._lock = forks.lock(self, "_lock")
        self._counts: Counter[str] = Counter()
        self._write_failures: Counter[str] = Counter()
        self._checked: tuple[int, ...] | None = None
        self._next_sweep = 0.0
        self._check_root()

    # ---------------------------------------------------------------- writing

    def publish(self, entry: Entry, blobs: Mapping[str, bytes]) -> Entry:
        """Store `blobs` (role to content) and then `entry`, which names them; return the stored entry.

        References that `entry` already has are kept, for blobs that are in the store. An entry of the same key and
        guards is replaced. Raises StoreError (UnsafeDirectoryError, StoreWriteError), and then stores no entry;
        ValueError for an invalid key.
        """
        if not is_hex_digest(entry.key):
            raise ValueError(f"{entry.key!r} is no key: a lower-case sha256 is")
        try:
            self._prepare_root()
            references = {role: self._put_blob(content) for role, content in blobs.items()}
            entry = msgspec.structs.replace(entry, blobs={**entry.blobs, **references})
            write_private(self._entry_path(entry.key, entry.name), encode_entry(entry))
        except StoreError as error:
            with self._lock:
                self._write_failures[getattr(error, "reason", type(error).__name__)] += 1
            raise
        self._count("published")
        self._sweep_now_and_then()
        return entry

    def put_blob(self, content: bytes) -> BlobRef:
        """Store one blob, for an entry that will name it. Raises StoreError."""
        try:
            self._prepare_root()
            return self._put_blob(content)
        except StoreError as error:
            with self._lock:
                self._write_failures[getattr(error, "reason", type(error).__name__)] += 1
            raise

    def _put_blob(self, content: bytes) -> BlobRef:
        ref = BlobRef.of(content)
        path = self._blob_path(ref)
        try:
            verify_blob_file(path, ref)
            # Its time is that of the last publication (`StoredBlob.written`).
            os.utime(path)
        except (OSError, CorruptEntryError, UnsafeFileError):
            write_private(path, content)
            self._count("blobs_written")
        else:
            self._count("blobs_shared")
        return ref

    def mark_used(self, entry: Entry) -> None:
        """Record that an entry was served, so that `entries` lists it first. Never raises."""
        try:
            os.utime(self._entry_path(entry.key, entry.name))
        except OSError:
            pass

    # ---------------------------------------------------------------- reading

    def entries(self, key: str) -> list[Entry]:
        """Return every well-formed entry under a key, most recently used first. Raises ValueError for an invalid key.

        Neither its guards nor its blobs are checked. Damaged files are set aside and counted.
        """
        if not is_hex_digest(key):
            raise ValueError(f"{key!r} is no key: a lower-case sha256 is")
        if not self._root_is_safe():
            return []
        directory = self._key_directory(key)
        dated = []
        for name in _names(directory):
            if name.endswith(ENTRY_SUFFIX):
                loaded = self._load(key, os.path.join(directory, name))
                if loaded is not None:
                    dated.append(loaded)
        dated.sort(key=lambda pair: pair[0], reverse=True)
        return [entry for _, entry in dated]

    def _load(self, key: str, path: str) -> tuple[int, Entry] | None:
        """Return (time of last use, entry) of a sound record, else None; count failures, set damaged files aside."""

        def read() -> tuple[int, Entry]:
            data, status = read_private(path, owners=self.owners)
            entry = decode_entry(data)
            if entry.key != key or entry.name + ENTRY_SUFFIX != os.path.basename(path):
                raise CorruptEntryError(f"{path} holds the entry of another key or other guards")
            return status.st_mtime_ns, entry

        try:
            return self._guarded(path, read)
        except OtherVersionError:
            self._count("other_version")
            return None

    def read_blob(self, ref: BlobRef) -> bytes | None:
        """Return a blob's content, its digest verified; None if it is missing or damaged."""
        try:
            path = self._blob_path(ref)
        except CorruptEntryError:
            return None
        if not self._root_is_safe():
            return None
        return self._guarded(path, lambda: read_blob_file(path, ref, self.owners))

    def blob_path(self, ref: BlobRef) -> str | None:
        """Return a blob's path, for `dlopen`; None if it is missing or damaged.

        Its digest is verified once per process and version of the file.
        """
        try:
            path = self._blob_path(ref)
        except CorruptEntryError:
            return None
        if not self._root_is_safe():
            return None

        def verify() -> str:
            verify_blob_file(path, ref, self.owners)
            return path

        return self._guarded(path, verify)

    def complete(self, entry: Entry) -> bool:
        """Return whether all blobs of an entry are there and sound; an incomplete entry is a miss."""
        return all(self.blob_path(ref) is not None for ref in entry.blobs.values())

    def _guarded(self, path: str, read: Callable[[], Any]) -> Any:
        """Return the result of `read`, or None for a file that is missing, damaged, unsafe or unreadable."""
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except CorruptEntryError:
            self._count("corrupt")
            self._set_aside(path)
        except UnsafeFileError:
            self._count("unsafe")
        except OSError:
            self._count("unreadable")
        return None

    def _set_aside(self, path: str) -> None:
        """Move a damaged file to `aside`; delete it if that fails. Never raises."""
        aside = os.path.join(self.root, "aside")
        try:
            make_private_directory(aside)
            if len(os.listdir(aside)) < _MAX_ASIDE:
                os.rename(path, os.path.join(aside, f"{os.path.basename(path)}.{secrets.token_hex(4)}"))
                return
        except OSError:
            pass
        try:
            os.unlink(path)
        except OSError:
            pass

    # ---------------------------------------------------------------- maintenance

    def counters(self) -> dict[str, Any]:
        """Return what this object has counted: events by name, and `write_failed` by the errno's name."""
        names = ("published", "blobs_written", "blobs_shared", "corrupt", "unsafe", "unreadable", "other_version")
        with self._lock:
            return {**{name: self._counts[name] for name in names}, "write_failed": dict(self._write_failures)}

    def is_empty(self) -> bool:
        """Return whether there is no entry at all: every graph will be a miss."""
        return next(self._entry_paths(), None) is None

    def sizes(self) -> dict[str, int]:
        """Return the number of `entries` and `blobs`, and their `bytes` together."""
        counts = {"entries": 0, "blobs": 0, "bytes": 0}
        for kind, paths in (("entries", self._entry_paths()), ("blobs", self._blob_paths())):
            for path in paths:
                try:
                    counts["bytes"] += os.lstat(path).st_size
                    counts[kind] += 1
                except OSError:
                    pass
        return counts

    def scan(self) -> Iterator[StoredEntry]:
        """Yield every entry record, in no order; damaged ones with `entry=None`, left in place."""
        for path in self._entry_paths():
            key = os.path.basename(os.path.dirname(path))
            name = os.path.basename(path)[: -len(ENTRY_SUFFIX)]
            entry: Entry | None = None
            try:
                data, status = read_private(path)
                entry = decode_entry(data)
                if entry.key != key or entry.name != name:
                    entry = None
            except (CorruptEntryError, UnsafeFileError, OtherVersionError):
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
            except OSError:
                continue
            yield StoredEntry(key, name, path, status.st_size, status.st_mtime, entry)

    def scan_blobs(self) -> Iterator[StoredBlob]:
        """Yield every blob, in no order, not verified."""
        for path in self._blob_paths():
            ref = BlobRef.from_name(os.path.basename(path))
            try:
                written = os.lstat(path).st_mtime
            except OSError:
                continue
            if ref is not None:
                yield StoredBlob(ref, path, written)

    def remove(self, key: str, name: str | None = None) -> int:
        """Remove the entries of a key (or the one called `name`), not their blobs; return how many.

        Raises StoreError; ValueError for an invalid key or name.
        """
        if not is_hex_digest(key) or not (name is None or is_hex_digest(name)):
            raise ValueError("keys and names of entries are lower-case sha256")
        directory = self._key_directory(key)
        names = [entry for entry in _names(directory) if entry.endswith(ENTRY_SUFFIX)]
        removed = sum(
            _unlink(os.path.join(directory, entry)) for entry in names if name is None or entry == name + ENTRY_SUFFIX
        )
        _rmdir(directory)
        return removed

    def remove_blob(self, ref: BlobRef) -> bool:
        """Remove a blob; return whether it was there. Entries that need it become misses. Raises StoreError."""
        return _unlink(self._blob_path(ref))

    def clear(self) -> None:
        """Remove all entries and blobs, and release every graph from quarantine. Raises StoreError.

        Concurrent publishers are not disturbed.
        """
        self._check_root()
        failures = [error for part in _CLEARED for error in _clear(os.path.join(self.root, part))]
        if failures:
            raise write_error(f"can't clear {self.root}", failures[0])

    def _sweep_now_and_then(self) -> None:
        """Remove temporary files of dead writers, at most once an hour for all processes together."""
        now = time.time()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_INTERVAL
        stamp = os.path.join(self.root, ".swept")
        try:
            if now - os.lstat(stamp).st_mtime < _SWEEP_INTERVAL:
                return
        except OSError:
            pass
        try:
            write_private(stamp, b"")
        except StoreWriteError:
            return
        self.sweep()

    def sweep(self) -> int:
        """Remove temporary files of dead writers; return how many."""
        removed = sweep_temporaries(self.root)
        for top in _names(os.path.join(self.root, "blobs")):
            removed += sweep_temporaries(os.path.join(self.root, "blobs", top))
        for top in _names(os.path.join(self.root, "entries")):
            for key in _names(os.path.join(self.root, "entries", top)):
                removed += sweep_temporaries(os.path.join(self.root, "entries", top, key))
        return removed

    # ---------------------------------------------------------------- paths

    def _key_directory(self, key: str) -> str:
        return os.path.join(self.root, "entries", key[:2], key)

    def _entry_path(self, key: str, name: str) -> str:
        return os.path.join(self._key_directory(key), name + ENTRY_SUFFIX)

    def _blob_path(self, ref: BlobRef) -> str:
        return os.path.join(self.root, ref.relative_path())

    def _entry_paths(self) -> Iterator[str]:
        top = os.path.join(self.root, "entries")
        for prefix in _names(top):
            for key in _names(os.path.join(top, prefix)):
                if not is_hex_digest(key):
                    continue
                directory = os.path.join(top, prefix, key)
                for name in _names(directory):
                    if name.endswith(ENTRY_SUFFIX) and is_hex_digest(name[: -len(ENTRY_SUFFIX)]):
                        yield os.path.join(directory, name)

    def _blob_paths(self) -> Iterator[str]:
        top = os.path.join(self.root, "blobs")
        for prefix in _names(top):
            directory = os.path.join(top, prefix)
            for name in _names(directory):
                if BlobRef.from_name(name) is not None:
                    yield os.path.join(directory, name)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    # ---------------------------------------------------------------- safety

    def is_over(self) -> bool:
        """Return whether this was a store in a scratch directory that is gone."""
        return os.path.basename(self.root) == FRESH and not os.path.isdir(os.path.dirname(self.root))

    def _prepare_root(self) -> None:
        if self.is_over():
            raise StoreError(f"the scratch directory above {self.root} is gone")
        try:
            make_private_directory(self.root)
        except OSError as error:
            raise write_error(f"can't create {self.root}", error) from error
        self._check_root()

    def _root_is_safe(self) -> bool:
        try:
            self._check_root()
        except UnsafeDirectoryError:
            self._count("unsafe")
            return False
        return True

    def _check_root(self) -> None:
        """Check the directory, unless it is unchanged since it was last checked. Raises UnsafeDirectoryError."""
        try:
            status = os.stat(self.root)
        except OSError:
            state = None
        else:
            state = (status.st_dev, status.st_ino, status.st_uid, status.st_mode)
            if state == self._checked:
                return
        self.check()
        self._checked = state

    def check(self) -> None:
        """Raise UnsafeDirectoryError for a directory whose content others could have written."""
        check_directory(self.root)


def _names(directory: str) -> list[str]:
    """Return the names in a directory; none if it can't be listed."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise write_error(f"can't remove {path}", error) from error
    return True


def _rmdir(directory: str) -> None:
    """Remove a directory if it is empty."""
    try:
        os.rmdir(directory)
    except OSError:
        pass


def _clear(top: str) -> list[OSError]:
    """Remove a tree except what changes meanwhile; return the errors that had another cause."""
    failures = []
    for directory, _, names in os.walk(top, topdown=False):
        try:
            for name in names:
                path = os.path.join(directory, name)
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass
            os.rmdir(directory)
        except OSError as error:
            # Removed by another process, or published into meanwhile: both are fine.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                failures.append(error)
    return failures
