"""Judges rows: pure functions from the reports to the columns of the table.

A process is *switched off* where it compiled and no worker did, or where the result was not stored. A part that
is switched off for a whole process has to be reported, once, with a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Expected", "Record", "Run", "Seen", "Verdict", "judge", "warnings_in"]


@dataclass(frozen=True)
class Expected:
    """The expected results of a row's runs where fxpool works.

    `pool`, `cache`: True: they serve it; None: they may be switched off if that is said; False: not looked at.
    `status`, `again_status`: exit statuses (negative: a signal). `processes`, `again_processes`: how many processes
    have to say that they compiled. `error`: a pattern that standard error must hold: the program ends with it.
    `traceback`: one may stand in standard error. `hears`: standard error is seen at all.
    """

    pool: bool | None = True
    cache: bool | None = True
    status: int = 0
    again_status: int = 0
    processes: int = 1
    again_processes: int = 1
    error: str = ""
    traceback: bool = False
    hears: bool = True


@dataclass(frozen=True)
class Record:
    """The report of one process of a row."""

    pid: int
    checks: int = 0
    differences: tuple[str, ...] = ()
    lowerings: int = 0
    """GraphLowering constructions, counted by the witness and not by fxpool."""
    stats: Mapping[str, Any] | None = None
    """fxpool's counters; None: fxpool was never imported."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_worker(self) -> int:
        stats = self.stats or {}
        return int(stats.get("compiles", {}).get("worker", 0)) + int(stats.get("borrowed", {}).get("fx", 0))

    @property
    def hits(self) -> int:
        stats = self.stats or {}
        return int(stats.get("hits", 0)) + int(stats.get("joined", 0))

    @property
    def in_process(self) -> int:
        counted = int((self.stats or {}).get("compiles", {}).get("in_process", 0))
        return max(counted, self.lowerings)

    @property
    def eager(self) -> int:
        return sum((self.stats or {}).get("eager_calls", {}).values())

    @property
    def reasons(self) -> list[str]:
        stats = self.stats or {}
        return [*stats.get("fallbacks", {}), *stats.get("bypasses", {}), *stats.get("switched_off", {})]


@dataclass(frozen=True)
class Run:
    """One run of a row's program: how it ended, and what its processes and its standard error said."""

    status: int | None
    """None: it was killed when it had run for too long."""
    records: Sequence[Record] = ()
    errors: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Seen:
    """The reports of a row. `left`: leftovers after the runs. `complaint`: the result of the row's own check."""

    first: Run
    second: Run
    left: Sequence[str] = ()
    complaint: str = ""


@dataclass(frozen=True)
class Verdict:
    """The columns of the table."""

    happened: str
    again: str
    warnings: int
    faults: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "FAIL: " + "; ".join(self.faults) if self.faults else "ok"


def judge(expected: Expected, seen: Seen, *, stock: bool = False) -> Verdict:
    """The verdict on a row. With `stock` another back end ran it: only results and endings are judged."""
    warned = [_warned(run, expected) for run in (seen.first, seen.second)]
    faults = [
        *_of_a_run(seen.first, expected, expected.status, expected.processes),
        *(
            "second run: " + fault
            for fault in _of_a_run(seen.second, expected, expected.again_status, expected.again_processes)
        ),
    ]
    if not stock:
        # A run that failed says nothing of switches.
        ended = [seen.first.status == expected.status, seen.second.status == expected.again_status]
        kept = expected.cache is False or _is_hit(seen.second)
        if ended[0]:
            # A second run that was refused the cache says nothing of what the first left in it.
            blameless = kept or not ended[1] or bool(_refused(seen.second))
            faults += _switches(seen.first, expected, warned[0], kept=blameless)
        if ended[1]:
            faults += ["second run: " + fault for fault in _switches(seen.second, expected, warned[1], kept=kept)]
        if ended[0] and expected.processes and _happened(seen.first) == _NOTHING:
            faults = ["nothing was compiled"]
        elif expected.cache and expected.again_processes and all(ended) and not kept:
            faults.append(f"the second run is no hit: {_happened(seen.second)}")
    faults += [f"left behind: {text}" for text in seen.left]
    if seen.complaint:
        faults.append(seen.complaint)
    again = _happened(seen.second)
    if expected.cache is not False:
        again = "yes" if _is_hit(seen.second) else f"no: {again}"
    return Verdict(_happened(seen.first), again, sum(map(len, warned)), _once(faults))


def _once(faults: Sequence[str]) -> list[str]:
    """Without what the second run only says again."""
    return [fault for fault in dict.fromkeys(faults) if fault.removeprefix("second run: ") == fault
            or fault.removeprefix("second run: ") not in faults]  # fmt: skip


