"""Commands for the cache directory as a whole: `stats`, and `cache` with quarantine, gc and clear.

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fxpool import config, quantities
from fxpool.commands.output import FOUND_WRONG, SHORT, fail, show_rows, width, wrapped

if TYPE_CHECKING:
    from fxpool.codecache.store.cache_limits import Bounds
    from fxpool.codecache.store.catalogue import Size
    from fxpool.codecache.store.collector import Collected
    from fxpool.codecache.store.host_statistics import Totals
    from fxpool.codecache.store.store import LocalStore

__all__ = ["cache", "existing_store", "stats"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
@click.option("--summary", is_flag=True, help="Output one line with the counters, such as for a pipeline's log.")
@click.option("--zero", is_flag=True, help="Set the counters to zero; entries stay.")
def stats(as_json: bool, summary: bool, zero: bool) -> None:
    """Show the size of the cache, and counters of the last 30 days.

    The counters are those of all processes with this cache directory. The hit rate is the part of lookups that found
    an entry.
    """
    from fxpool.codecache.store import catalogue, collector, host_statistics, layout

    store = existing_store()
    if summary:
        click.echo(_summary(store.root if store is not None else None))
        return
    if zero:
        if store is not None:
            host_statistics.clear(store.root)
        click.echo(f"the counters in {config.current().cache_dir} are zero now")
        return
    settings = config.current()
    data: dict[str, Any] = {"cache_dir": str(settings.cache_dir), "entries": 0, "blobs": 0, "bytes": 0}
    data |= {"compile_seconds": 0.0, "unreadable_entries": 0}
    data |= {"max_bytes": settings.cache_max_bytes, "max_files": settings.cache_max_files, "evicted": None}
    sizes = dict.fromkeys(layout.KINDS, catalogue.Size())
    if store is not None:
        data |= store.sizes()
        sizes = catalogue.measure(store.root)
        if (evicted := collector.evicted(store.root)) is not None:
            data["evicted"] = {"entries": evicted.files, "bytes": evicted.bytes}
        for listed in store.scan():
            if listed.entry is None:
                data["unreadable_entries"] += 1
            else:
                data["compile_seconds"] += listed.entry.metadata.compile_seconds
    disk = catalogue.sum_of(sizes.values())
    data |= {"disk_bytes": disk.bytes, "disk_files": disk.files}
    data["parts"] = {kind: {"files": size.files, "bytes": size.bytes} for kind, size in sizes.items()}
    days = host_statistics.read(store.root) if store is not None else {}
    total = host_statistics.added(days.values())
    data["host"] = {"total": total.plain(), "days": {day: one.plain() for day, one in days.items()}}
    data["host"]["hit_rate"] = total.hit_rate
    if as_json:
        click.echo(json.dumps(data))
        return
    rows = {"directory": data["cache_dir"]}
    for kind, size in sizes.items():
        if kind in ("entries", "blobs"):
            rows[kind] = f"{data[kind]}, {quantities.size(size.bytes)}"
        elif size.bytes:
            rows[kind] = _sized(size)
    in_all = f"{quantities.size(disk.bytes)} on disk in {quantities.counted(disk.files, 'file')}"
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


def _summary(root: str | None) -> str:
    """Format the counters as ``fxpool: 41 hits, 2 misses, 2 compiles, 3m12s saved``."""
    from fxpool.codecache.store import host_statistics

    total = host_statistics.added(host_statistics.read(root).values()) if root is not None else host_statistics.Totals()
    saved = quantities.short_span(total.seconds_saved)
    return f"fxpool: {', '.join(_lookups(total))}, {saved} saved"


def _sized(size: Size) -> str:
    """Format as ``1.2 MB in 3 files``."""
    return f"{quantities.size(size.bytes)} in {quantities.counted(size.files, 'file')}"


def _bounds(max_bytes: int | None, max_files: int | None) -> str:
    """Format as ``limited to 10.0 GB and 100,000 files``."""
    limits = [quantities.size(max_bytes)] if max_bytes is not None else []
    limits += [quantities.counted(max_files, "file")] if max_files is not None else []
    return f"limited to {' and '.join(limits)}" if limits else "no limit"


def _counted(totals: Totals) -> str:
    """Format as ``3 processes: 12 hits, 2 misses, 2 compiles, 31 s saved``."""
    saved = f"{quantities.span(totals.seconds_saved)} saved"
    return f"{quantities.counted(totals.processes, 'process', 'processes')}: {', '.join([*_lookups(totals), saved])}"


def _lookups(totals: Totals) -> list[str]:
    """Return the counters of lookups and compiles as text."""
    data = totals.plain()
    parts = [quantities.counted(data["hits"], "hit"), quantities.counted(data["misses"], "miss", "misses")]
    if data["guard_misses"]:
        parts.append(quantities.counted(data["guard_misses"], "guard miss", "guard misses"))
    return [*parts, quantities.counted(sum(data["compiles"].values()), "compile")]


@click.group()
def cache() -> None:
    """Inspect and clean the cache directory."""


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
    from fxpool.codecache.store.cache_limits import Bounds

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
    removed = _counted_files(collected.entries, collected.blobs, collected.others, collected.freed.bytes)
    lines = [f"{'would remove' if dry_run else 'removed'} {removed}"]
    left = collected.before - collected.freed
    lines.append(f"left: {_sized(left)}; {_bounds(bounds.max_bytes, bounds.max_files)}")
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
    from fxpool.codecache.store import catalogue, layout, removal

    store = existing_store()
    if store is None:
        click.echo(f"no cache in {config.current().cache_dir}")
        return
    if not yes:
        click.confirm(f"remove {_listed(catalogue.measure(store.root))} in {store.root}?", abort=True)
    cleared = removal.clear(store.root, everything=everything)
    click.echo(f"removed {_listed(cleared.removed)} in {store.root}")
    for path in cleared.in_use:
        kind = "directory" if os.path.dirname(path).endswith(layout.BUILT_DIRECTORY) else "precompiled header"
        click.echo(f"not removed, in use: the {kind} {path}")
    left = catalogue.sum_of(size for kind, size in cleared.left.items() if kind != layout.FOREIGN and size.files)
    if left.files:
        files = quantities.counted(left.files, "file")
        click.echo(f"left: {files} ({quantities.size(left.bytes)}), in use or just written")
    if foreign := cleared.left[layout.FOREIGN].files:
        click.echo(f"not touched: {quantities.counted(foreign, 'file')} that fxpool did not write")
    if everything and left.files:
        raise click.exceptions.Exit(1)


def _listed(sizes: dict[str, Size]) -> str:
    """Format as ``12 entries, 24 blobs and 9 other files (155.0 MB)``, without files that fxpool did not write."""
    from fxpool.codecache.store import catalogue, layout

    total = catalogue.sum_of(size for kind, size in sizes.items() if kind != layout.FOREIGN)
    entries, blobs = sizes[layout.ENTRIES].files, sizes[layout.BLOBS].files
    return _counted_files(entries, blobs, total.files - entries - blobs, total.bytes)


def _counted_files(entries: int, blobs: int, others: int, in_bytes: int) -> str:
    parts = [quantities.counted(entries, "entry", "entries"), quantities.counted(blobs, "blob")]
    if others:
        parts.append(quantities.counted(others, "other file"))
    return f"{', '.join(parts[:-1])} and {parts[-1]} ({quantities.size(in_bytes)})"


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
