"""The command `fxpool`.

A mistake of the user's or a store that may not be used prints one clear message and exits with status 2; what a
command found to be wrong (a failed measurement, a damaged entry) exits with 1. Only the demonstration's own
processes import torch.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fxpool
from fxpool import config, device_command, server_commands
from fxpool.errors import FxpoolError

if TYPE_CHECKING:
    from fxpool.codecache.entry import Entry
    from fxpool.codecache.store import LocalStore, StoredEntry

__all__ = ["main"]

SHORT = 12  # characters of a key that are shown, and enough to name one


class _Commands(click.Group):
    """A group whose commands end with one message instead of a traceback when fxpool refuses something."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FxpoolError as error:
            _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"fxpool: {message}", err=True)
    raise SystemExit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fxpool.__version__, prog_name="fxpool", message="%(prog)s %(version)s")
def main() -> None:
    """A compile service for torch.compile: torch.compile(model, backend="fxpool")."""


@main.command()
@click.option(
    "--backends",
    default="fxpool,inductor,eager",
    show_default=True,
    help="What to compare, separated by commas; the names that torch.compile knows.",
)
def demo(backends: str) -> None:
    """Measure GPT-2 and BERT beside stock Inductor and eager.

    Models of random weights, nothing is downloaded; temporary caches, yours is not touched. A few minutes.
    """
    from fxpool.demo import run_demo

    names = [name.strip() for name in backends.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name at least one backend", param_hint="--backends")
    raise SystemExit(run_demo(_console(), names))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Plain data instead of a table.")
def stats(as_json: bool) -> None:
    """What the store holds. Hits and misses are counted per process: fxpool.stats() in yours."""
    settings = config.current()
    store = _store()
    data: dict[str, Any] = {"cache_dir": str(settings.cache_dir), "entries": 0, "blobs": 0, "bytes": 0}
    data |= {"compile_seconds": 0.0, "unreadable_entries": 0}
    if store is not None:
        data |= store.sizes()
        for found in store.scan():
            if found.entry is None:
                data["unreadable_entries"] += 1
            else:
                data["compile_seconds"] += found.entry.metadata.compile_seconds
    data["cache_max_bytes"], data["cache_max_files"] = settings.cache_max_bytes, settings.cache_max_files
    if as_json:
        click.echo(json.dumps(data))
        return
    files = data["entries"] + data["blobs"]
    rows = {
        "directory": data["cache_dir"],
        "entries": f"{data['entries']}",
        "blobs": f"{data['blobs']}",
        "size": f"{_size(data['bytes'])} of {_size(data['cache_max_bytes'])}",
        "files": f"{files} of {data['cache_max_files']}",
        "compile time kept": f"{data['compile_seconds']:.1f} s",
    }
    if data["unreadable_entries"]:
        rows["unreadable entries"] = f"{data['unreadable_entries']} (fxpool cache verify)"
    width = max(map(len, rows))
    for name, value in rows.items():
        click.echo(f"{name:<{width}}  {value}")


for command in (server_commands.serve, server_commands.status, server_commands.stop, device_command.device):
    main.add_command(command)


@main.group()
def cache() -> None:
    """Look at the store and clean it."""


@cache.command("ls")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def cache_list(as_json: bool) -> None:
    """One line per entry, most recently used first."""
    store = _store()
    found = sorted(store.scan(), key=lambda one: one.used, reverse=True) if store else []
    if as_json:
        for one in found:
            click.echo(json.dumps(_summary(one)))
        return
    if not found:
        click.echo(f"no entries in {config.current().cache_dir}")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "graph", "torch"):
        table.add_column(heading)
    for heading in ("guards", "compiled in", "size", "used"):
        table.add_column(heading, justify="right")
    for one in found:
        summary = _summary(one)
        table.add_row(
            one.key[:SHORT],
            escape(summary["label"]) if one.entry else "(unreadable)",
            summary["torch_version"],
            str(summary["guards"]),
            f"{summary['compile_seconds']:.1f} s",
            _size(summary["bytes"]),
            _ago(one.used),
        )
    _console().print(table)


@cache.command("show")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Plain data.")
@click.option("--code", is_flag=True, help="The generated wrappers and kernels instead (imports torch).")
def cache_show(key: str, as_json: bool, code: bool) -> None:
    """Components, guards, blobs and metadata of the entries whose key begins with KEY."""
    store = _store()
    found = [one for one in store.scan() if one.key.startswith(key.lower())] if store and key else []
    keys = sorted({one.key for one in found})
    if not keys:
        _fail(f"no entry whose key begins with {key!r}\n  `fxpool cache ls` lists them")
    if len(keys) > 1:
        _fail(f"{len(keys)} keys begin with {key!r}\n  " + "\n  ".join(name[: SHORT + 8] for name in keys[:8]))
    if as_json:
        click.echo(json.dumps([_details(one) for one in found]))
        return
    if code:
        for one in found:
            if one.entry is not None and store is not None:
                _show_code(one.entry, store)
        return
    for number, one in enumerate(found):
        if number:
            click.echo()
        click.echo(f"key        {one.key}")
        if one.entry is None:
            click.echo("           (unreadable: damaged, or written by another version)")
            continue
        _show_entry(one.entry)


