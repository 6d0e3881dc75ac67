"""Preparations of the tests, and jobs that say what they find. Each call leaves a directory `mark-...`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

called: list[str] = []
held: list[object] = []


def _mark(directory: str, name: str) -> None:
    os.mkdir(os.path.join(directory, f"mark-{name}-{time.monotonic_ns()}"))
    called.append(name)


def plain(argument: bytes) -> None:
    _mark(argument.decode(), "plain")
    os.environ["SET_BY_PREPARATION"] = "1"


def slow(argument: bytes) -> None:
    _mark(argument.decode(), "slow")
    time.sleep(1.0)


def endless(argument: bytes) -> None:
    _mark(argument.decode(), "endless")
    time.sleep(600)


def raises(argument: bytes) -> None:
    _mark(argument.decode(), "raises")
    raise ImportError("no such module")


def reads(argument: bytes) -> None:
    _mark(argument.decode(), "reads")
    called.append(Path(argument.decode(), "mark.txt").read_text())


def imports(argument: bytes) -> None:
    """Imports a module, of which a compiled file may exist."""
    _mark(argument.decode(), "imports")
    sys.path.insert(0, os.path.join(argument.decode(), "mark-modules"))
    import mark_module

    called.append(mark_module.TEXT)


def thread(argument: bytes) -> None:
    _mark(argument.decode(), "thread")
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def child(argument: bytes) -> None:
    _mark(argument.decode(), "child")
    held.append(subprocess.Popen(["sleep", "600"]))


def opened(argument: bytes) -> None:
    _mark(argument.decode(), "opened")
    held.append(os.open(os.devnull, os.O_RDONLY))


def temporary(argument: bytes) -> None:
    _mark(argument.decode(), "temporary")
    tempfile.mkdtemp()


def writes(argument: bytes) -> None:
    _mark(argument.decode(), "writes")
    Path(argument.decode(), "mark.txt").write_text("log")


def look(data: bytes) -> bytes:
    """Return the preparations called in this process, and facts about it."""
    parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    seen = os.environ.get("SET_BY_PREPARATION"), os.environ.get("GIVEN"), os.getcwd()
    return json.dumps({"called": called, "parent": parent, "seen": seen, "pid": os.getpid()}).encode()


def look_later(data: bytes) -> bytes:
    """Report the start; the first of two calls waits to be killed."""
    directory = Path(data.decode())
    started = directory / "mark-started"
    first = not started.exists()
    started.touch()
    if first:
        time.sleep(600)
    return look(data)


def prints(data: bytes) -> bytes:
    print("printed by", data.decode())
    return b""


def occurrences(reverse: bytes) -> bytes:
    """Job: return the name of this worker's parent, and how often its memory has some bytes, given in reverse."""
    wanted, parent = reverse[::-1], os.getppid()
    count = 0
    with open(f"/proc/{parent}/maps") as maps, open(f"/proc/{parent}/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(address, 16) for address in line.split()[0].split("-"))
            if " r" in line and "[v" not in line:
                memory.seek(first)
                count += memory.read(last - first).count(wanted)
    return json.dumps([Path(f"/proc/{parent}/comm").read_text().strip(), count]).encode()
