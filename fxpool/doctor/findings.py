"""The findings of the doctor's checks; each check is a generator of them.

A check that raises becomes a finding, too, and the others go on: this runs on machines with problems.
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
                f"can't be told here: {type(error).__name__}" + (f": {said}" if said else ""),
                "nothing, if all else is well; please report it",
            )
