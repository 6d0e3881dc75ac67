"""Tables in text and HTML, for a terminal and a notebook.

The HTML inherits colors and font from the notebook, so that it fits light and dark themes, and it scrolls in a narrow
cell. All text is escaped: names of graphs and messages come from programs.

html is imported inside functions: `fxpool.stats()` alone needs no markup.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["block", "grid", "table", "text_table"]

_FRAME = '<div style="overflow-x:auto;margin:0.2em 0"><table style="border-collapse:collapse;font:inherit">'
_CELL = "text-align:left;vertical-align:top;padding:0.1em 0.9em 0.1em 0;min-width:3em"
_NAME = f"{_CELL};white-space:nowrap"
_TEXT = f"{_CELL};white-space:pre-wrap;overflow-wrap:break-word"


def block(title: str, *parts: str) -> str:
    """Return HTML of a heading above `parts`, which are HTML."""
    return f'<div style="max-width:72em;margin:0.5em 0"><b>{_escaped(title)}</b>{"".join(parts)}</div>'


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return HTML of names with their values; a line break in a value is shown as one."""
    body = "".join(f"<tr>{_cell('td', _NAME, name)}{_cell('td', _TEXT, value)}</tr>" for name, value in rows)
    return f"{_FRAME}<tbody>{body}</tbody></table></div>"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return HTML of a table with `headings`."""
    head = "".join(_cell("th", _TEXT, heading) for heading in headings)
    body = "".join(f"<tr>{''.join(_cell('td', _TEXT, cell) for cell in row)}</tr>" for row in rows)
    return f"{_FRAME}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, its columns aligned to the left."""
    lines = [headings, *rows] if headings else rows
    widths = [max(len(row[number]) for row in lines) for number in range(len(lines[0]))] if lines else []
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def _cell(tag: str, style: str, text: str) -> str:
    return f'<{tag} style="{style}">{_escaped(text)}</{tag}>'


def _escaped(text: str) -> str:
    import html

    return html.escape(text)
