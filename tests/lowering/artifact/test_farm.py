"""A farm compiles a graph once for all hosts, only where the builds are equal, and loses nothing when a part dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from farms import ENGINES, Farm, farm, key_settings
from fleet import Fleet, fleet
from remote_servers import Relay, misbehaving
from tiers import first_tier

pytestmark = [pytest.mark.timeout(300)]

# Seconds that a worker takes longer for a graph, so that something can happen while it is compiled.
TAKE = 12.0
# Seconds within which a loaded machine has compiled a graph after all.
BOUND = 100.0

#: A Python in whose environment are another torch, Dask, and what fxpool itself needs.
OTHER_TORCH = os.environ.get("OTHER_TORCH", "")

engines = pytest.mark.parametrize("engine", first_tier(sorted(ENGINES)))


def summed(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Add up tables of counters of some processes."""
    tables: dict[str, Counter[str]] = {name: Counter() for name in ("compiles", "farm", "fallbacks")}
    for report in reports.values():
        for name, table in tables.items():
            table.update({reason: count for reason, count in report["stats"][name].items() if count})
    return {name: dict(table) for name, table in tables.items()}


def settings_of(running: Farm, tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "FXPOOL_REMOTE_KEY_FILE": str(tmp_path / "key"),
        "FXPOOL_FARM": running.address,
        "FXPOOL_FARM_WAIT": "200",
        **more,
    }


@contextlib.contextmanager
def one_job(
    running: Farm, tmp_path: Path, known_host: Path, settings: Mapping[str, str], reports: dict[str, dict[str, Any]]
) -> Iterator[Fleet]:
    """A host whose only graph is compiled by the farm in the ``with`` block; `reports` has its report after that."""
    with fleet(tmp_path, ["a"], known_host, settings, take=TAKE) as hosts:
        hosts.go()
        hosts.wait_for(lambda: any(busy(machine.directory) for machine in running.machines))
        yield hosts
        reports |= hosts.reports()
    assert reports["a"]["stats"]["store"]["entries"] == 1, "nothing is lost"
    assert reports["a"]["seconds"][0] < TAKE + BOUND


def busy(directory: Path) -> bool:
    """Whether a worker of a machine has a job: its log says so while it runs."""
    return bool(list((directory / "r").glob("pool-*/scratch/*")))


def test_hosts_of_a_farm_compile_each_graph_once(tmp_path: Path, known_host: Path) -> None:
    _compile_once("dask", tmp_path, known_host, ["a1", "b1"], graphs=2, machines=1)


@pytest.mark.slow
@engines
def test_eight_processes_on_four_hosts_compile_six_graphs_six_times(
    engine: str, tmp_path: Path, known_host: Path
) -> None:
    names = [host + number for host in "abcd" for number in "12"]
    _compile_once(engine, tmp_path, known_host, names, graphs=6, machines=2)


def _compile_once(
    engine: str, tmp_path: Path, known_host: Path, names: list[str], *, graphs: int, machines: int
) -> None:
    with farm(tmp_path, engine, key_settings(tmp_path), known_host, machines=machines) as running:
        with fleet(tmp_path, names, known_host, settings_of(running, tmp_path), graphs=graphs) as hosts:
            hosts.go()
            reports = hosts.reports()
        compiled = [machine.entries() for machine in running.machines]
    sums = summed(reports)
    assert sum(compiled) == graphs, (compiled, sums)
    number = len({name[0] for name in names})
    assert sums["compiles"] == {} and sums["farm"] == {"compiled": graphs * number}, sums
    assert {report["stats"]["store"]["entries"] for report in reports.values()} == {graphs}


