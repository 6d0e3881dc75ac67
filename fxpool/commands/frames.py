"""The commands ``fxpool frames ls``, ``show`` and ``diff``, for frames that Dynamo need not trace.

Modules are imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fxpool import config, quantities
from fxpool.commands.cache import existing_store
from fxpool.commands.output import FOUND_WRONG, SHORT, fail, filled, width, wrapped

if TYPE_CHECKING:
    from fxpool.codecache.store.entry import Entry
    from fxpool.codecache.store.store import LocalStore

__all__ = ["frames"]


class _Frame(NamedTuple):
    """A record. `name` tells it from the others, also from those of its key."""

    name: str
    entry: Entry
    used: float
    store: LocalStore

    def record(self) -> dict[str, Any]:
        """Return the record as plain data; ends the command if it can't be read."""
        import msgspec

        (blob,) = self.entry.blobs.values()
        data = self.store.read_blob(blob)
        if data is None:
            fail(f"the record {self.name} is damaged, and was set aside")
        record: dict[str, Any] = msgspec.msgpack.decode(data)
        return record


@click.group()
def frames() -> None:
    """Inspect the frames that Dynamo need not trace (FXPOOL_FRAMES)."""


@frames.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Output one JSON object per line.")
def frames_list(as_json: bool) -> None:
    """List frames, most recently used first.

    Facts are what a frame depends on: each was changed once when the frame was kept, and made it unfit.
    """
    listed = sorted(_frames(), key=lambda one: one.used, reverse=True)
    for one in listed:
        meta = one.entry.metadata
        if as_json:
            click.echo(
                json.dumps({"frame": one.name, "created": meta.created, "used": one.used, **_origin(one), **meta.extra})
            )
            continue
        parts = [_function(one)]
        parts += [quantities.counted(meta.extra.get(f"{name}s", 0), name) for name in ("guard", "fact", "graph")]
        parts += [f"kept {quantities.moment(meta.created)}", f"torch {meta.torch_version}"]
        parts += [
            quantities.size(sum(blob.size for blob in one.entry.blobs.values())),
            f"used {quantities.ago(one.used)}",
        ]
        click.echo(filled(f"{one.name}  ", [quantities.one_line(part) for part in parts], width()))
    if not listed and not as_json:
        click.echo(f"no frames in {config.current().cache_dir}")


@frames.command("show")
@click.argument("frame")
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
@click.option("--code", is_flag=True, help="Show the byte code, too (imports torch).")
def frames_show(frame: str, as_json: bool, code: bool) -> None:
    """Show what a frame depends on.

    FRAME is a name as `fxpool frames ls` shows it, or its start.
    """
    from fxpool.frames import fact_text  # without torch

    one = _chosen(frame)
    record = one.record()
    facts = [*fact_text.facts(record)]
    if as_json:
        click.echo(json.dumps({"frame": one.name, **_origin(one), "facts": facts}))
        return
    click.echo(wrapped(f"{'frame':<12}", f"{one.name}, {_function(one)}", width()))
    for kind, text in facts:
        click.echo(wrapped(f"{kind:<12}", quantities.one_line(text), width()))
    if code:
        import dis

        from fxpool.frames import byte_code  # imports torch

        dis.dis(byte_code.load(record["code"]))


@frames.command("diff")
@click.argument("first")
@click.argument("second")
def frames_diff(first: str, second: str) -> None:
    """Show the facts in which two frames differ.

    The exit status is 1 if there are any.
    """
    from fxpool.frames import fact_text  # without torch

    sides = [dict.fromkeys(fact_text.facts(_chosen(name).record())) for name in (first, second)]
    lines = [
        (sign, kind, text)
        for sign, facts, others in (("-", sides[0], sides[1]), ("+", sides[1], sides[0]))
        for kind, text in facts
        if (kind, text) not in others
    ]
    for sign, kind, text in lines:
        click.echo(wrapped(f"{sign} {kind:<12}", quantities.one_line(text), width()))
    raise SystemExit(FOUND_WRONG if lines else 0)


def _frames() -> Iterator[_Frame]:
    store = existing_store()
    if store is None:
        return
    for stored in store.scan():
        entry = stored.entry
        if entry is not None and isinstance(entry.content, dict) and entry.content.get("level") == "frame":
            yield _Frame(f"{entry.key[:SHORT]}.{stored.name[:8]}", entry, stored.used, store)


def _chosen(name: str) -> _Frame:
    found = [one for one in _frames() if name and one.name.startswith(name.lower())]
    if not found:
        fail(f"no frame has a name that starts with {name!r}\n  `fxpool frames ls` lists the frames")
    if len(found) > 1:
        fail(f"{len(found)} names start with {name!r}\n  " + "\n  ".join(one.name for one in found[:8]))
    return found[0]


def _origin(frame: _Frame) -> dict[str, str]:
    source = frame.entry.metadata.source
    return {"function": source.name, "place": source.location}


def _function(frame: _Frame) -> str:
    return ", ".join(filter(None, _origin(frame).values()))