def _happened(run: Run) -> str:
    counts = {
        "worker": sum(record.by_worker for record in run.records),
        "in process": sum(record.in_process for record in run.records),
        "hit": sum(record.hits for record in run.records),
        "eager": sum(record.eager for record in run.records),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or _NOTHING


def _is_hit(run: Run) -> bool:
    """Whether everything was served from the cache; a process that compiled nothing at all says nothing."""
    served = [record for record in run.records if record.checks]
    return bool(served) and all(
        record.hits and not (record.by_worker or record.in_process or record.eager) for record in served
    )


def _of_a_run(run: Run, expected: Expected, status: int, processes: int) -> list[str]:
    """Return faults that do not depend on the backend."""
    faults = []
    if run.status is None:
        return [f"did not end within {run.seconds:.0f} s"]
    if run.status != status:
        faults.append(f"exit status {run.status}, not {status}: {_last_line(run.errors)}")
    if expected.error:
        if not re.search(expected.error, run.errors, re.DOTALL):
            faults.append(f"standard error does not say {expected.error!r}: {_last_line(run.errors)}")
    elif "Traceback (most recent call last)" in run.errors and not expected.traceback and not faults:
        faults.append(f"a traceback on standard error: {_last_line(run.errors)}")
    said = [record for record in run.records if record.checks]
    if len(said) < processes and not faults:
        faults.append(f"{len(said)} of {processes} processes came to their end: {_last_line(run.errors)}")
    for record in run.records:
        faults += [f"process {record.pid}: not as eager: {text}" for text in record.differences]
        counted = (record.stats or {}).get("compiles", {}).get("in_process", 0)
        reasons = (record.stats or {}).get("fallbacks", {})
        if record.stats is not None and record.lowerings and not counted and not reasons:
            faults.append(f"process {record.pid} lowered {record.lowerings} graphs, and its counters don't say so")
    return faults


def _refused(run: Run) -> list[Record]:
    """Processes whose counters say that the cache was off."""
    return [record for record in run.records if not _NOT_KEPT.isdisjoint(record.reasons)]


def _switches(run: Run, expected: Expected, warned: Sequence[str], *, kept: bool) -> list[str]:
    """Whether pool or cache were off, whether that may be, and whether it was said."""
    without_pool = [record for record in run.records if record.in_process and not record.by_worker]
    without_cache = _refused(run)
    if not kept and not without_cache:
        without_cache = [record for record in run.records if record.checks]
    faults = []
    if expected.pool and without_pool:
        reasons = sorted({reason for record in without_pool for reason in record.reasons})
        faults.append(f"compiled in process ({', '.join(reasons) or 'no reason counted'})")
    off = {record.pid for record in without_pool if expected.pool is not False}
    off |= {record.pid for record in run.records if (record.stats or {}).get("switched_off")}
    off |= {record.pid for record in without_cache if expected.cache is not False}
    if not off:
        if warned and expected.pool is not None and expected.cache is not None:
            faults.append(f"a warning though nothing is switched off: {warned[0][:150]}")
        return faults
    if not warned:
        faults.append("silent switch-off" if expected.hears else "switched off where nobody hears of it")
    # The cache and the workers of a process may be refused for a reason each, and each reason is warned of once.
    due = sum(max(len((record.stats or {}).get("switched_off", ())), 1) for record in run.records if record.pid in off)
    if len(warned) > due:
        faults.append(f"{len(warned)} warnings of {due} switched off: {' | '.join(w[:80] for w in warned)}")
    faults += [f"no remedy in: {text[:150]}" for text in warned if not _REMEDY.search(text)]
    return faults


# ---------------------------------------------------------------- standard error

_NOT_KEPT = frozenset({"cache_directory_refused", "cache_not_written", "store_write_failed"})
_NOTHING = "nothing"
_CATEGORY = re.compile(r"^\S.*?:\d+: (?:\w+\.)*\w*Warning: ")
# torch's own logs, which name the back end.
_TORCH_LOG = re.compile(r"^(\[rank\d+\]:)?[VDIWEC]\d{4} \d\d:\d\d:\d\d")
_REMEDY = re.compile(
    r"FXPOOL_[A-Z_]+|\bfxpool (doctor|stop|status|cache|serve)\b|\bulimit\b|\bchmod\b|\bchown\b|\bmount\b|\binstall\b"
    r"|make room|\braise\b|\bremove\b|\bset [A-Z]",
)


def _warned(run: Run, expected: Expected) -> list[str]:
    """Return fxpool's warnings; none where the program is expected to end with an error."""
    return [] if expected.error else warnings_in(run.errors)


def warnings_in(errors: str) -> list[str]:
    """fxpool's messages in what a program wrote to standard error, each with its indented lines.

    A message is fxpool's where it says "fxpool", of itself and not as part of a path. Tracebacks and torch's logs do
    not count.
    """
    messages: list[list[str]] = []
    traceback = False
    for line in errors.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            traceback = True
        elif traceback:
            # It ends with the line of the exception, and what belongs to that is indented.
            traceback = line[:1] in (" ", "\t", "")
        elif line[:1] in (" ", "\t") and messages:
            messages[-1].append(line.strip())
        elif line.strip():
            messages.append([] if _TORCH_LOG.match(line) else [_CATEGORY.sub("", line)])
    texts = [" ".join(parts) for parts in messages if parts]
    return [text for text in texts if re.search(r"fxpool(?![\w./-]*[/\]])", text, re.IGNORECASE)]


def _last_line(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing on standard error"
