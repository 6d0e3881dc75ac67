"""Totals of all processes that used a cache directory, by day, for `fxpool stats`.

    <root>/stats/2026-11-24.lines           a line of JSON per process and report, appended by one write
    <root>/stats/2026-11-24.<random>.full   the same file, renamed once it was long
    <root>/stats/2026-11-24.total           the sum of files that were removed, or that it names and will be removed

Writers take no lock: one `write` appends a line, and readers skip incomplete lines. From time to time a process adds
files to the day's total, if it gets the lock for that without waiting. A total names its files, so that a file that
could not be removed is not counted twice. Days older than `KEPT_DAYS` are removed. Statistics must never make a compile
fail, so nothing here raises: if the directory can't be written, the numbers are dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fxpool import counters, directories, quantities
from fxpool.codecache.store.blobs import UnsafeFileError, read_stored, write_private
from fxpool.errors import StoreError

__all__ = ["KEPT_DAYS", "NUMBERS", "TABLES", "Totals", "add", "added", "clear", "read"]

KEPT_DAYS = 30
#: Counters of `fxpool.counters` that are totalled: plain numbers, and tables by reason.
NUMBERS = counters.NUMBERS
TABLES = ("compiles", "bypasses", "fallbacks", "switched_off", "eager_calls", "once", "uncached")

_DIRECTORY = "stats"
_LONG = 64 * 1024  # bytes of a day's lines, about 200 processes
_AT_REST = 60.0  # seconds after which a writer that opened the file before its renaming has surely written
_REASONS = 100  # per counter; some reasons contain the class of an error
_OTHER = "other"
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.(lines|total|[0-9a-f]{16}\.full)\Z")


class Totals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Totals of several processes. `counted` maps counters to numbers, `reasons` counters to reasons to numbers."""

    processes: int = 0
    seconds_saved: float = 0.0
    counted: dict[str, int] = {}
    reasons: dict[str, dict[str, int]] = {}

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Totals:
        """Return the part of `fxpool.counters.snapshot()` that is totalled."""
        return cls(
            processes=1,
            seconds_saved=round(float(snapshot.get("seconds_saved", 0.0)), 3),
            counted={name: snapshot[name] for name in NUMBERS if snapshot.get(name)},
            reasons={name: some for name in TABLES if (some := {r: n for r, n in snapshot.get(name, {}).items() if n})},
        )

    def since(self, before: Totals) -> Totals:
        """Return the counts since `before`, which are earlier totals of the same process."""
        counted = {name: n - before.counted.get(name, 0) for name, n in self.counted.items()}
        reasons = {
            name: {reason: n - before.reasons.get(name, {}).get(reason, 0) for reason, n in table.items()}
            for name, table in self.reasons.items()
        }
        return Totals(
            processes=self.processes - before.processes,
            seconds_saved=round(self.seconds_saved - before.seconds_saved, 3),
            counted={name: n for name, n in counted.items() if n > 0},
            reasons={
                name: some for name, table in reasons.items() if (some := {r: n for r, n in table.items() if n > 0})
            },
        )

    def plain(self) -> dict[str, Any]:
        """Return every counter as plain data, named as in `fxpool.stats()`."""
        numbers = {name: self.counted.get(name, 0) for name in NUMBERS}
        tables = {name: self.reasons.get(name, {}) for name in TABLES}
        return {"processes": self.processes, **numbers, **tables, "seconds_saved": self.seconds_saved}

    @property
    def hit_rate(self) -> float | None:
        """The part of lookups that were hits; None without lookups."""
        return quantities.hit_rate(self.plain())

    def is_empty(self) -> bool:
        """Return whether all counters are zero."""
        return not (self.counted or self.reasons or self.seconds_saved)


class _Summed(Totals, kw_only=True, omit_defaults=True):
    files: list[str] = []  # names of the files in the total that may still exist


def added(all_of_them: Iterable[Totals]) -> Totals:
    """Return the sum. Each counter keeps its most frequent reasons; the others are summed as ``other``."""
    total = Totals()
    for one in all_of_them:
        total.processes += one.processes
        total.seconds_saved += one.seconds_saved
        for name, number in one.counted.items():
            total.counted[name] = total.counted.get(name, 0) + number
        for name, table in one.reasons.items():
            into = total.reasons.setdefault(name, {})
            for reason, number in table.items():
                into[reason] = into.get(reason, 0) + number
    for name, table in total.reasons.items():
        total.reasons[name] = _bounded(table)
    total.seconds_saved = round(total.seconds_saved, 3)
    return total


def _bounded(table: dict[str, int]) -> dict[str, int]:
    if len(table) <= _REASONS:
        return table
    ranked = sorted(table.items(), key=lambda pair: (pair[0] == _OTHER, -pair[1], pair[0]))
    kept = dict(ranked[: _REASONS - 1])
    kept[_OTHER] = sum(number for _, number in ranked[_REASONS - 1 :])
    return kept


