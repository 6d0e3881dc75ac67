"""Lists failures of jobs, graphs in quarantine and damaged entries, latest first.

Fallbacks inside a program (a graph that cannot be sent to a worker, a disabled switch) are only counted there:
`fxpool.stats()["fallbacks"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fxpool.codecache.store.quarantine import Record

__all__ = ["failures"]

_MOST = 100
_DIGITS = 12  # of a key, for a command
_WHAT = {
    "exception": "raised an exception, passed to its caller",
    "died": "lost its worker",
    "timeout": "exceeded its time limit",
    "memory": "exceeded its memory limit",
    "unavailable": "could not be run by the pool",
    "no_worker": "could not be started by any worker",
    "lost": "was lost with its server",
}


def failures(
    jobs: Iterable[Mapping[str, Any]], quarantined: Iterable[Record], store: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return rows with `at` (Unix time, 0 if unknown), `what`, `label` and `why`."""
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
        release = f"fxpool cache quarantine --release {record.key[:_DIGITS]}"
        what = f"is in quarantine: it runs eagerly until `{release}`"
        found.append({"at": record.when, "what": what, "label": record.name, "why": record.error})
    if store["unreadable"]:
        count = store["unreadable"]
        what = f"{count} entries cannot be read" if count > 1 else "1 entry cannot be read"
        found.append(
            {"at": 0.0, "what": what, "label": "store", "why": "damaged or of another version; served as misses"}
        )
    aside = store["parts"].get("set aside", {}).get("files", 0)
    if aside:
        what = f"{aside} damaged files were set aside" if aside > 1 else "1 damaged file was set aside"
        found.append({"at": 0.0, "what": what, "label": "store", "why": "wrong digests; served as misses"})
    return sorted(found, key=lambda row: row["at"], reverse=True)[:_MOST]
