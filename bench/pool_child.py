"""What the benchmarks measure of the pool itself; each command prints one line of JSON.

python bench/pool_child.py together --count 4 --backend B   seconds that so many processes take with one cold graph,
                                                            beyond what as many take with backend="eager"
python bench/pool_child.py roundtrip --backend fxpool       an empty job there and back: median and 99th percentile;
                                                            with --backend inductor through torch's own SubprocPool
python bench/pool_child.py fork --backend fxpool            forking a worker from the zygote; an empty job in it
python bench/pool_child.py exit --backend fxpool            seconds that a process needs to end beyond one with
                                                            backend="eager": its compile done, and under way
python bench/pool_child.py killed --backend fxpool          seconds by which a first call takes longer when the
                                                            worker, the zygote or the server is killed in its middle
python bench/pool_child.py footprint --backend fxpool       memory and CPU of an idle pool, and of a worker at work
"""

from __future__ import annotations

import json
import operator
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from child import started_pool
from commands import run
from models import Size, Step, build, first_call

JOBS = 2000
FORKED_JOBS = 200
IDLE_SECONDS = 10.0


def one(size: Size, backend: str, what: Step = "infer") -> dict[str, Any]:
    """A process of `together`: says that it is ready, waits for a line, measures its first call."""
    build("gpt2", "small")  # what the model needs is imported before the clock starts
    print("ready", flush=True)
    sys.stdin.readline()
    return first_call("gpt2", what, backend, size)


def together(count: int, size: Size, backend: str, what: Step = "infer") -> dict[str, Any]:
    eager, _ = _at_once(count, what, size, "eager")
    seconds, results = _at_once(count, what, size, backend)
    stats = [result["stats"] for result in results if result["stats"]]
    # In pieces (FXPOOL_REGIONS) a graph is as many compiles as it has distinct ones.
    graphs = max((one["regions"].get("distinct", 1) for one in stats), default=1)
    return {
        "graphs": graphs,
        "beyond_seconds": seconds - eager,
        "eager_seconds": eager,
        "compiled": sum(one["compiles"]["worker"] + one["compiles"]["in_process"] for one in stats),
        "joined": sum(one["joined"] for one in stats),
        "graph_lowerings": sum(result["graph_lowerings"] for result in results) if stats else 0,
        "difference": max(result["difference"] for result in results),
        "stats": {"misses": sum(one["misses"] for one in stats), "hits": 0} if stats else None,
    }


