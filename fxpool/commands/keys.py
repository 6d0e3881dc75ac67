"""`cache key`: creates and rotates the key file with which machines authenticate shared entries.

Modules are imported inside functions, so that `fxpool --help` answers at once.
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
