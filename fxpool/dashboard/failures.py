"""What is known to have gone wrong or been given up, from jobs, quarantine and store, the latest first.

Fallbacks inside a program (a graph that can't travel, a switch that is off) are counted there and nowhere else:
`fxpool.stats()["fallbacks"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fxpool.codecache.store.quarantine import Record

__all__ = ["failures"]

_MOST = 100
_WHAT = {
    "exception": "raised an exception, which its caller has",
    "died": "its worker died",
    "timeout": "went over its time",
    "memory": "went over its memory",
    "unavailable": "the pool could not run it",
    "no_worker": "no worker reached it",
    "lost": "was lost with its server",
}


def failures(
    jobs: Iterable[Mapping[str, Any]], quarantined: Iterable[Record], store: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return rows with `at` (Unix time; 0 if it is not known), `what`, `label`, and `why`."""
    found = [
        {
            "at": job["ended"],
            "what": _WHAT[job["how"]],
            "label": job["label"],
            "why": job["reason"] + (f" (in phase {job['phases'][-1][0]})" if job["phases"] else ""),
        }
        for job in jobs
        if job["how"] in _WHAT and not job["part_of"]
    ]
    for record in quarantined:
        what = "is in quarantine: it runs eagerly until `fxpool cache quarantine --release`"
        found.append({"at": record.when, "what": what, "label": record.label, "why": record.error})
    if store["unreadable"]:
        count = store["unreadable"]
        what = f"{count} entries can't be read" if count > 1 else "1 entry can't be read"
        found.append({"at": 0.0, "what": what, "label": "store", "why": "damaged, or another version's: misses"})
    aside = store["parts"].get("set aside", {}).get("files", 0)
    if aside:
        what = f"{aside} damaged files were set aside" if aside > 1 else "1 damaged file was set aside"
        found.append({"at": 0.0, "what": what, "label": "store", "why": "their digests did not hold: misses"})
    return sorted(found, key=lambda row: row["at"], reverse=True)[:_MOST]
