"""Summarizes in one sentence why a worker died, from the end of its output. Its log has the complete output."""

from __future__ import annotations

import re

__all__ = ["FATAL", "sentence"]

#: The first words of faulthandler's report; the innermost frame follows soon after.
FATAL = "Fatal Python error"
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<function>\S+)', re.MULTILINE)
_THROWN = re.compile(r"^terminate called after throwing an instance of (?P<type>.+)$", re.MULTILINE)
_WHAT = re.compile(r"^ *what\(\): *(?P<what>.+)$", re.MULTILINE)
_LONGEST = 200


def sentence(output: str) -> str:
    """Return one line, of about 200 characters at most, that says why a process died.

    `output` is the end of its output. A crash is reported by its name and innermost Python frame, an uncaught C++
    exception by its type and message, and anything else by the last line. Returns "" for empty output.
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
    """Return `text`, cut between two words if it is too long, followed by `end`."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rsplit(None, 1)[0] + " ..."
    return text + end
