"""``cache verify --recompute``: compiles entries again and reports differences. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fxpool import config, quantities
from fxpool.commands.output import SHORT, entry_name, fail

if TYPE_CHECKING:
    from fxpool.codecache.store.entry import Entry
    from fxpool.codecache.store.store import LocalStore

__all__ = ["verify_again"]


def verify_again(entries: Sequence[Entry], store: LocalStore, count: int, seed: int) -> bool:
    """Recompile `count` of `entries` and print how they compare; return whether all are equal."""
    from fxpool.lowering import verification  # imports torch, which `verify` alone does not need

    if config.current().pool == "off":
        fail("recompiling needs workers, which FXPOOL_POOL=off disables")
    chosen = verification.sample(entries, count, seed)
    equal = failed = differing = 0
    for entry, found in verification.recomputed(chosen, store, seed):
        line = f"{entry.key[:SHORT]}  {quantities.one_line(entry_name(entry))}"
        if isinstance(found, str):
            failed += 1
            click.echo(f"{line}  could not be recompiled: {found}")
        elif found.differences:
            differing += 1
            click.echo(f"{line}  DIFFERS: {', '.join(found.differences)}")
            for what, difference in found.differences.items():
                click.echo(f"    {what}:")
                click.echo("\n".join(f"      {one}" for one in difference.splitlines()))
        else:
            equal += 1
            run = f"outputs not compared: {found.not_run}" if found.not_run else "equal code, equal outputs"
            click.echo(f"{line}  {run}")
    again = quantities.counted(len(chosen), "entry", "entries")
    click.echo(f"recompiled {again}: {equal} equal, {differing} differing, {failed} failed")
    without = sum("request" not in entry.blobs for entry in entries)
    if without:
        kept = quantities.counted(without, "entry holds", "entries hold")
        click.echo(f"{kept} no request to recompile; set FXPOOL_KEEP_REQUESTS=1 to store requests with new entries")
    return not differing and not failed and bool(chosen or not entries)
