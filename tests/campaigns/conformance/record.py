"""The result of one item of a sweep that one process has run under one back end."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

__all__ = ["CRASH", "ERROR", "RIGHT", "SKIP", "WRONG", "Record", "append", "load", "short"]

RIGHT, WRONG, ERROR, CRASH = "right", "wrong", "error", "crash"
SKIP = "skip"  # eager execution itself does not do it, so it says nothing of a back end


@dataclasses.dataclass
class Record:
    """`lowerings`: GraphLowering constructed in that process. `hits` to `bypasses` are fxpool's own counters."""

    key: str
    status: str
    detail: str = ""
    lowerings: int = 0
    graphs: int = 0
    hits: int = 0
    in_worker: int = 0
    in_process: int = 0
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    bypasses: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def compiled(self) -> int:
        """The number of graphs that fxpool compiled, in workers and in the process."""
        return self.in_worker + self.in_process

    @property
    def reasons(self) -> str:
        """Why fxpool went a slower way or kept nothing, in a few words."""
        counted = [*self.fallbacks.items(), *self.bypasses.items()]
        return ", ".join(f"{reason} {count}" for reason, count in counted) or "no reason given"


def append(path: Path, records: Iterable[Record]) -> None:
    """Add `records` to a file, a line of JSON each."""
    with open(path, "a") as file:
        for record in records:
            file.write(json.dumps(dataclasses.asdict(record)) + "\n")


def load(path: Path) -> list[Record]:
    """The records of a file; none if it is not there. The last line of a process that was killed may be torn."""
    found: list[Record] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                found.append(Record(**json.loads(line)))
            except ValueError:
                continue
    return found


def short(error: BaseException, limit: int = 500) -> str:
    """An error in one line, its middle left out if it is long."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
