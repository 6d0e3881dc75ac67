"""The commands ``fxpool cache rm``, which removes the entries of a key, and ``cache key``, which makes key files.

Modules are imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fxpool import quantities
from fxpool.commands.cache import existing_store
from fxpool.commands.output import SHORT, entry_name, fail

if TYPE_CHECKING:
    from fxpool.codecache.store.blobs import BlobRef
    from fxpool.codecache.store.store import StoredEntry

__all__ = ["cache_remove", "key"]


@click.command("rm")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def cache_remove(key: str, yes: bool) -> None:
    """Remove the entries of a key.

    KEY is a key or its unique start, as `fxpool cache ls` shows it. Files that other entries use stay. The next
    process that needs the graph compiles it.
    """
    from fxpool.errors import NoEntryError

    store = existing_store()
    stored = store.scan() if store is not None else ()
    entries = [entry for entry in stored if key and entry.key.startswith(key.lower())]
    keys = sorted({entry.key for entry in entries})
    if store is None or not keys:
        raise NoEntryError(key, "no entry has a key that starts like this")
    if len(keys) > 1:
        starts = ", ".join(other[: SHORT + 8] for other in keys[:8])
        raise NoEntryError(key, f"{len(keys)} keys start like this: {starts}")
    for entry in entries:
        click.echo(f"{entry.key[:SHORT]}  {_name(entry)}")
    count = quantities.counted(len(entries), "entry", "entries")
    if not yes:
        click.confirm(f"remove {count} with this key from {store.root}?", abort=True)
    removed = store.remove(keys[0])
    others = list(store.scan())
    needed = _blobs(entries)
    # An entry that cannot be read, such as one of another version, may need any blob.
    unused = needed - _blobs(others) if all(entry.entry is not None for entry in others) else set()
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
    name = entry_name(entry.entry)
    if entry.entry is None:
        return name
    created = quantities.moment(entry.entry.metadata.created)
    return quantities.one_line(f"{name}, {created}, used {quantities.ago(entry.used)}")


@click.command("key")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--add", is_flag=True, help="Add a new first key to FILE; the old keys are still accepted.")
def key(file: Path, add: bool) -> None:
    """Write a new key for a remote cache and bundles to FILE.

    Keep FILE private: a holder of the key can run code on all machines that accept it. With --add, new entries are
    sealed with the new key; remove the old keys once all machines have it.
    """
    from fxpool.codecache.bundle.authentication import Keyring, new_key
    from fxpool.codecache.store.blobs import write_private
    from fxpool.errors import ConfigurationError, StoreError

    path = file.expanduser().absolute()
    old = ""
    if add:
        try:
            Keyring.load(path)
        except ConfigurationError as error:
            fail(str(error))
        old = path.read_text()
    elif os.path.lexists(path):
        fail(f"{path} already exists\n  --add adds a new key to it")
    try:
        write_private(str(path), f"{new_key()}\n{old}".encode())
    except StoreError as error:
        fail(error.message)
    keys = len([line for line in old.splitlines() if line.strip() and not line.lstrip().startswith("#")]) + 1
    click.echo(f"{path}: {quantities.counted(keys, 'key')}, the first seals new entries")
    if not add:
        click.echo(f"copy it to the machines that share the cache, and set FXPOOL_REMOTE_KEY_FILE={path}")
