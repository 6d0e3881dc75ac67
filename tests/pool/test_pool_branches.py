"""Jobs with a preparation: it is called once, later workers have what it made, and never what no longer holds."""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pool_place import Place, until

from fxpool.errors import JobCancelledError, JobTimeoutError
from fxpool.pool import JobSpec, PoolClient, Preparation
from fxpool.pool.wire import messages as m
from fxpool.pool.worker import branches
from fxpool.pool.worker.branches import Branches

Make = Callable[..., PoolClient]
BRANCH = "fxpool branch"


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Place:
    """The fixture that belongs to each test of the pool."""
    belonging: Place = request.getfixturevalue("place")
    return belonging


def spec(site: Place, name: str, **more: Any) -> JobSpec:
    preparation = Preparation(f"pool_preparations:{name}", str(site.files).encode())
    return JobSpec(label=name, preparation=preparation, **more)


def look(client: PoolClient, site: Place, name: str = "plain", payload: bytes = b"", **more: Any) -> dict[str, Any]:
    found = client.submit("pool_preparations:look", payload, spec(site, name, **more)).result(timeout=60)
    report: dict[str, Any] = json.loads(found)
    return report


def calls(site: Place, name: str = "plain") -> int:
    return len(list(site.files.glob(f"mark-{name}-*")))


def prepared(client: PoolClient) -> int:
    count: int = client.status()["counters"]["prepared"]
    return count


def test_later_workers_are_forked_from_a_process_that_is_prepared(client: PoolClient, site: Place) -> None:
    first, *later = [look(client, site) for _ in range(4)]
    assert first["called"] == ["plain"] and first["parent"] == "fxpool zygote"
    for found in later:
        assert found["called"] == ["plain"] and found["parent"] == BRANCH
        assert found["seen"][0] == "1"
    assert len({found["pid"] for found in [first, *later]}) == 4
    assert calls(site) == 1 and prepared(client) == 3


