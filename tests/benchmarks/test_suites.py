"""Suites and their runs, records and reports. No process is started."""

from __future__ import annotations

import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fxpool.bench import child, plan, report, results, suite
from fxpool.bench.case import Case, Run, runs
from fxpool.bench.measurement.statistics import ratio
from fxpool.bench.results import Record, Results
from fxpool.commands import bench
from fxpool.errors import ConfigurationError, UnknownNameError

_PYTHON = """
from fxpool.bench.case import Case
def make():
    raise RuntimeError("the runner makes no models")
CASES = [Case("a", make, modes=("inference", "training")), Case("b", "somewhere:make", backends=("eager",))]
"""
_TOML = """
[defaults]
backends = ["eager", "fxpool"]
seconds = 2.5

[[case]]
name = "a"
make = "somewhere:make"
arguments = {width = 8}
modes = ["dynamic"]

[[case]]
name = "b"
make = "somewhere:other"
backends = ["inductor"]
"""


@pytest.fixture
def python_suite(tmp_path: Path) -> suite.Suite:
    path = tmp_path / "mine.py"
    path.write_text(_PYTHON)
    return suite.load(str(path))


def test_a_python_file(python_suite: suite.Suite) -> None:
    assert python_suite.name == "mine" and [case.name for case in python_suite.cases] == ["a", "b"]
    ids = [run.id for run in runs(python_suite.cases)]
    assert ids == [
        *(f"a/{mode}/{backend}" for mode in ("inference", "training") for backend in ("eager", "inductor", "fxpool")),
        "b/inference/eager",
    ]
    with pytest.raises(UnknownNameError, match="unknown case 'c'"):
        python_suite.case("c")


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(_TOML)
    first, second = suite.load(str(path)).cases
    assert (first.backends, first.seconds, first.modes) == (("eager", "fxpool"), 2.5, ("dynamic",))
    assert dict(first.arguments) == {"width": 8}
    assert (second.backends, second.seconds, second.modes) == (("inductor",), 2.5, ("inference",))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no cases"),
        ("CASES = [1]", "which is not a Case"),
        ("1/0", "ZeroDivisionError"),
        (_PYTHON + "CASES *= 2", "several cases with one name"),
        ("from fxpool.bench.case import Case\nCASES = [Case('a', 'b:c', modes=('fast',))]", "'fast'"),
        ("from fxpool.bench.case import Case\nCASES = [Case('a/b', 'b:c')]", "not a valid name"),
        ("from fxpool.bench.case import Case\nCASES = [Case('a', 'b:c', seconds=0)]", "above 0"),
    ],
)
def test_what_is_wrong_with_a_python_file_is_said(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=said):
        suite.load(str(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[case]]\nname = 'a'", "make"),
        ("[[case]]\nname = 'a'\nmake = 'b:c'\nmodel = 1", "unknown settings of a case: model"),
        ("[[cases]]\nname = 'a'", "cases"),
        ("[[case", "cannot read"),
    ],
)
def test_what_is_wrong_with_a_toml_file_is_said(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=said):
        suite.load(str(path))


def test_a_suite_that_is_not_there_names_those_that_ship() -> None:
    with pytest.raises(ConfigurationError, match="kernels, transformers"):
        suite.load("nothing")


@pytest.mark.parametrize("name", suite.shipped())
def test_those_that_ship_can_be_read(name: str) -> None:
    assert len(suite.load(name).cases) >= 6


def test_cases_are_chosen_by_pattern(python_suite: suite.Suite) -> None:
    assert [case.name for case in suite.select(python_suite.cases, ["[b-z]"])] == ["b"]
    assert len(suite.select(python_suite.cases, [])) == 2
    with pytest.raises(UnknownNameError, match="known: a, b"):
        suite.select(python_suite.cases, ["a", "c*"])


