"""Who dies, and what that costs: the job an attempt, its neighbours nothing, and nobody is left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_place import HERE, Place, until

from fxpool.errors import JobCancelledError, JobTimeoutError, PoolUnavailableError, WorkerDiedError
from fxpool.pool import Job, JobSpec, PoolClient


def run(client: PoolClient, function: str, data: bytes = b"", **settings: Any) -> Job:
    settings.setdefault("label", function)
    return client.submit(f"pool_jobs:{function}", data, JobSpec(**settings))


def sleeping(client: PoolClient, place: Place, function: str = "sleep", name: str = "mark-sleep", **s: object) -> Job:
    """A job that is certain to run now."""
    mark = place.mark(name)
    job = run(client, function, str(mark).encode(), **s)
    assert until(mark.exists), "the job did not start"
    return job


# ---------------------------------------------------------------- workers


def test_a_killed_worker_costs_one_retry(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    job = run(client, "die_once", label="graph 5")
    assert job.result() == b"attempt 2"
    assert job.attempts == 2
    (record,) = [r for r in caplog.records if r.name == "fxpool.pool.client.job"]
    assert record.levelno == logging.WARNING
    assert "graph 5" in record.getMessage()
    assert "signal 9" in record.getMessage()
    assert client.status()["counters"]["retries"] == 1


def test_a_job_that_kills_its_worker_again_is_named(client: PoolClient) -> None:
    neighbour = run(client, "echo", b"fine")
    job = run(client, "die", label="graph 6")
    with pytest.raises(WorkerDiedError) as caught:
        job.result()
    error = caught.value
    assert (error.job, error.signal, error.exit_code, error.attempts) == ("graph 6", signal.SIGKILL, None, 2)
    assert error.worker == job.worker_pid
    assert error.reason == "last words"
    assert error.log_path is not None
    assert Path(error.log_path).read_text() == "last words\n"
    assert neighbour.result() == b"fine"


@pytest.mark.parametrize(
    ("function", "data", "signum", "code", "words"),
    [("segfault", b"", signal.SIGSEGV, None, "Segmentation fault"), ("exit_hard", b"3", None, 3, "")],
)
def test_other_ends(
    client: PoolClient, function: str, data: bytes, signum: int | None, code: int | None, words: str
) -> None:
    with pytest.raises(WorkerDiedError) as caught:
        run(client, function, data, retries=0).result()
    assert (caught.value.signal, caught.value.exit_code, caught.value.attempts) == (signum, code, 1)
    assert words in caught.value.reason


def test_a_worker_that_hangs_up_is_killed(client: PoolClient) -> None:
    with pytest.raises(WorkerDiedError) as caught:
        run(client, "mute", retries=0).result()
    assert caught.value.signal == signal.SIGKILL


def test_logs_are_kept_for_failures_only(client: PoolClient) -> None:
    run(client, "echo").result()
    with pytest.raises(ValueError):
        run(client, "many_logs", b"x").result()
    logs = Path(client.status()["directory"]) / "logs"
    assert until(lambda: len(list(logs.iterdir())) == 1)


# ---------------------------------------------------------------- cancelling


def test_cancel_kills_everything_the_worker_started(client: PoolClient, place: Place) -> None:
    job = sleeping(client, place, "spawn")
    assert until(lambda: len(place.called("sleep")) == 3)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.result()
    assert until(lambda: len(place.processes()) == 2)  # server and zygote
    assert run(client, "echo", b"x").result() == b"x"


def test_the_end_of_a_job_is_the_end_of_what_it_started(client: PoolClient, place: Place) -> None:
    job = sleeping(client, place, "spawn")
    assert job.worker_pid or until(lambda: job.worker_pid)
    os.kill(job.worker_pid or 0, signal.SIGKILL)
    assert until(lambda: job.attempts == 2)
    assert until(lambda: len(place.called("sleep")) == 3)
    assert until(lambda: len(place.processes()) == 6)
    job.cancel()


def test_cancel_what_waits_and_what_is_over(make_client: Callable[..., PoolClient], place: Place) -> None:
    client = make_client(workers=1)
    first = sleeping(client, place)
    second = run(client, "echo", b"2")
    third = run(client, "echo", b"3")
    second.cancel()
    second.cancel()
    with pytest.raises(JobCancelledError):
        second.result()
    first.cancel()
    assert third.result() == b"3"
    third.cancel()
    assert third.result() == b"3"


# ---------------------------------------------------------------- time


def test_a_job_over_its_time_is_killed(client: PoolClient, place: Place) -> None:
    job = run(client, "spawn", timeout=0.2, label="slow")
    with pytest.raises(JobTimeoutError) as caught:
        job.result()
    assert (caught.value.job, caught.value.seconds) == ("slow", 0.2)
    assert caught.value.worker == job.worker_pid
    assert until(lambda: len(place.processes()) == 2)


def test_the_default_limit(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(job_timeout=0.2)
    with pytest.raises(JobTimeoutError):
        run(client, "sleep").result()
    assert run(client, "echo", b"x", timeout=50).result() == b"x"


# ---------------------------------------------------------------- server and zygote


def test_a_killed_server_fails_its_jobs_and_the_next_starts_another(client: PoolClient, place: Place) -> None:
    job = sleeping(client, place, "spawn")
    waiting = [run(client, "sleep") for _ in range(3)]
    first = client.server_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    for each in (job, *waiting):
        with pytest.raises(PoolUnavailableError, match="signal 9"):
            each.result()
    assert until(lambda: not place.processes())
    assert not os.listdir(place.runtime)
    assert not client.started
    assert client.status() == {"state": "stopped"}
    assert run(client, "echo", b"again").result() == b"again"
    assert client.server_pid not in (None, first)


def test_a_killed_zygote_costs_its_jobs_no_attempt(client: PoolClient, place: Place) -> None:
    job = sleeping(client, place, "spawn_first", retries=0)
    queued = [run(client, "echo", b"%d" % n) for n in range(5)]
    zygote = client.status()["zygote"]["pid"]
    os.kill(zygote, signal.SIGKILL)
    assert job.result() == b"again"
    assert job.attempts == 1
    assert [q.result() for q in queued] == [b"%d" % n for n in range(5)]
    status = client.status()
    assert status["zygote"]["pid"] != zygote
    assert status["counters"]["zygotes"] == 2


def test_a_killed_zygote_leaves_no_grandchildren(client: PoolClient, place: Place) -> None:
    job = sleeping(client, place, "spawn_first")
    os.kill(client.status()["zygote"]["pid"], signal.SIGKILL)
    assert job.result() == b"again"
    assert until(lambda: not place.called("sleep"))


def test_a_stopped_zygote_takes_its_workers_along(client: PoolClient, place: Place) -> None:
    job = sleeping(client, place, "spawn_first")
    os.kill(client.status()["zygote"]["pid"], signal.SIGTERM)
    assert job.result() == b"again"
    assert until(lambda: not place.called("sleep"))
    assert run(client, "echo", b"x").result() == b"x"


def test_a_zygote_that_hangs_is_replaced(client: PoolClient, place: Place) -> None:
    client.start(wait=True)
    zygote = client.status()["zygote"]["pid"]
    os.kill(zygote, signal.SIGSTOP)
    job = run(client, "echo", b"x")
    assert (job.result(), job.attempts) == (b"x", 1)
    assert client.status()["zygote"]["pid"] != zygote


def test_a_zygote_that_dies_for_ever_is_given_up(make_client: Callable[..., PoolClient], place: Place) -> None:
    module = place.mark("mark-modules")
    module.mkdir()
    (module / "ends_here.py").write_text("import os; os._exit(4)\n")
    client = make_client(preload=("ends_here",), extra={"PYTHONPATH": str(module)})
    with pytest.raises(PoolUnavailableError, match="exited with code 4 3 times in a row"):
        run(client, "echo").result()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "1 threads"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_preload_that_fails_says_why(
    make_client: Callable[..., PoolClient], place: Place, code: str, words: str
) -> None:
    module = place.mark("mark-modules")
    module.mkdir()
    (module / "preloaded.py").write_text(code + "\n")
    client = make_client(preload=("json", "preloaded"), extra={"PYTHONPATH": str(module)})
    early = run(client, "echo")
    with pytest.raises(PoolUnavailableError) as caught:
        early.result()
    assert words in str(caught.value)
    with pytest.raises(PoolUnavailableError):
        run(client, "echo").result()
    with pytest.raises(PoolUnavailableError):
        client.start(wait=True)
    assert client.status()["zygote"]["state"] == "broken"


def test_a_preload_that_takes_too_long_is_killed(make_client: Callable[..., PoolClient], place: Place) -> None:
    module = place.mark("mark-modules")
    module.mkdir()
    (module / "preloaded.py").write_text("import time; time.sleep(600)\n")
    client = make_client(preload=("preloaded",), extra={"PYTHONPATH": str(module)}, start_timeout=1.0)
    with pytest.raises(PoolUnavailableError, match="did not finish its preload in time"):
        run(client, "echo").result()


def test_a_server_that_cannot_start(make_client: Callable[..., PoolClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    client = make_client()
    with pytest.raises(PoolUnavailableError, match="could not be started"):
        run(client, "echo")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PoolUnavailableError, match="exited with code 1"):
        run(client, "echo").result()


@pytest.mark.parametrize("executable", ["", None])
def test_python_in_another_program(
    make_client: Callable[..., PoolClient], monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(PoolUnavailableError, match=r"sys\.executable does not name a Python"):
        run(make_client(), "echo")


# ---------------------------------------------------------------- clients


@contextlib.contextmanager
def script(place: Place, body: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own with `client` and `run`; what it prints can be read."""
    code = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(HERE)!r})
