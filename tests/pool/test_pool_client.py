"""The client's life: start, forks, several clients, close."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pool_place import Place, until

from fxpool.errors import ConfigurationError, JobCancelledError, PoolUnavailableError
from fxpool.pool import JobSpec, PoolClient, PoolConfig


def echo(client: PoolClient, data: bytes = b"x") -> bytes:
    return client.submit("pool_jobs:echo", data, JobSpec(label="echo")).result()


def in_child(code: Callable[[], bytes]) -> bytes:
    """What `code` gives in a forked child of this process."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking with threads is what is tested
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, code())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def test_nothing_is_started_before_it_is_needed(client: PoolClient, place: Place) -> None:
    assert not client.started
    assert client.server_pid is None
    assert client.status() == {"state": "stopped"}
    assert not os.listdir(place.runtime)


def test_start(client: PoolClient, place: Place) -> None:
    client.start()
    pid = client.server_pid
    assert client.started
    client.start(wait=True)
    client.start()
    assert client.server_pid == pid
    status = client.status()
    assert status["state"] == "running"
    assert status["server_pid"] == pid
    assert status["slots"] == status["slots_free"] == 2
    assert status["zygote"]["state"] == "ready"
    assert status["zygote"]["threads"] == 1
    assert status["zygote"]["preload_seconds"] >= 0
    assert status["clients"] == [os.getpid()]
    directory = Path(status["directory"])
    assert directory.stat().st_mode & 0o777 == 0o700
    assert directory.parent == place.runtime


def test_preloaded_modules_are_shared_and_the_server_has_none(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(preload=("pool_jobs", "zoneinfo"))
    client.start(wait=True)
    assert echo(client) == b"x"
    maps = Path(f"/proc/{client.server_pid}/maps").read_text()
    assert "_zoneinfo" not in maps
    assert "torch" not in maps
    assert "_zoneinfo" in Path(f"/proc/{client.status()['zygote']['pid']}/maps").read_text()


def test_default_number_of_workers(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(workers=None)
    client.start(wait=True)
    status = client.status()
    assert status["slots"] >= 1
    assert status["slots_rule"] != "configured"


def test_a_module_in_the_working_directory_shadows_nothing(
    client: PoolClient, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = place.mark("mark-trap")
    trap.mkdir()
    for name in ("asyncio", "msgspec", "psutil", "json"):
        (trap / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(trap)
    assert echo(client) == b"x"


def test_close_is_final_for_jobs_and_not_for_the_client(client: PoolClient, place: Place) -> None:
    client.close()
    jobs = [client.submit("pool_jobs:sleep", b"", JobSpec(label="s")) for _ in range(5)]
    assert until(lambda: jobs[0].worker_pid)
    client.close()
    for job in jobs:
        with pytest.raises(JobCancelledError, match="closed"):
            job.result()
    assert not place.processes()
    assert not os.listdir(place.runtime)
    client.close()
    assert echo(client) == b"x"


def test_close_while_threads_submit(client: PoolClient) -> None:
    stop = threading.Event()
    unexpected: list[BaseException] = []

    def work() -> None:
        while not stop.is_set():
            try:
                echo(client)
            except (JobCancelledError, PoolUnavailableError):
                pass
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert until(lambda: client.started)
        time.sleep(0.05)
        client.close()
    stop.set()
    for thread in threads:
        thread.join()
    assert not unexpected


def test_close_during_start(client: PoolClient, place: Place) -> None:
    for delay in (0.0, 0.03, 0.1, 0.2, 0.3):
        job = client.submit("pool_jobs:sleep", b"", JobSpec(label="s"))
        time.sleep(delay)
        client.close()
        with pytest.raises(JobCancelledError):
            job.result()
        assert until(lambda: not place.processes())
        assert not os.listdir(place.runtime)


def test_context_manager_and_forgotten_clients(place: Place) -> None:
    with PoolClient(place.config()) as client:
        assert echo(client) == b"x"
    assert not client.started
    forgotten = PoolClient(place.config())
    forgotten.start(wait=True)
    del forgotten
    gc.collect()
    assert until(lambda: not place.processes())


def test_a_job_keeps_its_pool_alive(place: Place) -> None:
    client = PoolClient(place.config())
    job = client.submit("pool_jobs:echo", b"kept", JobSpec(label="x"))
    del client
    gc.collect()
    assert job.result() == b"kept"
    del job
    gc.collect()
    assert until(lambda: not place.processes())


def test_a_forked_child_has_a_pool_of_its_own(client: PoolClient, place: Place) -> None:
    assert echo(client) == b"x"
    parent_server = client.server_pid
    mark = place.mark("mark-go")
    running = client.submit("pool_jobs:rendezvous", f"{place.files} 0".encode(), JobSpec(label="parent's"))

    def child() -> bytes:
        assert not client.started
        try:
            running.result()
        except PoolUnavailableError:
            pass
        running.cancel()
        answer = echo(client, b"child")
        assert client.server_pid != parent_server
        client.close()
        return answer

    assert in_child(child) == b"child"
    # The parent's is as it was.
    place.mark("mark-1").touch()
    assert running.result() == b"0"
    assert client.server_pid == parent_server
    assert echo(client) == b"x"
    assert not mark.exists()


def test_a_forked_child_that_never_uses_it_does_not_keep_it(client: PoolClient, place: Place) -> None:
    client.start(wait=True)
    ready, go = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(go[1])
        sockets = [
            os.readlink(f"/proc/self/fd/{n}")
            for n in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{n}")
        ]
        os.write(ready[1], b"%d" % sum(s.startswith("socket:") for s in sockets))
        os.read(go[0], 1)
        os._exit(0)
    before = sum(
        os.readlink(f"/proc/self/fd/{n}").startswith("socket:")
        for n in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{n}")
    )
    assert int(os.read(ready[0], 10)) == before - 1
    client.close()
    assert until(lambda: not place.processes())
    assert psutil.pid_exists(pid)
    for descriptor in (*ready, *go):
        os.close(descriptor)
    os.waitpid(pid, 0)


def test_fork_while_other_threads_use_the_pool(client: PoolClient) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            echo(client, os.urandom(1000))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):

            def child() -> bytes:
                answer = echo(client, b"child")
                client.close()
                return answer

            assert in_child(child) == b"child"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_two_clients_have_two_servers(make_client: Callable[..., PoolClient]) -> None:
    first, second = make_client(), make_client()
    assert echo(first) == echo(second) == b"x"
    assert first.server_pid != second.server_pid


def test_close_from_a_callback(client: PoolClient, place: Place) -> None:
    job = client.submit("pool_jobs:echo", b"x", JobSpec(label="x"))
    other = client.submit("pool_jobs:sleep", b"", JobSpec(label="s"))
    job.add_done_callback(lambda j: client.close())
    assert job.result() == b"x"
    with pytest.raises(JobCancelledError):
        other.result()
    assert until(lambda: not place.processes())
    assert echo(client) == b"x"


def test_configuration_is_plain_data() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        PoolConfig(workers=0)
    assert PoolConfig() == PoolConfig()
    assert PoolConfig().environment == {}
