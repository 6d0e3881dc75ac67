"""Tables in text and HTML, for a terminal and a notebook.

The HTML inherits colors and font from the notebook, so that it fits light and dark themes, and it scrolls in a narrow
cell. All text is escaped: names of graphs and messages come from programs.

html is imported inside functions: `fxpool.stats()` alone needs no markup.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["block", "grid", "table", "text_table"]

_FRAME = '<div style="overflow-x:auto;margin:0.2em 0"><table style="border-collapse:collapse;font:inherit">'
_CELL = "text-align:left;vertical-align:top;padding:0.1em 0.9em 0.1em 0;min-width:3em"
_NUMBER = f"{_CELL};text-align:right;white-space:nowrap"
_NAME = f"{_CELL};white-space:nowrap"
_TEXT = f"{_CELL};white-space:pre-wrap;overflow-wrap:break-word"


def block(title: str, *parts: str) -> str:
    """Return HTML of a heading above `parts`, which are HTML."""
    return f'<div style="max-width:72em;margin:0.5em 0"><b>{_escaped(title)}</b>{"".join(parts)}</div>'


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return HTML of names with their values; a line break in a value is shown as one."""
    body = "".join(f"<tr>{_cell('td', _NAME, name)}{_cell('td', _TEXT, value)}</tr>" for name, value in rows)
    return f"{_FRAME}<tbody>{body}</tbody></table></div>"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Return HTML of a table with `headings`; the columns with a heading in `right` are aligned to the right."""
    styles = [_NUMBER if heading in right else _TEXT for heading in headings]

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(_cell(tag, style, cell) for style, cell in zip(styles, cells, strict=True))}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"{_FRAME}<thead>{line('th', headings)}</thead><tbody>{body}</tbody></table></div>"


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Return a table as text; the columns with a heading in `right` are aligned to the right."""
    lines = [headings, *rows] if headings else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    to_right = [heading in right for heading in headings] if headings else [False] * len(widths)

    def text(row: Sequence[str]) -> str:
        cells = zip(row, widths, to_right, strict=True)
        return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip()

    return "\n".join(map(text, lines))


def _cell(tag: str, style: str, text: str) -> str:
    return f'<{tag} style="{style}">{_escaped(text)}</{tag}>'


def _escaped(text: str) -> str:
    import html

    return html.escape(text)
