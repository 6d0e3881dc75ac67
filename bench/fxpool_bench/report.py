"""Tables for the terminal and a notebook: speed-ups, compile times, failures, and changes since earlier results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from fxpool import quantities
from fxpool.bench import results
from fxpool.bench.case import MODES, Run
from fxpool.bench.measurement.result import in_seconds
from fxpool.bench.measurement.statistics import Ratio, ratio
from fxpool.bench.results import Record
from fxpool.results import markup

__all__ = [
    "Change",
    "Line",
    "Report",
    "change_table",
    "changes",
    "failures",
    "footnotes",
    "lines",
    "parts",
    "read",
    "table",
]

Key = tuple[str, str, str]  # case, mode, backend

# Results of earlier versions do not say what ran beside a first call.
_UNKNOWN = ["other runs may have compiled: measure again with --fresh"]


@dataclass(frozen=True)
class Line:
    """A case in a mode with a backend, over its repetitions.

    `median` is in seconds per call. `speedup` is eager's median divided by this one; it is `doubtful` if either
    measurement has remarks. `first_call` is the median time of
    the first call in seconds, and `warm_call` that in a second process. `saved` is the difference of the two, or the
    seconds saved by fxpool's hits. `doubts` are the remarks of the measurements. `beside` says what else ran during the
    first calls; without it, they were alone.
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
    doubtful: bool = False
    beside: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether the outputs of a repetition differ from eager's."""
        return any(record.state == "wrong" for record in self.records)


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
    doubtful: bool = False

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, or ``same`` if the change is within noise. `doubtful` says how far to trust it."""
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
                _doubts(ours),
                bool(_doubts([*ours, *(eager or [])])),
                _beside(ours),
            )
        )
    return found


def _doubts(records: Iterable[Record]) -> tuple[str, ...]:
    remarks = [remark for one in records for remark in (one.measured or {}).get("remarks", [])]
    return tuple(dict.fromkeys(remarks))


def _beside(records: Iterable[Record]) -> tuple[str, ...]:
    """Return what else ran during first calls, in words."""
    said: list[str] = []
    for one in records:
        for call, value, beside in (
            ("the first call", one.first_call, one.beside),
            ("the first call with warm caches", one.warm_call, one.warm_beside),
        ):
            if value is not None:
                said += [f"during {call}, {other}" for other in (_UNKNOWN if beside is None else beside)]
    return tuple(dict.fromkeys(said))


def parts(records: Iterable[Record]) -> dict[str, float]:
    """Return the seconds of all processes in each of their phases, largest first; see `Record.phases`."""
    total: dict[str, float] = {}
    for record in records:
        for name, seconds in record.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


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
            doubtful=bool(_doubts([*before[key], *after[key]])),
        )
        for key in after
        if key in before
    ]
    return sorted(found, key=lambda change: -change.ratio.value)


def table(records: Mapping[Run, Record], width: int = 120) -> Table:
    """Return the table of `lines`, for `width` columns; `footnotes` explains its marks.

    A narrow table has the mode below the case, and no memory, seconds saved and differences from eager: see the page.
    A very narrow one has no time with warm caches either, and the notes below the mode.
    """
    found = lines(records)
    notes = _numbers(found)
    narrow, very = width < _NARROW, width < _VERY_NARROW
    warm: tuple[str, ...] = ("warm", "saved") if any(line.warm_call for line in found) else ()
    rest = ("memory", "off eager") if width >= (118 if warm else _NARROW) else ()
    warm = warm[: 0 if very else 1 if narrow else 2]
    shown = _table("time per call (median); speed-up over eager with its 95 % interval", width)
    for heading in ("per call", "speed-up", "first call", *warm, *rest):
        shown.add_column(heading.replace(" ", "\n") if very else heading, justify="right", no_wrap=True)
    if not very:
        shown.add_column("notes", overflow="fold")
    for line in found:
        mark = BESIDE if line.beside else ""
        figures = {name: _marked(getattr(line, field), mark) for name, field in _CALLS.items()}
        figures["memory"] = _bytes(line.peak)
        figures["off eager"] = f"{line.difference:.1e}" if line.backend != "eager" else ""
        speedup = _interval(line.speedup) if line.speedup is not None else ""
        numbers = ", ".join(str(notes[text]) for text in (*line.doubts, *line.beside) if text in notes)
        shown.add_row(
            *_case(line, width, [f"({numbers})"] if very and numbers else []),
            line.backend,
            in_seconds(line.median),
            f"{DOUBTFUL if speedup and line.doubtful else ''}{speedup}",
            *(figures[name] for name in ("first call", *warm, *rest)),
            *([] if very else [numbers]),
        )
    return shown


def _table(title: str, width: int) -> Table:
    """Return a table of `width` columns, with the columns that name a case; a narrow one has modes below cases."""
    narrow = width < _NARROW
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 1 if narrow else 2, 0, 0), pad_edge=False)
    shown.add_column("case", overflow="fold", min_width=_CASE if narrow else None)
    for heading in ("backend",) if narrow else ("mode", "backend"):
        shown.add_column(heading, overflow="fold", no_wrap=True)
    return shown


def _case(named: Line | Change, width: int, below: Sequence[str] = ()) -> list[str]:
    """Return the cells of a case and its mode, with the texts `below` them in a narrow table."""
    if width >= _NARROW:
        return [named.case, named.mode]
    return ["\n  ".join([named.case, named.mode, *below])]


# Tables with fewer columns have the mode below the case; with still fewer, the last column below another.
_NARROW, _VERY_NARROW = 100, 72
# Columns of an indented mode, which must not be broken.
_CASE = 2 + max(map(len, MODES))
# The columns of first calls, and their fields of a line.
_CALLS = {"first call": "first_call", "warm": "warm_call", "saved": "saved"}
#: Marks of figures that the work of others may have made.
BESIDE, DOUBTFUL = "*", "~"
# The largest number of footnotes on first calls; the page has all.
_LISTED = 3


def _numbers(rows: Sequence[Line]) -> dict[str, int]:
    beside = dict.fromkeys(text for line in rows for text in line.beside)
    texts = dict.fromkeys(text for line in rows for text in line.doubts)
    texts |= beside if len(beside) <= _LISTED else {}  # side by side, each row has another
    return {text: number for number, text in enumerate(texts, 1)}


def footnotes(records: Mapping[Run, Record]) -> list[tuple[str, str]]:
    """Return the notes below the table of these records, each with its mark or number."""
    found = lines(records)
    said = []
    if any(line.beside for line in found):
        said.append(
            (BESIDE, "not comparable: others ran beside it, see report.html. Alone: --jobs 1 --fresh, idle machine")
        )
    if any(line.speedup is not None and line.doubtful for line in found):
        said.append((DOUBTFUL, "doubtful: see the notes of this row and of eager's"))
    return said + [(str(number), text) for text, number in _numbers(found).items()]


def _interval(compared: Ratio) -> str:
    return f"{compared.value:.2f} ({compared.low:.2f}-{compared.high:.2f})"


def _marked(value: float | None, mark: str) -> str:
    return f"{in_seconds(value)}{mark}" if value is not None else ""


def _bytes(value: int) -> str:
    return f"{value / (1 << 30):.1f} GB" if value >= 1 << 30 else f"{value >> 20} MB"


@dataclass(frozen=True, repr=False)
class Report:
    """The results of a suite, as a table in a terminal or a notebook.

    `suite` is its name, `records` has a record for each run; see `lines` for a summary.
    """

    suite: str
    records: Mapping[Run, Record]

    def __repr__(self) -> str:
        notes = [f"{mark:<2} {note}" for mark, note in footnotes(self.records)]
        return "\n".join([self._title(), markup.text_table(*self._cells()), *notes])

    def _repr_html_(self) -> str:
        notes = footnotes(self.records)
        parts = [markup.grid(*self._cells()), *([markup.table(notes)] if notes else [])]
        return markup.block(self._title(), *parts)

    def _title(self) -> str:
        failed = len(failures(self.records))
        runs = quantities.counted(len(self.records), "run")
        return f"{self.suite}: {runs}{f', {failed} without a result' if failed else ''}; {table(self.records).title}"

    def _cells(self) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
        """Return the headings, the rows, and the headings above numbers."""
        columns = table(self.records).columns
        rows = zip(*(map(str, column.cells) for column in columns), strict=True)
        headings = [str(column.header) for column in columns]
        return headings, list(rows), [str(column.header) for column in columns if column.justify == "right"]


def read(path: str | os.PathLike[str]) -> Report:
    """Read the results of a suite (``results.jsonl``), to look at them in a notebook.

    Raises:
        errors.ConfigurationError: the file cannot be read, or is not one of ``fxpool bench``.
    """
    head, records = results.read(Path(path))
    return Report(str(head.get("suite", "")), results.in_order(head, records))


def change_table(changed: Iterable[Change], width: int = 120) -> Table:
    """Return the table of `changes`, for `width` columns; a very narrow one has the verdict below the ratio."""
    very = width < _VERY_NARROW
    shown = _table("compared with the other results: new / old, with its 95 % interval", width)
    for heading in ("old", "new", "ratio"):
        shown.add_column(heading, justify="right", no_wrap=True)
    if not very:
        shown.add_column("verdict", no_wrap=True)
    for one in changed:
        verdict = f"{one.verdict}, doubtful" if one.doubtful and one.verdict != "same" else one.verdict
        ratio_and_verdict = [_interval(one.ratio), verdict]
        shown.add_row(
            *_case(one, width),
            one.backend,
            in_seconds(one.old),
            in_seconds(one.new),
            *(["\n".join(ratio_and_verdict)] if very else ratio_and_verdict),
        )
    return shown