def _show_entry(entry: Entry) -> None:
    from fxpool.codecache.guards import render

    meta = entry.metadata
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(meta.created))
    click.echo(f"graph      {meta.label}")
    click.echo(f"created    {created}, torch {meta.torch_version}, compiled in {meta.compile_seconds:.1f} s")
    for name, value in sorted(meta.extra.items()):
        click.echo(f"           {name}: {value}")
    click.echo(f"guards     {len(entry.guards)}")
    for guard in entry.guards:
        click.echo(f"           {render(guard)}")
    click.echo(f"blobs      {len(entry.blobs)}")
    for role, ref in sorted(entry.blobs.items()):
        click.echo(f"           {role}: {ref.digest[:SHORT]}, {_size(ref.size)}")
    click.echo(f"components {len(entry.components)}")
    for component in entry.components:
        text = component.text if len(component.text) <= 100 else component.text[:97] + "..."
        click.echo(f"           {component.name}: {component.digest[:SHORT]} {text}".rstrip())


def _show_code(entry: Entry, store: LocalStore) -> None:
    """As Python: each module under a comment with the name it has in tracebacks."""
    from fxpool.lowering.artifact import generated_code

    for name, text in generated_code(entry, store):
        click.echo(f"# {name}\n{text}")


@cache.command("verify")
def cache_verify() -> None:
    """Check every digest; status 1 if something is damaged. Damaged blobs are moved to `aside`."""
    store = _store()
    sound, unreadable, incomplete = 0, [], []
    for one in store.scan() if store else ():
        if one.entry is None:
            unreadable.append(one)
        elif store is not None and store.complete(one.entry):
            sound += 1
        else:
            incomplete.append(one)
    for kind, found in (("unreadable", unreadable), ("blobs missing or damaged", incomplete)):
        for one in found:
            click.echo(f"{one.key[:SHORT]}  {kind}: {one.path}")
    click.echo(f"{sound} sound, {len(unreadable)} unreadable, {len(incomplete)} without all their blobs")
    raise SystemExit(1 if unreadable or incomplete else 0)


@cache.command("quarantine")
@click.option("--release", "key", help="Let the graph whose key begins like this be compiled again.")
@click.option("--release-all", is_flag=True, help="Let all of them be.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def cache_quarantine(key: str | None, release_all: bool, as_json: bool) -> None:
    """Graphs that killed their workers: they run eagerly until they are released."""
    from fxpool.codecache import quarantine

    store = _store()
    found = list(quarantine.scan(store.root)) if store is not None else []
    if key is not None or release_all:
        chosen = [record for record in found if release_all or record.key.startswith(str(key).lower())]
        if not chosen and not release_all:
            _fail(f"no graph in quarantine has a key that begins with {key!r}")
        released = sum(quarantine.release(store.root, record.key) for record in chosen) if store is not None else 0
        click.echo(f"released {released}")
        return
    for record in found:
        if as_json:
            click.echo(json.dumps(msgspec.to_builtins(record)))
            continue
        click.echo(f"{record.key[:SHORT]}  {record.label}, {_ago(record.when)}: {record.error}")
        if record.log:
            click.echo(f"{'':{SHORT}}  output: {record.log}")
    if not found and not as_json:
        click.echo("no graph is in quarantine")


@cache.command("clear")
@click.option("--yes", is_flag=True, help="Do not ask.")
def cache_clear(yes: bool) -> None:
    """Remove every entry and blob."""
    store = _store()
    if store is None:
        click.echo(f"nothing in {config.current().cache_dir}")
        return
    sizes = store.sizes()
    what = f"{sizes['entries']} entries and {sizes['blobs']} blobs ({_size(sizes['bytes'])}) in {store.root}"
    if not yes:
        click.confirm(f"remove {what}?", abort=True)
    store.clear()
    click.echo(f"removed {what}")


def _console() -> Console:
    console = Console()
    # A file or a pipe has no width; 80 columns would break lines that a log can hold.
    return console if console.is_terminal else Console(width=120)


def _store() -> LocalStore | None:
    """The configured store; None if its directory does not exist, which looking at it must not change."""
    cache_dir = config.current().cache_dir
    if not cache_dir.exists():
        return None
    from fxpool.codecache.store import LocalStore

    return LocalStore(str(cache_dir))


def _summary(one: StoredEntry) -> dict[str, Any]:
    entry = one.entry
    size = one.size + (sum(ref.size for ref in entry.blobs.values()) if entry else 0)
    return {
        "key": one.key,
        "name": one.name,
        "label": entry.metadata.label if entry else None,
        "torch_version": entry.metadata.torch_version if entry else "",
        "guards": len(entry.guards) if entry else 0,
        "compile_seconds": entry.metadata.compile_seconds if entry else 0.0,
        "created": entry.metadata.created if entry else None,
        "used": one.used,
        "bytes": size,
    }


def _details(one: StoredEntry) -> dict[str, Any]:
    from fxpool.codecache.guards import render

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


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