from fxpool.pool import JobSpec, PoolClient, PoolConfig
client = PoolClient(PoolConfig(workers=2, environment={place.environment!r}, sys_path=({str(HERE)!r},),
                               runtime_dir={str(place.runtime)!r}))
def run(function, data=b""):
    return client.submit("pool_jobs:" + function, data, JobSpec(label=function))
mark = {str(place.mark("mark-sleep"))!r}
def wait():
    while not os.path.exists(mark):
        time.sleep(0.01)
{textwrap.dedent(body)}
"""
    arguments = [sys.executable, "-c", code]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place.files
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_client_takes_everything_along(place: Place) -> None:
    with script(
        place, 'job = run("spawn", mark.encode())\nwait()\nprint("ready", flush=True)\njob.result()'
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(place.processes()) == 6
        process.kill()
        process.wait()
        assert until(lambda: not place.processes())
        assert until(lambda: not os.listdir(place.runtime))


def test_a_client_killed_while_the_server_starts(place: Place) -> None:
    with script(place, 'client.start()\nprint("ready", flush=True)\ntime.sleep(600)') as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait()
        assert until(lambda: not place.processes())
        assert until(lambda: not os.listdir(place.runtime))


def test_a_killed_client_is_noticed_though_its_fork_lives_on(place: Place) -> None:
    body = """
        job = run("sleep", mark.encode())
        wait()
        import ctypes
        pid = ctypes.CDLL(None).fork()  # past Python's hooks: the child keeps a copy of every descriptor
        if pid == 0:
            ctypes.CDLL(None).sleep(30)
            os._exit(0)
        print(pid, flush=True)
        job.result()
    """
    with script(place, body) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            process.kill()
            assert until(lambda: not place.processes())
            assert child.is_running()
        finally:
            child.kill()


def test_interrupting_a_wait_cancels_and_leaves_nothing(place: Place) -> None:
    body = """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        job = run("spawn", mark.encode())
        wait()
        try:
            # When this thread waits, as before that there is nothing to interrupt.
            threading.Timer(0.3, print, ["ready"], {"flush": True}).start()
            job.result()
        except KeyboardInterrupt:
            print("interrupted", job.done(), flush=True)
        while len(client.status()["workers"]):
            time.sleep(0.01)
        print(run("echo", b"x").result(), flush=True)
    """
    with script(place, body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted True\nb'x'\n"
        assert process.wait() == 0
    assert until(lambda: not place.processes())


def test_the_end_of_the_program_is_prompt_and_clean(place: Place) -> None:
    for body in (
        'job = run("spawn", mark.encode())\nwait()',
        "client.start()",
        'client.start()\ndel client\nprint("dropped")',
        'run("echo").result()\nraise SystemExit(0)',
    ):
        with script(place, body) as process:
            process.communicate()
            assert process.returncode == 0
        assert until(lambda: not place.processes())
        assert until(lambda: not os.listdir(place.runtime))
