"""An entry in detail, and the lines in which its key differs from that of an earlier entry."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from fxpool.codecache.guards.guards import render
from fxpool.codecache.store.entry import Entry

__all__ = ["changed_lines", "details"]

_LINES = 60
_WIDTH = 400


def details(entry: Entry, before: Entry | None = None, differing: Sequence[str] = ()) -> dict[str, Any]:
    """Return an entry as plain data; `before` is the entry that was nearest when it was made."""
    meta, source = entry.metadata, entry.metadata.source
    return {
        "key": entry.key,
        "name": entry.name,
        "label": meta.label,
        "function": source.name,
        "place": source.location,
        "inputs": source.inputs,
        "parameters": source.parameters,
        "created": meta.created,
        "seconds": meta.compile_seconds,
        "torch": meta.torch_version,
        "extra": {name: str(value) for name, value in sorted(meta.extra.items())},
        "guards": [render(guard) for guard in entry.guards],
        "blobs": [{"role": role, "digest": ref.digest, "bytes": ref.size} for role, ref in sorted(entry.blobs.items())],
        "components": [
            {"name": component.name, "digest": component.digest, "text": component.text}
            for component in entry.components
        ],
        "before": _before(entry, before, differing) if before is not None else None,
    }


def _before(entry: Entry, before: Entry, differing: Sequence[str]) -> dict[str, Any]:
    texts, old = _texts(entry), _texts(before)
    return {
        "key": before.key,
        "name": before.name,
        "created": before.metadata.created,
        "differs": [
            {"name": name, "lines": changed_lines(old.get(name, ""), texts.get(name, ""))} for name in differing
        ],
    }


def _texts(entry: Entry) -> dict[str, str]:
    """Return the texts that describe each component and the guards; inputs also as the program has them."""
    texts = {component.name: component.text for component in entry.components}
    texts["guards"] = "\n".join(render(guard) for guard in entry.guards)
    if entry.metadata.origin is not None:
        texts["inputs"] = "\n".join([*entry.metadata.origin.inputs, texts.get("inputs", "")])
    return texts


def changed_lines(old: str, new: str) -> list[str]:
    """Return the lines that are in one text only, after ``- `` (old) or ``+ `` (new); at most 60.

    Empty where two texts are equal: they are shortened for people, the digests are of the whole.
    """
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    changed = [f"{line[0]} {line[1 : _WIDTH + 1]}" for line in lines if line[:1] in ("-", "+")]
    return changed[:_LINES]
