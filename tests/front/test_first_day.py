"""The table of a user's first day: its judgement on what was seen, and its cheapest rows. `make first-day` runs all."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from campaigns.first_day import __main__ as first_day
from campaigns.first_day import checkout
from campaigns.first_day.environment import Site
from campaigns.first_day.row import Row
from campaigns.first_day.running import Runner
from campaigns.first_day.screen import Screen
from campaigns.first_day.verdict import Expected, Record, Run, Seen, judge, warnings_in

_WORKER = {"compiles": {"worker": 1, "in_process": 0}, "hits": 0, "fallbacks": {}, "bypasses": {}}
_HIT = {**_WORKER, "compiles": {"worker": 0, "in_process": 0}, "hits": 1}
_HERE = {**_WORKER, "compiles": {"worker": 0, "in_process": 1}, "fallbacks": {"pool_unavailable": 1}}
_REFUSED = {**_WORKER, "bypasses": {"cache_directory_refused": 1}}
_SAID = "fxpool compiles in this process: no server\n  set FXPOOL_RUNTIME_DIR to another directory\n"


def _run(stats: dict[str, object], errors: str = "", status: int | None = 0, **more: object) -> Run:
    record = Record(1, 1, stats=stats)
    return Run(status, [dataclasses.replace(record, **more)], errors, 3.0)  # type: ignore[arg-type]


def _faults(first: Run, second: Run, expected: Expected | None = None, **more: object) -> list[str]:
    return judge(expected or Expected(), Seen(first, second, **more)).faults  # type: ignore[arg-type]


def test_a_worker_and_then_a_hit_are_right() -> None:
    verdict = judge(Expected(), Seen(_run(_WORKER), _run(_HIT)))
    assert (verdict.happened, verdict.again, verdict.warnings, verdict.text) == ("1 worker", "yes", 0, "ok")


def test_a_silent_switch_off_fails_also_where_a_row_may_be_switched_off() -> None:
    here = _run(_HERE, lowerings=1)
    assert _faults(here, _run(_HIT), Expected(pool=None)) == ["silent switch-off"]
    assert _faults(here, _run(_HIT)) == ["compiled in process (pool_unavailable)", "silent switch-off"]


def test_a_switch_off_that_is_said_once_with_a_remedy_is_right() -> None:
    here = _run(_HERE, _SAID, lowerings=1)
    assert judge(Expected(pool=None), Seen(here, _run(_HIT))).text == "ok"
    assert judge(Expected(pool=None), Seen(here, _run(_HIT))).warnings == 1


def test_a_switch_off_is_said_once_and_with_a_remedy() -> None:
    twice = _run(_HERE, _SAID + "torch said something\n" + _SAID, lowerings=1)
    assert "2 warnings of 1 switched off" in _faults(twice, _run(_HIT), Expected(pool=None))[0]
    both = {**_HERE, "switched_off": {"pool_unavailable": 1, "cache_directory_refused": 1}}
    of_two = _run(both, _SAID + "torch said something\n" + _SAID, lowerings=1)
    assert not _faults(of_two, _run(_HIT), Expected(pool=None, cache=None))
    mute = _run(_HERE, "fxpool compiles in this process\n", lowerings=1)
    assert "no remedy" in _faults(mute, _run(_HIT), Expected(pool=None))[0]


def test_a_cache_that_is_off_is_a_switch_off() -> None:
    refused = _run(_REFUSED)
    assert _faults(refused, refused, Expected(cache=None)) == ["silent switch-off"]
    # Nothing is counted, and the second process compiles again: that is one, too.
    assert _faults(_run(_WORKER), _run(_WORKER), Expected(cache=None)) == ["silent switch-off"]
    assert "no hit" in " ".join(_faults(_run(_WORKER), _run(_WORKER)))


def test_a_cache_that_only_the_second_run_is_refused_is_said_by_that() -> None:
    said = _run(_REFUSED, "fxpool compiles without a cache: not yours\n  set FXPOOL_CACHE_DIR to your own\n")
    assert judge(Expected(cache=None), Seen(_run(_WORKER), said)).text == "ok"
    assert _faults(_run(_WORKER), _run(_REFUSED), Expected(cache=None)) == ["second run: silent switch-off"]


def test_the_witness_counts_for_more_than_the_counters() -> None:
    lying = _run(_WORKER, lowerings=1)
    assert "its counters don't say so" in " ".join(_faults(lying, _run(_HIT)))
    assert "no hit" in " ".join(_faults(_run(_WORKER), _run(_HIT, lowerings=1)))


@pytest.mark.parametrize(
    ("first", "fault"),
    [
        (_run(_WORKER, status=1), "exit status 1, not 0"),
        (_run(_WORKER, status=None), "did not end"),
        (_run(_WORKER, differences=("3 is not 4",)), "not as eager: 3 is not 4"),
        (_run(_WORKER, checks=0), "0 of 1 processes"),
        (_run(_WORKER, "Traceback (most recent call last):\n  File x\nKeyError: 3\n"), "a traceback"),
        (_run(_WORKER, "fxpool: something, set FXPOOL_STRICT\n"), "though nothing is switched off"),
    ],
)
def test_what_is_wrong_with_a_run(first: Run, fault: str) -> None:
    assert fault in " ".join(_faults(first, _run(_HIT)))


def test_what_is_left_behind_and_a_rows_own_complaint_fail() -> None:
    assert _faults(_run(_WORKER), _run(_HIT), left=["process 7: python"]) == ["left behind: process 7: python"]
    assert _faults(_run(_WORKER), _run(_HIT), complaint="lines are lost") == ["lines are lost"]


def test_a_row_in_which_nothing_is_compiled_fails() -> None:
    idle = _run({**_WORKER, "compiles": {"worker": 0, "in_process": 0}})
    assert _faults(idle, idle) == ["nothing was compiled"]


def test_a_program_that_is_to_fail_says_why() -> None:
    expected = Expected(error=r"no working.*apt-get", status=1, again_status=1, processes=0, again_processes=0,
                        pool=False, cache=False)  # fmt: skip
    said = "Traceback (most recent call last):\n  x\nE: fxpool:\nno working C++ compiler\n  apt-get install g++\n"
    assert not _faults(Run(1, [], said), Run(1, [], said), expected)
    assert "does not say" in " ".join(_faults(Run(1, [], "InvalidCxxCompiler"), Run(1, [], said), expected))


def test_warnings_are_what_fxpool_says_of_itself() -> None:
    errors = (
        "/somewhere/fxpool/lowering/x.py:3: RuntimeWarning: fxpool is off\n  warnings.warn(\n"
        "/somewhere/fxpool/torch.py:3: UserWarning: torch is slow\n  warn(\n"
        "V1122 14:00:00.1 1 torch/_dynamo] compiler fxpool\n"
        'Traceback (most recent call last):\n  File "x"\nfxpool.errors.StoreError: no\n  a remedy\n'
        "no room in /home/fxpool/cache\n"
        "no cache: FXPOOL_CACHE_DIR names none\n"
    )
    assert warnings_in(errors) == ["fxpool is off warnings.warn(", "no cache: FXPOOL_CACHE_DIR names none"]


def test_a_screen_shows_what_a_terminal_does() -> None:
    screen = Screen(10)
    screen.write("one\r\ntwo\r\nthree\x1b[1A\r\x1b[2Kover\x1b[31mred\x1b[0m\n\r123456789012")
    assert screen.lines() == ["one", "overred", "1234567890", "12"]


def test_rows_have_names_of_their_own_and_are_found_by_them() -> None:
    every = [row.name for row in first_day.rows()]
    assert len(every) == len(set(every)) > 100
    assert [row.name for row in first_day.rows("HOME with a space,-X*")] == ["-X dev", "HOME with a space"]
    with pytest.raises(SystemExit, match="no row is called nothing"):
        first_day.rows("nothing")


def test_a_place_has_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_STRICT", "1")
    site = Site(tmp_path / "site")
    row = Row(name="x", environment={"LANG": None, "CXX": "{directory}/g++"})
    environment = site.environment(row, {"EXTRA": "{tmp}"})
    assert {"FXPOOL_STRICT", "LANG"}.isdisjoint(environment)
    assert environment["HOME"] == str(site.home)
    assert environment["CXX"] == f"{site.work}/g++"
    assert environment["EXTRA"] == str(site.tmp)


def test_a_server_that_is_left_behind_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaigns.first_day.environment._GRACE", 0.0)
    site = Site(tmp_path / "site")
    assert site.left() == []
    (site.tmp / "fxpool-0" / "pool-abc").mkdir(parents=True)
    (site.tmp / "fxpool-left.so").touch()
    assert sorted(site.left()) == ["file tmp/fxpool-0/pool-abc", "file tmp/fxpool-left.so"]


CHEAP = ["plain script, tool chain known", "-I", "stdin closed", "HOME non-ASCII", "umask 077"]


@pytest.mark.slow
def test_the_cheapest_rows_are_right() -> None:
    rows = [row for row in first_day.rows() if row.name in CHEAP]
    assert len(rows) == len(CHEAP)
    with Runner(slots=2) as runner:
        outcomes = list(runner.run_all(rows))
    assert {outcome.row: outcome.verdict for outcome in outcomes} == dict.fromkeys(CHEAP, "ok")


def test_readme_has_the_program_and_its_output() -> None:
    compile(checkout.quick(), "quick.py", "exec")
    assert [line[0] for line in checkout.said_by_quick()] == ["0", "1"]


def test_rows_of_homes_look_where_the_cache_is(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    (row,) = first_day.rows("HOME on a read-only disk")
    assert row.also is not None
    cache = site.tmp / f"fxpool-cache-{os.getuid()}"
    assert "no cache in" in row.also(site, Run(0))
    (cache / "entries").mkdir(parents=True)
    cache.chmod(0o755)
    assert "mode 40755" in row.also(site, Run(0, errors=str(cache)))
    cache.chmod(0o700)
    assert "does not name" in row.also(site, Run(0))
    assert row.also(site, Run(0, errors=str(cache))) == ""
    (site.work / "~").mkdir()
    assert row.also(site, Run(0, errors=str(cache))).endswith("/~")
