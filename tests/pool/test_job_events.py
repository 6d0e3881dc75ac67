"""What who watches a job is told of it and of its sub-jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pool_place import Place, until

from fxpool.errors import WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient
from fxpool.pool.wire import messages as m

Make = Callable[..., PoolClient]


def watched(client: PoolClient, function: str, payload: bytes, **settings: Any) -> tuple[list[m.JobEvent], Job]:
    steps: list[m.JobEvent] = []
    job = client.submit(function, payload, JobSpec(label="seen", **settings), on_event=steps.append)
    return steps, job


def test_a_job_and_its_sub_jobs(make_client: Make, place: Place) -> None:
    client = make_client(workers=2)
    client.start(wait=True)
    before = time.monotonic()
    mark = place.mark("mark-seen")
    place.mark("mark-seen-go").touch()
    steps, job = watched(client, "pool_jobs:wait_for_a_sub_job", str(mark).encode())
    assert job.result(timeout=60) == b"the sub-job is done"
    own = [step for step in steps if step.part == 0]
    assert [step.kind for step in own if step.kind != "phase"] == ["queued", "begun", "ended"]
    assert {step.label for step in own} == {"seen"}
    assert {step.worker for step in own[1:]} == {job.worker_pid}
    others = [step for step in steps if step.part]
    assert [step.kind for step in others] == ["queued", "begun", "ended"]
    assert others[1].worker not in (None, job.worker_pid)
    # On the asker's own clock, in the order in which it happened.
    times = [step.at for step in steps]
    assert before <= times[0] and times == sorted(times) and times[-1] <= time.monotonic()


def test_one_that_joins_is_told_what_goes_on(make_client: Make, place: Place) -> None:
    first, second = make_client(host="env", idle_timeout=0.3), make_client(host="env", idle_timeout=0.3)
    mark = place.mark("mark-joined")
    unwatched = first.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="first", dedup_key="f"))
    assert until(mark.exists)
    steps, job = watched(second, "pool_jobs:wait_for_a_mark", str(mark).encode(), dedup_key="f")
    assert until(lambda: any(step.kind == "begun" for step in steps))
    place.mark("mark-joined-go").touch()
    assert job.result(timeout=60) == unwatched.result(timeout=60)
    own = [step for step in steps if step.part == 0]
    assert [step.kind for step in own] == ["queued", "begun", "ended"]
    assert own[1].worker == unwatched.worker_pid
    first.close()
    second.close()
    assert until(lambda: not place.processes())
    (place.runtime / "host.lock").unlink(missing_ok=True)


def test_a_job_that_dies_is_seen_to_end_and_begin_again(make_client: Make) -> None:
    client = make_client()
    steps, job = watched(client, "pool_jobs:die", b"")
    with pytest.raises(WorkerDiedError):
        job.result(timeout=60)
    assert [(step.kind, step.name) for step in steps] == [
        ("queued", ""), ("begun", ""), ("ended", "its worker died"), ("begun", ""), ("ended", "its worker died"),
    ]  # fmt: skip
    assert steps[1].worker != steps[3].worker


def test_who_watches_and_raises_harms_nobody(make_client: Make, caplog: pytest.LogCaptureFixture) -> None:
    def fail(step: m.JobEvent) -> None:
        raise ValueError("not today")

    client = make_client()
    assert client.submit("pool_jobs:echo", b"x", JobSpec(label="x"), on_event=fail).result(timeout=60) == b"x"
    assert client.submit("pool_jobs:echo", b"y", JobSpec(label="y")).result(timeout=60) == b"y"
    assert "not today" in caplog.text
