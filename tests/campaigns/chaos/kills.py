"""Kills and suspends processes of every kind while programs compile: each result is right, and nothing is left."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time

import psutil

from .scene import Report, Scene, scene

__all__ = ["run"]

SIGNALS = (
    signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT, signal.SIGINT,
)  # fmt: skip
# How often each is chosen while it runs: workers and compilers live for seconds, servers and zygotes all the time.
KINDS = {"server": 2, "zygote": 2, "worker": 10, "compiler": 10, "client": 1}
_CLIENTS = 6
# Different graphs; a program that is started again finds some of them.
_SPREAD = 400
_END_SECONDS = 240


def run(kills: int, seed: int, clients: int = _CLIENTS) -> Report:
    """Kill `kills` processes of programs that compile, chosen by `seed`."""
    report = Report("kills")
    with scene("k") as stage:
        choose = random.Random(seed)
        stop = stage.root / "stop"
        running = {number: _start(stage, number, seed, stop) for number in range(clients)}
        started = clients
        try:
            while report.figures["kills"] < kills:
                time.sleep(choose.uniform(0.5, 2.5))
                victim = _kill_one(stage, choose, report)
                for number, process in running.items():
                    # A killed program may take a moment to end; psutil's `wait` would take its status.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(20 if process.pid == victim else 0)
                    if process.poll() is None:
                        continue
                    if process.pid != victim or process.returncode >= 0:
                        report.lost.append(f"a program ended with status {process.returncode}")
                    running[number], started = _start(stage, number, seed + started, stop), started + 1
        finally:
            stop.touch()
            _end(running, report)
        _count(stage, report)
        # The directory of a server that was killed is left to the next server.
        if stage.start("once", 0.5, "fxpool", name="last").wait(_END_SECONDS):
            report.lost.append("the last program failed")
        report.left = stage.left()
    return report


def _start(stage: Scene, number: int, seed: int, stop: object) -> subprocess.Popen[bytes]:
    return stage.start("compile", seed, stop, _SPREAD, name=f"{number}")


def _kind(process: psutil.Process) -> str:
    name, command = process.name(), " ".join(process.cmdline())
    if "campaigns.chaos.child" in command:
        return "client"
    if name.startswith("fxpool worker"):
        return "worker"
    if name.startswith("fxpool server") or "fxpool.pool.server" in command:
        return "server"
    if "fxpool.pool.worker.zygote" in command:
        return "zygote"
    return "compiler" if name in ("g++", "cc1plus", "as", "ld", "collect2", "x86_64-linux-gnu-g++") else "other"


def _kill_one(stage: Scene, choose: random.Random, report: Report) -> int:
    """Send a signal to a process; return its pid if it is a program that this ends, else 0."""
    by_kind: dict[str, list[psutil.Process]] = {}
    for process in stage.processes():
        with contextlib.suppress(psutil.Error):
            by_kind.setdefault(_kind(process), []).append(process)
    kinds = [kind for kind in KINDS if kind in by_kind]
    if not kinds:
        return 0
    (kind,) = choose.choices(kinds, [KINDS[kind] for kind in kinds])
    victim, number = choose.choice(by_kind[kind]), choose.choice(SIGNALS)
    if kind == "client" and number == signal.SIGINT:
        number = signal.SIGKILL  # it would be the program's own KeyboardInterrupt
    try:
        if kind == "compiler" and not any(_kind(parent) == "worker" for parent in victim.parents()):
            return 0  # stock Inductor's: the program fails, as with stock
        victim.send_signal(number)
    except psutil.Error:
        return 0
    report.figures["kills"] += 1
    report.figures[f"of {kind}s"] += 1
    if number == signal.SIGSTOP:
        threading.Timer(choose.uniform(1, 15), _go_on, (victim,)).start()
        return 0
    return victim.pid if kind == "client" else 0


def _go_on(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGCONT)


def _end(running: dict[int, subprocess.Popen[bytes]], report: Report) -> None:
    end = time.monotonic() + _END_SECONDS
    for number, process in running.items():
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            report.lost.append(f"program {number} did not end")
            process.kill()
            process.wait()


def _count(stage: Scene, report: Report) -> None:
    for line in stage.lines():
        report.figures["graphs"] += 1
        report.figures["longest, s"] = max(report.figures["longest, s"], round(line["seconds"]))
        if line["result"] == "wrong":
            report.wrong.append(f"graph {line['graph']}")
        elif line["result"] != "right":
            report.lost.append(f"graph {line['graph']}: {line['result']}")