def test_makers_are_found_beside_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["/nowhere"])
    (tmp_path / "beside_the_suite.py").write_text("def make(width):\n    return width\n")
    case = Case("a", "beside_the_suite:make", arguments={"width": 3})
    assert suite.maker(case, tmp_path / "mine.toml")(**case.arguments) == 3  # type: ignore[comparison-overlap]
    for wrong in ("beside_the_suite:other", "no_such_module:make", "beside_the_suite"):
        with pytest.raises(ConfigurationError, match="cannot import"):
            suite.maker(Case("a", wrong), tmp_path / "mine.toml")


def test_runs_are_narrowed_and_repeated(python_suite: suite.Suite) -> None:
    found = list(runs(python_suite.cases, modes=["training"], backends=["mine"], repetitions=2))
    assert [run.id for run in found] == ["a/training/mine", "a/training/mine#2"]


def test_what_is_not_compiled_comes_last_in_its_round() -> None:
    every = [Run("a", "inference", backend, number) for number in (1, 2) for backend in ("eager", "fxpool", "inductor")]
    assert [(run.backend, run.repetition) for run in plan.in_order(every)] == [
        ("fxpool", 1), ("inductor", 1), ("eager", 1), ("fxpool", 2), ("inductor", 2), ("eager", 2),
    ]  # fmt: skip


def test_processes_begin_while_memory_lasts() -> None:
    gigabyte = 1 << 30
    assert plan.may_begin(100 * gigabyte, [], gigabyte, gigabyte, 1), "one always may"
    growing = [(2 * gigabyte, gigabyte)]
    assert plan.may_begin(2 * gigabyte, growing, 5 * gigabyte, 10 * gigabyte, 2)
    assert not plan.may_begin(2 * gigabyte, growing, 5 * gigabyte, 10 * gigabyte, 1), "as many as were asked for"
    assert not plan.may_begin(4 * gigabyte, growing, 5 * gigabyte, 10 * gigabyte, 2)
    # One that takes more than was expected of it does not make room for others.
    assert not plan.may_begin(4 * gigabyte, [(gigabyte, 3 * gigabyte)], 4 * gigabyte, 10 * gigabyte, 2)


def test_memory_is_expected_from_what_the_same_case_took() -> None:
    a, b = Run("a", "training", "fxpool"), Run("b", "training", "fxpool")
    assert plan.expected_bytes(a, {}) == plan.GUESS
    assert plan.expected_bytes(a, {b: 10 * plan.GUESS}) == 10 * plan.GUESS
    assert plan.expected_bytes(a, {b: 10 * plan.GUESS, Run("a", "training", "eager"): 5}) == 5


# ---------------------------------------------------------------- records