@pytest.mark.slow
@engines
def test_recorded_graphs_are_built_on_a_farm(engine: str, tmp_path: Path, known_host: Path) -> None:
    with farm(tmp_path, engine, key_settings(tmp_path), known_host) as running:
        settings, graphs = settings_of(running, tmp_path), str(tmp_path / "graphs")
        with fleet(tmp_path, ["a1"], known_host, {**settings, "FXPOOL_CAPTURE": graphs}, graphs=2) as hosts:
            hosts.go()
            assert summed(hosts.reports())["compiles"] == {}
        assert running.machines[0].entries() == 0
        host = {"FXPOOL_CACHE_DIR": str(tmp_path / "a" / "c"), "FXPOOL_RUNTIME_DIR": str(tmp_path / "a" / "r")}
        command = [sys.executable, "-m", "fxpool", "build", graphs, "--json"]
        built = subprocess.run(command, env={**os.environ, **settings, **host}, capture_output=True, text=True)
        rows = [json.loads(line) for line in built.stdout.splitlines()]
        assert [bool(row["machine"]) for row in rows] == [True, True], built
        assert running.machines[0].entries() == 2
        with fleet(tmp_path, ["a2"], known_host, settings, graphs=2) as hosts:
            hosts.go()
            (report,) = hosts.reports().values()
        subprocess.run([sys.executable, "-m", "fxpool", "stop"], env={**os.environ, **settings, **host}, check=True)
    assert report["stats"]["hits"] == 2 and summed({"a2": report}) == {"compiles": {}, "farm": {}, "fallbacks": {}}


@pytest.mark.slow
@engines
def test_a_machine_with_other_builds_gets_no_job(engine: str, tmp_path: Path, known_host: Path) -> None:
    other = {"ATEN_CPU_CAPABILITY": "default"}  # torch's capability of its processor is in every key of C++
    with farm(tmp_path, engine, key_settings(tmp_path), known_host, more=other) as running:
        settings = settings_of(running, tmp_path)
        (machine,) = running.listed({**settings, "FXPOOL_CACHE_DIR": str(tmp_path / "m0" / "c")})
        assert machine["differs"] == ["cpu_capability"] and machine["devices_only"]
        with fleet(tmp_path, ["a"], known_host, settings) as hosts:
            hosts.go()
            sums = summed(hosts.reports())
        assert running.machines[0].entries() == 0
    assert sums["compiles"] == {"worker": 1} and sums["farm"] == {"home:other_builds": 1}


@pytest.mark.slow
@pytest.mark.skipif(not OTHER_TORCH, reason="OTHER_TORCH names no Python with another torch, and Dask")
def test_a_machine_with_another_torch_gets_no_job(tmp_path: Path, known_host: Path) -> None:
    with farm(tmp_path, "dask", key_settings(tmp_path), known_host, python=OTHER_TORCH) as running:
        settings = settings_of(running, tmp_path)
        (machine,) = running.listed({**settings, "FXPOOL_CACHE_DIR": str(tmp_path / "m0" / "c")})
        assert "torch" in machine["differs"] and not machine["devices_only"]
        with fleet(tmp_path, ["a"], known_host, settings) as hosts:
            hosts.go()
            sums = summed(hosts.reports())
        assert running.machines[0].entries() == 0
    assert sums["compiles"] == {"worker": 1} and sums["farm"] == {"home:other_builds": 1}


@pytest.mark.slow
@engines
def test_a_machine_with_another_key_gives_no_result(engine: str, tmp_path: Path, known_host: Path) -> None:
    key_settings(tmp_path)
    with farm(tmp_path, engine, key_settings(tmp_path, "other"), known_host) as running:
        with fleet(tmp_path, ["a"], known_host, settings_of(running, tmp_path)) as hosts:
            hosts.go()
            sums = summed(hosts.reports())
        assert running.machines[0].entries() == 0
    assert sums["compiles"] == {"worker": 1} and sums["farm"] == {"home:lost": 1}


@pytest.mark.slow
@engines
@pytest.mark.parametrize("part", ["machine", "server", "worker", "zygote"])
def test_a_killed_machine_costs_a_retry(part: str, engine: str, tmp_path: Path, known_host: Path) -> None:
    """The job runs again, on the other machine or on the same one; the host compiles nothing."""
    reports: dict[str, dict[str, Any]] = {}
    with farm(tmp_path, engine, key_settings(tmp_path), known_host, machines=2) as running:
        with one_job(running, tmp_path, known_host, settings_of(running, tmp_path), reports):
            (machine,) = [one for one in running.machines if busy(one.directory)]
            if part == "machine":
                machine.kill()
            else:
                (pid,) = machine.pids()[part]
                os.kill(pid, signal.SIGKILL)
        sums = summed(reports)
        assert sums["farm"] == {"compiled": 1} and sums["compiles"] == {}, sums
        if part != "machine":
            assert all(one.process.poll() is None for one in running.machines), "the engine's worker goes on"


