"""Machines that share a remote cache: what one has compiled, the others load. A machine is a cache directory here."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import Programs
from remote_servers import free_port, redis_and_s3, redis_server
from tiers import first_tier
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

import fxpool
from fxpool import config, notices
from fxpool.codecache.bundle.authentication import new_key
from fxpool.lowering.artifact import sharing
from fxpool.lowering.core import shared_remote

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))

PROGRAM = """
    import torch

    def function(x):
        return (x.sin() + {number}).relu()

    inputs = [torch.linspace(-1, 1, 32)]
"""
WAIT = "import fxpool, sys; fxpool.wait(60)"
UNUSED = """
import sys
assert not [name for name in sys.modules if name.startswith(("obstore", "fxpool.codecache.remote"))]
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with redis_and_s3() as found:
        yield found


@pytest.fixture
def redis_url(servers: dict[str, str]) -> str:
    """The address of a Redis that is empty."""
    import redis

    client = redis.Redis.from_url(servers["redis"])
    client.flushall()
    client.close()
    return servers["redis"]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return _key_file(tmp_path / "key")


def _key_file(path: Path) -> Path:
    path.write_text(new_key())
    path.chmod(0o600)
    return path


@pytest.fixture
def machine(known_host: Path, tmp_path: Path) -> Callable[[str], str]:
    """Makes the cache directory of a machine whose tool chain is known."""

    def make(name: str) -> str:
        directory = tmp_path / name
        directory.mkdir(mode=0o700)
        (directory / "toolchain").symlink_to(known_host / "c" / "toolchain")
        return str(directory)

    return make


@pytest.fixture(autouse=True)
def _warned_of_nothing_yet() -> Iterator[None]:
    notices.forget()
    yield
    notices.forget()


def _found(report: dict[str, Any]) -> tuple[int, int, int, dict[str, int]]:
    stats = report["stats"]
    counted = {name: count for name, count in stats["remote"].items() if count}
    return stats["compiles"]["worker"], stats["hits"], report["lowerings"], counted


@pytest.mark.parametrize("kind", first_tier(["redis", "s3"], "redis"))
def test_two_machines_share_a_compile(
    kind: str, servers: dict[str, str], key_file: Path, machine: Callable[[str], str], programs: Programs
) -> None:
    """Processes with directories of their own and one remote between them, then one without the remote."""
    remote = {"FXPOOL_REMOTE_CACHE": servers[kind], "FXPOOL_REMOTE_KEY_FILE": str(key_file)}
    one, two = machine("one"), machine("two")
    main = PROGRAM.format(number=len(kind))

    def run(directory: str, *calls: str, **environment: str) -> dict[str, Any]:
        return programs.run(main, environment={"FXPOOL_CACHE_DIR": directory, **environment}, calls=list(calls))

    assert _found(run(one, WAIT, **remote)) == (1, 0, 0, {"misses": 1, "writes": 1})
    second = run(two, **remote)
    assert _found(second) == (0, 1, 0, {"hits": 1})
    assert second["stats"]["seconds_saved"] > 0 and second["stats"]["remote_seconds"] > 0
    assert second["stats"]["store"]["entries"] == 1
    assert _found(run(two, UNUSED)) == (0, 1, 0, {}), "it was written back"
    assert _found(run(two, UNUSED, **remote)) == (0, 1, 0, {}), "a local hit asks nobody"


# ---------------------------------------------------------------- in this process, which moves from machine to machine


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.cos() * 3).tanh()


def other(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 5).tanh()


in_this_process = pytest.mark.usefixtures("shared_pool", "nothing_lowered_here")


def counted() -> dict[str, int]:
    return {name: count for name, count in fxpool.stats()["remote"].items() if count}


def compiled(
    directory: str, function: Callable[..., Any] = program, x: torch.Tensor = X, **arguments: Any
) -> tuple[int, int]:
    """Compile and run as a new process on a machine; return how many graphs workers compiled, and how many hit."""
    fxpool.configure(cache_dir=directory)
    torch._dynamo.reset()
    before = fxpool.stats()
    torch.testing.assert_close(torch.compile(function, backend="fxpool", **arguments)(x), function(x))
    fxpool.wait(60)
    after = fxpool.stats()
    return after["compiles"]["worker"] - before["compiles"]["worker"], after["hits"] - before["hits"]


@pytest.mark.slow
@in_this_process
def test_only_a_trusted_writer_writes(redis_url: str, key_file: Path, machine: Callable[[str], str]) -> None:
    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file, remote_use="read-only")
    assert compiled(machine("reader")) == (1, 0)
    assert counted() == {"misses": 1}
    fxpool.configure(remote_use="read-write")
    assert compiled(machine("writer")) == (1, 0)
    fxpool.configure(remote_use="read-only")
    assert compiled(machine("another reader")) == (0, 1)
    assert counted() == {"misses": 2, "writes": 1, "hits": 1}


