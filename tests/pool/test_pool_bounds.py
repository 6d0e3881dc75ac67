"""What a job may take, and what the host must have left: over it, the job ends with its tree and nobody else does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_place import Place, until

from fxpool.errors import JobMemoryError, JobTimeoutError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient
from fxpool.pool.host import memory
from fxpool.pool.host.limits import MemoryGroup

Make = Callable[..., PoolClient]
MB = 1 << 20


def run(client: PoolClient, function: str, data: bytes = b"", **settings: Any) -> Job:
    settings.setdefault("label", function)
    return client.submit(f"pool_jobs:{function}", data, JobSpec(**settings))


def nobody_eats(place: Place) -> bool:
    try:
        return not [process for process in place.processes() if process.name().startswith("python")]
    except psutil.NoSuchProcess:  # one ended while it was looked at
        return False


def test_over_its_time_it_has_one_more_chance(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    job = run(client, "sleep_once", timeout=0.5)
    assert job.result() == b"again"
    assert job.attempts == 2
    assert "limit of 0.5 s" in caplog.text


@pytest.mark.parametrize("function", ["eat_in_a_child", "eat_in_a_sub_job"])
def test_over_its_memory_it_ends_with_all_its_processes(make_client: Make, place: Place, function: str) -> None:
    client = make_client(workers=3)
    neighbour = run(client, "times")
    hungry = run(client, function, b"400 600", label="graph 7", memory=200 * MB)
    with pytest.raises(JobMemoryError) as caught:
        hungry.result(timeout=50)
    error = caught.value
    assert (error.job, error.limit, error.attempts, error.worker) == ("graph 7", 200 * MB, 2, hungry.worker_pid)
    assert 200 * MB < error.used < 600 * MB
    assert error.log_path is not None
    if function == "eat_in_a_child":
        assert error.phase == "feeding"
    for said in ("graph 7", "200 MB", str(error.worker), "FXPOOL_JOB_MEMORY"):
        assert said in str(error)
    assert until(lambda: nobody_eats(place))
    assert json.loads(neighbour.result())
    assert run(client, "eat_in_a_child", b"60 0", memory=200 * MB).result() == b"full"


def test_the_default_limit_and_that_of_the_pool(make_client: Make) -> None:
    client = make_client(job_memory=150 * MB)
    assert client.status()["state"] == "stopped"
    with pytest.raises(JobMemoryError):
        run(client, "eat_in_a_child", b"400 600", retries=0).result(timeout=50)
    limits = client.status()["limits"]
    assert (limits["job_bytes"], limits["rules"]["job_bytes"]) == (150 * MB, "configured")
    assert (limits["job_seconds"], limits["rules"]["job_seconds"]) == (3600.0, "the default")


def test_what_processes_share_counts_once(client: PoolClient) -> None:
    assert run(client, "eat_together", b"150 1.5", memory=300 * MB, retries=0).result(timeout=50) == b"full"


def test_what_it_did_is_in_the_error(client: PoolClient) -> None:
    with pytest.raises(WorkerDiedError, match="attempt 2, lowering") as caught:
        run(client, "segfault_in", b"lowering").result()
    assert caught.value.phase == "lowering"
    with pytest.raises(JobTimeoutError, match="attempt 1, feeding") as late:
        run(client, "eat_in_a_child", b"1 600", timeout=1.0, retries=0).result()
    assert late.value.phase == "feeding"


@pytest.mark.slow
def test_a_full_host_begins_one_job_at_a_time_and_waits_before_that(make_client: Make) -> None:
    client = make_client(memory_high_watermark=0.0, workers=2)
    jobs = [run(client, "times") for _ in range(2)]
    asked = time.monotonic()
    assert until(lambda: client.status().get("limits", {}).get("pressed"))
    assert client.status()["running"] == []
    first, second = (json.loads(job.result()) for job in jobs)
    assert first[0] > asked + 5, "it was begun above the mark at once"
    assert first[1] <= second[0] or second[1] <= first[0], "two ran at a time"


def test_a_job_is_begun_beside_another_below_the_mark(make_client: Make) -> None:
    client = make_client(memory_high_watermark=1.0, workers=2)
    first, second = (json.loads(job.result()) for job in [run(client, "times") for _ in range(2)])
    assert first[0] < second[1] and second[0] < first[1]


def test_status_shows_who_waits_for_what_and_the_memory(make_client: Make, place: Place) -> None:
    client = make_client(workers=1)
    mark = place.mark("mark-running")
    running = run(client, "sleep", str(mark).encode(), label="first", dedup_key="f")
    assert until(mark.exists)
    waiting = run(client, "echo", label="second", priority=-1)
    joined = run(client, "sleep", label="third", dedup_key="f")
    facts = client.status()
    assert [(one["label"], one["running"], one["joined"], one["priority"]) for one in facts["waiting"]] == [
        ("first", True, False, 0),
        ("second", False, False, -1),
        ("third", True, True, 0),
    ]
    assert facts["memory"]["server"] > 5 * MB and facts["memory"]["zygote"] > 5 * MB
    assert 0 < facts["memory"]["workers"] < 100 * MB
    for job in (running, waiting, joined):
        job.cancel()


# ---------------------------------------------------------------- the host


def group(tmp_path: Path, limit: int, usage: int, cached: int, name: str) -> MemoryGroup:
    """A cgroup's files. `name` is that of the line with the cached files, by version."""
    (tmp_path / "usage").write_text(f"{usage}\n")
    (tmp_path / "memory.stat").write_text(f"cache 12345\n{name} {cached}\nother 3\n")
    return MemoryGroup(limit, tmp_path / "memory.max", tmp_path / "usage", tmp_path / "memory.stat")


