"""Totals of all processes of a host: added without a lock, summed up when read, bounded in number and time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fxpool.codecache.store import catalogue, host_statistics, layout, removal
from fxpool.codecache.store.host_statistics import Totals

DAY = 86400.0
NOW = 1_800_000_000.0


def one(hits: int = 1, **reasons: int) -> Totals:
    return Totals(processes=1, seconds_saved=0.5, counted={"hits": hits}, reasons={"fallbacks": reasons})


@pytest.fixture
def root(tmp_path: Path) -> str:
    directory = tmp_path / "c"
    directory.mkdir(mode=0o700)
    return str(directory)


def total(root: str, now: float = NOW) -> Totals:
    return host_statistics.added(host_statistics.read(root, now).values())


def files(root: str) -> list[str]:
    return sorted(name for name in os.listdir(os.path.join(root, "stats")) if name != ".lock")


def test_what_processes_add_is_summed_up_by_day(root: str) -> None:
    assert host_statistics.read(root, NOW) == {}
    for when in (NOW - DAY, NOW, NOW):
        assert host_statistics.add(root, one(2, code_differs=1), when)
    days = host_statistics.read(root, NOW)
    assert [day.processes for day in days.values()] == [1, 2]
    assert total(root).plain()["hits"] == 6 and total(root).reasons == {"fallbacks": {"code_differs": 3}}
    assert total(root).seconds_saved == 1.5


def test_many_processes_at_once_lose_nothing(root: str, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\nfrom fxpool.codecache.store import host_statistics as h\n"
        "for _ in range(100): assert h.add(sys.argv[1], h.Totals(processes=1, counted={'hits': 1}))\n"
    )
    running = [subprocess.Popen([python, "-c", code, root]) for _ in range(6)]
    assert [process.wait(60) for process in running] == [0] * 6
    assert host_statistics.added(host_statistics.read(root).values()).counted == {"hits": 600}


def test_long_files_are_summed_up_and_old_days_go(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_statistics, "_LONG", 500)
    monkeypatch.setattr(host_statistics, "_AT_REST", -1.0)
    for number in range(60):
        host_statistics.add(root, one(), NOW - 3 * DAY if number < 30 else NOW)
    assert total(root).counted == {"hits": 60}
    assert len(files(root)) <= 4 and all(
        os.path.getsize(os.path.join(root, "stats", name)) < 1500 for name in files(root)
    )
    later = NOW + host_statistics.KEPT_DAYS * DAY - 2 * DAY
    host_statistics.add(root, one(), later)
    assert total(root, later).counted == {"hits": 31}
    assert {name[:10] for name in files(root)} == {host_statistics._day(NOW), host_statistics._day(later)}


def test_a_file_that_was_summed_up_and_could_not_be_removed_counts_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_statistics, "_AT_REST", -1.0)
    monkeypatch.setattr(host_statistics, "_remove", lambda directory, name: None)
    host_statistics.add(root, one(), NOW - DAY)
    host_statistics.add(root, one(), NOW)
    host_statistics.add(root, one(), NOW + DAY)
    assert any(name.endswith(".full") for name in files(root)), "it is there still"
    assert total(root, NOW + DAY).counted == {"hits": 3}
    monkeypatch.undo()
    host_statistics.add(root, one(), NOW + 2 * DAY)
    assert total(root, NOW + 2 * DAY).counted == {"hits": 4}


def test_half_a_line_and_other_files_are_skipped(root: str) -> None:
    host_statistics.add(root, one(), NOW)
    (path,) = (Path(root) / "stats" / name for name in files(root))
    path.write_bytes(b'{"processes":1,"coun' + b"\n" + path.read_bytes() + b"\xff\n[1]\n")
    (path.parent / "notes.txt").write_text("mine")
    assert total(root).counted == {"hits": 1}


def test_where_nothing_can_be_written_nothing_is(root: str, tmp_path: Path) -> None:
    Path(root, "stats").write_text("no directory")
    assert not host_statistics.add(root, one(), NOW)
    assert host_statistics.read(root, NOW) == {}


def test_the_reasons_of_a_counter_are_bounded() -> None:
    many = (one(1, **{f"compile_error:{number}": number + 1}) for number in range(500))
    table = host_statistics.added(many).reasons["fallbacks"]
    assert len(table) == 100 and sum(table.values()) == sum(range(501))
    assert host_statistics.added([Totals(reasons={"fallbacks": table}), one(1, zz=1)]).reasons["fallbacks"]["other"] > 1


def test_only_what_is_new_is_added() -> None:
    before = Totals.of({"hits": 2, "fallbacks": {"a": 1}, "seconds_saved": 1.0})
    now = Totals.of({"hits": 3, "misses": 1, "fallbacks": {"a": 1, "b": 2}, "seconds_saved": 4.0})
    new = now.since(before)
    assert (new.processes, new.counted, new.reasons) == (0, {"hits": 1, "misses": 1}, {"fallbacks": {"b": 2}})
    assert new.seconds_saved == 3.0 and not new.is_empty() and now.since(now).is_empty()


def test_it_is_part_of_the_directory_and_is_cleared(root: str) -> None:
    host_statistics.add(root, one(), NOW)
    assert catalogue.measure(root)[layout.FOREIGN].files == 0
    removal.clear(root)
    assert total(root).processes == 0
