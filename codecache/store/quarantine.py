"""Quarantine: a graph that killed its workers is not compiled again until a user releases it.

If a limit ended the worker, the graph is compiled again as soon as a higher limit is set.

    <root>/quarantine/<key>.json    the graph, and how its worker ended
    <root>/quarantine/<key>.log     the end of its last worker's output

The key covers everything that a compile depends on, so another version of torch, compiler or processor tries again.
Unreadable records are ignored.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

import msgspec

from fxpool.codecache.store.blobs import check_directory, write_private
from fxpool.codecache.store.small_records import Records

__all__ = ["Record", "add", "find", "release", "scan"]

_LOG_BYTES = 64 << 10


class Record(msgspec.Struct, omit_defaults=True):
    """The record of a quarantined graph.

    `when` is Unix time. `log` is the path of the output, or empty if it could not be saved. If the graph exceeded a
    limit, `limit` is ``timeout`` or ``memory``, and `value` the limit in seconds or bytes. `function` is the program's
    function that the graph comes from, with its file and line, or empty.

    Fields added later have defaults, so that records without them can be read; older programs ignore these fields.
    """

    key: str
    label: str
    error: str
    when: float
    log: str = ""
    limit: str = ""
    value: float = 0.0
    function: str = ""

    @property
    def name(self) -> str:
        """The label with the function: ``graph 0 [0/0], train_step, train.py:12``."""
        return f"{self.label}, {self.function}" if self.function else self.label

    def holds_under(self, limits: Mapping[str, float]) -> bool:
        """Return whether the graph stays quarantined under `limits` (values of `limit` to seconds or bytes)."""
        return not self.limit or limits.get(self.limit, 0.0) <= self.value


def _decode(content: bytes, _: float) -> Record:
    return msgspec.json.decode(content, type=Record)


_records: Records[Record] = Records("quarantine", msgspec.json.encode, _decode, suffix=".json")
find = _records.find


def add(
    root: str,
    key: str,
    *,
    label: str,
    error: str,
    log: str | None,
    limit: str = "",
    value: float = 0.0,
    function: str = "",
) -> Record:
    """Quarantine a graph; `log` is a file with its last worker's output. Raises StoreError, ValueError (key).

    Replace an earlier record, unless that is stricter: without a limit, or with a larger limit.
    """
    check_directory(root)
    before = find(root, key)
    if before is not None and limit and (not before.limit or (before.limit == limit and before.value > value)):
        return before
    copy = ""
    if log is not None:
        with contextlib.suppress(OSError), open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            write_private(_log_path(root, key), file.read())
            copy = _log_path(root, key)
    record = Record(key, label, error, time.time(), copy, limit, value, function)
    _records.add(root, key, record)
    return record


def scan(root: str) -> Iterator[Record]:
    """Yield all readable records, oldest first."""
    records = [find(root, key) for key in _records.keys(root)]
    yield from sorted((record for record in records if record is not None), key=lambda record: record.when)


def release(root: str, key: str) -> bool:
    """Release a graph; return whether it was in quarantine. Raises ValueError for an invalid key, OSError."""
    if not _records.remove(root, key):
        return False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_log_path(root, key))
    return True


def _log_path(root: str, key: str) -> str:
    return _records.path(root, key).removesuffix("json") + "log"
