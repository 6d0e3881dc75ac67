"""Explains why this process compiled graphs: its latest misses, and each bypass, fallback and switch it counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fxpool import counters, notices, reasons
from fxpool.codecache.explain import misses
from fxpool.codecache.explain.misses import MissExplanation
from fxpool.codecache.store.entry import Entry
from fxpool.explanation import keys

__all__ = ["CountedReason", "ProcessExplanation", "explain"]


@dataclass(frozen=True)
class CountedReason:
    """A reason counted by this process, under the name of a counter of `fxpool.stats()`.

    `example` is the label of the latest graph counted under it, with its function and details;
    or the warning that was given for it; or empty. `page` is a page of docs/ about it.
    """

    counter: str
    reason: str
    count: int
    meaning: str
    advice: str
    page: str = ""
    example: str = ""

    def __str__(self) -> str:
        text = [f"{self.counter}: {self.reason} ({self.count}): {self.meaning}"]
        if self.example:
            text.append(f"  for example {self.example}")
        if self.advice:
            text.append(f"  {self.advice}" + (f" See docs/{self.page}." if self.page else ""))
        return "\n".join(text)


@dataclass(frozen=True)
class ProcessExplanation:
    """Why this process compiled graphs: its `misses`, oldest first, and the `reasons` it counted."""

    misses: tuple[MissExplanation, ...]
    reasons: tuple[CountedReason, ...]

    def __str__(self) -> str:
        parts = [str(one) for one in (*self.misses, *self.reasons)]
        return "\n".join(parts) if parts else "nothing to explain: there were no misses, and no reason was counted"


def explain() -> ProcessExplanation:
    """Explain this process's misses and each reason that it counted. Raises UnsafeDirectoryError."""
    counted = counters.snapshot()
    found = [
        _reason(counter, name, count, counted["graphs"])
        for counter in reasons.COUNTERS
        for name, count in sorted(counted.get(counter, {}).items())
        if count
    ]
    kept = keys.missed()
    entries = keys.entries() if kept else []
    return ProcessExplanation(tuple(misses.explained(miss, _before(miss, entries)) for miss in kept), tuple(found))


def _reason(counter: str, name: str, count: int, graphs: Sequence[Mapping[str, Any]]) -> CountedReason:
    known = reasons.find(counter, name) or reasons.Reason("no explanation available", "Please report it.")
    example = _example(counter, name, graphs)
    return CountedReason(counter, name, count, known.meaning, known.advice, known.page, example)


def _before(miss: misses.Miss, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that existed at the lookup; later entries do not explain the miss."""
    return [entry for entry in entries if entry.metadata.created <= miss.when]


def _example(counter: str, name: str, graphs: Sequence[Mapping[str, Any]]) -> str:
    wanted = f"bypass:{name}" if counter == "bypasses" else name
    for record in reversed(graphs):
        if wanted in record.get("reasons", ()):
            parts = [str(record.get("label", "")), str(record.get("function", ""))]
            shown = ", ".join(filter(None, parts))
            detail = str(record.get("details", {}).get(wanted, ""))
            return f"{shown}: {detail}" if detail else shown
    return notices.said_of(name)
