"""Lists the entries of a store repeatedly, for the dashboard; reads only files that are new or were replaced.

The listing holds a row of a few hundred bytes per entry, not the entry. Every change gets a number, so that a reader
can ask for the changes after the last number that it has seen.

Every entry stems from a miss. `why_made` explains why the nearest earlier entry of the same function was not served
instead: it names the components in which their keys differ, or the guards.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fxpool.codecache.store import catalogue
from fxpool.codecache.store.catalogue import StoredEntry
from fxpool.codecache.store.entry import Metadata

__all__ = ["Listing", "Row", "why_made"]

#: A component of `why_made` for entries of one key.
GUARDS = "guards"
#: An entry's file, and its row unless the file is the same as in the scan before.
Scanned = tuple[StoredEntry, "Row | None"]


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
    metadata: Metadata = Metadata()
    used: float = 0.0
    bytes: int = 0
    guards: int = 0
    uses: int = 0
    digests: dict[str, str] = {}

    @classmethod
    def of(cls, stored: StoredEntry) -> Row:
        entry = stored.entry
        if entry is None:
            return cls(key=stored.key, name=stored.name, readable=False, used=stored.used, bytes=stored.total_bytes)
        return cls(
            key=stored.key,
            name=stored.name,
            metadata=entry.metadata,
            used=stored.used,
            bytes=stored.total_bytes,
            guards=len(entry.guards),
            digests={component.name: component.digest[:16] for component in entry.components},
        )

    @property
    def graph(self) -> str:
        """An identifier that entries of the same part of a program share."""
        source = self.metadata.source
        return f"{source.name}\n{source.location}" if source.name else self.metadata.label


class Listing:
    """The rows of one store. Not thread-safe, but the slow `read` may run beside methods that change nothing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.latest = 0
        self.rows: dict[tuple[str, str], Row] = {}
        self._files: dict[tuple[str, str], StoredEntry] = {}
        self._removed: dict[tuple[str, str], int] = {}

    def look(self) -> bool:
        """Update the rows; return whether anything changed. A missing directory counts as empty."""
        return self.take(self.read())

    def read(self) -> list[Scanned]:
        """Scan all files and read the new ones, without changing the listing. Pass the result to `take`."""
        scanned: list[Scanned] = []
        for stored in catalogue.entries(self.root):
            known = self._files.get((stored.key, stored.name))
            # Inode and size: a rename replaces an entry, so its inode changes; its time is that of its last use.
            if known is not None and known.state[:2] == stored.state[:2]:
                scanned.append((stored, None))
            elif (whole := catalogue.read(self.root, stored)) is not None:
                scanned.append((stored, Row.of(whole)))
        return scanned

    def take(self, scanned: Sequence[Scanned]) -> bool:
        """Update the rows with the result of the latest `read`; return whether anything changed."""
        before = self.latest
        for stored, row in scanned:
            which = (stored.key, stored.name)
            if row is None:
                self._touched(self.rows[which], self._files[which].used, stored.used)
            else:
                row.change = self._next()
                self._removed.pop(which, None)
                self.rows[which] = row
            self._files[which] = stored
        for which in self.rows.keys() - {(stored.key, stored.name) for stored, _ in scanned}:
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

    def _next(self) -> int:
        self.latest += 1
        return self.latest


def why_made(row: Row, others: Sequence[Row]) -> tuple[Row, list[str]] | None:
    """Return (the nearest earlier row of the same graph, the differences from it), or None if `row` is the first.

    The differences are names of components, or "guards" if the keys are equal. The nearest row is the latest of those
    with the fewest differences.
    """
    created = row.metadata.created
    earlier = [one for one in others if one.readable and one.graph == row.graph and one.metadata.created < created]
    if not row.readable or not earlier:
        return None
    near = min(earlier, key=lambda other: (len(differing(row, other)), -other.metadata.created))
    return near, differing(row, near) or [GUARDS]


def differing(row: Row, other: Row) -> list[str]:
    """Return the components in which two rows' keys differ."""
    names = [*row.digests, *(name for name in other.digests if name not in row.digests)]
    return [name for name in names if row.digests.get(name) != other.digests.get(name)]
