"""The report as one self-contained HTML page: no server, no network, no other files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fxpool.bench.case import Run
from fxpool.bench.report import Change, Line, failures, lines, parts
from fxpool.bench.results import Record

__all__ = ["page"]

_NO_FIT = "its outputs differ from eager's in shape or in NaNs"
_TEMPLATE = Path(__file__).with_name("page.html")


def page(head: Mapping[str, Any], records: Mapping[Run, Record], changes: Iterable[Change] = ()) -> str:
    """Return the page for `records`. `head` is the first line of their file (see `results.read`)."""
    data = {
        "suite": head.get("suite", ""),
        "machine": _machine(head.get("machine", {})),
        "parts": parts(records.values()),
        "lines": [
            *map(_measured, lines(records)),
            *(_failure(record) for record in failures(records) if record.measured is None),
        ],
        "changes": [asdict(change) | {"verdict": change.verdict} for change in changes],
    }
    # A script element ends at its end tag, which a model's name may contain.
    text = json.dumps(data, allow_nan=False, default=str).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", text)


def _measured(line: Line) -> dict[str, Any]:
    fits = math.isfinite(line.difference)
    return {name: value for name, value in vars(line).items() if name != "records"} | {
        "state": "wrong" if line.wrong else "done",
        "speedup": asdict(line.speedup) if line.speedup is not None else None,
        "peak": line.peak or None,
        "difference": line.difference if line.backend != "eager" and fits else None,
        "doubts": [*line.doubts, *([] if fits else [_NO_FIT])],
        "reason": "",
    }


def _failure(record: Record) -> dict[str, Any]:
    run = record.run
    nothing = dict.fromkeys(("median", "speedup", "saved", "difference"))
    return nothing | {
        "case": run.case,
        "mode": run.mode,
        "backend": run.backend,
        "state": record.state,
        "first_call": record.first_call,
        "warm_call": record.warm_call,
        "peak": record.peak,
        "doubts": [],
        "doubtful": False,
        "beside": [],
        "reason": record.reason,
    }


def _machine(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    memory = f"{facts['memory'] >> 30} GB" if "memory" in facts else ""
    known = (
        facts.get("cpu"),
        f"{facts['cores']} cores" if "cores" in facts else "",
        memory,
        versions,
        facts.get("date"),
    )
    return "; ".join(filter(None, known))
