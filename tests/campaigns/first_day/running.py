"""Runs rows: each its program twice, and then looks for leftovers."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.children import Children
from harness.places import scratch

from . import needs, verdict
from .environment import Site, known_host
from .row import Row

__all__ = ["LIMIT", "Outcome", "Runner"]

LIMIT = 120.0  # seconds for one run of a program
_KEPT_ERRORS = 20_000


@dataclass
class Outcome:
    """A row's line of the table, and what it rests on."""

    row: str
    happened: str = ""
    again: str = ""
    warnings: int = 0
    seconds: float = 0.0
    verdict: str = ""
    runs: tuple[Any, ...] = ()

    @property
    def failed(self) -> bool:
        return self.verdict.startswith("FAIL")


class Runner:
    """Runs rows, `slots` at a time, under a scratch directory with a short name (sockets lie in it)."""

    def __init__(self, *, slots: int = 2, backend: str = "fxpool", limit: float = LIMIT, keep: Path | None = None,
                 toolchain: Path | None = None) -> None:  # fmt: skip
        self.slots, self.backend, self.limit, self.keep = slots, backend, limit, keep
        # Other users' rows lie under it, so it is open to be passed through.
        self._scratch = contextlib.ExitStack()
        self.root = self._scratch.enter_context(scratch("fd-", keep, "/tmp"))
        self.root.chmod(0o755)
        self._toolchain = toolchain
        self._asked = toolchain is not None
        self._lock = threading.Lock()
        self._children = Children()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self._scratch.close()

    def run_all(self, rows: Sequence[Row]) -> Iterator[Outcome]:
        """Outcomes as they come."""
        return self._children.each(lambda numbered: self.run(*numbered), enumerate(rows), self.slots)

    def run(self, number: int, row: Row) -> Outcome:
        """One row, from nothing to nothing."""
        begun = time.monotonic()
        for reason in [*(need() for need in row.needs), *map(needs.package, row.packages)]:
            if reason:
                return Outcome(row.name, verdict=f"skipped: {reason}")
        site = Site(self.root / str(number), None if row.fresh else self._known(), self.backend)
        try:
            return self._at_site(row, site, begun)
        finally:
            site.close(keep=self.keep is not None)

    def _at_site(self, row: Row, site: Site, begun: float) -> Outcome:
        if row.prepare is not None:
            row.prepare(site)
        for name, content in row.files.items():
            site.write(site.work / site.text(name), content)
        first = self._run(row, site, row.program, {}, 1)
        complaint = row.also(site, first) if row.also is not None else ""
        second = self._run(row, site, row.again or row.program, row.again_environment, 2)
        seen = verdict.Seen(first, second, site.left(), complaint)
        found = verdict.judge(row.expected, seen, stock=self.backend != "fxpool")
        return Outcome(
            row.name, found.happened, found.again, found.warnings, time.monotonic() - begun, found.text,
            (_plain(first), _plain(second)),
        )  # fmt: skip

    def _known(self) -> Path | None:
        with self._lock:
            if not self._asked and self.backend == "fxpool":
                self._toolchain = known_host(self.root / "first", self._children)
            self._asked = True
        return self._toolchain

    def _run(self, row: Row, site: Site, program: str, more: Mapping[str, str | None], number: int) -> verdict.Run:
        main = Path(site.names["program"])
        site.write(main, program)
        site.names["text"] = main.read_text(encoding="utf-8")
        for old in site.seen.glob("*.json"):
            old.unlink()
        arguments = [site.text(text) for text in row.arguments]
        command = ["bash", "-c", site.text(row.shell), "bash", sys.executable, *arguments]
        keep = site.root / f"run-{number}"
        keep.mkdir(exist_ok=True)
        done = self._children.run(command, site.environment(row, more), self.limit, cwd=site.work, keep=keep)
        return verdict.Run(done.status, _records(site.seen), done.errors, done.seconds)


def _records(seen: Path) -> list[verdict.Record]:
    found = []
    for path in sorted(seen.glob("*.json")):
        said = json.loads(path.read_text(encoding="ascii"))
        found.append(
            verdict.Record(
                said["pid"], said["checks"], tuple(said["differences"]), said["lowerings"], said["stats"], said["notes"]
            )
        )
    return found


def _plain(run: verdict.Run) -> dict[str, Any]:
    return {**asdict(run), "errors": run.errors[-_KEPT_ERRORS:]}
