"""`fxpool.once` on several machines, which are cache directories here, with a Redis between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from once_processes import eventually, lines, start
from remote_servers import redis_server
from tiers import first_tier

from fxpool.codecache.bundle.authentication import new_key


@pytest.fixture
def remote(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of a machine of the fleet but for its cache directory."""
    key = tmp_path / "key"
    key.write_text(new_key())
    key.chmod(0o600)
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        yield {"FXPOOL_REMOTE_CACHE": address, "FXPOOL_REMOTE_KEY_FILE": str(key), "FXPOOL_REMOTE_TIMEOUT": "10"}


def _machine(tmp_path: Path, name: str, remote: dict[str, str], **more: str) -> dict[str, str]:
    return {**remote, "FXPOOL_CACHE_DIR": str(tmp_path / name), **more}


@pytest.mark.parametrize("form", first_tier(["bytes", "directory"], "directory"))
def test_two_machines_that_start_together_build_once(tmp_path: Path, remote: dict[str, str], form: str) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    machines = [_machine(tmp_path, name, remote) for name in ("one", "two") for _ in range(2)]
    processes = [start(log, machine, form=form, go=str(go), seconds=1.0) for machine in machines]
    eventually(lambda: len(list(tmp_path.glob("go.*"))) == 4)
    go.touch()
    reports = [process.report() for process in processes]
    assert len(lines(log)) == 1 and all(report["right"] for report in reports)
    assert sum(report["once"]["builds"] for report in reports) == 1
    assert sum(report["once"]["remote_hits"] for report in reports) == 1, "a process per machine"
    # A third machine, later; then without the remote, as it was written back.
    third = start(log, _machine(tmp_path, "three", remote), form=form).report()
    assert third["right"] and third["once"]["remote_hits"] == 1
    alone = start(log, {"FXPOOL_CACHE_DIR": str(tmp_path / "three")}, form=form).report()
    assert alone["once"]["hits"] == 1 and len(lines(log)) == 1


@pytest.mark.slow
def test_another_machine_takes_a_killed_one_over(tmp_path: Path, remote: dict[str, str]) -> None:
    log = tmp_path / "log"
    builder = start(log, _machine(tmp_path, "one", remote), seconds=1000)
    eventually(lambda: len(lines(log)) == 1)
    other = start(log, _machine(tmp_path, "two", remote))
    builder.kill()
    report = other.report()
    assert report["right"] and report["once"]["builds"] == 1 and len(lines(log)) == 2


@pytest.mark.parametrize("form", first_tier(["bytes", "directory"], "bytes"))
def test_a_product_sealed_with_another_key_is_refused(tmp_path: Path, remote: dict[str, str], form: str) -> None:
    log = tmp_path / "log"
    start(log, _machine(tmp_path, "one", remote), form=form).report()
    stranger = tmp_path / "other-key"
    stranger.write_text(new_key())
    stranger.chmod(0o600)
    machine = _machine(tmp_path, "two", remote, FXPOOL_REMOTE_KEY_FILE=str(stranger))
    report = start(log, machine, form=form).report()
    assert report["right"] and report["once"]["builds"] == 1 and report["once"]["remote_hits"] == 0
    assert report["remote"]["error:not_authentic"] >= 1
    assert len(lines(log)) == 2


def test_a_remote_that_is_not_there_costs_a_moment(tmp_path: Path, remote: dict[str, str]) -> None:
    machine = _machine(
        tmp_path, "one", remote, FXPOOL_REMOTE_CACHE=f"unix://{tmp_path}/nothing", FXPOOL_REMOTE_TIMEOUT="1"
    )
    report = start(tmp_path / "log", machine, form="bytes").report()
    assert report["right"] and report["once"]["builds"] == 1
