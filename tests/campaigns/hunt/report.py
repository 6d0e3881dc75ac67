"""The report of a hunt: a line per wrong case while it runs, a table at the end, and JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .runner import Outcome

__all__ = ["Report"]

_EVERY = 60.0  # seconds between two lines about how far it is, and between two writings


class Report:
    """Collects outcomes; `resume` begins with those in the file `out`, if they are of the same seed and backend."""

    def __init__(self, out: Path, seed: int, backend: str, *, resume: bool = False) -> None:
        self.out, self.seed, self.backend = out, seed, backend
        self.outcomes: list[dict[str, Any]] = []
        self.begun = self._told = time.monotonic()
        if resume and out.exists():
            before = json.loads(out.read_text())
            if (before["seed"], before["backend"]) == (seed, backend):
                self.outcomes = before["outcomes"]
        self._known = {(one["kind"], one["number"]) for one in self.outcomes}

    def has(self, kind: str, number: int) -> bool:
        """Whether that case is known already."""
        return (kind, number) in self._known

    def add(self, outcome: Outcome) -> None:
        """Take an outcome in; what is wrong is said at once."""
        plain = {**dataclasses.asdict(outcome), "verdict": outcome.verdict}
        self.outcomes.append(plain)
        if outcome.verdict != "right":
            for step in outcome.steps:
                if step.verdict in ("wrong", "broken"):
                    print(
                        f"{step.verdict}: {outcome.kind}:{outcome.number} {step.name}: {step.detail[:300]}", flush=True
                    )
                    break
        if time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            seconds = self._told - self.begun
            print(
                f"{len(self.outcomes)} cases, {self._count('wrong')} wrong, {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            self.write()

    def _count(self, verdict: str) -> int:
        return sum(one["verdict"] == verdict for one in self.outcomes)

    def rows(self) -> list[dict[str, Any]]:
        """A row per kind."""
        rows: dict[str, Counter[str]] = {}
        for one in self.outcomes:
            row = rows.setdefault(one["kind"], Counter())
            row["cases"] += 1
            row["telling"] += bool(one["telling"])
            row[one["verdict"]] += 1
            row["refused"] += any(step["verdict"] == "refused" for step in one["steps"])
            row["seconds"] += one["seconds"]
            row["changes"] += len(one["steps"]) == 1 or not all(step["wants_hit"] for step in one["steps"][1:])
            for step in one["steps"]:
                row["wanted"] += step["wants_hit"]
                row["lost"] += step["lost_hit"]
                row["bypasses"] += sum(n for name, n in step["reasons"].items() if name.startswith("bypasses"))
                for name in ("hits", "misses", "worker", "in_process"):
                    row[name] += step["counts"].get(name, 0)
        return [{"kind": name, **row} for name, row in sorted(rows.items())]

    def table(self) -> str:
        """Per kind and in all: cases, hits, misses, where graphs were compiled, hits lost; then the findings."""
        columns = ("cases", "telling", "hits", "misses", "worker", "in_process", "bypasses", "lost", "refused",
                   "broken", "wrong")  # fmt: skip
        rows = self.rows()
        total = {"kind": f"{len(rows)} kinds", **{name: sum(row.get(name, 0) for row in rows) for name in columns}}
        width = max(len(row["kind"]) for row in [*rows, total])
        lines = [" " * width + "".join(f"{name:>11}" for name in columns)]
        for row in [*rows, total]:
            lines.append(f"{row['kind']:{width}}" + "".join(f"{row.get(name, 0) or '-':>11}" for name in columns))
        seconds = time.monotonic() - self.begun
        lines.append(f"seed {self.seed}, {self.backend}, {seconds:.0f} s; {self.out}")
        return "\n".join([*lines, *self.findings()])

    def findings(self) -> list[str]:
        """A line per wrong case, per kind that loses hits, and per kind in which a stale result would not show."""
        lines = []
        for case in self.outcomes:
            step = next((step for step in case["steps"] if step["verdict"] in ("wrong", "broken")), None)
            if step is not None:
                lines.append(
                    f"{case['verdict']}: {case['kind']}:{case['number']} {step['name']}: {step['detail'][:200]}"
                )
        for row in self.rows():
            if row.get("lost"):
                lines.append(f"lost hits: {row['kind']}: {row['lost']} of {row['wanted']}")
        lines += [f"not telling: {row['kind']}" for row in self.rows() if row["changes"] and not row["telling"]]
        return lines

    def write(self) -> None:
        """Write all outcomes and the rows."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        plain = {"seed": self.seed, "backend": self.backend, "rows": self.rows(), "outcomes": self.outcomes}
        temporary = self.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(plain, indent=1, default=str))
        temporary.replace(self.out)

    def status(self) -> int:
        """0 if nothing is wrong and every case could be run."""
        return int(self._count("wrong") + self._count("broken") > 0)