@pytest.mark.slow
@engines
def test_the_last_machine_killed_sends_the_job_home(engine: str, tmp_path: Path, known_host: Path) -> None:
    reports: dict[str, dict[str, Any]] = {}
    with farm(tmp_path, engine, key_settings(tmp_path), known_host) as running:
        with one_job(running, tmp_path, known_host, settings_of(running, tmp_path), reports):
            running.machines[0].kill()
    sums = summed(reports)
    assert sums["compiles"] == {"worker": 1} and sums["farm"] == {"home:lost": 1}, sums


@pytest.mark.slow
@engines
@pytest.mark.parametrize("event", ["killed", "stopped"])
def test_a_scheduler_that_is_gone_sends_the_job_home(event: str, engine: str, tmp_path: Path, known_host: Path) -> None:
    reports: dict[str, dict[str, Any]] = {}
    with farm(tmp_path, engine, key_settings(tmp_path), known_host) as running:
        with one_job(running, tmp_path, known_host, settings_of(running, tmp_path), reports):
            os.killpg(running.scheduler.pid, signal.SIGKILL if event == "killed" else signal.SIGSTOP)
    sums = summed(reports)
    # Dask drops its jobs when it notices, which may be before the bridge does.
    assert sums["compiles"] == {"worker": 1} and sums["farm"] in ({"home:gone": 1}, {"home:lost": 1}), sums


@pytest.mark.slow
@engines
def test_a_network_cut_in_the_middle_of_a_job_sends_it_home(engine: str, tmp_path: Path, known_host: Path) -> None:
    """The proxy between them keeps the connection open, so that only silence shows it."""
    reports: dict[str, dict[str, Any]] = {}
    with farm(tmp_path, engine, key_settings(tmp_path), known_host) as running:
        relay = Relay(("127.0.0.1", running.port))
        with misbehaving(relay) as proxy:
            address = running.address.replace(str(running.port), str(proxy.port))
            settings = settings_of(running, tmp_path, FXPOOL_FARM=address)
            with one_job(running, tmp_path, known_host, settings, reports):
                relay.cut.set()
    sums = summed(reports)
    assert sums["compiles"] == {"worker": 1} and sums["farm"] == {"home:gone": 1}, sums


@pytest.mark.slow
@engines
def test_a_slow_farm_costs_one_wait(engine: str, tmp_path: Path, known_host: Path) -> None:
    reports: dict[str, dict[str, Any]] = {}
    with farm(tmp_path, engine, key_settings(tmp_path), known_host) as running:
        settings = settings_of(running, tmp_path, FXPOOL_FARM_WAIT="3")
        with fleet(tmp_path, ["a"], known_host, settings, graphs=2, take=TAKE) as hosts:
            hosts.go()
            hosts.wait_for(lambda: busy(running.machines[0].directory))
            (pid,) = running.machines[0].pids()["worker"]
            os.kill(pid, signal.SIGSTOP)
            reports = hosts.reports()
    sums = summed(reports)
    assert sums["compiles"] == {"worker": 2} and sums["farm"] == {"home:late": 1, "home:paused": 1}, sums


@pytest.mark.slow
@engines
def test_a_farm_that_does_not_exist_costs_nothing_but_the_wait(engine: str, tmp_path: Path, known_host: Path) -> None:
    settings = {**key_settings(tmp_path), "FXPOOL_FARM": f"{engine}://127.0.0.1:9"}
    with fleet(tmp_path, ["a"], known_host, settings, graphs=2) as hosts:
        hosts.go()
        sums = summed(hosts.reports())
    assert sums["compiles"] == {"worker": 2} and sums["farm"] == {"home:gone": 2}, sums