@pytest.mark.slow
@in_this_process
def test_entries_for_other_sizes_are_told_apart(redis_url: str, key_file: Path, machine: Callable[[str], str]) -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > 8 else x.cos()

    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    small, large = torch.randn(4, 3), torch.randn(16, 3)
    one, two = machine("one"), machine("two")
    for directory, expected in ((one, (1, 0)), (two, (0, 1))):
        for x in (small, large):
            assert compiled(directory, branches, x, dynamic=True) == expected
    assert counted() == {"misses": 2, "writes": 2, "hits": 2}


@pytest.mark.slow
@in_this_process
def test_a_training_step_is_shared(redis_url: str, key_file: Path, machine: Callable[[str], str]) -> None:
    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    for name, expected in (("one", (1, 0)), ("two", (0, 1))):
        x = X.clone().requires_grad_()
        assert compiled(machine(name), other, x) == expected
        torch.compile(other, backend="fxpool")(x).sum().backward()
        got, x.grad = x.grad, None
        other(x).sum().backward()
        torch.testing.assert_close(got, x.grad)


@pytest.mark.slow
@in_this_process
def test_who_does_not_wait_for_a_compile_does_not_wait_for_the_remote(
    redis_url: str, key_file: Path, machine: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call runs eagerly, and the thread in the background finds the entry."""
    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    assert compiled(machine("one")) == (1, 0)
    import threading

    threads: list[str] = []
    fetch = sharing.fetch

    def watched(*arguments: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return fetch(*arguments, **more)

    monkeypatch.setattr(sharing, "fetch", watched)
    assert compiled(machine("two"), options={"mode": "async+subprocess"}) == (0, 1)
    assert len(threads) == 1 and threads[0].startswith("fxpool-async")
    assert counted() == {"misses": 1, "writes": 1, "hits": 1}
    assert fxpool.wait()[-1]["state"] == "ready"


@pytest.mark.slow
@in_this_process
def test_leases_in_each_mode(redis_url: str, key_file: Path, machine: Callable[[str], str]) -> None:
    import redis

    def taken() -> dict[str, int]:
        return {name: count for name, count in fxpool.stats()["leases"].items() if count}

    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file, remote_wait=0)
    assert compiled(machine("without")) == (1, 0)
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        fxpool.configure(remote_wait="auto", remote_use="read-only")
        assert compiled(machine("reader")) == (1, 0)
        assert taken() == {}
        fxpool.configure(remote_use="read-write")
        for number, mode in enumerate(("subprocess", "async+subprocess", "progressive+async+subprocess"), 1):
            client.flushall()
            stages = 2 if mode.startswith("progressive") else 1
            assert compiled(machine(f"of {mode}"), options={"mode": mode}) == (stages, 0)
            assert taken() == {"taken": number + stages - 1}
            end = time.monotonic() + 60
            while client.keys("fxpool/*/lease/*"):
                assert time.monotonic() < end, "a lease is not released"
                time.sleep(0.05)


@pytest.mark.slow
@in_this_process
def test_a_lease_of_a_machine_that_hangs_costs_the_estimate(
    redis_url: str, key_file: Path, machine: Callable[[str], str]
) -> None:
    import redis

    from fxpool.codecache.remote import remote_values
    from fxpool.codecache.remote.leases import PERIOD

    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file, remote_wait=PERIOD / 10)
    assert compiled(machine("one")) == (1, 0)
    with redis.Redis.from_url(redis_url) as client:
        (entry,) = client.keys("fxpool/*/entry/*/*")
        key = entry.decode().split("/")[3]
        client.flushall()
        client.set(remote_values.lease_name(key), "of a machine that renews it for ever")
        assert compiled(machine("two")) == (1, 0)
        assert client.get(remote_values.lease_name(key)) is not None, "it is not this machine's"
    assert fxpool.stats()["leases"]["gave_up"] == 1


@pytest.mark.slow
@in_this_process
def test_a_remote_that_is_dead_costs_one_look(key_file: Path, machine: Callable[[str], str]) -> None:
    fxpool.configure(remote_cache=f"redis://127.0.0.1:{free_port()}/0", remote_key_file=key_file)
    directory = machine("one")
    assert [compiled(directory), compiled(directory, other)] == [(1, 0), (1, 0)]
    counts = counted()
    assert counts["error:unreachable"] == counts["left_alone"] == counts["not_asked"] == 1
    assert set(counts) <= {"error:unreachable", "left_alone", "not_asked"}
    fxpool.configure(remote_cache=None)
    assert [compiled(directory), compiled(directory, other)] == [(0, 1), (0, 1)]


@pytest.mark.slow
@in_this_process
def test_another_key_is_a_miss(redis_url: str, key_file: Path, tmp_path: Path, machine: Callable[[str], str]) -> None:
    fxpool.configure(remote_cache=redis_url, remote_key_file=_key_file(tmp_path / "other key"))
    assert compiled(machine("of others")) == (1, 0)
    fxpool.configure(remote_key_file=key_file)
    assert compiled(machine("one")) == (1, 0)
    assert counted() == {"misses": 2, "writes": 2, "error:not_authentic": 1}


@pytest.mark.slow
@in_this_process
def test_a_new_key_in_the_file_is_taken_at_once(redis_url: str, key_file: Path, machine: Callable[[str], str]) -> None:
    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    assert compiled(machine("one")) == (1, 0)
    key_file.write_text(f"{new_key()}\n{key_file.read_text()}")
    assert compiled(machine("two")) == (0, 1), "the old one is still accepted"
    key_file.write_text(new_key())
    assert compiled(machine("three")) == (1, 0)


@pytest.mark.slow
@in_this_process
def test_without_a_key_nothing_is_looked_at(redis_url: str, machine: Callable[[str], str], tmp_path: Path) -> None:
    fxpool.configure(remote_cache=redis_url)
    with pytest.warns(RuntimeWarning, match=r"(?s)remote cache unix://.*`fxpool cache key FILE`.*REMOTE_KEY_FILE"):
        assert compiled(machine("one")) == (1, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(machine("two")) == (1, 0)
    assert counted() == {} and fxpool.stats()["switched_off"]["remote_refused"] >= 2
    notices.forget()
    open_to_all = _key_file(tmp_path / "open")
    open_to_all.chmod(0o644)
    fxpool.configure(remote_key_file=open_to_all)
    with pytest.warns(RuntimeWarning, match=r"other users can read the key file"):
        assert compiled(machine("three")) == (1, 0)
    assert counted() == {}


@pytest.mark.slow
@in_this_process
def test_within_a_fresh_cache_there_is_no_remote(redis_url: str, key_file: Path, machine: Callable[[str], str]) -> None:
    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    directory = machine("one")
    with fresh_cache():
        assert compiled(directory) == (1, 0)
    assert counted() == {}


@pytest.mark.slow
@in_this_process
def test_a_directory_that_can_not_be_written_is_a_miss(
    redis_url: str, key_file: Path, machine: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fxpool.codecache.remote.remote_level import RemoteHit
    from fxpool.errors import StoreError

    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    assert compiled(machine("one")) == (1, 0)

    def full(*_: Any) -> Any:
        raise StoreError("no room")

    monkeypatch.setattr(RemoteHit, "written_to", full)
    with pytest.warns(RuntimeWarning, match="no room"):
        assert compiled(machine("two")) == (1, 0)
    assert counted()["error:not_written_back"] == 1


# ---------------------------------------------------------------- Inductor's switches


@pytest.mark.slow
@in_this_process
def test_inductor_s_variables_say_where_the_remote_is(
    key_file: Path, machine: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_HOST", "127.0.0.1")
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_PORT", str(port))
    fxpool.configure(remote_key_file=key_file)
    with redis_server(tmp_path, port=port):
        with inductor_config.patch(fx_graph_remote_cache=True):
            assert compiled(machine("one")) == (1, 0)
            assert compiled(machine("two")) == (0, 1)
    assert counted() == {"misses": 1, "writes": 1, "hits": 1}


def test_inductor_s_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "HOST", "PORT"):
        monkeypatch.delenv(f"TORCHINDUCTOR_REDIS_{name}", raising=False)
    assert sharing.inductor_address() is None
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_PORT", "7000")
    assert sharing.inductor_address() == "redis://localhost:7000"
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_HOST", "fe80::1")
    assert sharing.inductor_address() == "redis://[fe80::1]:7000"
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", "rediss://somewhere")
    assert sharing.inductor_address() == "rediss://somewhere"


def test_the_setting_comes_before_inductor_s_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", "redis://of-inductor")
    assert sharing.address(config.current()) is None, "nobody has asked for it"
    with inductor_config.patch(fx_graph_remote_cache=True):
        assert sharing.address(config.current()) == "redis://of-inductor"
        fxpool.configure(remote_cache="redis://of-ours")
        assert sharing.address(config.current()) == "redis://of-ours"


@pytest.mark.slow
def test_a_child_of_a_fork_has_a_level_of_its_own(
    redis_url: str, key_file: Path, machine: Callable[[str], str], shared_pool: Path
) -> None:
    from fxpool.lowering.core.runtime import runtime

    fxpool.configure(remote_cache=redis_url, remote_key_file=key_file)
    assert compiled(machine("one")) == (1, 0)
    part = runtime.part(shared_remote.SharedLevel)
    assert part.present() is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if part.present() is None and part.level(redis_url, config.current()) is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compiled(machine("two")) == (0, 1)
