"""`cache key`: makes and rotates the file of keys by which machines that share a cache know each other's entries.

What it needs is imported inside functions: `fxpool --help` is to answer at once.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from fxpool import quantities
from fxpool.commands.output import fail

__all__ = ["key"]


@click.command("key")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--add", is_flag=True, help="Put a new key in front of those in FILE, which are still accepted.")
def key(file: Path, add: bool) -> None:
    """Write a new key for a remote cache and for bundles into FILE, for nobody else to read.

    Whoever has the key can make the machines that accept it run code. With --add the new key seals from now on; take
    the old ones away when all machines have the new one.
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
        fail(f"{path} is there already\n  --add puts a new key in front of its own")
    try:
        write_private(str(path), f"{new_key()}\n{old}".encode())
    except StoreError as error:
        fail(error.message)
    keys = len([line for line in old.splitlines() if line.strip() and not line.lstrip().startswith("#")]) + 1
    click.echo(f"{path}: {quantities.counted(keys, 'key')}, the first one seals")
    if not add:
        click.echo(f"copy it to the machines that share the cache, and set FXPOOL_REMOTE_KEY_FILE={path}")
