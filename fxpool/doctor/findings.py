"""Findings of the checks of `fxpool doctor`. A check is a generator of findings.

An exception in a check becomes a finding, and the other checks run: this is made for machines with problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["FAIL", "OK", "WARN", "Check", "Finding", "examine"]

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One result of a check: `state` is ``ok``, ``warn`` or ``fail``; `remedy` is advice; `detail` is for --json."""

    check: str
    state: str
    found: str
    remedy: str = ""
    detail: str = ""


Check = tuple[str, Callable[[], Iterable[Finding]]]


def examine(checks: Iterable[Check]) -> Iterator[Finding]:
    """Yield the findings of all checks, one after another. Never raises."""
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:
            said = " ".join(str(error).split())
            yield Finding(
                name,
                WARN,
                f"the check failed: {type(error).__name__}" + (f": {said}" if said else ""),
                "ignore it if all else is well; please report it",
            )
