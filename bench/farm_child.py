"""Processes of a host in `farm.py`; each prints one line of JSON. Their settings are in the environment.

farm_child.py overhead '{"farm": ADDRESS, "graphs": 20, "warm": 3, "empty": 100, "bytes": 50000}'
farm_child.py background '{"farm": ADDRESS, "counts": [1, 2, 4], "warm": [2]}'
farm_child.py warm '{"farm": ADDRESS}'
farm_child.py lengths '{"suite": ["gpt2/inference", ...]}'
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

import fxpool

SIDES = ("home", "farm")


def _graph(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a small function; each number is another graph."""

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu((x @ x).sin() * number)
        return (hidden.softmax(-1) + x.relu()).cumsum(0) * number

    return function


def _first_call(number: float, x: torch.Tensor) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a first call, and fxpool's record of its graph."""
    function = _graph(number)
    torch._dynamo.reset()
    begin = time.perf_counter()
    result = torch.compile(function, backend="fxpool", dynamic=False)(x)
    seconds = time.perf_counter() - begin
    torch.testing.assert_close(result, function(x), rtol=1e-4, atol=1e-4)
    return seconds, dict(fxpool.stats()["graphs"][-1])


def _use(side: str, order: dict[str, Any]) -> None:
    fxpool.configure(farm=order["farm"] if side == "farm" else None)


def overhead(order: dict[str, Any]) -> dict[str, Any]:
    """Compile graphs at home and on the farm in turn, and run empty jobs in both ways."""
    x = torch.linspace(-1, 1, 64 * 64).reshape(64, 64)
    first: dict[str, list[float]] = {side: [] for side in SIDES}
    compiles: dict[str, list[float]] = {side: [] for side in SIDES}
    started = _first_job_of_the_farm(order)
    for number in range(order["warm"] + order["graphs"]):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            _use(side, order)
            seconds, record = _first_call(1 + number + SIDES.index(side) / 2, x)
            wanted = "worker" if side == "home" else "farm"
            if number < order["warm"]:
                continue
            if record["outcome"] != wanted:
                raise RuntimeError(f"graph {number}: {record['outcome']} instead of {wanted}: {fxpool.stats()['farm']}")
            first[side].append(seconds)
            compiles[side].append(record["seconds"]["compile"])
    _use("home", order)
    return {
        "first call": first,
        "compile": compiles,
        "empty job": _empty_jobs(order),
        "bridge": started,
        "farm": fxpool.stats()["farm"],
    }


def _empty_job(order: dict[str, Any], side: str) -> float:
    """Return the seconds of a job that returns its input; on the farm that is the order with the payload."""
    from fxpool.lowering.core.runtime import runtime
    from fxpool.pool import JobSpec
    from fxpool.pool.wire.farm import Away

    payload = os.urandom(order["bytes"])
    key = hashlib.sha256(payload).hexdigest()
    away = Away(farm=order["farm"], key=key, function="builtins:bytes", seal=b"", environment={}, builds={}, wait=60.0)
    spec = JobSpec(label="empty", away=away if side == "farm" else None)
    begin = time.perf_counter()
    job = runtime.pool().submit("builtins:bytes", payload, spec)
    result = job.result()
    seconds = time.perf_counter() - begin
    if len(result) < len(payload) or bool(job.machine) != (side == "farm"):
        raise RuntimeError(f"an empty job was not run by the {side}: {job.stayed}")
    return seconds


def _first_job_of_the_farm(order: dict[str, Any]) -> float:
    """Return the seconds by which a host's first job takes longer on the farm: it starts the bridge."""
    from fxpool.lowering.core.runtime import runtime

    runtime.pool().start(wait=True)
    home = min(_empty_job(order, "home") for _ in range(5))
    return _empty_job(order, "farm") - home


def _empty_jobs(order: dict[str, Any]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(-5, order["empty"]):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            spent = _empty_job(order, side)
            if number >= 0:
                seconds[side].append(spent)
    return seconds


def background(order: dict[str, Any]) -> dict[str, Any]:
    """Have several graphs compiled at the same time, in the background: alone and with the farm in turn."""
    x = torch.linspace(-1, 1, 64 * 64).reshape(64, 64)
    rows, number = [], 1
    for position, count in enumerate([*order["warm"], *order["counts"]]):
        for side in SIDES if position % 2 == 0 else SIDES[::-1]:
            _use(side, order)
            before = dict(fxpool.stats()["farm"])
            begin = time.perf_counter()
            for _ in range(count):
                number += 1
                torch._dynamo.reset()
                options = {"mode": "async+subprocess"}
                torch.compile(_graph(number / 7), backend="fxpool", dynamic=False, options=options)(x)
            fxpool.wait(600)
            seconds = time.perf_counter() - begin
            after = fxpool.stats()["farm"]
            counts = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
            if position >= len(order["warm"]):
                rows.append({"graphs": count, "side": side, "seconds": seconds, "farm": counts})
    return {"rows": rows, "farm": fxpool.stats()["farm"]}


def warm(order: dict[str, Any]) -> dict[str, Any]:
    """Compile a graph of no other process on the farm, which prepares machine and host."""
    _use("farm", order)
    x = torch.linspace(-1, 1, 64 * 64).reshape(64, 64)
    for number in range(8):
        seconds, record = _first_call(0.3 + number, x)
        if record["outcome"] == "farm":
            return {"seconds": seconds}
    raise RuntimeError(f"the farm compiles nothing: {fxpool.stats()['farm']}")


def lengths(order: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of the job of each model, compiled at home while nothing else is."""
    from fxpool.bench.suites import attention, convolutions, transformers

    cases = {case.name: case for suite in (transformers, convolutions, attention) for case in suite.CASES}
    _first_call(1.5, torch.ones(64, 64))  # prepares the host
    seconds = {}
    for name in order["suite"]:
        model, _, what = name.partition("/")
        case = cases[model]
        make: Any = case.make
        function, inputs = make(**case.arguments)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="fxpool", dynamic=False)
        with torch.set_grad_enabled(what == "training"):
            result = compiled(*inputs)
            result = getattr(result, "logits", result)
            if what == "training":
                result.float().mean().backward()
        record = fxpool.stats()["graphs"][-1]
        if record["outcome"] == "worker":
            seconds[name] = record["seconds"]["compile"]
    return {"seconds": seconds}


def main() -> None:
    warnings.simplefilter("ignore")
    commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "overhead": overhead,
        "background": background,
        "warm": warm,
        "lengths": lengths,
    }
    print(json.dumps(commands[sys.argv[1]](json.loads(sys.argv[2])), default=str), flush=True)


if __name__ == "__main__":
    main()
