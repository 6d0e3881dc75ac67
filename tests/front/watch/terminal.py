"""A small terminal: what somebody sees of what a program writes to one, and what has scrolled out of sight."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

_PART = re.compile(r"\x1b\[(?P<private>\?)?(?P<numbers>[\d;]*)(?P<final>[A-Za-z])|(?P<control>[\r\n\x08])|(?P<text>.)")


class Screen:
    """Lines of text and a cursor. Raises ValueError for what it does not know."""

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    def feed(self, text: str) -> None:
        for part in _PART.finditer(text):
            if part["text"]:
                self._put(part["text"])
            elif part["control"]:
                self._control(part["control"])
            elif not part["private"] and part["final"] != "m":  # modes (the cursor is hidden), colours
                self._move(part["final"], int(part["numbers"].split(";")[0] or 0))

    def _put(self, character: str) -> None:
        if not character.isprintable():
            raise ValueError(f"the terminal does not know {character!r}")
        if self.column == self.columns:
            self._control("\r")
            self._control("\n")
        row = self.rows[self.row]
        row.extend(" " * (self.column + 1 - len(row)))
        row[self.column] = character
        self.column += 1

    def _control(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\x08":
            self.column = max(0, self.column - 1)
        else:
            self.row += 1
            if self.row == len(self.rows):
                self.rows.append([])

    def _move(self, final: str, number: int) -> None:
        if final == "A":
            self.row = max(0, self.row - (number or 1))
        elif final == "B":
            self.row = min(len(self.rows) - 1, self.row + (number or 1))
        elif final == "G":
            self.column = max(0, number - 1)
        elif final == "K":
            row = self.rows[self.row]
            self.rows[self.row] = [] if number == 2 else row[: self.column] if number == 0 else row
        elif final == "J" and number == 0:
            del self.rows[self.row + 1 :]
            del self.rows[self.row][self.column :]
        else:
            raise ValueError(f"the terminal does not know the sequence {number}{final}")


def shown(arguments: Sequence[str], environment: dict[str, str], *, columns: int = 80) -> Screen:
    """What a terminal shows of an interpreter with standard streams on it, when that has ended well."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "24", **environment},
        )
    finally:
        os.close(theirs)
    read = bytearray()
    try:
        while data := os.read(ours, 4096):
            read.extend(data)
    except OSError:
        pass  # nobody has the other end open any more
    finally:
        os.close(ours)
    text = read.decode()
    assert process.wait() == 0, text
    screen = Screen(columns)
    screen.feed(text)
    return screen
