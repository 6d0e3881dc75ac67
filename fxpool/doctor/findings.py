"""What a check of the doctor's finds. Each check is a generator of findings.

One that fails in a way nobody thought of is a finding, too, and the others go on: this runs where something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["FAIL", "OK", "WARN", "Check", "Finding", "examine"]

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """What one check found: `state` is ``ok``, ``warn`` or ``fail``; `remedy` is what to do; `detail` is for --json."""

    check: str
    state: str
    found: str
    remedy: str = ""
    detail: str = ""


Check = tuple[str, Callable[[], Iterable[Finding]]]


def examine(checks: Iterable[Check]) -> Iterator[Finding]:
    """What the checks find, one after another. Never raises."""
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
