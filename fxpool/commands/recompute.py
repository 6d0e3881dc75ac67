"""What ``cache verify --recompute`` does and says. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fxpool import config, quantities
from fxpool.commands.output import fail

if TYPE_CHECKING:
    from fxpool.codecache.store.entry import Entry
    from fxpool.codecache.store.store import LocalStore

__all__ = ["verify_again"]

_SHORT = 12  # characters of a key, as in the other commands


def verify_again(entries: Sequence[Entry], store: LocalStore, count: int, seed: int) -> bool:
    """Compile `count` of `entries` again and say how they compare; return whether all are as they were."""
    from fxpool.lowering import verification  # imports torch, which `verify` alone does without

    if config.current().pool == "off":
        fail("compiling again takes workers, and FXPOOL_POOL=off rules them out")
    chosen = verification.sample(entries, count, seed)
    equal = failed = differing = 0
    for entry, found in verification.recomputed(chosen, store, seed):
        line = f"{entry.key[:_SHORT]}  {_name(entry)}"
        if isinstance(found, str):
            failed += 1
            click.echo(f"{line}  can't be compiled again: {found}")
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
    click.echo(f"compiled {again} again: {equal} equal, {differing} differing, {failed} failed")
    without = sum("request" not in entry.blobs for entry in entries)
    if without:
        kept = quantities.counted(without, "entry was", "entries were")
        click.echo(f"{kept} kept without what to compile again from: FXPOOL_KEEP_REQUESTS=1 keeps it with new ones")
    return not differing and not failed and bool(chosen or not entries)


def _name(entry: Entry) -> str:
    origin = entry.metadata.origin
    return (origin.name if origin is not None else "") or entry.metadata.label or "(no name)"
