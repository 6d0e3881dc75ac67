"""What the host lacks is nobody's fault: the job waits a little, costs nothing, and ends as one that got no worker."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_place import Place, until

from fxpool.errors import NoWorkerError, PoolUnavailableError, ServerLostError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient

Make = Callable[..., PoolClient]

#: Too few for anything that is not open yet.
NO_DESCRIPTORS = 3


def echo(client: PoolClient, **settings: Any) -> Job:
    """A job that has no attempt to lose."""
    return client.submit("pool_jobs:echo", b"x", JobSpec(label="graph 7", retries=0, **settings))


def counters(client: PoolClient) -> dict[str, int]:
    found: dict[str, int] = client.status()["counters"]
    return found


def refused(client: PoolClient, before: int = 0) -> bool:
    return counters(client)["not_begun"] > before


def directory(client: PoolClient) -> Path:
    return Path(client.status()["directory"])


@contextlib.contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (NO_DESCRIPTORS, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_NOFILE, before)


def pid_of(client: PoolClient, who: str) -> int:
    echo(client).result(timeout=50)  # so it is through with its own start
    facts = client.status()
    found = facts["server_pid"] if who == "server" else facts["zygote"]["pid"]
    assert isinstance(found, int)
    return found


# ---------------------------------------------------------------- what comes back in time costs nothing


@pytest.mark.parametrize("who", ["server", "zygote"])
def test_out_of_descriptors_for_a_while(client: PoolClient, who: str) -> None:
    with without_descriptors(pid_of(client, who)):
        job = echo(client)
        assert until(lambda: refused(client)), (client.status(), (directory(client) / "server.log").read_text())
        assert not job.done()
    assert (job.result(timeout=50), job.attempts) == (b"x", 1)
    assert counters(client)["deaths"] == 0


def test_a_zygote_that_can_not_be_replaced_at_once(client: PoolClient) -> None:
    zygote = pid_of(client, "zygote")
    with without_descriptors(pid_of(client, "server")):
        os.kill(zygote, signal.SIGKILL)
        job = echo(client)
        log = directory(client) / "server.log"
        assert until(lambda: "the zygote could not be started" in log.read_text())
        assert not job.done()
    assert (job.result(timeout=50), job.attempts) == (b"x", 1)
    assert counters(client)["zygotes"] == 2


def test_the_directory_of_logs_was_removed(client: PoolClient) -> None:
    client.start(wait=True)
    shutil.rmtree(directory(client) / "logs")
    job = echo(client)
    assert (job.result(timeout=50), job.attempts) == (b"x", 1)


@pytest.mark.parametrize("name", ["logs", "scratch"])
def test_a_directory_that_can_not_be_made_for_a_while(client: PoolClient, name: str) -> None:
    client.start(wait=True)
    in_the_way = directory(client) / name
    shutil.rmtree(in_the_way, ignore_errors=True)
    in_the_way.touch()
    job = echo(client)
    assert until(lambda: refused(client))
    in_the_way.unlink()
    assert (job.result(timeout=50), job.attempts) == (b"x", 1)


@pytest.fixture
def small_disk(place: Place) -> Iterator[Path]:
    """A file system of its own, with few inodes."""
    point = place.mark("mark-disk")
    point.mkdir(0o700)
    options = "nr_inodes=40,size=1m,mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_no_inodes_in_the_runtime_directory(make_client: Make, small_disk: Path) -> None:
    client = make_client(runtime_dir=str(small_disk))
    client.start(wait=True)
    taken: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(small_disk / f"taken-{len(taken)}")
            taken[-1].touch()
    job = echo(client)
    assert until(lambda: refused(client))
    with pytest.raises(NoWorkerError) as caught:
        job.result(timeout=50)
    assert caught.value.code == "ENOSPC"
    assert "df -i" in caught.value.remedy and "FXPOOL_RUNTIME_DIR" in caught.value.remedy
    for path in taken:
        path.unlink(missing_ok=True)
    assert echo(client).result(timeout=50) == b"x"
    client.close()


# ---------------------------------------------------------------- what does not ends as that


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "zygote"])
def test_out_of_descriptors_for_good(client: PoolClient, who: str) -> None:
    with without_descriptors(pid_of(client, who)):
        with pytest.raises(NoWorkerError) as caught:
            echo(client).result(timeout=50)
        assert client.status()["state"] == "running", "it can still say how it is"
    error = caught.value
    assert isinstance(error, PoolUnavailableError)
    assert (error.job, error.code, error.attempts) == ("graph 7", "EMFILE", 8)
    for said in ("graph 7", "8 attempts", "ulimit -n"):
        assert said in str(error)
    assert echo(client).result(timeout=50) == b"x"


BROKEN = {
    # The kernel lets root fork as long as it can at all.
    "a fork that fails": """
        import errno, os
        real = os.fork
        def fork():
            if os.path.exists({mark!r}):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return real()
        os.fork = fork
        """,
    "a worker that dies on its way": """
        import os
        from fxpool.pool.worker import worker
        real = worker._settle
        def settle(run, prepared):
            if os.path.exists({mark!r}):
                os.kill(os.getpid(), 9)
            real(run, prepared)
        worker._settle = settle
        """,
}


def broken(make_client: Make, place: Place, how: str) -> tuple[PoolClient, Path]:
    """A pool whose zygote is like that while there is a file."""
    modules, mark = place.mark("mark-modules"), place.mark("mark-broken")
    modules.mkdir()
    mark.touch()
    (modules / "breaks.py").write_text(textwrap.dedent(BROKEN[how]).format(mark=str(mark)))
    return make_client(preload=("breaks",), extra={"PYTHONPATH": str(modules)}), mark


@pytest.mark.slow
@pytest.mark.parametrize("how", BROKEN)
def test_workers_that_do_not_come_to_the_job(make_client: Make, place: Place, how: str) -> None:
    client, mark = broken(make_client, place, how)
    with pytest.raises(NoWorkerError) as caught:
        echo(client).result(timeout=50)
    assert caught.value.code == ("EAGAIN" if "fork" in how else "")
    assert ("ulimit -u" if "fork" in how else "signal 9") in str(caught.value)
    job = echo(client)
    assert until(lambda: refused(client, before=8))
    mark.unlink()
    assert (job.result(timeout=50), job.attempts) == (b"x", 1)


@pytest.mark.slow
def test_a_sub_job_without_a_worker_is_not_its_parent_s_death(make_client: Make, place: Place) -> None:
    client, mark = broken(make_client, place, "a worker that dies on its way")
    mark.unlink()
    parent = client.submit("pool_jobs:gather_late", str(mark).encode(), JobSpec(label="parent", retries=0))
    with pytest.raises(NoWorkerError, match="sub"):
        parent.result(timeout=50)


def at_rest(client: PoolClient) -> bool:
    facts = client.status()
    used = facts["workers"], facts["running"], facts["queued"], facts["slots"] - facts["slots_free"]
    return used == ([], [], 0, 0)


def test_withdrawn_while_it_waits_for_its_next_worker(make_client: Make, place: Place) -> None:
    """The slot that it keeps meanwhile is free again."""
    client, mark = broken(make_client, place, "a worker that dies on its way")
    client.start(wait=True)
    for _ in range(client.status()["slots"] + 1):
        before = counters(client)["not_begun"]
        job = echo(client)
        assert until(functools.partial(refused, client, before))
        job.cancel()
        assert until(lambda: at_rest(client)), client.status()
    mark.unlink()
    assert echo(client).result(timeout=50) == b"x"


def test_withdrawn_at_any_moment_of_a_worker_that_dies_on_its_way(make_client: Make, place: Place) -> None:
    client, mark = broken(make_client, place, "a worker that dies on its way")
    client.start(wait=True)
    for number in range(40):
        job = echo(client)
        time.sleep(0.001 * number)
        job.cancel()
    assert until(lambda: at_rest(client)), client.status()
    mark.unlink()
    assert echo(client).result(timeout=50) == b"x"


def test_the_parent_of_a_sub_job_that_waits_for_its_next_worker_dies(make_client: Make, place: Place) -> None:
    client, mark = broken(make_client, place, "a worker that dies on its way")
    mark.unlink()
    parent = client.submit("pool_jobs:gather_late", str(mark).encode(), JobSpec(label="parent", retries=0))
    assert until(lambda: refused(client))
    (pid,) = [one["pid"] for one in client.status()["running"] if one["label"] == "parent"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        parent.result(timeout=50)
    assert until(lambda: at_rest(client)), client.status()
    mark.unlink()
    assert echo(client).result(timeout=50) == b"x"


@pytest.mark.slow
def test_a_zygote_that_can_not_be_replaced_is_given_up_and_the_next_server_has_one(client: PoolClient) -> None:
    zygote, server = pid_of(client, "zygote"), pid_of(client, "server")
    with without_descriptors(server):
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(PoolUnavailableError, match="the zygote could not be started"):
            echo(client).result(timeout=50)
        assert until(lambda: not client.started)
    assert echo(client).result(timeout=50) == b"x"
    assert client.server_pid != server


# ---------------------------------------------------------------- what does not fit into the server's memory


@contextlib.contextmanager
def without_memory(pid: int) -> Iterator[None]:
    """What fits into some megabytes more does, and nothing else."""
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + (64 << 20), before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_AS, before)


def test_a_result_for_which_the_server_has_no_room_for_a_while(client: PoolClient) -> None:
    with without_memory(pid_of(client, "server")):
        job = client.submit("pool_jobs:zeros", b"300000000", JobSpec(label="zeros", retries=0))
        assert until(lambda: refused(client))
    assert job.result(timeout=50) == bytes(300_000_000)
    assert (job.attempts, counters(client)["deaths"]) == (1, 0)


def test_a_payload_for_which_the_server_has_no_room(client: PoolClient) -> None:
    with without_memory(pid_of(client, "server")):
        job = client.submit("pool_jobs:echo", bytes(300_000_000), JobSpec(label="long", retries=0))
        with pytest.raises(ServerLostError):
            job.result(timeout=50)
    assert echo(client).result(timeout=50) == b"x"
