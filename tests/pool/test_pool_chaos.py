"""Two hundred jobs while somebody kills what they run in: none is lost, none comes twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_crashes import RETRIES
from pool_place import HERE, Place, until

from fxpool.pool import JobSpec, PoolClient

JOBS, CLIENTS, THREADS = 200, 2, 2
KINDS = ("sleeps", "computes", "has parts")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """FXPOOL_CHAOS_SEED repeats a run's choices (of its timing only the outline)."""
    found = int(os.environ.get("FXPOOL_CHAOS_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"FXPOOL_CHAOS_SEED={found}")  # shown when the test fails
    yield found


@pytest.fixture
def host(place: Place, make_client: Callable[..., PoolClient]) -> Iterator[PoolClient]:
    """A client of the host's server, which is gone after the test."""
    client = make_client(host="env", idle_timeout=60.0, workers=4)
    client.start(wait=True)
    yield client
    client.close()
    for process in place.processes():
        with contextlib.suppress(psutil.Error):
            if process.name() == "fxpool server":
                process.terminate()
    assert until(lambda: not place.processes())
    (place.runtime / "host.lock").unlink(missing_ok=True)


def a_run(place: Place, seed: int, also: list[tuple[float, str]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What the clients wrote down, and how often each kind of process was killed."""
    choose = random.Random(seed)
    plans = [
        {"number": number, "kind": choose.choice(KINDS), "seconds": choose.uniform(0.01, 0.08)}
        for number in range(JOBS)
    ]
    config = {
        "environment": place.environment,
        "sys_path": [str(HERE)],
        "runtime_dir": str(place.runtime),
        "host": "env",
        "workers": 4,
        "idle_timeout": 60.0,
    }
    results = str(place.mark("mark-results"))
    programs: list[list[Any]] = [["chaos", str(place.runtime), results, JOBS, seed, also]]
    for number in range(CLIENTS):
        programs.append(["many", config, plans[number::CLIENTS], results, THREADS])
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "pool_crashes", program, *map(json.dumps, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE,
            env={**os.environ, **place.environment},
        )
        for program, *arguments in programs
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=150)[0] for process in reversed(processes)][::-1]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes), said
    found = [json.loads(line) for line in Path(results).read_text().splitlines()]
    return found, json.loads(said[0].splitlines()[-1])


def none_is_lost_and_none_comes_twice(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    results = [one for one in found if "number" in one]
    assert [one for one in results if "error" in one] == []
    assert Counter(one["number"] for one in results) == Counter(range(JOBS))
    assert len({one["token"] for one in results}) == JOBS
    # The connection's thread told of each end once: of a job, or of one whose server was lost.
    told = Counter(one["over"] for one in found if "over" in one)
    assert told == Counter({f"job {one['number']}": 1 + one["lost"] for one in results})
    assert max(one["attempts"] for one in results) <= RETRIES + 1
    return results


def at_rest(client: PoolClient) -> dict[str, Any]:
    def idle() -> bool:
        facts = client.status()
        return [facts.get(name) for name in ("running", "waiting", "workers", "queued")] == [[], [], [], 0]

    assert until(idle), json.dumps(client.status(), default=str)
    facts = client.status()
    assert facts["slots_free"] == facts["slots"]
    return facts


@pytest.mark.timeout(200)
def test_workers_are_killed(host: PoolClient, place: Place, seed: int) -> None:
    found, killed = a_run(place, seed, [])
    results = none_is_lost_and_none_comes_twice(found)
    counters = at_rest(host)["counters"]
    died = counters["deaths"] + counters["not_begun"]  # some on their way to the job
    assert killed["worker"] >= JOBS / 4 and died >= killed["worker"] / 2, (killed, counters)
    assert killed["worker"] >= died, "somebody died whom nobody killed"
    assert (counters["jobs"], counters["joined"], counters["zygotes"]) == (JOBS, 0, 1)
    again = sum(one["attempts"] - 1 for one in results)
    assert 0 < again <= counters["deaths"]
    # A sub-job ends with its parent, before its first fork or before its next.
    first_forks = counters["forks"] - counters["retries"]
    assert JOBS <= first_forks <= JOBS + counters["sub_jobs"]
    assert again <= counters["retries"] <= died


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_zygotes_and_servers_are_killed_too(host: PoolClient, place: Place, seed: int) -> None:
    first = host.server_pid
    also = [(0.1, "zygote"), (0.3, "server"), (0.45, "zygote"), (0.6, "server"), (0.75, "zygote")]
    found, killed = a_run(place, seed, also)
    results = none_is_lost_and_none_comes_twice(found)
    assert (killed["zygote"], killed["server"]) == (3, 2)
    assert killed["worker"] >= JOBS / 4
    assert 0 < max(one["lost"] for one in results) <= 2
    # This one learned of its server's end as the others did, and finds their server.
    assert host.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result(timeout=20) == b"x"
    facts = at_rest(host)
    assert facts["server_pid"] == host.server_pid != first
    assert facts["counters"]["zygotes"] == 2, "the last zygote's end was after the last server's"
