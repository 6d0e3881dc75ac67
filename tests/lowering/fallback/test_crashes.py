"""A worker, the zygote, the server or who asked is killed while a graph is compiled: who waits gets the graph."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crash_jobs
import own_jobs
import psutil
import pytest
from compiling import compiled
from processes import HERE
from tiers import first_tier

import fxpool
from fxpool.codecache.store import quarantine
from fxpool.errors import ServerLostError
from fxpool.lowering.core.runtime import runtime
from fxpool.pool import JobSpec
from fxpool.pool.client import hosts

SECONDS = 120.0  # ends a broken test


pytestmark = pytest.mark.usefixtures("nothing_lowered_here")


def ours(one: dict[str, Any]) -> bool:
    """Not a job that finds out about this host's tool chain, and no test's."""
    return "graph" in one["label"] or "crash_jobs" in one["label"]


class Hunter(threading.Thread):
    """Looks what the pool does, and when `seen` picks somebody out of it, kills that one."""

    def __init__(self, seen: Callable[[dict[str, Any]], int | None]) -> None:
        super().__init__(daemon=True)
        self.seen, self.facts, self.killed = seen, dict[str, Any](), 0

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            facts = runtime.pool().status()
            if facts["state"] == "running" and (pid := self.seen(facts)):
                os.kill(pid, signal.SIGKILL)
                self.facts, self.killed = facts, pid
                return
            time.sleep(0.002)


def victim(who: str, facts: dict[str, Any], running: dict[str, Any] | None) -> int | None:
    if who in ("worker", "sub-job"):
        return running["pid"] if running is not None else None
    return facts["zygote"]["pid"] if who == "zygote" else facts["server_pid"]


def seen_in(phase: str, who: str) -> Callable[[dict[str, Any]], int | None]:
    def seen(facts: dict[str, Any]) -> int | None:
        running = own_jobs.running(facts)
        there = [one for one in running if not one["sub_job"] and ours(one) and one["phase"] == phase]
        parts = [one for one in running if one["sub_job"] and one["reached"] and there]
        if phase == "kernels" and not parts:
            return None
        return victim(who, facts, (parts if who == "sub-job" else there)[0]) if there else None

    return seen


def nothing_lost(hunter: Hunter, who: str, before: dict[str, Any]) -> None:
    hunter.join(SECONDS)
    assert hunter.killed, "nobody was there to be killed"
    stats = fxpool.stats()
    assert stats["compiles"] == {"worker": 1, "in_process": 0}
    assert (stats["eager_calls"], stats["fallbacks"], stats["quarantined"]) == ({}, {}, 0)
    assert not list(quarantine.scan(str(fxpool.config.current().cache_dir)))
    facts = runtime.pool().status()
    assert (facts["server_pid"] == before["server_pid"]) == (who != "server")
    if who != "server":
        assert (facts["zygote"].get("pid") == before["zygote"]["pid"]) == (who != "zygote")
        assert facts["counters"]["deaths"] - before["counters"]["deaths"] >= 1
    assert not psutil.pid_exists(hunter.killed) or hunter.killed not in _alive()
    assert _settles(), runtime.pool().status()


def _alive() -> list[int]:
    return [process.pid for process in psutil.process_iter() if process.status() != psutil.STATUS_ZOMBIE]


def _settles() -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        facts = runtime.pool().status()
        if not (own_jobs.running(facts) or own_jobs.waiting(facts)):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "phase"),
    first_tier(
        [
            ("worker", "lowering"),
            ("worker", "kernels"),
            ("sub-job", "kernels"),
            ("zygote", "lowering"),
            ("zygote", "kernels"),
            ("server", "lowering"),
            ("server", "kernels"),
        ],
        ("worker", "lowering"),
        ("sub-job", "kernels"),
        ("zygote", "lowering"),
        ("server", "kernels"),
    ),
)
def test_killed_while_a_graph_is_compiled(who: str, phase: str, lone_pool: Path, cache: Path) -> None:
    runtime.pool().start(wait=True)
    before = runtime.pool().status()
    hunter = Hunter(seen_in(phase, who))
    hunter.start()
    compiled(crash_jobs.graph, *crash_jobs.inputs())
    nothing_lost(hunter, who, before)


@pytest.mark.slow
@pytest.mark.parametrize("who", first_tier(["zygote", "server"], "server"))
def test_killed_while_a_graph_waits_for_a_slot(who: str, lone_pool: Path, cache: Path, tmp_path: Path) -> None:
    pool = runtime.pool()
    pool.start(wait=True)
    before = pool.status()
    go = tmp_path / "go"
    blocking = [
        pool.submit(
            "crash_jobs:wait", str(go).encode(), JobSpec(label=f"blocks {number}", sys_path=[str(HERE)], priority=1)
        )
        for number in range(before["slots"])
    ]
    try:

        def seen(facts: dict[str, Any]) -> int | None:
            if len([one for one in own_jobs.running(facts) if one["pid"]]) < len(blocking):
                return None
            # A process that has Inductor imported asks for torch's tables before its first graph.
            wanted = [one for one in own_jobs.waiting(facts) if ours(one) or one["label"] == "torch's tables"]
            there = [one for one in wanted if not one["running"]]
            return victim(who, facts, None) if there and facts["queued"] else None

        hunter = Hunter(seen)
        hunter.start()

        def let_go() -> None:
            hunter.join(SECONDS)
            go.touch()

        threading.Thread(target=let_go, daemon=True).start()
        compiled(crash_jobs.graph, *crash_jobs.inputs())
    finally:
        go.touch()
        for job in blocking:
            with contextlib.suppress(ServerLostError):
                assert job.result(timeout=SECONDS) == b""
    nothing_lost(hunter, who, before)


@pytest.mark.slow
@pytest.mark.parametrize("phase", first_tier(["lowering", "kernels"], "kernels"))
def test_of_four_who_want_it_the_one_who_asked_is_killed(phase: str, cache: Path, tmp_path: Path) -> None:
    directory = Path(os.environ["FXPOOL_RUNTIME_DIR"])
    with open(tmp_path / "said", "w+") as said, open(tmp_path / "errors", "w+") as errors:
        program = subprocess.Popen([sys.executable, "-m", "crash_jobs", "4"], stdout=said, stderr=errors, cwd=HERE)
        try:
            asker = None
            deadline = time.monotonic() + SECONDS
            while asker is None and time.monotonic() < deadline and program.poll() is None:
                for link in hosts.links(directory):
                    asker = asker or _asker(hosts.status(link), phase)
                time.sleep(0.01)
            if asker is not None:
                os.kill(asker, signal.SIGKILL)
            program.wait(SECONDS)
        finally:
            for process in [*psutil.Process(program.pid).children(), program] if program.poll() is None else []:
                process.kill()
            program.wait()
        said.seek(0), errors.seek(0)
        reports = [json.loads(line) for line in said.read().splitlines()]
        assert asker is not None, errors.read()[-3000:]
        assert len(reports) == 3 and asker not in [one["pid"] for one in reports], errors.read()[-3000:]
    assert sum(one["compiles"]["worker"] for one in reports) <= 1, "the one that was killed had another compiled"
    assert [one["compiles"]["in_process"] for one in reports] == [0, 0, 0]
    assert [one["eager_calls"] for one in reports] == [{}, {}, {}]
    assert {how for one in reports for how in one["how"]} <= {"worker", "joined", "hit"}
    assert len([path for path in (cache / "entries").rglob("*") if path.is_file()]) == 1


def _asker(facts: dict[str, Any], phase: str) -> int | None:
    """Who asked for the graph first, once it is in `phase` and all four want it."""
    wanting = [one for one in facts.get("waiting", ()) if ours(one)]
    there = [one for one in facts.get("running", ()) if ours(one) and not one["sub_job"] and one["phase"] == phase]
    if not there or len(wanting) < 4:
        return None
    return next(one["client"] for one in wanting if not one["joined"])
