"""Reports on the process of a row. Executed ahead of each program, as the module `first_day_witness`.

`check(actual, expected)` compares, and writes the counts so far into a file of this process. Nothing is imported
here that could hide a problem of the program, and the counts hold without fxpool's own counters.
"""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is not imported either
    from typing import Any

    from fxpool.bench.witness import LoweringCounter, since
else:  # the same file, executed ahead of this one
    from first_day_counter import LoweringCounter, since

RECORDS = ""  # the directory of the files; set after this was executed

_lock = threading.Lock()
_lowerings = LoweringCounter()
_checks = 0
_differences: list[str] = []
_notes: dict[str, Any] = {}
_before: dict[str, Any] | None = None  # fxpool's counters when this process was forked


def check(actual: Any, expected: Any) -> None:
    """Say that a result is there, and whether it is as eager execution has it."""
    global _checks
    import torch

    difference = ""
    try:
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-5)
    except AssertionError as error:
        difference = str(error).splitlines()[0]
    with _lock:
        _checks += 1
        if difference:
            _differences.append(difference)
        _write()


def note(name: str, value: Any) -> None:
    """Leave a word for a row's own check."""
    with _lock:
        _notes[name] = value
        _write()


def again() -> None:
    """Write the counts again, after the last check."""
    with _lock:
        _write()


def _counters() -> dict[str, Any] | None:
    counters = sys.modules.get("fxpool.counters")
    if counters is None:
        return None
    found = counters.snapshot()
    found.pop("graphs", None)
    return since(_before, found) if _before else found


def _write() -> None:
    path = os.path.join(RECORDS, f"{os.getpid()}.json")
    text = json.dumps(
        {
            "pid": os.getpid(),
            "checks": _checks,
            "differences": _differences,
            "lowerings": _lowerings.count,
            "stats": _counters(),
            "notes": _notes,
        }
    )
    part = path + ".part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, text.encode("ascii"))
        os.fchmod(descriptor, 0o644)  # despite the umask
    finally:
        os.close(descriptor)
    os.replace(part, path)


def _forked() -> None:
    global _lock, _checks, _before
    _lock = threading.Lock()
    _checks = 0
    _lowerings.reset()
    _differences.clear()
    _before = None
    _before = _counters()


_lowerings.install()
os.register_at_fork(after_in_child=_forked)
