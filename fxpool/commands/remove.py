"""The command ``fxpool cache rm``: removes the entries of one key, and the blobs that no other entry needs.

Modules are imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from fxpool import config, quantities

if TYPE_CHECKING:
    from fxpool.codecache.store.blobs import BlobRef
    from fxpool.codecache.store.store import StoredEntry

__all__ = ["cache_remove"]

_SHORT = 12  # characters of a key, as in the other commands


@click.command("rm")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def cache_remove(key: str, yes: bool) -> None:
    """Remove the entries of a key.

    KEY is a key or its unique start, as `fxpool cache ls` shows it. Files that other entries use stay. The next
    process that needs the graph compiles it.
    """
    from fxpool.codecache.store.store import LocalStore
    from fxpool.errors import NoEntryError

    cache_dir = config.current().cache_dir
    stored: list[StoredEntry] = []
    if os.path.lexists(cache_dir):  # looking must not create it
        with os.scandir(cache_dir):  # raises if it cannot be read: an empty cache would be wrong
            store = LocalStore(str(cache_dir))
        stored = list(store.scan())
    entries = [entry for entry in stored if key and entry.key.startswith(key.lower())]
    keys = sorted({entry.key for entry in entries})
    if not keys:
        raise NoEntryError(key, "no entry has a key that starts like this")
    if len(keys) > 1:
        starts = ", ".join(other[: _SHORT + 8] for other in keys[:8])
        raise NoEntryError(key, f"{len(keys)} keys start like this: {starts}")
    for entry in entries:
        click.echo(f"{entry.key[:_SHORT]}  {_name(entry)}")
    count = quantities.counted(len(entries), "entry", "entries")
    if not yes:
        click.confirm(f"remove {count} with this key from {cache_dir}?", abort=True)
    removed = store.remove(keys[0])
    rest = list(store.scan())
    needed = _blobs(entries)
    # An entry that cannot be read, such as one of another version, may need any blob.
    unused = needed - _blobs(rest) if all(entry.entry is not None for entry in rest) else set()
    blobs = [ref for ref in unused if store.remove_blob(ref)]
    freed = sum(entry.size for entry in entries) + sum(ref.size for ref in blobs)
    removed_entries = quantities.counted(removed, "entry", "entries")
    click.echo(
        f"removed {removed_entries} and {quantities.counted(len(blobs), 'blob')}, {quantities.size(freed)} freed"
    )
    if shared := len(needed) - len(unused):
        click.echo(f"left: {quantities.counted(shared, 'blob')} that other entries may use")


def _blobs(entries: Iterable[StoredEntry]) -> set[BlobRef]:
    return {ref for entry in entries if entry.entry is not None for ref in entry.entry.blobs.values()}


def _name(entry: StoredEntry) -> str:
    if entry.entry is None:
        return "(unreadable: damaged, or written by another version)"
    meta = entry.entry.metadata
    name = (meta.origin.name if meta.origin is not None else "") or meta.label or "(no name)"
    return quantities.one_line(f"{name}, {quantities.moment(meta.created)}, used {quantities.ago(entry.used)}")
