"""Commands for the cache directory: stats, and `cache` with ls, show, explain, verify, quarantine, gc, clear.

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fxpool import config, quantities
from fxpool.commands.output import FOUND_WRONG, SHORT, entry_name, fail, filled, show_rows, width, wrapped

if TYPE_CHECKING:
    from fxpool.codecache.store.bounds import Bounds
    from fxpool.codecache.store.collector import Collected
    from fxpool.codecache.store.entry import Entry
    from fxpool.codecache.store.host_statistics import Totals
    from fxpool.codecache.store.store import LocalStore, StoredEntry

__all__ = ["cache", "existing_store", "stats"]

_LABEL = 11  # width of the labels of `cache show`


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
@click.option("--zero", is_flag=True, help="Set the counters to zero; entries stay.")
def stats(as_json: bool, zero: bool) -> None:
    """Show the size of the cache, and counters of the last 30 days.

    The counters are those of all processes with this cache directory. The hit rate is the part of lookups that found
    an entry.
    """
    from fxpool.codecache.store import collector, contents, host_statistics

    store = existing_store()
    if zero:
        if store is not None:
            host_statistics.clear(store.root)
        click.echo(f"the counters in {config.current().cache_dir} are zero now")
        return
    settings = config.current()
    data: dict[str, Any] = {"cache_dir": str(settings.cache_dir), "entries": 0, "blobs": 0, "bytes": 0}
    data |= {"compile_seconds": 0.0, "unreadable_entries": 0}
    data |= {"max_bytes": settings.cache_max_bytes, "max_files": settings.cache_max_files, "evicted": None}
    shares = {kind: contents.Share() for kind in contents.KINDS}
    if store is not None:
        data |= store.sizes()
        shares = contents.measure(store.root)
        if (evicted := collector.evicted(store.root)) is not None:
            data["evicted"] = {"entries": evicted.files, "bytes": evicted.bytes}
        for listed in store.scan():
            if listed.entry is None:
                data["unreadable_entries"] += 1
            else:
                data["compile_seconds"] += listed.entry.metadata.compile_seconds
    data["disk_bytes"] = sum(share.bytes for share in shares.values())
    data["disk_files"] = sum(share.files for share in shares.values())
    data["parts"] = {kind: {"files": share.files, "bytes": share.bytes} for kind, share in shares.items()}
    days = host_statistics.read(store.root) if store is not None else {}
    total = host_statistics.added(days.values())
    data["host"] = {"total": total.plain(), "days": {day: one.plain() for day, one in days.items()}}
    data["host"]["hit_rate"] = total.hit_rate
    if as_json:
        click.echo(json.dumps(data))
        return
    rows = {"directory": data["cache_dir"]}
    for kind, share in shares.items():
        size = quantities.size(share.bytes)
        if kind in ("entries", "blobs"):
            rows[kind] = f"{data[kind]}, {size}"
        elif share.bytes:
            rows[kind] = f"{size} in {quantities.counted(share.files, 'file')}"
    in_all = f"{quantities.size(data['disk_bytes'])} on disk in {quantities.counted(data['disk_files'], 'file')}"
    rows["total"] = f"{in_all}; {_bounds(settings.cache_max_bytes, settings.cache_max_files)}"
    if data["evicted"] and data["evicted"]["entries"]:
        entries = quantities.counted(data["evicted"]["entries"], "entry", "entries")
        rows["evicted so far"] = f"{entries}, {quantities.size(data['evicted']['bytes'])}"
    rows["compile time of entries"] = f"{data['compile_seconds']:.1f} s"
    if data["unreadable_entries"]:
        rows["unreadable entries"] = f"{data['unreadable_entries']} (fxpool cache verify)"
    if total.processes:
        rows[f"last {host_statistics.KEPT_DAYS} days"] = _counted(total)
        if total.hit_rate is not None:
            rows["hit rate"] = quantities.percent(total.hit_rate)
        for counter, table in total.reasons.items():
            if counter != "compiles":
                rows[counter.replace("_", " ")] = quantities.ranked(table)
        rows |= {day: _counted(one) for day, one in reversed(days.items())}
    show_rows([*rows.items()])


def _bounds(max_bytes: int | None, max_files: int | None) -> str:
    """Format as ``limited to 10.0 GB and 100,000 files``."""
    limits = [quantities.size(max_bytes)] if max_bytes is not None else []
    limits += [quantities.counted(max_files, "file")] if max_files is not None else []
    return f"limited to {' and '.join(limits)}" if limits else "no limit"


def _counted(totals: Totals) -> str:
    """Format as ``3 processes: 12 hits, 2 misses, 2 compiles, 31 s saved``."""
    data = totals.plain()
    parts = [quantities.counted(data["hits"], "hit"), quantities.counted(data["misses"], "miss", "misses")]
    if data["guard_misses"]:
        parts.append(quantities.counted(data["guard_misses"], "guard miss", "guard misses"))
    parts.append(quantities.counted(sum(data["compiles"].values()), "compile"))
    parts.append(f"{quantities.span(data['seconds_saved'])} saved")
    return f"{quantities.counted(data['processes'], 'process', 'processes')}: {', '.join(parts)}"


@click.group()
def cache() -> None:
    """Inspect and clean the cache directory."""


@cache.command("ls")
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


def _parts(one: StoredEntry) -> list[str]:
    """Return the columns of an entry in `cache ls`: its identity first, then facts."""
    if one.entry is None:
        return [entry_name(None)]
    summary, meta = _summary(one), one.entry.metadata
    origin = meta.origin
    parts = [entry_name(one.entry)]
    if origin is not None:
        parts += [origin.place, _inputs(one.entry)]
    parts += [quantities.counted(summary["guards"], "guard") if summary["guards"] else ""]
    parts += [f"compiled {quantities.moment(meta.created)} in {meta.compile_seconds:.1f} s"]
    parts += [f"torch {meta.torch_version}"]
    parts += [quantities.size(summary["bytes"]), f"used {quantities.ago(one.used)}"]
    return [quantities.one_line(part) for part in parts if part]


def _inputs(entry: Entry) -> str:
    origin = entry.metadata.origin
    if origin is None:
        return ""
    shown = [f"({', '.join(origin.inputs)})"] if origin.inputs else []
    kept = [quantities.counted(origin.parameters, "parameter")] if origin.parameters else []
    return " and ".join(shown + kept)


@cache.command("show")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
@click.option("--code", is_flag=True, help="Show the generated wrappers and kernels (imports torch).")
def cache_show(key: str, as_json: bool, code: bool) -> None:
    """Show all entries whose key starts with KEY, in detail."""
    store = existing_store()
    entries = [one for one in store.scan() if one.key.startswith(key.lower())] if store and key else []
    keys = sorted({one.key for one in entries})
    if not keys:
        fail(f"no entry has a key that starts with {key!r}\n  `fxpool cache ls` lists the entries")
    if len(keys) > 1:
        fail(f"{len(keys)} keys start with {key!r}\n  " + "\n  ".join(name[: SHORT + 8] for name in keys[:8]))
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
            _row("", entry_name(None))
            continue
        _show_entry(one.entry)


def _row(label: str, text: str) -> None:
    click.echo(wrapped(f"{label:<{_LABEL}}", quantities.one_line(text), width()))


def _show_entry(entry: Entry) -> None:
    from fxpool.codecache.guards.guards import render

    meta = entry.metadata
    origin = meta.origin
    if origin is not None and origin.name:
        _row("function", f"{origin.name}, {origin.place}" if origin.place else origin.name)
    if inputs := _inputs(entry):
        _row("inputs", inputs)
    _row("graph", meta.label)
    made = f"{quantities.moment(meta.created)}, torch {meta.torch_version}, compiled in {meta.compile_seconds:.1f} s"
    _row("created", made)
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


@cache.command("explain")
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


@cache.command("verify")
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
            click.echo(f"{one.key[:SHORT]}  {kind}: {one.path}")
    click.echo(f"{len(sound)} sound, {len(unreadable)} unreadable, {len(incomplete)} incomplete")
    equal = True
    if recompute and store is not None:
        from fxpool.commands.recompute import verify_again  # with the pool, and torch

        equal = verify_again(sound, store, recompute, seed)
    raise SystemExit(FOUND_WRONG if unreadable or incomplete or not equal else 0)


@cache.command("quarantine")
@click.option("--release", "key", help="Release the graphs whose key starts like this, to compile them again.")
@click.option("--release-all", is_flag=True, help="Release all.")
@click.option("--json", "as_json", is_flag=True, help="Output one JSON object per line.")
def cache_quarantine(key: str | None, release_all: bool, as_json: bool) -> None:
    """List or release graphs that killed their workers.

    These graphs run eagerly until they are released.
    """
    from fxpool.codecache.store import quarantine

    store = existing_store()
    records = list(quarantine.scan(store.root)) if store is not None else []
    if key is not None or release_all:
        chosen = [record for record in records if release_all or (key and record.key.startswith(key.lower()))]
        if not chosen and not release_all:
            fail(f"no graph in quarantine has a key that starts with {key!r}")
        released = sum(quarantine.release(store.root, record.key) for record in chosen) if store is not None else 0
        click.echo(f"released {quantities.counted(released, 'graph')}")
        return
    for record in records:
        if as_json:
            click.echo(json.dumps(msgspec.structs.asdict(record)))
            continue
        what = quantities.one_line(f"{record.name}, {quantities.ago(record.when)}: {record.error}")
        click.echo(wrapped(f"{record.key[:SHORT]}  ", what, width()))
        if record.log:
            click.echo(wrapped(f"{'':{SHORT}}  ", f"output: {record.log}", width()))
    if not records and not as_json:
        click.echo("no graphs in quarantine")


@cache.command("gc")
@click.option("--max-bytes", metavar="SIZE", help="Such as 500M, 10G or none (default: the setting cache_max_bytes).")
@click.option("--max-files", metavar="N", help="A number or none (default: the setting cache_max_files).")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
def cache_gc(max_bytes: str | None, max_files: str | None, dry_run: bool, as_json: bool) -> None:
    """Evict least recently used entries down to the limits.

    This also happens whenever an entry is written. Entries used in the last two minutes stay. The exit
    status is 1 if the cache still exceeds its limits.
    """
    from fxpool.codecache.store import collector
    from fxpool.codecache.store.bounds import Bounds

    asked = {"cache_max_bytes": max_bytes, "cache_max_files": max_files}
    given = {name: value for name, value in asked.items() if value is not None}
    settings = config.override(config.current(), given, "fxpool cache gc")
    bounds = Bounds(settings.cache_max_bytes, settings.cache_max_files)
    store = existing_store()
    collected = collector.collect(store.root, bounds, dry_run=dry_run) if store is not None else collector.Collected()
    if as_json:
        left = collected.before - collected.freed
        data = {"dry_run": dry_run, "max_bytes": bounds.max_bytes, "max_files": bounds.max_files}
        data |= {"entries": collected.entries, "blobs": collected.blobs, "other_files": collected.others}
        data |= {"freed_bytes": collected.freed.bytes, "freed_files": collected.freed.files}
        data |= {"left_bytes": left.bytes, "left_files": left.files}
        data |= {"failed": collected.failed, "over": collected.over}
        click.echo(json.dumps(data))
    elif store is None:
        click.echo(f"no cache in {settings.cache_dir}")
    else:
        _show_collected(collected, bounds, dry_run)
    raise SystemExit(FOUND_WRONG if collected.over or collected.failed else 0)


def _show_collected(collected: Collected, bounds: Bounds, dry_run: bool) -> None:
    parts = [quantities.counted(collected.entries, "entry", "entries"), quantities.counted(collected.blobs, "blob")]
    if collected.others:
        parts.append(quantities.counted(collected.others, "other file"))
    removed = f"{', '.join(parts[:-1])} and {parts[-1]} ({quantities.size(collected.freed.bytes)})"
    lines = [f"{'would remove' if dry_run else 'removed'} {removed}"]
    left = collected.before - collected.freed
    kept = f"{quantities.size(left.bytes)} in {quantities.counted(left.files, 'file')}"
    lines.append(f"left: {kept}; {_bounds(bounds.max_bytes, bounds.max_files)}")
    if collected.failed:
        lines.append(f"{quantities.counted(collected.failed, 'file')} could not be removed")
    if collected.over:
        lines.append(
            "still over the limits: the rest was used in the last minutes or is never evicted (see `fxpool stats`)"
        )
    for line in lines:
        click.echo(wrapped("", line, width()))


@cache.command("clear")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--everything", is_flag=True, help="Remove the directory, too: to uninstall, after `fxpool stop --all`.")
def cache_clear(yes: bool, everything: bool) -> None:
    """Remove everything from the cache directory.

    Entries, blobs, precompiled headers, facts about hosts, and the quarantine.
    """
    from fxpool.codecache.store import contents

    store = existing_store()
    if store is None:
        click.echo(f"no cache in {config.current().cache_dir}")
        return
    if not yes:
        click.confirm(f"remove {_listed(contents.measure(store.root))} in {store.root}?", abort=True)
    cleared = contents.clear(store.root, everything=everything)
    click.echo(f"removed {_listed(cleared.removed)} in {store.root}")
    for header in cleared.in_use:
        click.echo(f"not removed, in use: the precompiled header {header}")
    left = [share for kind, share in cleared.left.items() if kind != contents.FOREIGN and share.files]
    if left:
        files = quantities.counted(sum(share.files for share in left), "file")
        click.echo(f"left: {files} ({quantities.size(sum(share.bytes for share in left))}), in use or just written")
    if foreign := cleared.left[contents.FOREIGN].files:
        click.echo(f"not touched: {quantities.counted(foreign, 'file')} that fxpool did not write")
    if everything and left:
        raise click.exceptions.Exit(1)


def _listed(shares: dict[str, Any]) -> str:
    """Format as ``12 entries, 24 blobs and 9 other files (155.0 MB)``, without files that fxpool did not write."""
    from fxpool.codecache.store import contents

    ours = {kind: share for kind, share in shares.items() if kind != contents.FOREIGN}
    numbers = {kind: share.files for kind, share in ours.items()}
    entries, blobs = numbers.pop(contents.ENTRIES), numbers.pop(contents.BLOBS)
    parts = [quantities.counted(entries, "entry", "entries"), quantities.counted(blobs, "blob")]
    if others := sum(numbers.values()):
        parts.append(quantities.counted(others, "other file"))
    return f"{', '.join(parts[:-1])} and {parts[-1]} ({quantities.size(sum(share.bytes for share in ours.values()))})"


def existing_store() -> LocalStore | None:
    """Return the configured store; None if its directory does not exist, which must not be created here.

    Raises OSError if the directory cannot be read: reporting an empty cache would be wrong.
    """
    cache_dir = config.current().cache_dir
    try:
        with os.scandir(cache_dir):
            pass
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.exists(cache_dir):
            return None
    from fxpool.codecache.store.store import LocalStore

    return LocalStore(str(cache_dir))


def _summary(one: StoredEntry) -> dict[str, Any]:
    entry = one.entry
    size = one.size + (sum(ref.size for ref in entry.blobs.values()) if entry else 0)
    origin = entry.metadata.origin if entry else None
    return {
        "key": one.key,
        "name": one.name,
        "label": entry.metadata.label if entry else None,
        "origin": msgspec.to_builtins(origin) if origin is not None else None,
        "torch_version": entry.metadata.torch_version if entry else "",
        "guards": len(entry.guards) if entry else 0,
        "compile_seconds": entry.metadata.compile_seconds if entry else 0.0,
        "created": entry.metadata.created if entry else None,
        "used": one.used,
        "bytes": size,
    }


def _details(one: StoredEntry) -> dict[str, Any]:
    from fxpool.codecache.guards.guards import render

    details = _summary(one)
    if one.entry is not None:
        details["guards"] = [render(guard) for guard in one.entry.guards]
        details["components"] = [
            {"name": component.name, "digest": component.digest, "text": component.text}
            for component in one.entry.components
        ]
        details["blobs"] = {
            role: {"digest": ref.digest, "size": ref.size} for role, ref in sorted(one.entry.blobs.items())
        }
    return details
