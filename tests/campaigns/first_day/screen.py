"""The text on a terminal after a program wrote to it: as much of one as progress displays use.

The cursor's movements, erasing, and scrolling back without end; colours and modes are read over.
"""

from __future__ import annotations

import re

__all__ = ["Screen"]

_CONTROL = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b[()][A-Z0-9]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")


class Screen:
    """Lines of `columns` characters, and a cursor."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    def lines(self) -> list[str]:
        """All that is shown or has been scrolled out, without spaces at the end."""
        return ["".join(row).rstrip() for row in self._rows]

    def write(self, text: str) -> None:
        """Let the terminal have `text`, which is complete: no sequence is cut at its end."""
        at = 0
        while at < len(text):
            found = _CONTROL.match(text, at)
            if found is not None:
                if found[2]:
                    self._control(found[2], found[1])
                at = found.end()
                continue
            self._character(text[at])
            at += 1

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down(1)
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column >= self._columns:
                self._column = 0
                self._down(1)
            row = self._rows[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = character
            self._column += 1

    def _down(self, count: int) -> None:
        self._row += count
        while self._row >= len(self._rows):
            self._rows.append([])

    def _control(self, final: str, parameters: str) -> None:
        first = parameters.split(";")[0]
        count = int(first) if first.isdigit() else 0
        if final == "A":
            self._row = max(0, self._row - max(1, count))
        elif final == "B":
            self._down(max(1, count))
        elif final == "C":
            self._column = min(self._columns - 1, self._column + max(1, count))
        elif final == "D":
            self._column = max(0, self._column - max(1, count))
        elif final == "G":
            self._column = max(0, count - 1)
        elif final == "K":
            row = self._rows[self._row]
            if count == 0:
                del row[self._column :]
            elif count == 1:
                row[: self._column] = " " * min(self._column, len(row))
            else:
                row.clear()
        elif final == "J":
            if count == 0:
                del self._rows[self._row][self._column :]
                del self._rows[self._row + 1 :]
            else:
                for row in self._rows:
                    row.clear()
