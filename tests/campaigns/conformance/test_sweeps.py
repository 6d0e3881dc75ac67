"""The comparison of two back ends, what becomes of items whose process dies, and a few programs from end to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.children import ChildError

from . import verdict
from .__main__ import chosen
from .record import CRASH, ERROR, RIGHT, SKIP, WRONG, Record, append, load
from .running import survive

TESTS = Path(__file__).resolve().parents[2]


def _stock(first: str = RIGHT, second: str = RIGHT, lowered_again: int = 0) -> list[Record]:
    return [Record("a", first, graphs=1, lowerings=1), Record("a", second, graphs=1, lowerings=lowered_again)]


def _ours(first: str = RIGHT, second: str = RIGHT, hits: int = 1, **second_only: Any) -> list[Record]:
    return [Record("a", first, graphs=1, in_worker=1), Record("a", second, graphs=1, hits=hits, **second_only)]


def _kinds(stock: verdict.Runs, ours: verdict.Runs) -> list[str]:
    return [one.kind for one in verdict.compare("a", stock, ours)]


def test_nothing_differs() -> None:
    assert _kinds(_stock(), _ours()) == []
    assert _kinds(_stock(WRONG, WRONG), _ours(WRONG, ERROR)) == [], "what stock can't do is not lost"


@pytest.mark.parametrize("status", [WRONG, ERROR, CRASH, SKIP])
@pytest.mark.parametrize("second", [False, True])
def test_a_lost_result(status: str, second: bool) -> None:
    ours = _ours(second=status) if second else _ours(status)
    assert _kinds(_stock(), ours) == [verdict.LOST_RESULT]
    assert status in str(verdict.compare("a", _stock(), ours)[0])


def test_an_item_without_a_record_is_lost() -> None:
    assert _kinds(_stock(), []) == [verdict.LOST_RESULT]
    found = verdict.differences({"a": _stock(), "b": _stock()}, {"a": _ours()})
    assert [(one.key, one.kind) for one in found] == [("b", verdict.LOST_RESULT)]


def test_a_skipped_item_says_nothing() -> None:
    assert _kinds(_stock(SKIP, SKIP), _ours(SKIP, SKIP)) == []


def test_lost_caching() -> None:
    assert _kinds(_stock(), _ours(hits=0, in_worker=1)) == [verdict.LOST_CACHING]
    assert _kinds(_stock(), _ours(hits=1, in_worker=1)) == [verdict.LOST_CACHING], "one graph of two is compiled again"
    assert _kinds(_stock(), _ours(hits=0)) == [verdict.LOST_CACHING]
    assert _kinds(_stock(lowered_again=1), _ours(hits=0, in_worker=1)) == [], "stock keeps it as little"


def test_what_reaches_no_back_end_is_not_lost() -> None:
    stock, ours = _stock(), _ours(hits=0)
    for record in (*stock, *ours):
        record.graphs = 0
    assert _kinds(stock, ours) == []


def test_compiled_in_the_users_process() -> None:
    ours = _ours(hits=0, lowerings=1, in_process=1)
    ours[1].fallbacks = {"function": 1}
    found = verdict.compare("a", _stock(), ours)
    assert [one.kind for one in found] == [verdict.IN_PROCESS, verdict.LOST_CACHING]
    assert "function 1" in str(found[0])


def test_better() -> None:
    assert _kinds(_stock(ERROR, ERROR), _ours()) == [verdict.BETTER]
    assert _kinds(_stock(lowered_again=2), _ours()) == [verdict.BETTER]


def test_the_summary_counts_items() -> None:
    found = verdict.differences({"a": _stock(), "b": _stock()}, {"a": _ours(WRONG, WRONG), "b": _ours()})
    assert verdict.summary("programs", ["a", "b"], found) == (
        "programs: 2 items: 1 same, 0 better, 1 lost in result, 0 lost in caching, 0 in the user's process"
    )


def test_choosing() -> None:
    assert chosen(["hop_a", "b", "hop_c"], "hop*", "0/1") == ["hop_a", "hop_c"]
    assert chosen(["a", "b", "c"], None, "1/2") == ["b"]
    with pytest.raises(SystemExit):
        chosen(["a"], None, "2/2")


def test_a_crash_costs_one_item(tmp_path: Path) -> None:
    runs: list[list[str]] = []

    def run(keys: list[str], out: Path, environment: Mapping[str, str]) -> None:
        runs.append(keys)
        for key in keys:
            Path(f"{out}.begun").write_text(key)
            if key == "deadly" or (key == "shaky" and len(keys) > 1):
                raise ChildError("a batch", "was killed by SIGSEGV", "its last words")
            append(out, [Record(key, RIGHT)])

    found = survive(run, ["a", "deadly", "b", "shaky", "c"], tmp_path / "records", {})
    assert [record.key for record in found] == ["a", "deadly", "b", "shaky", "c"]
    assert [record.status for record in found] == [RIGHT, CRASH, RIGHT, RIGHT, RIGHT], "one dies, even alone"
    assert "its last words" in found[1].detail
    assert runs.count(["deadly"]) == runs.count(["shaky"]) == 1


def test_a_process_that_never_begins_ends(tmp_path: Path) -> None:
    def run(keys: list[str], out: Path, environment: Mapping[str, str]) -> None:
        raise ChildError("a batch", "exited with status 1", "no such module")

    assert [one.status for one in survive(run, ["a", "b"], tmp_path / "records", {})] == [CRASH, CRASH]


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "records"
    append(file, [Record("a", RIGHT, fallbacks={"function": 2})])
    with open(file, "a") as torn:
        torn.write('{"key": "b", "sta')
    assert load(file) == [Record("a", RIGHT, fallbacks={"function": 2})]


@pytest.mark.slow
def test_one_that_is_interrupted_ends_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "campaigns.conformance", "--sweeps", "operators", "--backends", "inductor"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    sweep = subprocess.Popen(command, cwd=TESTS, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        batch: list[psutil.Process] = []
        while not batch:  # a hundred operators: some minutes
            assert sweep.poll() is None
            with contextlib.suppress(psutil.Error):  # a child that has just ended
                children = psutil.Process(sweep.pid).children()
                batch = [one for one in children if "campaigns.conformance.child" in one.cmdline()]
            time.sleep(0.05)
        sweep.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in sweep.communicate(timeout=60)[1]
    finally:
        sweep.kill()
        sweep.wait()
    assert not batch[0].is_running() and not list(tmp_path.glob("cf-*"))


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_programs_from_end_to_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.conformance", "--sweeps", "programs", "--out", str(tmp_path / "out"),
         "--only", "closures,output_none,raises_value_error"],
        cwd=TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith("programs: 3 items: 3 same"), done.stdout
    ours = load(tmp_path / "out" / "programs-fxpool.jsonl")
    assert len(ours) == 6 and not any(record.lowerings for record in ours)
    assert sum(record.in_worker for record in ours[:3]) and sum(record.hits for record in ours[3:])
