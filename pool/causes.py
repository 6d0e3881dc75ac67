"""Why a worker ended, in one sentence: read from the end of its output, which is kept in its log in full."""

from __future__ import annotations

import re

__all__ = ["FATAL", "sentence"]

#: What faulthandler begins with; the innermost frame comes soon after it.
FATAL = "Fatal Python error"
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<function>\S+)', re.MULTILINE)
_THROWN = re.compile(r"^terminate called after throwing an instance of (?P<type>.+)$", re.MULTILINE)
_WHAT = re.compile(r"^ *what\(\): *(?P<what>.+)$", re.MULTILINE)
_LONGEST = 200


def sentence(output: str) -> str:
    """What the end of an output says of the end of its process, in one line of at most 200 characters or so.

    A crash by its name and the innermost Python frame, an exception that nobody caught by its last line; else the last
    thing that was said.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return ""
    thrown = _THROWN.search(output)
    fatal = output.find(FATAL)
    if thrown is not None:
        what = _WHAT.search(output, thrown.end())
        return _short(f"uncaught C++ exception {thrown['type']}" + (f": {what['what']}" if what else ""))
    if fatal >= 0:
        crash = output[fatal:].splitlines()[0].strip()
        frame = _FRAME.search(output, fatal)
        if frame is None:
            return _short(crash)
        place = f"{frame['file'].rpartition('/')[2]}:{frame['line']}"
        return _short(crash, f", in {frame['function']} ({place})")
    return _short(lines[-1])


def _short(text: str, end: str = "") -> str:
    """`text`, cut between two words where it is long, and `end`."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rsplit(None, 1)[0] + " ..."
    return text + end
