"""Kinds of changes, for `frame_kinds`, that were served wrongly once: `HUNTED`, written in ``hunted.toml``.

A frame of these may be refused, or fit no other process: see `Kind.lenient`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from frame_programs import Kind, function

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings this
    import tomli as tomllib

__all__ = ["HUNTED"]


def _kind(row: dict[str, Any]) -> Kind:
    inputs = row.get("inputs", "torch.randn(4, 8)")
    text = function(row["body"], row.get("more", ""), inputs) if "body" in row else row["more"]
    others: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.items()
        if name not in ("body", "more", "inputs")
    }
    return Kind(text, lenient=True, **others)


_TABLE = tomllib.loads(Path(__file__).with_name("hunted.toml").read_text())
HUNTED = {f"hunted: {name}": _kind(row) for name, row in _TABLE.items()}
