"""The programs of the campaign: ``python -m campaigns.chaos.child compile|client|once ...``."""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any


def compile_graphs(seed: str, stop: str, spread: str) -> None:
    """Compile small graphs until the file `stop` exists; write a line for each."""
    import torch

    choose = random.Random(int(seed))
    while not os.path.exists(stop):
        number = choose.randrange(int(spread))
        factor, operation = 1.0 + number / 64, (torch.sin, torch.cos, torch.tanh, torch.exp)[number % 4]

        def function(
            x: torch.Tensor, y: torch.Tensor, factor: float = factor, operation: Any = operation
        ) -> torch.Tensor:
            return (operation(x) * factor + (y * factor).relu()).sum(0) - factor

        size = 8 * (number + 3)
        x, y = (torch.linspace(-end, end, size).reshape(8, -1) for end in (1, 2))
        torch._dynamo.reset()
        started = time.monotonic()
        try:
            got = torch.compile(function, backend="fxpool", dynamic=False)(x, y)
            result = "right" if torch.allclose(got, function(x, y), atol=1e-5) else "wrong"
        except Exception as error:
            result = f"{type(error).__name__}: {str(error)[:500]}"
        print(json.dumps({"graph": number, "result": result, "seconds": time.monotonic() - started}), flush=True)


def compile_once(factor: str, backend: str) -> None:
    """Compile one graph; write the result, and what fxpool counted."""
    import torch

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * float(factor) + x.relu()

    x = torch.arange(16.0)
    try:
        right = torch.allclose(torch.compile(function, backend=backend)(x), function(x))
        result = "right" if right else "wrong"
    except Exception as error:
        result = f"{type(error).__name__}: {str(error)[:300]}"
    line: dict[str, Any] = {"result": result}
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        line |= {name: stats[name] for name in ("compiles", "fallbacks", "bypasses", "switched_off")}
    print(json.dumps(line), flush=True)


def be_clients(number: str, threads: str, seconds: str, store: str) -> None:
    """Be some clients of the pool and the store for a while; write how often each outcome was, at the end."""
    from fxpool.codecache.store.cache_limits import Bounds
    from fxpool.codecache.store.store import LocalStore
    from fxpool.lowering.core.runtime import runtime

    end = time.monotonic() + float(seconds)
    outcomes: collections.Counter[str] = collections.Counter()
    shared = LocalStore(store, Bounds(30 << 20, 5000))
    config = runtime.pool().config

    def work(thread: int) -> None:
        _Client(config, shared, random.Random(int(number) * 1000 + thread), outcomes).work_until(end)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"outcomes": outcomes, "descriptors": len(os.listdir("/proc/self/fd"))}), flush=True)


class _Client:
    """One client, which does one thing after another."""

    def __init__(self, config: Any, store: Any, choose: random.Random, outcomes: collections.Counter[str]) -> None:
        self._config = config
        self._pool = self._connected()
        self._store, self._choose, self._outcomes = store, choose, outcomes

    def _connected(self) -> Any:
        from fxpool.pool import PoolClient

        return PoolClient(self._config)

    def work_until(self, end: float) -> None:
        steps = (self._echo, self._echo, self._fail, self._die, self._reconnect, self._publish, self._read)
        while time.monotonic() < end:
            step = self._choose.choice(steps)
            try:
                outcome = step()
            except Exception as error:
                traceback.print_exc()
                outcome = f"lost: {step.__name__}: {type(error).__name__}: {str(error)[:200]}"
            self._outcomes[outcome] += 1
            time.sleep(self._choose.random() * 2)
        self._pool.close()

    def _echo(self) -> str:
        from fxpool.pool import JobSpec

        data = self._choose.randbytes(self._choose.choice([10, 1000, 200_000]))
        job = self._pool.submit("builtins:bytes", data, JobSpec(label="echo", reuse=self._choose.random() < 0.5))
        return "jobs" if job.result(180) == data else "wrong: another job's result"

    def _fail(self) -> str:
        from fxpool.pool import JobSpec

        try:
            self._pool.submit("time:sleep", b"", JobSpec(label="fails")).result(180)
        except TypeError:
            return "jobs that raise"
        return "wrong: an error is lost"

    def _die(self) -> str:
        from fxpool.errors import JobCancelledError, WorkerDiedError
        from fxpool.pool import JobSpec

        aborts = self._choose.random() < 0.4
        job = self._pool.submit("os:abort" if aborts else "builtins:bytes", b"", JobSpec(label="dies", retries=0))
        if self._choose.random() < 0.5:
            job.cancel()
        try:
            job.result(180)
        except (JobCancelledError, WorkerDiedError, TypeError):
            pass
        return "jobs that die or are cancelled"

    def _reconnect(self) -> str:
        self._pool.close()
        self._pool = self._connected()
        return "connections"

    def _key(self) -> str:
        return hashlib.sha256(str(self._choose.randrange(30_000)).encode()).hexdigest()

    def _publish(self) -> str:
        from fxpool.codecache.store.entry import Entry

        key = self._key()
        content = hashlib.sha256(key.encode()).digest() * self._choose.choice([100, 600])
        self._store.publish(Entry(key=key), {"a": content})
        return "entries written"

    def _read(self) -> str:
        key = self._key()
        for entry in self._store.entries(key):
            content = self._store.read_blob(entry.blobs["a"])
            if content is not None and content[:32] != hashlib.sha256(key.encode()).digest():
                return "wrong: another entry's blob"
        return "lookups"


def main(program: str, *arguments: str) -> None:
    {"compile": compile_graphs, "once": compile_once, "clients": be_clients}[program](*arguments)  # type: ignore[operator]


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path.cwd()]
    main(*sys.argv[1:])
