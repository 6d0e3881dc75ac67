"""What a process of a row sees of itself. Executed ahead of each program, as the module `first_day_witness`.

`check(actual, expected)` compares, and writes what was counted so far into a file of this process. Nothing is imported
here that could hide what a program comes upon, and what is written holds without fxpool's own counters.
"""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is not imported either
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

RECORDS = ""  # the directory of the files; set by who executes this

_lock = threading.Lock()
_lowerings = 0
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
    """Write anew: what was counted since the last check."""
    with _lock:
        _write()


def _counters() -> dict[str, Any] | None:
    counters = sys.modules.get("fxpool.counters")
    if counters is None:
        return None
    found = counters.snapshot()
    found.pop("graphs", None)
    return _less(found, _before) if _before else found


def _less(now: Any, before: Any) -> Any:
    if isinstance(now, dict):
        left = {name: _less(value, before.get(name, 0 if not isinstance(value, dict) else {})) for name, value
                in now.items()}  # fmt: skip
        return {name: value for name, value in left.items() if value or name not in before}
    return now - before


def _write() -> None:
    path = os.path.join(RECORDS, f"{os.getpid()}.json")
    text = json.dumps(
        {
            "pid": os.getpid(),
            "checks": _checks,
            "differences": _differences,
            "lowerings": _lowerings,
            "stats": _counters(),
            "notes": _notes,
        }
    )
    part = path + ".part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, text.encode("ascii"))
        os.fchmod(descriptor, 0o644)  # whatever the umask
    finally:
        os.close(descriptor)
    os.replace(part, path)


def _forked() -> None:
    global _lock, _lowerings, _checks, _before
    _lock = threading.Lock()
    _lowerings = _checks = 0
    _differences.clear()
    _before = None
    _before = _counters()


class _Finder:
    """Has Inductor's GraphLowering count its constructions when it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch._inductor.graph":
            return None
        import importlib.machinery

        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader: Any = spec.loader if spec is not None else None
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            original = module.GraphLowering.__init__

            def counted(self: Any, *args: Any, **kwargs: Any) -> None:
                global _lowerings
                with _lock:
                    _lowerings += 1
                original(self, *args, **kwargs)

            module.GraphLowering.__init__ = counted

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
os.register_at_fork(after_in_child=_forked)
