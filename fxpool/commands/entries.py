"""The commands of `cache` for entries: ls, show, explain, verify and rm.

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fxpool import config, quantities
from fxpool.commands.cache import existing_store
from fxpool.commands.output import FOUND_WRONG, SHORT, fail, filled, width, wrapped

if TYPE_CHECKING:
    from fxpool.codecache.store.blobs import BlobRef
    from fxpool.codecache.store.catalogue import StoredEntry
    from fxpool.codecache.store.entry import Entry, Origin
    from fxpool.codecache.store.store import LocalStore

__all__ = ["commands"]

_LABEL = 11  # width of the labels of `cache show`
_UNREADABLE = "(unreadable: damaged, or written by another version)"


@click.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Output one JSON object per line.")
def cache_list(as_json: bool) -> None:
    """List entries, most recently used first.

    Each with its function and inputs; in a pipe, one line per entry.
    """
    store = existing_store()
    entries = sorted(store.scan(), key=lambda one: one.used, reverse=True) if store else []
    if as_json:
        for one in entries:
            click.echo(json.dumps(_summary(one)))
        return
    if not entries:
        click.echo(f"no entries in {config.current().cache_dir}")
        return
    columns = width()
    for one in entries:
        click.echo(filled(f"{one.key[:SHORT]}  ", _parts(one), columns))


def _parts(stored: StoredEntry) -> list[str]:
    """Return the columns of an entry in `cache ls`: its identity first, then facts."""
    if stored.entry is None:
        return [_UNREADABLE]
    guards, meta = len(stored.entry.guards), stored.entry.metadata
    parts = [meta.title, meta.source.location, _inputs(meta.source)]
    parts += [quantities.counted(guards, "guard") if guards else ""]
    parts += [f"compiled {quantities.moment(meta.created)} in {meta.compile_seconds:.1f} s"]
    parts += [f"torch {meta.torch_version}" if meta.torch_version else ""]
    parts += [quantities.size(stored.total_bytes), f"used {quantities.ago(stored.used)}"]
    return [quantities.one_line(part) for part in parts if part]


def _inputs(source: Origin) -> str:
    shown = [f"({', '.join(source.inputs)})"] if source.inputs else []
    parameters = [quantities.counted(source.parameters, "parameter")] if source.parameters else []
    return " and ".join(shown + parameters)


@click.command("show")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
@click.option("--code", is_flag=True, help="Show the generated wrappers and kernels (imports torch).")
def cache_show(key: str, as_json: bool, code: bool) -> None:
    """Show all entries whose key starts with KEY, in detail."""
    store = existing_store()
    entries = _of_one_key(list(store.scan()) if store is not None else [], key)
    if as_json:
        click.echo(json.dumps([_details(one) for one in entries]))
        return
    if code:
        for one in entries:
            if one.entry is not None and store is not None:
                _show_code(one.entry, store)
        return
    for number, one in enumerate(entries):
        if number:
            click.echo()
        _row("key", one.key)
        if one.entry is None:
            _row("", _UNREADABLE)
            continue
        _show_entry(one.entry)


def _of_one_key(stored: Sequence[StoredEntry], start: str) -> list[StoredEntry]:
    """Return the entries whose key starts with `start`. Ends the command unless these are of one key."""
    entries = [one for one in stored if start and one.key.startswith(start.lower())]
    keys = sorted({one.key for one in entries})
    if not keys:
        fail(f"no entry has a key that starts with {start!r}\n  `fxpool cache ls` lists the entries")
    if len(keys) > 1:
        fail(f"{len(keys)} keys start with {start!r}\n  " + "\n  ".join(name[: SHORT + 8] for name in keys[:8]))
    return entries


def _row(label: str, text: str) -> None:
    click.echo(wrapped(f"{label:<{_LABEL}}", quantities.one_line(text), width()))


def _show_entry(entry: Entry) -> None:
    from fxpool.codecache.guards.guards import render

    meta = entry.metadata
    if meta.source.name:
        _row("function", meta.source.described)
    if inputs := _inputs(meta.source):
        _row("inputs", inputs)
    _row("graph", meta.label)
    created = quantities.moment(meta.created)
    made_with = f", torch {meta.torch_version}" if meta.torch_version else ""
    _row("created", f"{created}{made_with}, compiled in {meta.compile_seconds:.1f} s")
    for name, value in sorted(meta.extra.items()):
        _row("", f"{name}: {value}")
    _row("guards", f"{len(entry.guards)}")
    for guard in entry.guards:
        _row("", render(guard))
    _row("blobs", f"{len(entry.blobs)}")
    for role, ref in sorted(entry.blobs.items()):
        _row("", f"{role}: {ref.digest[:SHORT]}, {quantities.size(ref.size)}")
    _row("components", f"{len(entry.components)}")
    for component in entry.components:
        text = " ".join(component.text.split())
        text = text if len(text) <= 100 else text[:97] + "..."
        _row("", f"{component.name}: {component.digest[:SHORT]} {text}".rstrip())


def _show_code(entry: Entry, store: LocalStore) -> None:
    """Print modules as Python, each below a comment with its name in tracebacks."""
    from fxpool.lowering.artifact.entry_parts import generated_code

    for name, text in generated_code(entry, store):
        click.echo(f"# {name}\n{text}")


@click.command("explain")
@click.argument("keys", metavar="KEY [KEY]", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
def cache_explain(keys: tuple[str, ...], as_json: bool) -> None:
    """Explain how two entries differ.

    Names each node, input, option and function that differs. With one KEY, compares its entry with the nearest
    other entry. The start of a key is enough.
    """
    from fxpool.explanation import keys as explained

    if len(keys) > 2:
        raise click.UsageError("explain takes one or two keys")
    comparison = explained.compare(*keys)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(comparison)))
        return
    columns = width()
    for line in str(comparison).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        head, gap, text = ("", f"{indent}  ", line.strip()) if indent else line.rpartition("  ")
        click.echo(wrapped(f"{head}{gap}", text, columns))


@click.command("verify")
@click.option(
    "--recompute", type=click.IntRange(min=0), default=0, metavar="N", help="Recompile N entries and compare."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed that selects entries and random inputs.")
def cache_verify(recompute: int, seed: int) -> None:
    """Check the digests of all entries and blobs.

    Damaged blobs are moved to `aside`. The exit status is 1 if something is damaged or differs.
    """
    store = existing_store()
    sound: list[Entry] = []
    unreadable, incomplete = [], []
    for one in store.scan() if store else ():
        if one.entry is None:
            unreadable.append(one)
        elif store is not None and store.complete(one.entry):
            sound.append(one.entry)
        else:
            incomplete.append(one)
    for kind, problems in (("unreadable", unreadable), ("blobs missing or damaged", incomplete)):
        for one in problems:
            click.echo(f"{one.key[:SHORT]}  {kind}: {os.path.join(config.current().cache_dir, one.path)}")
    click.echo(f"{len(sound)} sound, {len(unreadable)} unreadable, {len(incomplete)} incomplete")
    equal = True
    if recompute and store is not None:
        equal = _verify_again(sound, store, recompute, seed)
    raise SystemExit(FOUND_WRONG if unreadable or incomplete or not equal else 0)


def _verify_again(entries: Sequence[Entry], store: LocalStore, count: int, seed: int) -> bool:
    """Recompile `count` of `entries` and print how they compare; return whether all are equal."""
    from fxpool.lowering import verification  # imports torch, which `verify` alone does not need

    if config.current().pool == "off":
        fail("recompiling needs workers, which FXPOOL_POOL=off disables")
    chosen = verification.sample(entries, count, seed)
    equal = failed = differing = 0
    for entry, found in verification.recomputed(chosen, store, seed):
        line = f"{entry.key[:SHORT]}  {quantities.one_line(entry.metadata.title)}"
        if isinstance(found, str):
            failed += 1
            click.echo(f"{line}  could not be recompiled: {found}")
        elif found.differences:
            differing += 1
            click.echo(f"{line}  DIFFERS: {', '.join(found.differences)}")
            for part, difference in found.differences.items():
                click.echo(f"    {part}:")
                click.echo("\n".join(f"      {one}" for one in difference.splitlines()))
        else:
            equal += 1
            run = f"outputs not compared: {found.not_run}" if found.not_run else "equal code, equal outputs"
            click.echo(f"{line}  {run}")
    again = quantities.counted(len(chosen), "entry", "entries")
    click.echo(f"recompiled {again}: {equal} equal, {differing} differing, {failed} failed")
    without = sum("request" not in entry.blobs for entry in entries)
    if without:
        holding = quantities.counted(without, "entry holds", "entries hold")
        click.echo(f"{holding} no request to recompile; set FXPOOL_KEEP_REQUESTS=1 to store requests with new entries")
    return not differing and not failed and bool(chosen or not entries)


@click.command("rm")
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def cache_remove(key: str, yes: bool) -> None:
    """Remove the entries of a key.

    KEY is a key or its unique start, as `fxpool cache ls` shows it. Files that other entries use stay. The next
    process that needs the graph compiles it.
    """
    store = existing_store()
    entries = _of_one_key(list(store.scan()) if store is not None else [], key)
    assert store is not None  # it has entries
    for one in entries:
        click.echo(f"{one.key[:SHORT]}  {_title(one)}")
    count = quantities.counted(len(entries), "entry", "entries")
    if not yes:
        click.confirm(f"remove {count} with this key from {store.root}?", abort=True)
    removed = store.remove(entries[0].key)
    others = list(store.scan())
    needed = _blobs(entries)
    # An entry that cannot be read, such as one of another version, may need any blob.
    unused = needed - _blobs(others) if all(one.entry is not None for one in others) else set()
    blobs = [ref for ref in unused if store.remove_blob(ref)]
    freed = sum(one.bytes for one in entries) + sum(ref.size for ref in blobs)
    removed_entries = quantities.counted(removed, "entry", "entries")
    click.echo(
        f"removed {removed_entries} and {quantities.counted(len(blobs), 'blob')}, {quantities.size(freed)} freed"
    )
    if shared := len(needed) - len(unused):
        click.echo(f"left: {quantities.counted(shared, 'blob')} that other entries may use")


def _blobs(entries: Iterable[StoredEntry]) -> set[BlobRef]:
    return {ref for one in entries if one.entry is not None for ref in one.entry.blobs.values()}


def _title(stored: StoredEntry) -> str:
    if stored.entry is None:
        return _UNREADABLE
    meta = stored.entry.metadata
    return quantities.one_line(f"{meta.title}, {quantities.moment(meta.created)}, used {quantities.ago(stored.used)}")


def _summary(stored: StoredEntry) -> dict[str, Any]:
    entry = stored.entry
    origin = entry.metadata.origin if entry else None
    return {
        "key": stored.key,
        "name": stored.name,
        "label": entry.metadata.label if entry else None,
        "origin": msgspec.to_builtins(origin) if origin is not None else None,
        "torch_version": entry.metadata.torch_version if entry else "",
        "guards": len(entry.guards) if entry else 0,
        "compile_seconds": entry.metadata.compile_seconds if entry else 0.0,
        "created": entry.metadata.created if entry else None,
        "used": stored.used,
        "bytes": stored.total_bytes,
    }


def _details(stored: StoredEntry) -> dict[str, Any]:
    from fxpool.codecache.guards.guards import render

    details = _summary(stored)
    if stored.entry is not None:
        details["guards"] = [render(guard) for guard in stored.entry.guards]
        details["components"] = [
            {"name": component.name, "digest": component.digest, "text": component.text}
            for component in stored.entry.components
        ]
        details["blobs"] = {
            role: {"digest": ref.digest, "size": ref.size} for role, ref in sorted(stored.entry.blobs.items())
        }
    return details


commands = (cache_list, cache_show, cache_explain, cache_verify, cache_remove)
