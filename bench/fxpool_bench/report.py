"""Tables for the terminal: speed-ups, compile times, failures, and changes since earlier results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table

from fxpool.bench.case import Run
from fxpool.bench.results import Record
from fxpool.bench.statistics import Ratio, ratio

__all__ = ["Change", "Line", "change_table", "changes", "failures", "lines", "table"]

Key = tuple[str, str, str]  # case, mode, backend


@dataclass(frozen=True)
class Line:
    """A case in a mode with a backend, over its repetitions.

    `median` is in seconds per call. `speedup` is eager's median divided by this one. `first_call` is the median time of
    the first call in seconds, and `warm_call` that in a second process. `saved` is the difference of the two, or the
    seconds saved by fxpool's hits. `doubts` are the remarks of the measurements.
    """

    case: str
    mode: str
    backend: str
    records: tuple[Record, ...]
    median: float
    speedup: Ratio | None
    first_call: float
    warm_call: float | None
    saved: float | None
    peak: int
    difference: float
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """The change of a case since earlier results. `ratio` is the new median divided by the old one."""

    case: str
    mode: str
    backend: str
    old: float
    new: float
    ratio: Ratio
    noise: float

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, or ``same`` if the change is within noise."""
        if not self.ratio.differs(self.noise):
            return "same"
        return "slower" if self.ratio.value > 1 else "faster"


def _by_key(records: Mapping[Run, Record]) -> dict[Key, list[Record]]:
    found: dict[Key, list[Record]] = {}
    for run, record in records.items():
        if record.measured is not None:
            found.setdefault((run.case, run.mode, run.backend), []).append(record)
    return found


def _samples(records: Iterable[Record]) -> list[list[float]]:
    return [record.measured["samples"] for record in records if record.measured is not None]


def _middle(values: Iterable[float | None]) -> float:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else 0.0


def _saved(records: Iterable[Record]) -> float | None:
    """Return the seconds that caches saved in a second process, or else by hits; None if unknown."""
    records = list(records)
    between = [one.first_call - one.warm_call for one in records if one.first_call and one.warm_call]
    if between:
        return max(0.0, _middle(between))
    by_hits = [float(one.stats["seconds_saved"]) for one in records if "seconds_saved" in one.stats]
    return sum(by_hits) if by_hits else None


def lines(records: Mapping[Run, Record]) -> list[Line]:
    """Return a line for each case, mode and backend that was measured, in the order of the records."""
    grouped = _by_key(records)
    found = []
    for (case, mode, backend), ours in grouped.items():
        eager = grouped.get((case, mode, "eager"))
        doubts = [remark for one in ours for remark in (one.measured or {}).get("remarks", [])]
        found.append(
            Line(
                case,
                mode,
                backend,
                tuple(ours),
                _middle(one.median for one in ours),
                ratio(_samples(eager), _samples(ours)) if eager and backend != "eager" else None,
                _middle(one.first_call for one in ours),
                _middle(one.warm_call for one in ours) or None,
                _saved(ours),
                max((one.peak or 0 for one in ours), default=0),
                max((one.difference or 0.0 for one in ours), default=0.0),
                tuple(dict.fromkeys(doubts)),
            )
        )
    return found


def failures(records: Mapping[Run, Record]) -> list[Record]:
    """Return the records of runs without a measurement or with wrong outputs."""
    return [record for record in records.values() if record.state != "done"]


def changes(old: Mapping[Run, Record], new: Mapping[Run, Record], noise: float) -> list[Change]:
    """Return the change of each case that is in both results, the largest slowdown first."""
    before, after = _by_key(old), _by_key(new)
    found = [
        Change(
            *key,
            old=_middle(one.median for one in before[key]),
            new=_middle(one.median for one in after[key]),
            ratio=ratio(_samples(after[key]), _samples(before[key])),
            noise=noise,
        )
        for key in after
        if key in before
    ]
    return sorted(found, key=lambda change: -change.ratio.value)


def table(records: Mapping[Run, Record]) -> Table:
    """Return the table of `lines`."""
    shown = Table(title="seconds per call, medians; speed-up over eager with its 95 % interval")
    found = lines(records)
    warm = ("warm", "saved") if any(line.warm_call for line in found) else ()
    columns = ("case", "mode", "backend", "per call", "speed-up", "first call", *warm, "memory", "off eager", "doubts")
    for heading in columns:
        shown.add_column(heading, justify="left" if heading in ("case", "mode", "backend", "doubts") else "right")
    for line in found:
        speedup = line.speedup
        shown.add_row(
            line.case,
            line.mode,
            line.backend,
            seconds(line.median),
            f"{speedup.value:.2f} ({speedup.low:.2f} - {speedup.high:.2f})" if speedup is not None else "",
            seconds(line.first_call),
            *(seconds(getattr(line, name)) for name in ("warm_call", "saved") if warm),
            f"{line.peak >> 20} MB",
            f"{line.difference:.1e}" if line.backend != "eager" else "",
            "; ".join(line.doubts),
        )
    return shown


def change_table(found: Iterable[Change]) -> Table:
    """Return the table of `changes`."""
    shown = Table(title="compared with the other results: new / old, with its 95 % interval")
    for heading in ("case", "mode", "backend", "old", "new", "ratio", "verdict"):
        shown.add_column(heading, justify="right" if heading in ("old", "new", "ratio") else "left")
    for one in found:
        interval = f"{one.ratio.value:.3f} ({one.ratio.low:.3f} - {one.ratio.high:.3f})"
        shown.add_row(one.case, one.mode, one.backend, seconds(one.old), seconds(one.new), interval, one.verdict)
    return shown


def seconds(value: float | None) -> str:
    """Format a time in s, ms or us; "" for None."""
    if value is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"
