"""Lists the entries of a store repeatedly, for the dashboard; reads only files that are new or were replaced.

The listing holds a row of a few hundred bytes per entry, not the entry. Every change gets a number, so that a reader
can ask for the changes after the last number that it has seen.

Every entry stems from a miss. `why_made` explains why the nearest earlier entry of the same function was not served
instead: it names the components in which their keys differ, or the guards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from fxpool.codecache.store.blobs import UnsafeFileError, read_stored
from fxpool.codecache.store.entry import Component, Entry, OtherVersionError, decode_entry, is_hex_digest
from fxpool.errors import CorruptEntryError

__all__ = ["Listing", "Row", "Seen", "load", "why_made"]

_SUFFIX = ".entry"
#: A component of `why_made` for entries of one key.
GUARDS = "guards"


# A file's inode and size. A rename replaces an entry, so its inode changes; its time is that of its last use.
_Identity = tuple[int, int]


class Row(msgspec.Struct, kw_only=True):
    """A listed entry. Times are Unix time; `bytes` includes its blobs, which other entries may share.

    `change` is the number of its latest change. `used` is when it was last served or written. `uses` counts the uses
    since the listing was created; several between two scans count once. If the entry can't be read, `readable` is False
    and most fields are empty. `digests` has the shortened digest of each component.
    """

    key: str
    name: str
    change: int = 0
    readable: bool = True
    label: str = ""
    function: str = ""
    place: str = ""
    inputs: list[str] = []
    parameters: int = 0
    torch: str = ""
    created: float = 0.0
    used: float = 0.0
    seconds: float = 0.0
    bytes: int = 0
    guards: int = 0
    uses: int = 0
    digests: dict[str, str] = {}

    @property
    def graph(self) -> str:
        """An identifier that entries of the same part of a program share."""
        return f"{self.function}\n{self.place}" if self.function else self.label


class Seen(NamedTuple):
    """A file of a store in one scan; `row` is None if the file has not changed since the scan before."""

    key: str
    name: str
    identity: _Identity
    used: float
    row: Row | None


class Listing:
    """The rows of one store. Not thread-safe, but the slow `read` may run beside methods that change nothing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.latest = 0
        self.uses = 0  # of all entries, since the listing was created
        self.seconds_saved = 0.0  # by those uses
        self.rows: dict[tuple[str, str], Row] = {}
        self._files: dict[tuple[str, str], tuple[_Identity, float]] = {}
        self._removed: dict[tuple[str, str], int] = {}

    def look(self) -> bool:
        """Update the rows; return whether anything changed. A missing directory counts as empty."""
        return self.take(self.read())

    def read(self) -> list[Seen]:
        """Scan all files and read the new ones, without changing the listing. Pass the result to `take`."""
        found = []
        for key, name, path, status in _files(os.path.join(self.root, "entries")):
            identity = (status.st_ino, status.st_size)
            known = self._files.get((key, name))
            same = known is not None and known[0] == identity
            row = None if same else _read(key, name, path, status)
            found.append(Seen(key, name, identity, status.st_mtime, row))
        return found

    def take(self, found: list[Seen]) -> bool:
        """Update the rows with the result of the latest `read`; return whether anything changed."""
        before = self.latest
        for seen in found:
            which = (seen.key, seen.name)
            if seen.row is None:
                self._touched(self.rows[which], self._files[which][1], seen.used)
            else:
                seen.row.change = self._next()
                self._removed.pop(which, None)
                self.rows[which] = seen.row
            self._files[which] = (seen.identity, seen.used)
        for which in self.rows.keys() - {(seen.key, seen.name) for seen in found}:
            del self.rows[which], self._files[which]
            self._removed[which] = self._next()
        return self.latest != before

    def since(self, change: int) -> tuple[list[Row], list[tuple[str, str]]]:
        """Return (rows that changed after `change`, (key, name) of entries that were removed after it)."""
        rows = [row for row in self.rows.values() if row.change > change]
        return rows, [which for which, number in self._removed.items() if number > change]

    def _touched(self, row: Row, before: float, now: float) -> None:
        if now > before:
            row.used, row.uses, row.change = now, row.uses + 1, self._next()
            self.uses += 1
            self.seconds_saved += row.seconds

    def _next(self) -> int:
        self.latest += 1
        return self.latest


def load(root: str, key: str, name: str) -> Entry | None:
    """Return a complete entry, None if it is missing or can't be read. Raises ValueError for invalid names."""
    if not is_hex_digest(key) or not is_hex_digest(name):
        raise ValueError("keys and names of entries must be lower-case sha256")
    try:
        entry = decode_entry(read_stored(os.path.join(root, "entries", key[:2], key, name + _SUFFIX))[0])
    except (OSError, CorruptEntryError, UnsafeFileError, OtherVersionError):
        return None
    return entry if (entry.key, entry.name) == (key, name) else None


def why_made(row: Row, others: Sequence[Row]) -> tuple[Row, list[str]] | None:
    """Return (the nearest earlier row of the same graph, the differences from it), or None if `row` is the first.

    The differences are names of components, or "guards" if the keys are equal. The nearest row is the latest of those
    with the fewest differences.
    """
    earlier = [other for other in others if other.readable and other.graph == row.graph and other.created < row.created]
    if not row.readable or not earlier:
        return None
    near = min(earlier, key=lambda other: (len(differing(row, other)), -other.created))
    return near, differing(row, near) or [GUARDS]


def differing(one: Row, other: Row) -> list[str]:
    """Return the components in which two rows' keys differ."""
    names = [*one.digests, *(name for name in other.digests if name not in one.digests)]
    return [name for name in names if one.digests.get(name) != other.digests.get(name)]


def _read(key: str, name: str, path: str, status: os.stat_result) -> Row:
    try:
        entry = decode_entry(read_stored(path)[0])
    except (OSError, CorruptEntryError, UnsafeFileError, OtherVersionError):
        entry = None
    if entry is not None and (entry.key, entry.name) == (key, name):
        return _row(entry, status)
    return Row(key=key, name=name, readable=False, used=status.st_mtime, bytes=status.st_size)


def _row(entry: Entry, status: os.stat_result) -> Row:
    meta, origin = entry.metadata, entry.metadata.origin
    return Row(
        key=entry.key,
        name=entry.name,
        label=meta.label,
        function=origin.name if origin is not None else "",
        place=origin.place if origin is not None else "",
        inputs=list(origin.inputs) if origin is not None else [],
        parameters=origin.parameters if origin is not None else 0,
        torch=meta.torch_version,
        created=meta.created,
        used=status.st_mtime,
        seconds=meta.compile_seconds,
        bytes=status.st_size + sum(ref.size for ref in entry.blobs.values()),
        guards=len(entry.guards),
        digests=_digests(entry.components),
    )


def _digests(components: Sequence[Component]) -> dict[str, str]:
    return {component.name: component.digest[:16] for component in components}


def _files(directory: str) -> Iterator[tuple[str, str, str, os.stat_result]]:
    """Yield (key, name, path, status) of every entry's file."""
    for key in (key for part in _listed(directory) for key in _listed(os.path.join(directory, part))):
        if not is_hex_digest(key):
            continue
        with_key = os.path.join(directory, key[:2], key)
        for file in _listed(with_key):
            name = file.removesuffix(_SUFFIX)
            if name == file or not is_hex_digest(name):
                continue
            path = os.path.join(with_key, file)
            try:
                yield key, name, path, os.lstat(path)
            except OSError:
                continue  # removed since it was listed


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