@pytest.mark.parametrize("name", ["inactive_file", "total_inactive_file"])
def test_a_cgroup_s_limit_counts_and_its_cached_files_do_not(tmp_path: Path, name: str) -> None:
    host = memory.Host((group(tmp_path, 100 * MB, 99 * MB, 1 * MB, name),))
    assert host.total() == (100 * MB, f"the memory limit in {tmp_path / 'memory.max'}")
    assert host.used() == (0.98, f"the memory limit in {tmp_path / 'memory.max'}")
    (tmp_path / "usage").write_text("rubbish")
    assert host.used()[1] == "the machine's memory"


@pytest.mark.parametrize(
    ("total", "limit", "rule"),
    [
        (1 << 30, 768 * MB, "three quarters of"),
        (2 << 30, 1536 * MB, "three quarters of"),
        (3 << 30, 2 << 30, "what graphs take"),
        (4 << 30, 2 << 30, "half of"),
        (10 << 30, 5 << 30, "half of"),
    ],
)
def test_the_default_is_half_but_enough_for_a_graph_and_never_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, limit: int, rule: str
) -> None:
    monkeypatch.setattr(memory, "_machine_total", lambda: 64 << 30)
    found, said = memory.default_limit(memory.Host((group(tmp_path, total, 0, 0, "x"),)))
    assert found == limit and said.startswith(rule)


def test_fewer_workers_where_there_is_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_machine_total", lambda: 64 << 30)
    of = {size: memory.workers(memory.Host((group(tmp_path, size * MB, 0, 0, "x"),))) for size in (500, 1200, 2048)}
    assert [count for count, _ in of.values()] == [1, 1, 2]
    assert all("memory.max" in rule for _, rule in of.values())
    assert memory.workers(memory.Host(()))[0] > 64


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_what_is_left_of_a_group_and_whom_the_kernel_killed(tmp_path: Path, name: str) -> None:
    host = memory.Host((group(tmp_path, 1200 * MB, 700 * MB, 100 * MB, "inactive_file"),))
    assert host.room() == (600 * MB, f"the memory limit in {tmp_path / 'memory.max'}")
    assert memory.too_little(host) and not memory.warm_up_fits(host)
    assert "600 MB of 1200 MB are free" in memory.advice(host) and "FXPOOL_POOL=off" in memory.advice(host)
    assert host.killed() == 0
    (tmp_path / name).write_text("low 0\noom 9\noom_kill 3\n")
    assert host.killed() == 3
    with open(tmp_path / "memory.stat", "a") as file:
        file.write(f"active_file {300 * MB}\n")
    assert host.room()[0] == 900 * MB, "files that are cached can be given up"
    roomy = memory.Host((group(tmp_path, 1200 * MB, 400 * MB, 100 * MB, "inactive_file"),))
    assert not memory.too_little(roomy) and memory.warm_up_fits(roomy)