@pytest.mark.parametrize("size", [10_000, 8_000_000])
def test_a_branch_does_not_keep_the_input_of_a_job(client: PoolClient, site: Place, size: int) -> None:
    mark = os.urandom(16)
    look(client, site, payload=mark * (size // 16))
    found = client.submit("pool_preparations:occurrences", mark[::-1], spec(site, "plain")).result(timeout=60)
    assert json.loads(found) == [BRANCH, 0]


def test_jobs_that_come_together_wait_for_the_first(make_client: Make, site: Place) -> None:
    client = make_client(workers=3)
    client.start(wait=True)
    jobs = [client.submit("pool_preparations:look", b"", spec(site, "slow")) for _ in range(6)]
    assert [json.loads(job.result(timeout=60))["called"] for job in jobs] == [["slow"]] * 6
    assert calls(site, "slow") == 1 and prepared(client) == 5


def test_jobs_without_a_preparation_know_nothing_of_it(client: PoolClient, site: Place) -> None:
    look(client, site)
    plain = client.submit("pool_preparations:look", b"", JobSpec(label="plain")).result(timeout=60)
    assert json.loads(plain)["called"] == []
    assert look(client, site)["parent"] == BRANCH


@pytest.mark.parametrize("more", [{"environment": {"GIVEN": "2"}}, {"sys_path": ["/nowhere"]}, {"cwd": "/"}])
def test_programs_with_another_environment_share_nothing(client: PoolClient, site: Place, more: dict[str, Any]) -> None:
    assert look(client, site, environment={"GIVEN": "1"})["seen"][1] == "1"
    other = look(client, site, **more)
    assert other["parent"] == "fxpool zygote" and calls(site) == 2
    assert other["seen"][1] == more.get("environment", {}).get("GIVEN")
    again = look(client, site, **more)
    assert again["parent"] == BRANCH and again["seen"] == other["seen"] and calls(site) == 2


@pytest.mark.parametrize("name", ["thread", "child", "opened", "temporary", "writes", "raises"])
def test_what_cannot_be_copied_is_not(client: PoolClient, site: Place, name: str) -> None:
    """The jobs run, each in a process of the zygote's; after some tries the preparation is left to the jobs."""
    found = [look(client, site, name) for _ in range(4)]
    assert [one["parent"] for one in found] == ["fxpool zygote"] * 4
    assert calls(site, name) == branches._TRIES
    assert not site.called(BRANCH) and prepared(client) == 0


@pytest.mark.parametrize("way", ["changed", "removed", "replaced by an equal one"])
def test_a_file_that_was_read_must_be_the_same(client: PoolClient, site: Place, way: str) -> None:
    text = site.mark("mark.txt")
    text.write_text("first")
    _age()
    assert look(client, site, "reads")["called"][1] == "first"
    assert look(client, site, "reads")["parent"] == BRANCH
    if way == "removed":
        text.unlink()
        assert look(client, site, "reads")["called"] == ["reads"]
        return
    other = site.mark("mark-other.txt")
    other.write_text("other" if way == "changed" else "first")
    _age()
    other.rename(text)
    _age()
    found = look(client, site, "reads")
    assert found["parent"] == "fxpool zygote" and found["called"][1] == text.read_text()
    assert look(client, site, "reads")["parent"] == BRANCH
    assert calls(site, "reads") == 2


def test_the_servers_log_names_files_and_no_values(client: PoolClient, site: Place) -> None:
    text = site.mark("mark.txt")
    for content in ("planted content", "planted other"):
        text.write_text(content)
        _age()
        look(client, site, "reads", payload=b"planted input", environment={"GIVEN": "planted value"})
    look(client, site, "raises", environment={"GIVEN": "planted value"})
    (log,) = site.runtime.glob("**/server.log")
    assert str(text) in log.read_text() and "planted" not in log.read_text()


def test_a_module_is_its_source_although_a_compiled_one_is_loaded(client: PoolClient, site: Place) -> None:
    module = site.mark("mark-modules") / "mark_module.py"
    module.parent.mkdir()
    for text in ("first", "second"):
        module.write_text(f"TEXT = {text!r}\n")
        _age()
        found = [look(client, site, "imports") for _ in range(2)]
        assert [one["called"][1] for one in found] == [text] * 2
        assert [one["parent"] for one in found] == ["fxpool zygote", BRANCH]
    assert calls(site, "imports") == 2


def test_a_preparation_that_hangs_ends_with_its_job(client: PoolClient, site: Place) -> None:
    first = client.submit("pool_preparations:look", b"", spec(site, "endless", timeout=1.0, retries=0))
    assert until(lambda: calls(site, "endless"))
    second = client.submit("pool_preparations:look", b"", spec(site, "endless"))
    with pytest.raises(JobTimeoutError):
        first.result(timeout=60)
    assert until(lambda: calls(site, "endless") == 2), "the second one makes the branch now"
    third = client.submit("pool_preparations:look", b"", spec(site, "endless"))
    third.cancel()
    second.cancel()
    for job in (second, third):
        with pytest.raises(JobCancelledError):
            job.result(timeout=60)
    assert look(client, site)["called"] == ["plain"]


@pytest.mark.parametrize("name", [BRANCH, "fxpool zygote"])
def test_a_branch_that_dies_loses_no_job(client: PoolClient, site: Place, name: str) -> None:
    look(client, site)
    job = client.submit("pool_preparations:look_later", str(site.files).encode(), spec(site, "plain"))
    assert until(site.mark("mark-started").exists)
    (process,) = site.called(name)
    process.kill()
    assert json.loads(job.result(timeout=60))["called"] == ["plain"]
    assert until(lambda: process.pid not in {one.pid for one in site.called(BRANCH)})
    assert look(client, site)["parent"] == BRANCH


def test_only_so_many_are_kept(make_client: Make, site: Place) -> None:
    client = make_client(workers=1)
    for number in range(branches._MOST + 2):
        look(client, site, environment={"GIVEN": str(number)})
        assert until(lambda: len(site.called(BRANCH)) <= branches._MOST)
    assert look(client, site, environment={"GIVEN": str(branches._MOST + 1)})["parent"] == BRANCH
    assert look(client, site, environment={"GIVEN": "0"})["parent"] == "fxpool zygote", "the first one made room"


def test_prints_of_a_job_in_a_copy_are_its_own(
    client: PoolClient, site: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second", "third"):
        client.submit("pool_preparations:prints", name.encode(), spec(site, "plain")).result(timeout=60)
    printed: list[str] = []

    def all_came() -> bool:
        printed.append(capsys.readouterr().out)
        return "third" in "".join(printed)

    assert until(all_came)
    assert "".join(printed).split("\n")[:-1] == [f"printed by {name}" for name in ("first", "second", "third")]


def test_short_memory_closes_what_is_unused(tmp_path: Path) -> None:
    room = [True]
    told: list[Any] = []
    with selectors.PollSelector() as selector:
        kept = Branches(selector, told.append, lambda: room[0])
        offer = kept.offer("a")
        assert offer is not None
        with offer:
            order, (ours, theirs) = m.Fork(worker=1, log_path="", branch="a"), socket.socketpair()
            with ours, theirs:
                assert kept.takes(order, os.dup(theirs.fileno())) and isinstance(told[0], m.Deferred)
                room[0] = False
                kept.tidy()
                assert kept.offer("b") is None
                offer.send(branches._encode(m.Prepared(pid=7, seconds=0.0, threads=1)))
                assert kept.read(next(iter(kept))) == [] and kept.pids == {7} and kept.busy
                kept.tidy()
                assert kept.pids == {7}, "it has a worker"
                offer.send(branches._encode(m.Exited(worker=1, exit_code=0, signal=None)))
                assert kept.read(next(iter(kept))) == []
                assert not list(kept) and isinstance(told[-1], m.Exited)


def _age() -> None:
    """Wait until files that are written now look older than what begins then."""
    time.sleep(0.05)
