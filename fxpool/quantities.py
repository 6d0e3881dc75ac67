"""Formats times, sizes, counts and signals as text, and parses times. Cheap to import."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Mapping
from typing import Any

__all__ = [
    "DURATION_EXPECTED",
    "ago",
    "counted",
    "digits",
    "hit_rate",
    "lookups",
    "moment",
    "one_line",
    "parse_duration",
    "percent",
    "ranked",
    "short_span",
    "signal_name",
    "size",
    "span",
]

_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*(ms|s|sec|m|min|h|d)(?![a-z])\s*", re.ASCII)
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)

#: Valid input of `parse_duration`, for error messages.
DURATION_EXPECTED = "a time of more than 0, such as 90s, 2m, 1h30m or 0.3 (seconds)"


def parse_duration(text: str) -> float:
    """Return the seconds of ``"0.3"``, ``"90s"``, ``"2m"``, ``"1h30m"``, ``"1.5 h"``, ``"500ms"``.

    Units come from the largest to the smallest, each once. Raises ValueError for anything else, for 0 and for numbers
    beyond a float.
    """
    text = text.strip().lower()
    if _PLAIN.fullmatch(text):
        seconds = float(text)
    else:
        seconds, at, before = 0.0, 0, math.inf
        while at < len(text):
            part = _PART.match(text, at)
            if part is None or _SECONDS[part[2]] >= before:
                raise ValueError(text)
            before = _SECONDS[part[2]]
            seconds += float(part[1]) * before
            at = part.end()
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def counted(number: int, noun: str, several: str = "") -> str:
    """Format a number with its noun: ``1 entry``, ``2,000 entries``; without `several` the plural ends in s."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def size(number: float) -> str:
    """Format bytes in the largest unit up to GB that gives at least 1."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024 or unit == "GB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def digits(number: float) -> str:
    """Format a number to three digits, zeros included: ``24.0``, ``1.50``, ``1234``."""
    if not number or not math.isfinite(number):
        return f"{number:g}"
    power = int(f"{number:.2e}".partition("e")[2])
    return f"{number:.{max(0, 2 - power)}f}"


def percent(fraction: float, digits: int = 0) -> str:
    """Format a part of 1 in percent: ``9 %``."""
    return f"{100 * fraction:.{digits}f} %"


def ranked(counts: Mapping[str, int]) -> str:
    """Format counts by name, the largest first: ``guard 3, tensor 1``."""
    pairs = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{one_line(name)} {number}" for name, number in pairs)


def span(seconds: float) -> str:
    """Format a duration, given in seconds, to about two digits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def short_span(seconds: float) -> str:
    """Format a duration, given in seconds, without spaces: ``0.4s``, ``45s``, ``3m12s``, ``2h05m``."""
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def ago(when: float) -> str:
    """Format the time since a Unix time."""
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(when: float) -> str:
    """Format a Unix time as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def lookups(counts: Mapping[str, Any]) -> int:
    """Return how many graphs were looked up."""
    return int(counts["hits"] + counts["misses"] + counts["guard_misses"])


def hit_rate(counts: Mapping[str, Any]) -> float | None:
    """Return the part of lookups that were hits; None without lookups."""
    return counts["hits"] / lookups(counts) if lookups(counts) else None


def one_line(text: str) -> str:
    """Return a name from elsewhere for a terminal: line breaks as spaces, other control characters as escapes."""
    return "".join(
        one if one.isprintable() else " " if one.isspace() else one.encode("unicode_escape").decode() for one in text
    )


def signal_name(number: int) -> str:
    """Return a signal's number and name: ``signal 11 (SIGSEGV)``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
