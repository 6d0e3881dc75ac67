"""A short ``make chaos``: each part finds nothing wrong, and would see it.

The first tier has `test_pool_chaos` and `test_pool_fuzz` in its place, which need no compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from campaigns.chaos import clients, frames, kills, limits
from campaigns.chaos.scene import Report, scene


def is_clean(report: Report) -> None:
    assert not report.failed, (report.wrong, report.lost, report.left)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_processes_are_killed() -> None:
    report = kills.run(6, seed=3, clients=2)
    is_clean(report)
    assert report.figures["kills"] == 6
    assert report.figures["graphs"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_frames_are_sent() -> None:
    report = frames.run(300, seed=5)
    is_clean(report)
    assert report.figures["frames"] >= 300


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_clients_come_and_go() -> None:
    report = clients.run(30, 10.0)
    is_clean(report)
    assert report.figures["jobs"] > 10
    assert report.figures["clients at once"] > 20


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_limit() -> None:
    report = limits.run("40 descriptors")
    is_clean(report)
    assert report.figures["compiles"] == 2


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_what_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaigns.chaos.scene._GOING_SECONDS", -3)
    with scene("t") as stage:
        (stage.temporary / "file").touch()
        (stage.runtime / "pool-x").mkdir()
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=stage.environment)
        try:
            time.sleep(0.5)
            left = stage.left()
        finally:
            sleeper.kill()
            sleeper.wait()
        assert {"t/file", "r/pool-x"} <= set(left)
        assert any(f"process {sleeper.pid}" in one for one in left)
        os.rmdir(stage.runtime / "pool-x")
