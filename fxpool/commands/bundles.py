"""The commands `cache export`, `cache import` and `cache key`: files of entries for other machines, and their keys.

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fxpool import config, quantities
from fxpool.commands.cache import existing_store
from fxpool.commands.output import FOUND_WRONG, SHORT, fail

if TYPE_CHECKING:
    from fxpool.codecache.bundle.authentication import Keyring
    from fxpool.codecache.bundle.bundle import Earlier
    from fxpool.codecache.store.entry import Entry

__all__ = ["cache_export", "cache_import", "cache_key"]


@click.command("export")
@click.argument("file", type=click.Path())
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--keys", "keys_file", type=click.Path(), help="Export only keys that start with a line of this file.")
@click.option(
    "--since",
    multiple=True,
    metavar="TIME|BUNDLE",
    help="Export only entries compiled since TIME (2026-11-24T08:00, or 2h for two hours ago), or missing from "
    "BUNDLE. May be repeated.",
)
@click.option(
    "--key-file", type=click.Path(), help="Seal with the first key of this file (default: FXPOOL_REMOTE_KEY_FILE)."
)
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
def cache_export(
    file: str, keys: tuple[str, ...], keys_file: str | None, since: tuple[str, ...], key_file: str | None, as_json: bool
) -> None:
    """Write entries with their blobs to a file.

    All entries, or those whose key starts with a KEY.
    """
    from fxpool.codecache.bundle import bundle
    from fxpool.codecache.bundle.authentication import keyring_of

    store = existing_store()
    if store is None:
        fail(f"no cache in {config.current().cache_dir}")
    keyring = keyring_of(key_file or config.current().remote_key_file)
    earlier, created = _since(since, keyring)
    entries, unreadable = [], 0
    for one in store.scan():
        if one.entry is None:
            unreadable += 1
        else:
            entries.append(one.entry)
    if keys or keys_file is not None:
        entries = _chosen(entries, [*keys, *(_lines(keys_file) if keys_file is not None else [])])
    entries = [entry for entry in entries if entry.metadata.created >= created]
    written = bundle.export(file, store, entries, earlier=earlier, keyring=keyring)
    left_out = written.incomplete + unreadable
    if as_json:
        data = {"file": file, "entries": written.entries, "blobs": written.blobs, "expected_blobs": written.needs}
        click.echo(json.dumps(data | {"left_out": left_out, "bytes": written.bytes, "sealed": keyring is not None}))
        return
    parts = [quantities.counted(written.entries, "entry", "entries"), quantities.counted(written.blobs, "blob")]
    sealed = ", sealed" if keyring is not None else ""
    click.echo(f"wrote {' and '.join(parts)} to {file} ({quantities.size(written.bytes)}{sealed})")
    if written.needs:
        click.echo(f"it needs {quantities.counted(written.needs, 'blob')} of earlier bundles")
    if left_out:
        entries_left = quantities.counted(left_out, "entry", "entries")
        click.echo(f"left out: {entries_left}, damaged or incomplete (see `fxpool cache verify`)")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--key-file", type=click.Path(), help="Require a MAC by a key of this file (default: FXPOOL_REMOTE_KEY_FILE)."
)
@click.option("--trust", is_flag=True, help="Accept a file that others could have written. Bundles run as code.")
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
def cache_import(files: tuple[str, ...], key_file: str | None, trust: bool, as_json: bool) -> None:
    """Add the entries of bundles to the cache directory.

    All files are verified before anything is written. If one is damaged, none is imported.
    """
    from fxpool.codecache.bundle import bundle, bundle_file
    from fxpool.codecache.bundle.authentication import keyring_of
    from fxpool.codecache.store.store import LocalStore

    keyring = keyring_of(key_file or config.current().remote_key_file)
    store = LocalStore(str(config.current().cache_dir))
    with contextlib.ExitStack() as stack, _damage_told():
        opened = [stack.enter_context(bundle.open_trusted(name, keyring=keyring, trust=trust)) for name in files]
        contents = [bundle_file.verify(file, name, keyring) for file, name in zip(opened, files, strict=True)]
        bundle.check_needs(contents, store)
        done = [bundle.restore(file, one, store) for file, one in zip(opened, contents, strict=True)]
    restored = list(zip(files, done, strict=True))
    if as_json:
        rows = [
            {"file": name, "entries": one.entries, "blobs": one.blobs, "already_there": one.present}
            for name, one in restored
        ]
        click.echo(json.dumps({"cache_dir": store.root, "bundles": rows}))
        return
    for name, one in restored:
        parts = [quantities.counted(one.entries, "entry", "entries"), quantities.counted(one.blobs, "blob")]
        there = f"; {quantities.counted(one.present, 'entry', 'entries')} already there" if one.present else ""
        click.echo(f"{name}: {' and '.join(parts)} new in {store.root}{there}")


@click.command("key")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--add", is_flag=True, help="Add a new first key to FILE; the old keys are still accepted.")
def cache_key(file: Path, add: bool) -> None:
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


@contextlib.contextmanager
def _damage_told() -> Iterator[None]:
    """Exit with status 1 for a damaged bundle: a problem was found, the usage is right."""
    from fxpool.errors import BundleError

    try:
        yield
    except BundleError as error:
        if error.reason != "damaged":
            raise
        fail(str(error), FOUND_WRONG)


def _since(texts: Sequence[str], keyring: Keyring | None) -> tuple[Earlier | None, float]:
    """Return the contents of earlier bundles, and the Unix time since which entries are exported."""
    from fxpool.codecache.bundle import bundle, bundle_file

    earlier, created = None, 0.0
    for text in texts:
        if (when := _time(text)) is not None and not os.path.exists(text):
            created = max(created, when)
            continue
        earlier = earlier or bundle.Earlier()
        with _damage_told(), bundle.open_trusted(text, keyring=keyring) as file:
            earlier.add(bundle_file.verify(file, text, keyring))
    return earlier, created


def _time(text: str) -> float | None:
    """Return the Unix time of a date, or of a duration before now; None for anything else."""
    with contextlib.suppress(ValueError):
        return time.time() - quantities.parse_duration(text)
    with contextlib.suppress(ValueError):
        return datetime.datetime.fromisoformat(text).timestamp()  # local time if no zone is given
    return None


def _lines(path: str) -> list[str]:
    """Return the lines of a file that are neither empty nor comments."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except UnicodeDecodeError:
        fail(f"{path} is not a text file; it must have a key or the start of a key per line")
    return [line for line in lines if line and not line.startswith("#")]


def _chosen(entries: list[Entry], keys: Sequence[str]) -> list[Entry]:
    """Return the entries whose key starts with one of `keys`. Ends the command if one of `keys` matches none."""
    wanted = tuple(key.lower() for key in keys)
    for key in wanted:
        if not any(entry.key.startswith(key) for entry in entries):
            fail(f"no entry has a key that starts with {key[:SHORT]!r}\n  `fxpool cache ls` lists the entries")
    return [entry for entry in entries if entry.key.startswith(wanted)]
