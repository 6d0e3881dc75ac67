"""The program's side of ``fxpool run`` and ``fxpool warm``: installs once Inductor is imported, reports at the end.

    fxpool run ──▶ python script.py, with a variable ── import torch ──▶ `begin`
                     ├─ import torch._inductor.compile_fx ──▶ `fxpool.install()`
                     └─ exit ──▶ a report (JSON) in the directory that the variable names

The program runs as without fxpool until it imports torch, and its child processes are treated like itself. Inductor is
not imported here: the program may set its variables after it has imported torch.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
from typing import Any

from fxpool.child_python import PROGRAM_RUN

__all__ = ["begin", "environment"]


def environment(*, reports: str = "", wait: bool = False) -> dict[str, str]:
    """Return the variable for a program that reports into a directory, and with `wait` for background compiles."""
    return {PROGRAM_RUN: json.dumps({"reports": reports, "wait": wait})}


def begin() -> None:
    """Install fxpool as soon as Inductor is imported, and report at exit. Called when torch has been imported."""
    from fxpool.torch_compat.patching import when_imported  # late: imported by a program that only imports torch

    wanted = json.loads(os.environ[PROGRAM_RUN])
    when_imported("torch._inductor.compile_fx", lambda module: _install())
    if wanted["wait"]:
        # Earlier than callbacks of `atexit`, one of which withdraws background compiles. The public way, another
        # thread, makes Python warn of every fork.
        threading._register_atexit(_wait)  # type: ignore[attr-defined]
    if wanted["reports"]:
        atexit.register(_report, wanted["reports"], os.getpid())


def _install() -> None:
    import fxpool  # late: this is called in the middle of an import
    from fxpool import notices  # as said above
    from fxpool.errors import FxpoolError  # as said above

    try:
        fxpool.install()
    except FxpoolError as error:
        notices.warn(f"stock Inductor compiles this program: {error.message}")


def _wait() -> None:
    import fxpool  # late, as in `_install`

    fxpool.wait()


def _report(directory: str, pid: int) -> None:
    """Write this process's counters; a forked child has copies of its parent's."""
    if os.getpid() != pid:
        return
    with contextlib.suppress(Exception):  # the program has ended: its exit status is its own
        report = {"pid": pid, **_counted()}
        path = os.path.join(directory, str(pid))
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(report, file, default=str)
        os.rename(f"{path}.new", f"{path}.json")


def _counted() -> dict[str, Any]:
    from fxpool import config, counters  # late, as in `_install`

    counted = {**counters.snapshot(), "cache_dir": str(config.current().cache_dir), "inductor": {}}
    looked_up = any(counted[name] for name in ("hits", "misses", "guard_misses", "bypasses"))
    if "torch._inductor.compile_fx" in sys.modules and not looked_up:  # torch's counters include fxpool's lookups
        from fxpool.torch_compat.dynamo import torch_counters  # as said above
        from fxpool.torch_compat.inductor import hooks  # as said above

        lookups = torch_counters.of_inductors_cache()
        counted["inductor"] = {**lookups, "directory": hooks.cache_directory()} if any(lookups.values()) else {}
    return counted
