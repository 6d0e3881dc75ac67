"""The simulation of bench/farm.py: numbers of compiles that follow from the policies, with small scenarios."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
NAMES = ("farm", "farm_clock", "farm_machines", "farm_simulation")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of bench/, which is a folder of programs and not a package."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield type("Modules", (), {name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name, None)


def compiles(modules: Any, policy: str, **values: Any) -> int:
    scenario = modules.farm_simulation.Scenario(**values)
    number: int = modules.farm_simulation.simulated(scenario, policy)["compiles"]
    return number


@pytest.mark.parametrize(("policy", "number"), [("alone", 64 * 20), ("leases", 20), ("farm", 20), ("farm+leases", 20)])
def test_ranks_of_a_job_share_compiles(modules: Any, policy: str, number: int) -> None:
    assert compiles(modules, policy, clients=512, hosts=64, graphs=20, lengths=(2.0, 3.0)) == number


def test_a_farm_without_a_remote_cache_forgets(modules: Any) -> None:
    """A host that comes later may get the other one of the two machines that a graph goes to."""
    late = {"clients": 20, "hosts": 20, "graphs": 1, "lengths": (1.0,), "arrival": "poisson", "rate": 0.1}
    assert compiles(modules, "farm", **late, machines=1) == 1
    assert compiles(modules, "farm", **late, machines=20) == 2
    assert compiles(modules, "farm+leases", **late, machines=20) == 1


def test_a_lease_is_awaited_for_30_s_or_twice_as_long_as_the_own_compiles_took(modules: Any) -> None:
    """A client that has compiled nothing waits for 30 s, so a longer compile is done by all hosts."""
    values = {"clients": 4, "hosts": 4}
    assert compiles(modules, "leases", **values, graphs=1, lengths=(29.0,)) == 1
    assert compiles(modules, "leases", **values, graphs=1, lengths=(31.0,)) == 4
    assert compiles(modules, "leases", **values, graphs=20, lengths=(1.0, 8.0, 29.0)) == 20
    assert compiles(modules, "leases", **values, graphs=20, lengths=(31.0, 60.0)) < 8 + 20


def test_jobs_wait_for_slots(modules: Any) -> None:
    scenario = modules.farm_simulation.Scenario(
        clients=1, hosts=1, host_slots=2, graphs=6, ahead=6, lengths=(3.0,), trace=0.0, load=0.0, spread=0.0
    )
    alone = modules.farm_simulation.simulated(scenario, "alone")
    assert (alone["waiting max"], alone["until all"], alone["first result"]) == (4, 9.0, 3.0)
    assert alone["waiting mean"] == pytest.approx((4 * 3 + 2 * 3) / 9)


def test_hosts_that_overrun_a_farm_take_jobs_home(modules: Any) -> None:
    """All jobs leave at once, before a machine lists any; hosts lose the start of a bridge and a second by that."""
    scenario = modules.farm_simulation.Scenario(
        clients=20, hosts=20, programs=20, graphs=8, ahead=8, machines=1, slots=2, lengths=(10.0,), spread=0.0
    )
    alone, farm = (modules.farm_simulation.simulated(scenario, policy) for policy in ("alone", "farm"))
    assert farm["until all"] < alone["until all"] + scenario.bridge + 2.0
    assert farm["home"] == {"full": 158}, "two have started there"


def test_hosts_keep_jobs_from_a_full_farm(modules: Any) -> None:
    """Later ones never leave, and each job runs on one side, or is ended on the other."""
    scenario = modules.farm_simulation.Scenario(
        clients=20, hosts=20, programs=20, graphs=8, ahead=8, machines=1, slots=2, lengths=(10.0,), spread=10.0
    )
    row = modules.farm_simulation.simulated(scenario, "farm")
    assert row["at hosts"] + row["at farm"] - row["ended early"] == 160
    assert row["home"].get("full", 0) > 140 and row["home"].get("late", 0) == 0
    assert row["until all"] < 10.0 + 10.0 + 10.0 + scenario.bridge + 2.0


def test_a_job_that_waits_at_the_farm_for_long_comes_home(modules: Any) -> None:
    """The queue is not longer than the farm has slots, but there a job waits for two others."""
    scenario = modules.farm_simulation.Scenario(
        clients=1, hosts=1, host_slots=2, machines=1, slots=2, graphs=4, ahead=4, lengths=(20.0,), trace=0.0,
        spread=0.0, load=0.0, bridge=0.0,
    )  # fmt: skip
    row = modules.farm_simulation.simulated(scenario, "farm")
    assert row["home"] == {"full": 2} and 30.0 < row["until all"] < 33.0


def test_a_late_job_ends_on_either_side(modules: Any) -> None:
    scenario = modules.farm_simulation.Scenario(
        clients=1, hosts=1, machines=1, graphs=1, lengths=(40.0,), speed=0.4, trace=0.0, spread=0.0, load=0.0
    )
    row = modules.farm_simulation.simulated(scenario, "farm")
    assert row["home"] == {"late": 1} and row["ended early"] == 1
    assert row["until all"] == pytest.approx(30.0 + 40.0)


def test_a_run_repeats_itself_and_writes_rows(modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = ["simulate", "--single", "--clients", "16", "--hosts", "4", "--graphs", "3", "--lengths", "1,2,4"]
    said = []
    for _ in range(2):
        assert modules.farm.main([*arguments, "--out", str(out)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "Assumptions:" in said[0]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["policy"], row["compiles"]) for row in rows[:4]] == [
        ("alone", 12), ("leases", 3), ("farm", 3), ("farm+leases", 3),
    ]  # fmt: skip
    assert rows[:4] == rows[4:]


def test_more_graphs_than_slots_pay(modules: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--graphs", "1,4,5,6", "--host-slots", "4", "--slots", "4", "--lengths", "3", "--repeats", "1"]
    assert modules.farm.main(["crossover", *arguments]) == 0
    said = capsys.readouterr().out
    assert "with a running bridge: the farm is faster from 5 graphs on" in said
    assert "starting it in 1.5 s: the farm is faster from 5 graphs on" in said
