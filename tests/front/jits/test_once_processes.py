"""`fxpool.once` in several processes: one of them builds, and one that dies is taken over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from once_processes import eventually, lines, start
from tiers import first_tier

KINDS: list[dict[str, Any]] = [
    {"form": "bytes"}, {}, {"directory": "target"}, {"directory": "target", "in_place": True},
]  # fmt: skip


@pytest.mark.parametrize("more", first_tier(KINDS, KINDS[1]))
def test_eight_processes_that_start_together_build_once(tmp_path: Path, more: dict[str, Any]) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    if "directory" in more:
        more = {**more, "directory": str(tmp_path / "target")}
    processes = [start(log, go=str(go), seconds=0.5, **more) for _ in range(8)]
    eventually(lambda: len(list(tmp_path.glob("go.*"))) == 8)
    go.touch()
    reports = [process.report() for process in processes]
    assert len(lines(log)) == 1
    assert all(report["right"] and not report["torch"] for report in reports)
    assert len({report["path"] for report in reports}) == 1
    added = {name: sum(report["once"][name] for report in reports) for name in ("hits", "misses", "builds")}
    assert (added["builds"], added["hits"]) == (1, 7)
    assert sum(report["once"]["waits"] for report in reports) >= 1
    # A process that starts later has no miss.
    later = start(log, **more).report()
    assert (later["once"]["hits"], later["once"]["misses"]) == (1, 0)
    assert later["saved"] > 0.3
    assert later["path"] == reports[0]["path"] and len(lines(log)) == 1


@pytest.mark.parametrize("more", first_tier(KINDS, KINDS[0], KINDS[2]))
def test_another_process_takes_a_killed_builder_over(tmp_path: Path, more: dict[str, Any]) -> None:
    log = tmp_path / "log"
    if "directory" in more:
        more = {**more, "directory": str(tmp_path / "target")}
    builder = start(log, seconds=1000, **more)
    eventually(lambda: len(lines(log)) == 1)
    waiting = [start(log, seconds=0.1, **more) for _ in range(2)]
    with pytest.raises(Exception, match="timed out"):
        waiting[0]._process.wait(1.0)
    assert len(lines(log)) == 1, "they wait"
    builder.kill()
    reports = [process.report() for process in waiting]
    assert all(report["right"] and report["once"]["waits"] == 1 for report in reports)
    assert sorted(report["once"]["builds"] for report in reports) == [0, 1]
    assert len(lines(log)) == 2
    expected = [".fxpool-once", "half", "sub"] if "directory" in more else ["half", "sub"]
    assert "form" in more or reports[0]["names"] == expected
    left = [path for path in tmp_path.rglob("fxpool-tmp-*") if "t" not in path.relative_to(tmp_path).parts[:1]]
    assert not left, "the directory of the dead builder is removed by the next"


def test_a_process_does_not_wait_longer_than_it_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    builder = start(log, form="bytes", seconds=1000)
    eventually(lambda: len(lines(log)) == 1)
    late = start(log, form="bytes", timeout=0.5).report()
    assert late["right"] and (late["once"]["builds"], late["once"]["waits"]) == (1, 1)
    assert len(lines(log)) == 2
    # Its product is there for others, although the first builder still has its turn.
    assert start(log, form="bytes").report()["once"]["hits"] == 1
    builder.kill()


def test_a_full_disk_costs_one_warning_and_no_result(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: any write of more than some bytes fails."""
    import subprocess
    import sys

    code = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
import fxpool, os
def files(directory):
    open(directory + "/small", "w").write("x" * 50)
    open(directory + "/other", "w").write("y" * 90)
results = [fxpool.once("bytes", lambda: b"x" * 1000) for _ in range(2)]
paths = [fxpool.once("files", files) for _ in range(2)]
try:
    fxpool.once("target", files, directory={str(tmp_path / "target")!r})
except OSError as error:
    print(error.strerror, file=sys.stderr)
print(json.dumps([len(results[0]), results[0] == results[1], [sorted(os.listdir(path)) for path in paths],
    fxpool.stats()["once"], paths]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, equal, names, once, paths = json.loads(done.stdout)
    assert (size, equal) == (1000, True)
    assert names == [["other", "small"]] * 2
    assert "File too large" in done.stderr and not (tmp_path / "target").exists()
    assert once["builds"] == 4 and once["not_stored"] == 5 and once["hits"] == 0
    assert done.stderr.count("fxpool: cannot store") == 1
    assert not any(Path(path).exists() for path in paths), "the directories end with their process"
