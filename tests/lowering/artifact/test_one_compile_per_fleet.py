"""Machines with one remote cache compile each graph once, and lose nothing when a machine or the remote goes away."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from fleet import Fleet, fleet
from remote_servers import Relay, misbehaving, redis_and_s3, redis_server
from tiers import first_tier

from fxpool.codecache.bundle.authentication import new_key
from fxpool.codecache.remote.leases import PERIOD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Seconds that a worker takes longer for a graph, so that another machine comes while it is compiled.
TAKE = 10.0
# Seconds within which a graph is there that another machine does not compile after all, on a loaded machine.
BOUND = 100.0


@pytest.fixture
def key(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "key"
    path.write_text(new_key())
    path.chmod(0o600)
    return {"FXPOOL_REMOTE_KEY_FILE": str(path), "FXPOOL_REMOTE_TIMEOUT": "2"}


def summed(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Add up tables of counters of some processes."""
    tables: dict[str, Counter[str]] = {name: Counter() for name in ("compiles", "leases", "remote")}
    for report in reports.values():
        for name, table in tables.items():
            table.update({reason: count for reason, count in report["stats"][name].items() if count})
    return {name: dict(table) for name, table in tables.items()}


@pytest.mark.parametrize("kind", first_tier(["redis", "s3"], "redis"))
def test_eight_processes_on_four_machines_compile_six_graphs_six_times(
    kind: str, tmp_path: Path, known_host: Path, key: dict[str, str]
) -> None:
    names = [machine + number for machine in "abcd" for number in "12"]
    with redis_and_s3() as servers:
        # S3's server is a thread of this process, and answers slowly while eight others compute.
        more = {"FXPOOL_REMOTE_TIMEOUT": "20", "FXPOOL_REMOTE_WAIT": "250"}
        settings = {**key, **more, "FXPOOL_REMOTE_CACHE": servers[kind]}
        with fleet(tmp_path, names, known_host, settings, graphs=6) as machines:
            machines.go()
            reports = machines.reports()
    assert len(reports) == 8
    sums = summed(reports)
    assert sums["compiles"] == {"worker": 6}, (sums, [report["stats"]["fallbacks"] for report in reports.values()])
    assert sums["leases"]["taken"] == 6 and set(sums["leases"]) <= {"taken", "waited"}
    assert sum(report["stats"]["hits"] for report in reports.values()) == 8 * 6 - 6
    # A machine's store has every graph once.
    assert {report["stats"]["store"]["entries"] for report in reports.values()} == {6}


@contextlib.contextmanager
def two_machines(
    tmp_path: Path, known_host: Path, settings: Mapping[str, str], client: redis.Redis
) -> Iterator[tuple[Fleet, dict[str, dict[str, Any]]]]:
    """Machine "b" waits for "a". Yields them, and their reports after the ``with`` block."""
    reports: dict[str, dict[str, Any]] = {}
    with fleet(tmp_path, ["a", "b"], known_host, settings, take=TAKE) as machines:
        machines.go("a")
        machines.wait_for(lambda: client.keys("fxpool/*/lease/*"))
        machines.go("b")
        machines.wait_until_waiting("b")
        yield machines, reports
        reports |= machines.reports()


def test_another_machine_takes_over_when_the_holder_is_killed(
    tmp_path: Path, known_host: Path, key: dict[str, str]
) -> None:
    with redis_server(tmp_path) as url, redis.Redis.from_url(url) as client:
        settings = {**key, "FXPOOL_REMOTE_CACHE": url, "FXPOOL_REMOTE_WAIT": "250"}
        with two_machines(tmp_path, known_host, settings, client) as (machines, reports):
            machines.kill("a")
    assert list(reports) == ["b"]
    sums = summed(reports)
    assert sums["compiles"] == {"worker": 1} and sums["leases"] == {"taken_over": 1}
    assert sums["remote"]["writes"] > 0
    assert reports["b"]["seconds"][0] < PERIOD + TAKE + BOUND


@pytest.mark.parametrize("event", ["killed", "partition"])
def test_a_remote_that_goes_away_while_a_machine_waits_costs_one_delay(
    event: str, tmp_path: Path, known_host: Path, key: dict[str, str]
) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.ExitStack())
        url = server.enter_context(redis_server(tmp_path))
        client = server.enter_context(redis.Redis.from_url(url))
        relay = Relay(url.removeprefix("unix://"))
        port = stack.enter_context(misbehaving(relay)).port
        address = f"redis://127.0.0.1:{port}/0"
        settings = {**key, "FXPOOL_REMOTE_CACHE": address, "FXPOOL_REMOTE_WAIT": "250"}
        with two_machines(tmp_path, known_host, settings, client) as (_, reports):
            if event == "killed":
                server.close()
            else:
                relay.cut.set()
    sums = summed(reports)
    assert sums["compiles"] == {"worker": 2} and sums["leases"]["gave_up"] == 1
    assert reports["b"]["seconds"][0] < TAKE + BOUND
    assert all(report["stats"]["remote_seconds"] < 20 for report in reports.values())
    assert all(report["stats"]["store"]["entries"] == 1 for report in reports.values()), "nothing is lost"


def test_a_slow_remote_costs_one_delay(tmp_path: Path, known_host: Path, key: dict[str, str]) -> None:
    with redis_server(tmp_path) as url, misbehaving(Relay(url.removeprefix("unix://"), pause=0.4)) as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        settings = {**key, "FXPOOL_REMOTE_CACHE": address, "FXPOOL_REMOTE_WAIT": "250"}
        with fleet(tmp_path, ["a", "b"], known_host, settings, graphs=3) as machines:
            machines.go()
            reports = machines.reports()
    sums = summed(reports)
    assert set(reports) == {"a", "b"} and sums["remote"]["left_alone"] >= 2
    assert set(sums["compiles"]) == {"worker"}
    assert all(report["stats"]["remote_seconds"] < 20 for report in reports.values())
