"""The size of a cache directory by parts, so that a publication need not scan every file.

    <root>/index/index.sqlite    SQLite in WAL mode: a row per part of the directory

The index only makes publications faster; the files are the truth. No entry is served from it, and nothing is removed
for its sake. Lookups do not open it. The directory is divided into parts (``entries/3f``, ``blobs/a0``, ``rest``) that
are scanned separately. An index that is missing, damaged, or locked for longer than `_PATIENCE` is removed as a whole
and rebuilt.

Each call opens a separate connection and holds off forks until it is closed, because SQLite's locks do not survive a
fork. sqlite3 is imported inside functions: its import takes 4 ms, and a hit does not need it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fxpool import forks, notices
from fxpool.codecache.store import layout
from fxpool.codecache.store.catalogue import Part, Size, sum_of
from fxpool.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Index", "IndexUnusableError", "Summary"]

log = notices.logger(__name__)

_FILE = "index.sqlite"
#: Seconds to wait for another process's write, which takes milliseconds.
_PATIENCE = 1.0
_VERSION = 1
T = TypeVar("T")
_SCHEMA = f"""
    CREATE TABLE IF NOT EXISTS parts (part TEXT PRIMARY KEY, files INTEGER, bytes INTEGER, seen REAL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS evicted (entries INTEGER, bytes INTEGER);
    PRAGMA user_version = {_VERSION};
"""


@dataclass(frozen=True)
class Summary:
    """The content of an index: each part's size and the Unix time of its scan, and evictions since it was created."""

    parts: dict[str, tuple[Size, float]]
    evicted: Size

    @property
    def size(self) -> Size:
        """The total size of all parts in the index."""
        return sum_of(size for size, _ in self.parts.values())


class IndexUnusableError(StoreError):
    """The index can be neither used nor rebuilt, because the directory is read-only or the disk is full."""


class Index:
    """The index of one cache directory. Its methods raise only IndexUnusableError."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._directory = os.path.join(root, layout.INDEX)

    def exists(self) -> bool:
        """Return whether the index exists, without creating it."""
        return os.path.isfile(os.path.join(self._directory, _FILE))

    def look(self) -> Summary:
        """Return the content."""
        return self._rebuild_if_broken(_summary)

    def update(self, parts: Iterable[Part], *, gone: Iterable[str] = (), evicted: Size | None = None) -> Summary:
        """Replace the rows of `parts`, delete those of `gone`, and count evictions; return the new content.

        A part that another process has scanned since is not replaced: an eviction takes long after its scan, and other
        processes publish during that time.
        """

        def write(connection: sqlite3.Connection) -> Summary:
            connection.execute("BEGIN IMMEDIATE")
            for part in parts:
                if _seen_since(connection, part):
                    continue
                connection.execute(
                    "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)",
                    (part.name, part.size.files, part.size.bytes, part.seen),
                )
            connection.executemany("DELETE FROM parts WHERE part = ?", [(part,) for part in gone])
            if evicted is not None:
                after = _evicted(connection) + evicted
                connection.execute("DELETE FROM evicted")
                connection.execute("INSERT INTO evicted VALUES (?, ?)", (after.files, after.bytes))
            connection.execute("COMMIT")
            return _summary(connection)

        return self._rebuild_if_broken(write)

    # ---------------------------------------------------------------- the file

    def _rebuild_if_broken(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """Call `use` with a connection and return its result; rebuild the index if it is broken or locked."""
        import sqlite3

        for attempt in range(2):
            try:
                with forks.held_off(), self._connected() as connection:
                    return use(connection)
            except (*_TROUBLE, sqlite3.Error, sqlite3.Warning) as error:
                if attempt or "disk is full" in str(error):
                    raise IndexUnusableError(f"cannot use the index in {self._directory}: {error}") from error
                log.info("rebuilding the index in %s: %s", self._directory, error)
                self._remove()
        raise AssertionError("returned or raised above")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)  # without parents: a removed cache stays removed
        path = os.path.join(self._directory, _FILE)
        # Private whatever the umask; SQLite gives its other files the permissions of this file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
        try:
            # Don't wait for the disk: if a crash of the host damages the index, it is rebuilt.
            connection.execute("PRAGMA synchronous = OFF")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(_SCHEMA)
            elif version != _VERSION:
                raise _DamagedError(f"version {version!r}")
            yield connection
        finally:
            connection.close()

    def _remove(self) -> None:
        """Remove the directory with all files of the index at once, so that no log meets another database."""
        away = os.path.join(self._root, f"{layout.TEMPORARY_PREFIX}{layout.INDEX}-{secrets.token_hex(8)}")
        try:
            os.rename(self._directory, away)
        except OSError:
            return  # another process was faster, or nothing can be written here
        with contextlib.suppress(OSError):
            layout.remove_tree(away)


class _DamagedError(Exception):
    """A row has content that fxpool does not write."""


# On damaged bytes, sqlite3 also fails to decode texts and its own messages, or requests huge amounts of memory.
_TROUBLE = (_DamagedError, OSError, ValueError, OverflowError, MemoryError)


def _seen_since(connection: sqlite3.Connection, part: Part) -> bool:
    """Return whether the index has a later scan of a part. Ignores times in the future: a clock was set back."""
    row = connection.execute("SELECT seen FROM parts WHERE part = ?", (part.name,)).fetchone()
    return row is not None and isinstance(row[0], float) and part.seen < row[0] <= time.time()


def _summary(connection: sqlite3.Connection) -> Summary:
    parts = {}
    for part, files, size, seen in connection.execute("SELECT part, files, bytes, seen FROM parts"):
        if not (isinstance(part, str) and isinstance(seen, float) and _is_count(files) and _is_count(size)):
            raise _DamagedError(f"a damaged row of part {part!r}")
        parts[part] = (Size(files, size), seen)
    return Summary(parts, _evicted(connection))


def _evicted(connection: sqlite3.Connection) -> Size:
    row = connection.execute("SELECT entries, bytes FROM evicted").fetchone() or (0, 0)
    if not all(map(_is_count, row)):
        raise _DamagedError("a damaged row of evictions")
    return Size(*row)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 60
