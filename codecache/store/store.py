"""The local store: a directory of entries and the blobs they need.

    <root>/entries/<key[:2]>/<key>/<digest of the guards>.entry     records, see `entry.py`
    <root>/blobs/<digest[:2]>/<digest>-<size>                       immutable content, shared between entries
    <root>/aside/                                                   files that failed verification, for inspection
    <root>/quarantine/                                              see `quarantine.py`
    <root>/pending/                                                 see `remote/pending.py`
    <root>/kernels/                                                 see `kernel_files.py`

The store needs neither locks nor an index. A record is complete or absent (write, fsync, rename) and is written after
its blobs. Names are digests, so publishers of the same content can't harm each other. The digest of every file is
checked before the content is used. A file that fails verification is a miss; it is counted and never raises. A failed
write raises `StoreError`, which callers count and tolerate.

A store with `bounds` evicts down to them after each publication: see `collector.py`. An entry that is evicted between
`entries` and `open_blob` is a miss, as is an entry that another process clears.

The store neither fetches entries from a remote nor evaluates guards.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fxpool import directories, forks, notices
from fxpool.codecache.store import layout
from fxpool.codecache.store.blobs import (
    BlobRef,
    StoreWriteError,
    UnsafeFileError,
    check_directory,
    open_blob_file,
    read_blob_file,
    read_stored,
    sweep_temporaries,
    verify_blob_file,
    write_error,
    write_private,
)
from fxpool.codecache.store.entry import Entry, OtherVersionError, decode_entry, encode_entry
from fxpool.codecache.store.layout import ENTRY_SUFFIX, is_hex_digest
from fxpool.errors import CorruptEntryError, StoreError, UnsafeDirectoryError

if TYPE_CHECKING:
    from fxpool.codecache.store.cache_limits import Bounds
    from fxpool.codecache.store.catalogue import StoredEntry

log = notices.logger(__name__)

_SWEEP_INTERVAL = 3600.0
# Damaged files are saved for inspection, but a disk that damages everything must not fill up with them.
_MAX_ASIDE = 64
T = TypeVar("T")
#: Name of a store in one of torch's scratch directories. It is not created again once that is removed.
FRESH = "fxpool-fresh-cache"


class LocalStore:
    """A cache directory. Cheap to create; safe to use from many threads and processes at once."""

    #: Users besides ourselves whose files are trusted.
    owners: tuple[int, ...] = ()

    def __init__(
        self, root: str, bounds: Bounds | None = None, on_full: Callable[[LocalStore], object] | None = None
    ) -> None:
        """`on_full` is called instead of `evict` by a publication that goes over `bounds`.

        Raises UnsafeDirectoryError if the directory, or one above it, is writable by others.
        """
        self.root = os.path.abspath(os.path.expanduser(root))
        #: Limits that each publication enforces. None means no limits, and no index.
        self.bounds = bounds
        self._on_full = on_full or LocalStore.evict
        self._lock = forks.lock(self, "_lock")
        self._counts: Counter[str] = Counter()
        self._write_failures: Counter[str] = Counter()
        self._checked: tuple[int, ...] | None = None
        self._next_sweep = 0.0
        self._check_root()

    # ---------------------------------------------------------------- writing

    def publish(self, entry: Entry, blobs: Mapping[str, bytes]) -> Entry:
        """Store `blobs` (role to content) and then `entry`, which names them; return the stored entry.

        `entry` may already have references to blobs that are in the store. An entry with the same key and guards is
        replaced. Raises StoreError (UnsafeDirectoryError, StoreWriteError), and then stores no entry; ValueError for an
        invalid key.
        """
        if not is_hex_digest(entry.key):
            raise ValueError(f"{entry.key!r} is not a key: a key is a lower-case sha256")
        with self._counting_failures():
            self.prepare_root()
            references = {role: self._put_blob(content) for role, content in blobs.items()}
            entry = msgspec.structs.replace(entry, blobs={**entry.blobs, **references})
            write_private(layout.entry_path(self.root, entry.key, entry.name), encode_entry(entry))
            # A blob that was already in the store may have been evicted before the entry named it.
            for role, content in blobs.items():
                if not os.path.exists(layout.blob_path(self.root, references[role])):
                    self._put_blob(content)
        self._count("published")
        self._sweep_now_and_then()
        if self.bounds is not None:
            from fxpool.codecache.store import collector  # with sqlite3, which only publishers need

            with self._counting_failed_evictions():
                if collector.is_full(self.root, entry, self.bounds):
                    self.report_full()
        return entry

    def report_full(self) -> None:
        """Evict, or have it done: the store is over its limits."""
        self._on_full(self)

    def evict(self) -> None:
        """Evict down to the limits, unless another process does. After a failure, more than the limits stays stored."""
        if self.bounds is None:
            return
        from fxpool.codecache.store import collector  # with sqlite3, which only publishers need

        with self._counting_failed_evictions():
            collected = collector.evict(self.root, self.bounds)
            with self._lock:
                self._counts["evicted"] += collected.entries

    @contextlib.contextmanager
    def _counting_failed_evictions(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StoreError) as error:
            self._count("eviction_failed")
            log.info("could not evict from %s: %s", self.root, error)

    def put_blob(self, content: bytes) -> BlobRef:
        """Store one blob, for an entry that will name it. Raises StoreError."""
        with self._counting_failures():
            self.prepare_root()
            return self._put_blob(content)

    @contextlib.contextmanager
    def _counting_failures(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            with self._lock:
                self._write_failures[getattr(error, "reason", type(error).__name__)] += 1
            raise

    def _put_blob(self, content: bytes) -> BlobRef:
        ref = BlobRef.of(content)
        path = layout.blob_path(self.root, ref)
        try:
            verify_blob_file(path, ref)
            # The file's time is that of the last publication (`StoredFile.used`).
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
            os.utime(layout.entry_path(self.root, entry.key, entry.name))
        except OSError:
            pass

    # ---------------------------------------------------------------- reading

    def entries(self, key: str) -> list[Entry]:
        """Return every well-formed entry under a key, most recently used first. Raises ValueError for an invalid key.

        Checks neither guards nor blobs. Damaged files are moved to `aside` and counted.
        """
        if not is_hex_digest(key):
            raise ValueError(f"{key!r} is not a key: a key is a lower-case sha256")
        if not self.is_safe():
            return []
        directory = layout.key_directory(self.root, key)
        dated = []
        for name in layout.names(directory):
            if name.endswith(ENTRY_SUFFIX):
                loaded = self._load(key, os.path.join(directory, name))
                if loaded is not None:
                    dated.append(loaded)
        dated.sort(key=lambda pair: pair[0], reverse=True)
        return [entry for _, entry in dated]

    def entry(self, key: str, name: str) -> Entry | None:
        """Return an entry that has all its blobs, or None. Raises ValueError for an invalid key."""
        return next((one for one in self.entries(key) if one.name == name and self.complete(one)), None)

    def _load(self, key: str, path: str) -> tuple[int, Entry] | None:
        """Return (time of last use, entry), None if the file can't be used. Counts failures, moves damaged files."""

        def read() -> tuple[int, Entry]:
            data, status = read_stored(path, self.owners)
            entry = decode_entry(data)
            if entry.key != key or entry.name + ENTRY_SUFFIX != os.path.basename(path):
                raise CorruptEntryError(f"{path} holds an entry of another key or with other guards")
            return status.st_mtime_ns, entry

        try:
            return self.guarded(path, read)
        except OtherVersionError:
            self._count("other_version")
            return None

    def read_blob(self, ref: BlobRef) -> bytes | None:
        """Return a blob's content, its digest verified; None if it is missing or damaged."""
        return self._with_blob(ref, read_blob_file)

    def open_blob(self, ref: BlobRef) -> int | None:
        """Open a blob to be loaded, and return its descriptor; None if it is missing or damaged.

        Verifies its digest once per process and version of the file.
        """
        return self._with_blob(ref, open_blob_file)

    def _with_blob(self, ref: BlobRef, read: Callable[[str, BlobRef, tuple[int, ...]], T]) -> T | None:
        try:
            path = layout.blob_path(self.root, ref)
        except CorruptEntryError:
            return None
        return self.guarded(path, lambda: read(path, ref, self.owners)) if self.is_safe() else None

    def has_blob(self, ref: BlobRef) -> bool:
        """Return whether a blob exists and is undamaged."""
        descriptor = self.open_blob(ref)
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def complete(self, entry: Entry) -> bool:
        """Return whether all blobs of an entry exist and are undamaged; an incomplete entry is a miss."""
        return all(map(self.has_blob, entry.blobs.values()))

    def guarded(self, path: str, read: Callable[[], T]) -> T | None:
        """Return the result of `read`, or None for a file that is missing, damaged, unsafe or unreadable.

        Damaged files are moved to `aside` and counted.
        """
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
            directories.make_private(aside)
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
        """Return this object's counters: events by name, and `write_failed` by the errno's name."""
        names = (
            "published", "blobs_written", "blobs_shared", "corrupt", "unsafe", "unreadable", "other_version", "evicted",
            "eviction_failed",
        )  # fmt: skip
        with self._lock:
            return {**{name: self._counts[name] for name in names}, "write_failed": dict(self._write_failures)}

    def is_empty(self) -> bool:
        """Return whether the store has no entries, so that every graph will be a miss."""
        top = os.path.join(self.root, layout.ENTRIES)
        return not any(layout.names(os.path.join(top, prefix)) for prefix in layout.names(top))

    def sizes(self) -> dict[str, int]:
        """Return the numbers of `entries` and `blobs`, and their total `bytes`."""
        from fxpool.codecache.store import catalogue  # not needed by a hit

        entries = [one.bytes for one in catalogue.entries(self.root)]
        blobs = [one.bytes for one in catalogue.blobs(self.root)]
        return {"entries": len(entries), "blobs": len(blobs), "bytes": sum(entries) + sum(blobs)}

    def scan(self) -> Iterator[StoredEntry]:
        """Yield every entry in arbitrary order. Damaged entries have `entry=None` and stay where they are."""
        from fxpool.codecache.store import catalogue  # not needed by a hit

        for one in catalogue.entries(self.root):
            if (stored := catalogue.read(self.root, one)) is not None:
                yield stored

    def remove(self, key: str, name: str | None = None) -> int:
        """Remove all entries of a key, or only the entry `name`, but not their blobs; return how many were removed.

        Raises StoreError; ValueError for an invalid key or name.
        """
        if not is_hex_digest(key) or not (name is None or is_hex_digest(name)):
            raise ValueError("keys and names of entries must be lower-case sha256")
        directory = layout.key_directory(self.root, key)
        files = [file for file in layout.names(directory) if file.endswith(ENTRY_SUFFIX)]
        removed = sum(
            _unlink(os.path.join(directory, file)) for file in files if name is None or file == name + ENTRY_SUFFIX
        )
        layout.remove_empty(directory)
        return removed

    def remove_blob(self, ref: BlobRef) -> bool:
        """Remove a blob; return whether it existed. Entries that need it become misses. Raises StoreError."""
        return _unlink(layout.blob_path(self.root, ref))

    def clear(self) -> None:
        """Remove all entries and blobs, and release every graph from quarantine. Raises StoreError.

        Does not disturb concurrent publishers.
        """
        self._check_root()
        try:
            for part in layout.CLEARED:
                layout.remove_tree(os.path.join(self.root, part))
        except OSError as error:
            raise write_error(f"cannot clear {self.root}", error) from error

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
        tops = [os.path.join(self.root, name) for name in layout.DIRECTORIES]
        return sum(map(sweep_temporaries, [self.root, *(path for top in tops for path, _, _ in os.walk(top))]))

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    # ---------------------------------------------------------------- safety

    def is_over(self) -> bool:
        """Return whether this store was in a scratch directory that was removed."""
        return os.path.basename(self.root) == FRESH and not os.path.isdir(os.path.dirname(self.root))

    def prepare_root(self) -> None:
        """Create the directory if it is missing. Raises StoreError if it must not be created, or may not be used."""
        if self.is_over():
            raise StoreError(f"{self.root} is in a scratch directory that was removed")
        try:
            directories.make_private(self.root)
        except OSError as error:
            raise write_error(f"cannot create {self.root}", error) from error
        self._check_root()

    def is_safe(self) -> bool:
        """Return whether the directory may be used, because no other user could have written to it."""
        try:
            self._check_root()
        except UnsafeDirectoryError:
            self._count("unsafe")
            return False
        return True

    def _check_root(self) -> None:
        """Check the directory if it has changed since the last check. Raises UnsafeDirectoryError."""
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
        """Raise UnsafeDirectoryError if other users could have written to the directory."""
        check_directory(self.root)


def _unlink(path: str) -> bool:
    """Remove a file; return whether it was there. Raises StoreWriteError."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise write_error(f"cannot remove {path}", error) from error
    return True
