from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.children import Children
from rich.console import Console

from fxpool.bench.environment import child_environment

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of bench/, which is a folder of programs and not a package."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("rows", "report", "run")
    yield type("Bench", (), {name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


def test_ratios_are_of_pairs_and_the_median_decides(bench: Any) -> None:
    summary = bench.rows.summarise("inductor", 0.5, [1.0, 2.0, 9.0], [4.0, 4.0, 10.0])
    assert (summary.ratio, summary.lowest, summary.highest) == (0.5, 0.25, 0.9)
    assert (summary.ours, summary.theirs, summary.pairs) == (2.0, 4.0, 3)
    assert summary.met
    assert not bench.rows.summarise("inductor", 0.49, [1.0, 2.0, 9.0], [4.0, 4.0, 10.0]).met


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_what_makes_no_pairs_is_refused(bench: Any, ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="no pairs"):
        bench.rows.summarise("inductor", 1.0, ours, theirs)


def test_rows_are_chosen_by_name(bench: Any) -> None:
    assert {row.id for row in bench.rows.select("s1, S7")} == {"S1", "S7"}
    for names in ("S1,S99", ""):
        with pytest.raises(
            ValueError,
            match=r"known: S1, S2, S3, S4, S5, S6, S7, S8, S9, S10, S11, S14, S15, S16, R3, R10, home, ready",
        ):
            bench.rows.select(names)


@pytest.mark.parametrize(
    ("state", "result", "word"),
    [
        ("warm", {"hits": 1, "misses": 0}, ""),
        ("warm", {"hits": 1, "misses": 1}, "not warm"),
        ("warm", {"hits": 0, "misses": 0}, "not warm"),
        ("bare", {"hits": 0, "misses": 1}, ""),
        ("bare", {"hits": 1, "misses": 1}, "not cold"),
        ("known host", {"hits": 0, "misses": 0}, "not cold"),
    ],
)
def test_a_number_of_another_state_is_a_problem(bench: Any, state: str, result: dict[str, int], word: str) -> None:
    row = bench.rows.Row("S0", "x", state, ())
    found = bench.rows.problem(row, {"stats": result, "difference": 0.0, "graph_lowerings": 0})
    assert found.startswith(word) and bool(found) == bool(word)


@pytest.mark.parametrize("change", [{"difference": 0.1}, {"difference": float("nan")}, {"graph_lowerings": 1}])
def test_wrong_results_and_uncounted_lowerings_are_problems(bench: Any, change: dict[str, Any]) -> None:
    row = bench.rows.Row("S0", "x", "warm", ())
    good = {"stats": {"hits": 1, "misses": 0}, "difference": 0.0, "graph_lowerings": 0}
    assert bench.rows.problem(row, good) == ""
    assert bench.rows.problem(row, good | change)


def test_a_row_runs_in_turn_and_is_reported(bench: Any, tmp_path: Path) -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def put_into(self, row: Any, arguments: list[str]) -> None:
            order.append(f"put {self.name}")

        def run(self, arguments: list[str]) -> dict[str, Any]:
            order.append(self.name)
            assert arguments[-2:] == ["--size", "small"]
            stats = {"hits": 1, "misses": 0}
            return {"first_call_seconds": self.seconds, "difference": 0.0, "graph_lowerings": 0, "stats": stats}

    row = bench.rows.select("S1")[0]
    machines = {"fxpool": Fake("fxpool", 1.0), "inductor": Fake("inductor", 4.0), "eager": Fake("eager", 0.5)}
    console = Console(file=(tmp_path / "log").open("w"))
    measured = bench.run.measure(row, machines, 2, "small", console)
    console.file.close()
    assert order == ["put fxpool", "fxpool", "put inductor", "inductor", "put eager", "eager"] * 2
    verdicts = {summary.rival: measured.verdict(summary) for summary in measured.summaries}
    assert verdicts == {"inductor": "met", "eager": "not met"}

    facts = bench.report.machine("fxpool")
    text = bench.report.markdown([measured], facts, 2)
    assert "| S1 | GPT-2 inference, first call | warm | inductor | 1.00 s | 4.00 s | 0.250 |" in text
    assert "eager (limit)" in text and f"{facts['cores']} cores" in text
    data = json.loads(json.dumps(bench.report.as_json([measured], facts, 2)))
    assert data["rows"][0]["summaries"][0]["verdict"] == "met"
    assert len(data["rows"][0]["results"]["fxpool"]) == 2
    assert set(facts) == {"ours", "cpu", "cores", "torch", "transformers", "fxpool"}  # no name of a machine


def test_problems_spoil_the_verdict(bench: Any) -> None:
    row = bench.rows.select("S4")[0]
    summary = bench.rows.summarise("inductor", 0.5, [1.0], [4.0])
    measured = bench.report.Measured(row, [summary], ["not cold: 1 hits, 0 misses"], {})
    assert measured.verdict(summary) == "not met: not cold: 1 hits, 0 misses"


def test_states_of_the_machine(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def result(self: object, command: list[str], environment: dict[str, str], label: str) -> dict[str, Any]:
        directory = Path(environment["FXPOOL_CACHE_DIR"]).parent
        held = sorted(path.name for path in directory.iterdir())
        ran.append(f"{'prime' if 'prime' in command else 'call'} {held}")
        (directory / ("facts" if "prime" in command else "graph")).touch()
        return {}

    monkeypatch.setattr(Children, "result", result)
    machine = bench.run.Machine(tmp_path, "fxpool")
    by_state = {state: bench.rows.Row("S0", state, state, ()) for state in bench.rows.STATES}

    def states(state: str) -> list[str]:
        ran.clear()
        for _ in range(2):
            machine.put_into(by_state[state], [])
            machine.run([])
        return list(ran)

    assert states("bare") == ["call []", "call []"]
    assert states("known host") == ["prime []", "call ['facts']", "call ['facts']"]
    assert states("warm") == ["call []", "call ['graph']", "call ['graph']"]
    assert states("bare") == ["call []", "call []"]
    assert states("warm") == ["call []", "call ['graph']", "call ['graph']"]


@pytest.mark.slow
def test_a_hit_is_timed_part_by_part(tmp_path: Path) -> None:
    command = [str(BENCH / "child.py"), "hit", "--backend", "fxpool"]
    timed = Children().result(command, child_environment(tmp_path), "hit", limit=240.0)
    assert timed["nodes"] >= 600
    assert timed["key_seconds"] > 0 and timed["hit_seconds"] > 0
    assert timed["stats"]["compiles"]["in_process"] == 0