def add(root: str, totals: Totals, now: float | None = None) -> bool:
    """Add a process's totals to today's file; return whether that succeeded. Never raises."""
    now = time.time() if now is None else now
    line = msgspec.json.encode(totals) + b"\n"
    directory = os.path.join(root, _DIRECTORY)
    path = os.path.join(directory, f"{_day(now)}.lines")
    try:
        directories.make_private(directory)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, line)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > _LONG or size == len(line):  # the first line of a day
            _sum_up(directory, now)
    except (OSError, StoreError):
        return False
    return True


def read(root: str, now: float | None = None) -> dict[str, Totals]:
    """Return the totals of the last `KEPT_DAYS` days by day, oldest first. Days without files are left out."""
    directory = os.path.join(root, _DIRECTORY)
    first = _first_day(time.time() if now is None else now)
    by_day: dict[str, Totals] = {}
    files = _files(directory)
    for day in sorted(files):
        if day >= first:
            summed = _total_of(directory, day)
            lines = [one for name in files[day] if name not in summed.files for one in _lines(directory, name)]
            by_day[day] = added([summed, *lines])
    return by_day


def clear(root: str) -> None:
    """Remove the totals of all days. Counts that running processes add later stay. Raises OSError."""
    directory = os.path.join(root, _DIRECTORY)
    if not os.path.isdir(directory):
        return
    with _locked(directory, fcntl.LOCK_EX):  # a process that sums up would write the removed counts again
        for day, names in _files(directory).items():
            for name in (*names, f"{day}.total"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))


# ---------------------------------------------------------------- files


def _day(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(now))


def _first_day(now: float) -> str:
    return _day(now - (KEPT_DAYS - 1) * 86400.0)


def _files(directory: str) -> dict[str, list[str]]:
    """Return the names of files with lines by day. A day that has only a total has an empty list."""
    files: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):
            if (match := _NAME.match(name)) is not None:
                files.setdefault(match[1], [])
                if match[2] != "total":
                    files[match[1]].append(name)
    return files


def _lines(directory: str, name: str) -> Iterator[Totals]:
    try:
        data, _ = read_stored(os.path.join(directory, name))
    except (OSError, UnsafeFileError):
        return
    for line in data.splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # cut off by a full disk, or of a later version
            yield msgspec.json.decode(line, type=Totals)


def _total_of(directory: str, day: str) -> _Summed:
    try:
        data, _ = read_stored(os.path.join(directory, f"{day}.total"))
        return msgspec.json.decode(data, type=_Summed)
    except (OSError, UnsafeFileError, msgspec.DecodeError):
        return _Summed()


def _sum_up(directory: str, now: float) -> None:
    """Add files that are no longer written to their day's total, and remove old days. Raises OSError."""
    with _locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB) as locked:
        if not locked:
            return  # another process holds the lock, or the file system has no locks
        today, first = _day(now), _first_day(now)
        for day, names in _files(directory).items():
            if day < first:
                for name in [*names, f"{day}.total"]:
                    _remove(directory, name)
                continue
            full = [_renamed(directory, name, day == today) if name.endswith(".lines") else name for name in names]
            _sum_up_day(directory, day, [name for name in full if name and _at_rest(directory, name, now)])


@contextlib.contextmanager
def _locked(directory: str, operation: int) -> Iterator[bool]:
    """Lock the files of a directory by an operation of `flock`; yields whether that succeeded. Raises OSError."""
    lock = os.open(os.path.join(directory, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, operation)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def _renamed(directory: str, name: str, is_today: bool) -> str:
    """Rename a day's lines so that no writer opens the file again; return "" for a short file that is still in use."""
    path = os.path.join(directory, name)
    if is_today and os.stat(path).st_size <= _LONG:
        return ""
    full = f"{name.removesuffix('.lines')}.{secrets.token_hex(8)}.full"
    os.rename(path, os.path.join(directory, full))
    return full


def _at_rest(directory: str, name: str, now: float) -> bool:
    return now - os.stat(os.path.join(directory, name)).st_mtime > _AT_REST


def _sum_up_day(directory: str, day: str, names: list[str]) -> None:
    before = _total_of(directory, day)
    left = [name for name in before.files if os.path.exists(os.path.join(directory, name))]
    new = [name for name in names if name not in before.files]
    if new:
        total = added([before, *(one for name in new for one in _lines(directory, name))])
        summed = _Summed(**msgspec.structs.asdict(total), files=[*left, *new])
        write_private(os.path.join(directory, f"{day}.total"), msgspec.json.encode(summed))
    for name in [*left, *new]:
        _remove(directory, name)


def _remove(directory: str, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, name))