def record(case: str, backend: str, samples: list[float], state: str = "done", repetition: int = 1) -> Record:
    run = Run(case, "inference", backend, repetition)
    middle = sorted(samples)[len(samples) // 2] if samples else 0.0
    measured = {"median": middle, "samples": samples, "remarks": []} if samples else None
    return Record(run, state, first_call=1.0, measured=measured)


def test_records_are_read_as_they_were_written(python_suite: suite.Suite, tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.jsonl"
    written = [record("a", "eager", [1.0, 2.0]), record("a", "fxpool", [], "failed")]
    for one in written:
        file = Results(path, python_suite)
        file.add(one)
        file.close()
    head, found = results.read(path)
    assert list(found.values()) == written
    assert head["suite"] == "mine" and head["machine"]["cores"] >= 1


def test_a_line_that_was_cut_is_written_again(python_suite: suite.Suite, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    file = Results(path, python_suite)
    for one in (record("a", "eager", [1.0]), record("b", "eager", [2.0])):
        file.add(one)
    file.close()
    path.write_bytes(path.read_bytes()[:-20])
    again = Results(path, python_suite)
    assert [run.case for run in again.before] == ["a"]
    again.add(record("b", "eager", [3.0]))
    again.close()
    assert [one.median for one in results.read(path)[1].values()] == [1.0, 3.0]


def test_results_of_another_suite_are_not_added_to(python_suite: suite.Suite, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    file = Results(path, python_suite)
    file.add(record("a", "eager", [1.0]))
    file.close()
    python_suite.path.write_text(_PYTHON + "\n# changed")
    changed = suite.load(str(python_suite.path))
    with pytest.raises(ConfigurationError, match="an earlier version of"):
        Results(path, changed)
    Results(path, changed, fresh=True).close()
    assert results.read(path)[1] == {}


@pytest.mark.parametrize("content", ["", "nothing", json.dumps({"format": 99})])
def test_what_holds_no_results_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="no results"):
        results.read(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        results.read(tmp_path / "none")


# ---------------------------------------------------------------- reports


def noisy(median: float, seed: int, spread: float = 0.02, count: int = 100) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(median, spread * median) for _ in range(count)]


def test_a_ratio_has_an_interval() -> None:
    found = ratio([noisy(2.0, 1)], [noisy(1.0, 2)])
    assert found.low < found.value < found.high and abs(found.value - 2) < 0.05 and found.differs(0.5)
    assert ratio([noisy(2.0, 1)], [noisy(1.0, 2)]) == found, "the same twice"
    none: list[list[list[float]]] = [[], [[]]]
    for wrong in none:
        with pytest.raises(ValueError, match="no samples"):
            ratio(wrong, [[1.0]])


def test_equal_ones_rarely_differ_and_different_ones_do() -> None:
    equal = [ratio([noisy(1.0, seed)], [noisy(1.0, 1000 + seed)]).differs() for seed in range(60)]
    assert sum(equal) <= 9
    assert all(ratio([noisy(1.05, seed)], [noisy(1.0, 1000 + seed)]).differs(0.02) for seed in range(20))


def test_what_differs_between_processes_widens_the_interval() -> None:
    apart = [noisy(1.0 + 0.1 * number, number, 0.001) for number in range(3)]
    assert not ratio(apart, [noisy(1.05, 9, 0.001)] * 3).differs()
    assert ratio(apart[:1], [noisy(1.05, 9, 0.001)]).differs()


def test_lines_failures_and_changes() -> None:
    every = [
        record("a", "eager", noisy(4.0, 1)),
        record("a", "fxpool", noisy(2.0, 2)),
        record("a", "inductor", [], "timeout"),
        record("b", "fxpool", noisy(1.0, 3), "wrong"),
    ]
    new = {one.run: one for one in every}
    eager, ours, alone = report.lines(new)
    assert eager.speedup is None and alone.speedup is None
    assert ours.speedup is not None and abs(ours.speedup.value - 2) < 0.1
    assert [one.state for one in report.failures(new)] == ["timeout", "wrong"]
    old = {one.run: one for one in (record("a", "eager", noisy(4.0, 5)), record("a", "fxpool", noisy(1.5, 6)))}
    slower, same = report.changes(old, new, 0.02)
    assert (slower.backend, slower.verdict) == ("fxpool", "slower")
    assert (same.backend, same.verdict) == ("eager", "same")
    assert report.changes(new, old, 0.02)[-1].verdict == "faster"
    assert report.table(new).row_count == 3 and report.change_table([slower]).row_count == 1


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_its_notes_are_below_it(width: int) -> None:
    ran = ["a_case_with_a_name/inference/inductor ran: --jobs 1 measures it alone"]
    every = [record("a_case_with_a_name", name, noisy(4e-5, 1)) for name in ("eager", "inductor", "fxpool")]
    every = [replace(one, beside=[], warm_beside=[], warm_call=0.5) for one in every]
    every[1] = replace(every[1], beside=ran)
    for one, remarks in zip(every, ([], ["clocks changed: wait", "calls vary: wait"], []), strict=True):
        assert one.measured is not None
        one.measured["remarks"] = remarks
    new = {one.run: one for one in every}
    console = Console(file=io.StringIO(), width=width)
    console.print(report.table(new, width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("time per call"), "seconds stand above microseconds"
    whole = "\n".join(lines)
    assert max(len(line.rstrip()) for line in lines) <= width and "\u2026" not in whole
    (inductor,) = [line for line in lines if "inductor" in line]
    (fxpool,) = [line for line in lines if "fxpool" in line]
    assert "~" in inductor and "1.00 s*" in inductor and inductor.rstrip().endswith("1, 2, 3")
    assert "~" not in fxpool and "1.00 s " in fxpool
    notes = report.footnotes(new)
    assert [mark for mark, _ in notes] == ["*", "~", "1", "2", "3"]
    assert dict(notes)["1"] == "clocks changed: wait" and "inductor ran" in dict(notes)["3"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_figure_is_broken_in_narrow_tables(width: int) -> None:
    names = ("eager", "inductor", "fxpool")
    runs = [Run("scaled_dot_product", mode, name) for mode in ("inference", "training") for name in names]
    new: dict[Run, Record] = {}
    old: dict[Run, Record] = {}
    for number, run in enumerate(runs):
        for records, median in ((new, 23.4e-3), (old, 36e-3)):
            samples = noisy(median, number, 0.5)
            measured = {"median": median, "samples": samples, "remarks": ["calls vary: wait"]}
            records[run] = Record(run, "done", first_call=19.5, measured=measured, beside=["more ran"])
    changed = report.changes(old, new, 0.02)
    for table, ratios in ((report.table(new, width), 4), (report.change_table(changed, width), 6)):
        console = Console(file=io.StringIO(), width=width)
        console.print(table)
        assert isinstance(console.file, io.StringIO)
        lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
        text = "\n".join(lines)
        assert max(map(len, lines)) <= width and "\u2026" not in text
        assert text.count("inference") == text.count("training") == 3
        assert len(re.findall(r"\d\.\d\d \(\d\.\d\d-\d\.\d\d\)", text)) == ratios


def test_the_text_on_a_failure_has_the_line_of_the_program() -> None:
    reason = (
        "ValueError: no\nTraceback (most recent call last):\n"
        + '  File "child.py", line 3, in _run\n    harness()\n' * 5
    )
    reason += '  File "mine.py", line 8, in forward\n    raise ValueError("no")\n    ^^^^^^\nValueError: no'
    lines = bench._failed("a/training/fxpool", "failed", reason, 80).splitlines()
    assert lines[0] == "a/training/fxpool: failed: ValueError: no" and len(lines) == bench._LINES
    assert lines[-3:] == ['    File "mine.py", line 8, in forward', '      raise ValueError("no")', "  ValueError: no"]
    assert max(map(len, bench._failed("a", "failed", "word " * 40, 60).splitlines())) <= 60


def test_seconds_of_parts_are_added() -> None:
    first, second = (replace(record("a", name, [1.0]), phases={"building": 1.0, "measuring": 2.5}) for name in "xy")
    assert report.parts([first, second]) == {"measuring": 5.0, "building": 2.0}


def test_one_measurement_per_device_at_a_time() -> None:
    assert plan.turns([], []) == []
    assert plan.turns([], ["cpu", "cpu"]) == [0]
    assert plan.turns(["cpu"], ["cuda:0", "cpu"]) == []
    assert plan.turns([], ["cuda:0", "cuda:1", "cuda:0", "cuda:2"]) == [0, 1, 3]
    assert plan.turns(["cuda:1"], ["cuda:1", "cuda:0"]) == [1]
    assert plan.turns(["cuda:0"], ["cpu", "cuda:1"]) == [], "the CPU's turn came first, and would wait for ever"


def test_what_rounding_leaves_of_nothing_is_no_difference() -> None:
    large, noise = torch.full((3,), 2.0), torch.tensor([1e-9, -3e-9])
    assert child._difference([[large], []], [[large], []]) == 0.0
    assert child._difference([[large], [noise, large]], [[large], [-noise, large]]) < 1e-4
    assert child._difference([[], [noise]], [[], [-noise]]) == pytest.approx(2.0), "nothing larger is there"
    assert child._difference([[large], [noise, large]], [[large], [noise, 1.1 * large]]) == pytest.approx(0.1 / 1.1)
    small = torch.full((2,), 1e-3)
    assert child._difference([[small, large], []], [[2 * small, large], []]) == pytest.approx(0.5)
    nothing = torch.full((3,), float("nan"))
    assert child._difference([[nothing], []], [[nothing], []]) == 0.0
    assert child._difference([[large], []], [[nothing], []]) == float("inf")
    assert child._difference([[large], []], [[large[:2]], []]) == float("inf")
