"""Writes share/man/man1/fxpool.1, which the wheel installs, from docs/fxpool.1.md.

    python docs/man_page.py

Knows the Markdown of that page only: headings, paragraphs, tables of two columns, and indented code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

SOURCE = Path(__file__).with_name("fxpool.1.md")
PAGE = Path(__file__).parents[1] / "share" / "man" / "man1" / "fxpool.1"
_CELL = re.compile(r"(?<!\\)\|")


def page() -> str:
    """Return the page in roff, for man(1)."""
    return "".join(f"{line}\n" for line in _lines(SOURCE.read_text(encoding="utf-8")))


def _lines(markdown: str) -> Iterator[str]:
    yield f'.\\" Made from docs/{SOURCE.name} by docs/man_page.py.'
    yield '.TH FXPOOL 1 "" fxpool "User Commands"'
    for has_text, group in groupby(markdown.splitlines(), key=lambda line: bool(line.strip())):
        block = list(group)
        if not has_text or block[0].startswith("# "):
            continue
        if block[0].startswith("## "):
            yield f".SH {block[0][3:].upper()}"
        elif block[0].startswith("|"):
            yield from _table(block[2:])
        elif block[0].startswith("    "):
            yield from (".PP", ".nf", *(_escaped(line[4:]) for line in block), ".fi")
        else:
            yield ".PP"
            yield from _inline(" ".join(block))


def _table(rows: list[str]) -> Iterator[str]:
    for row in rows:
        term, text = (cell.strip().replace("\\|", "|") for cell in _CELL.split(row)[1:3])
        yield ".TP"
        yield from _inline(term)
        yield from _inline(text)


def _inline(text: str) -> Iterator[str]:
    """Yield one line of roff: code and emphasis in bold, links as their text."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    parts = re.split(r"`([^`]+)`|\*\*([^*]+)\*\*", text)
    bold = [part for part in parts if part is not None]
    shown = "".join(rf"\fB{_escaped(part)}\fR" if index % 2 else _escaped(part) for index, part in enumerate(bold))
    yield rf"\&{shown}" if shown[:1] in (".", "'") else shown


def _escaped(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