def _at_once(count: int, what: str, size: Size, backend: str) -> tuple[float, list[dict[str, Any]]]:
    """Seconds from the moment all may begin until the last has had its first call; and what each measured."""
    environment = {**os.environ, "FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "1"}
    command = [sys.executable, __file__, "one", "--what", what, "--size", size, "--backend", backend]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(count)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError(f"a process did not get ready: exit code {child.wait()}")
        start = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        lines = [child.stdout.readline() for child in children if child.stdout is not None]
        seconds = time.perf_counter() - start
        return seconds, [json.loads(line) for line in lines]
    finally:
        for child in children:
            child.kill()
            child.communicate()
        _until_no_server()


def _until_no_server() -> None:
    from fxpool import config
    from fxpool.pool.client import hosts
    from fxpool.pool.host import runtime_dir

    root = runtime_dir.runtime_root(str(config.current().runtime_dir))
    end = time.monotonic() + 30
    while hosts.links(root) and time.monotonic() < end:
        time.sleep(0.1)


def roundtrip(backend: str) -> dict[str, Any]:
    if backend == "inductor":
        from torch._inductor.compile_worker.subproc_pool import SubprocPool

        theirs = SubprocPool(2)
        try:
            return _times(lambda: theirs.submit(operator.add, 1, 1).result(), JOBS)
        finally:
            theirs.shutdown()
    from fxpool.pool import JobSpec

    pool = started_pool()
    return _times(lambda: pool.submit("builtins:bytes", b"", JobSpec(label="empty", reuse=True)).result(), JOBS)


def fork() -> dict[str, Any]:
    from fxpool.pool import JobSpec

    pool = started_pool()
    forks = []

    def call() -> None:
        pool.submit("builtins:bytes", b"", JobSpec(label="empty")).result()
        forks.append(pool.status()["fork_seconds"])

    times = _times(call, FORKED_JOBS)
    return times | {"fork_seconds": statistics.median(forks)}


def _times(call: Callable[[], object], count: int) -> dict[str, Any]:
    for _ in range(50):
        call()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return {"p50_seconds": statistics.median(seconds), "p99_seconds": statistics.quantiles(seconds, n=100)[98]}


def footprint(size: Size) -> dict[str, Any]:
    import psutil

    from fxpool.pool.host import memory

    pool = started_pool()
    facts = pool.status()
    pids = [facts["server_pid"], facts["zygote"]["pid"]]
    before = [psutil.Process(pid).cpu_times() for pid in pids]
    time.sleep(IDLE_SECONDS)
    after = [psutil.Process(pid).cpu_times() for pid in pids]
    busy = sum(b.user + b.system - a.user - a.system for a, b in zip(before, after, strict=True))
    idle_bytes = memory.proportional(pids)
    peaks: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            for job in pool.status()["running"]:
                if job["pid"] is not None and not job["sub_job"] and job["label"].startswith("graph"):
                    peaks[job["pid"]] = max(peaks.get(job["pid"], 0), _own(job["pid"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = first_call("gpt2", "infer", "fxpool", size)
    finally:
        over.set()
        watcher.join()
    return {
        "idle_megabytes": idle_bytes / 2**20,
        "idle_cpu": busy / IDLE_SECONDS,
        "worker_megabytes": max(peaks.values(), default=0) / 2**20,
        **result,
    }


# "said" goes out when the program has nothing left to do.
ENDING = """
import sys, torch
backend, mode = sys.argv[1:]
options = {"options": {"mode": mode}} if backend == "fxpool" else {}
torch.compile(lambda x: (x @ x).softmax(-1).sin(), backend=backend, **options)(torch.randn(8, 8))
print("said", flush=True)
"""
ENDS = 15


def exit() -> dict[str, Any]:
    def once(number: int, backend: str, mode: str) -> float:
        # A cache of its own: each process compiles.
        place = {"FXPOOL_CACHE_DIR": os.path.join(os.environ["FXPOOL_CACHE_DIR"], f"{mode}-{number}")}
        os.makedirs(place["FXPOOL_CACHE_DIR"], mode=0o700)
        toolchain_dir = os.path.join(os.environ["FXPOOL_CACHE_DIR"], "toolchain")
        if os.path.isdir(toolchain_dir):
            os.symlink(toolchain_dir, os.path.join(place["FXPOOL_CACHE_DIR"], "toolchain"))
        environment = {**os.environ, **place, "FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "5"}
        command = [sys.executable, "-c", ENDING, backend, mode]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "said\n":
                raise RuntimeError("the program failed")
            begun = time.perf_counter()
            process.wait()
            return time.perf_counter() - begun

    seconds_by_mode: dict[str, list[float]] = {"eager": [], "subprocess": [], "async+subprocess": []}
    for number in range(ENDS):
        for mode, seconds in seconds_by_mode.items():
            backend = "eager" if mode == "eager" else "fxpool"
            seconds.append(once(number, backend, mode))
    _until_no_server()
    least = statistics.median(seconds_by_mode["eager"])
    return {
        "exit_seconds": statistics.median(seconds_by_mode["subprocess"]) - least,
        "pending_exit_seconds": statistics.median(seconds_by_mode["async+subprocess"]) - least,
        "each": seconds_by_mode,
    }


def killed(size: Size) -> dict[str, Any]:
    from fxpool.lowering.core.runtime import runtime

    os.environ["FXPOOL_POOL"] = "host"
    os.environ["FXPOOL_IDLE_TIMEOUT"] = "1"
    _first_call_with("nobody", size)  # what this process imports once
    undisturbed = _first_call_with("nobody", size)
    delays = {f"{who}_seconds": _first_call_with(who, size) - undisturbed for who in ("worker", "zygote", "server")}
    runtime.close()
    _until_no_server()
    return {"undisturbed_seconds": undisturbed} | delays


def _first_call_with(who: str, size: Size) -> float:
    """Seconds of a cold first call of GPT-2 while `who` is killed as soon as its worker lowers it."""
    import signal

    import torch

    from fxpool.lowering.core.runtime import runtime

    store = runtime.store()
    assert store is not None
    store.clear()
    pool = started_pool()
    done = threading.Event()

    def hunt() -> None:
        while not done.is_set():
            facts = pool.status()
            for job in facts.get("running", []):
                if job["label"].startswith("graph") and job["phase"] == "lowering":
                    pids = {"worker": job["pid"], "zygote": facts["zygote"]["pid"], "server": facts["server_pid"]}
                    os.kill(pids[who], signal.SIGKILL)
                    done.set()
                    return
            time.sleep(0.05)

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, tokens = build("gpt2", size).eval(), torch.randint(0, 1000, (2, 64))
    hunter = threading.Thread(target=hunt) if who != "nobody" else None
    start = time.perf_counter()
    if hunter is not None:
        hunter.start()
    with torch.no_grad():
        torch.compile(model, backend="fxpool")(tokens)
    seconds = time.perf_counter() - start
    import fxpool

    if hunter is not None and not done.is_set():
        done.set()
        raise RuntimeError(f"the {who} was not killed in time")
    stats = fxpool.stats()
    if stats["fallbacks"] or stats["compiles"]["in_process"]:
        raise RuntimeError(f"not compiled by a worker: {stats['fallbacks']}")
    return seconds


def _own(pid: int) -> int:
    """Bytes that nobody shares with a process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


if __name__ == "__main__":
    run(one, together, roundtrip, fork, exit, killed, footprint)
