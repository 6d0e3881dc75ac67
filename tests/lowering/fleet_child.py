"""Processes of several machines, forked from one process that has imported torch; see `fleet`.

    fleet_child.py '[{"name": "a", "environment": {...}, "graphs": 6, "take": 0, "report": "/directory/a"}, ...]'

Each process waits for the file ``<report>.go``, and then compiles its graphs. It creates ``<report>.waits`` when it
waits for another machine, and writes ``<report>.json`` at its end. ``<report>.pid`` has its pid.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from deadly import deadly

Function = Callable[[torch.Tensor], torch.Tensor]


def graph(number: int, take: float) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x.sin() + number).relu()
        return deadly(y, f"take {take}").cos() if take else y

    return function


def watch_waits(path: Path) -> None:
    from fxpool.codecache.remote.leases import Leases

    patched: Any = Leases
    original = patched._wait_until_free

    def watched(*arguments: Any) -> bool:
        path.touch()
        return bool(original(*arguments))

    patched._wait_until_free = watched


def work(job: dict[str, Any]) -> None:
    report = Path(job["report"])
    os.environ.update(job["environment"])
    tempfile.tempdir = None  # computed from the parent's environment
    report.with_suffix(".pid").write_text(str(os.getpid()))
    import fxpool

    watch_waits(report.with_suffix(".waits"))
    while not report.with_suffix(".go").exists():
        time.sleep(0.01)
    x, results, seconds = torch.linspace(-1, 1, 32), [], []
    for number in range(job["graphs"]):
        function = graph(number, job["take"])
        torch._dynamo.reset()
        begun = time.monotonic()
        result = torch.compile(function, backend="fxpool", dynamic=False)(x)
        seconds.append(time.monotonic() - begun)
        results.append(bool(torch.allclose(result, function(x))))
    fxpool.wait(60)
    text = json.dumps({"right": results, "seconds": seconds, "stats": fxpool.stats()}, default=str)
    report.with_suffix(".json").write_text(text)


def main(processes: list[dict[str, Any]]) -> None:
    warnings.simplefilter("ignore")
    pids = []
    for job in processes:
        if (pid := os.fork()) == 0:
            try:
                work(job)
                atexit._run_exitfuncs()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
