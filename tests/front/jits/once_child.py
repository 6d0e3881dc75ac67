"""A process that calls `fxpool.once`; prints as JSON the result, its counters and how often it built.

    once_child.py {"key": ..., "log": FILE, "seconds": 0.5, "go": FILE, "form": "bytes", "directory": null, ...}

Each build appends its process's number to `log` when it starts, before it takes `seconds`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import fxpool


def main(arguments: dict[str, Any]) -> None:
    log = Path(arguments["log"])

    def started() -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def content() -> bytes:
        started()
        time.sleep(arguments.get("seconds", 0.0))
        return b"built " * 1000

    def files(directory: str) -> None:
        started()
        Path(directory, "half").write_text("of it")
        time.sleep(arguments.get("seconds", 0.0))
        Path(directory, "sub").mkdir()
        Path(directory, "sub", "file").write_bytes(b"built " * 1000)

    if go := arguments.get("go"):
        Path(f"{go}.{os.getpid()}").touch()
        while not os.path.exists(go):
            time.sleep(0.002)
    more = {name: arguments[name] for name in ("directory", "in_place", "timeout") if name in arguments}
    result: Any = fxpool.once(arguments["key"], content if arguments.get("form") == "bytes" else files, **more)
    if isinstance(result, str):
        content_read = Path(result, "sub", "file").read_bytes()
        names = sorted(os.listdir(result))
    else:
        content_read, names, result = result, [], None
    fxpool.wait(30)
    stats = fxpool.stats()
    print(
        json.dumps(
            {
                "path": result,
                "names": names,
                "right": content_read == b"built " * 1000,
                "once": stats["once"],
                "remote": stats["remote"],
                "saved": stats["seconds_saved"],
                "torch": "torch" in sys.modules,
            }
        ),
        flush=True,
    )
    if arguments.get("stays"):
        sys.stdin.read()


main(json.loads(sys.argv[1]))
