"""A graph that kills its workers: an error that says everything, then eager in every process until it is released."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from click.testing import CliRunner
from deadly import deadly
from processes import HERE, run_python

import fxpool
from fxpool.codecache.store import quarantine
from fxpool.commands.main import main
from fxpool.errors import JobMemoryError, JobTimeoutError, NoWorkerError, QuarantinedError, WorkerDiedError
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import COMPILE_JOB
from fxpool.pool.client.client import PoolClient

X = torch.randn(6, 8)


pytestmark = pytest.mark.usefixtures("nothing_lowered_here")


def run(how: str, **options: Any) -> torch.Tensor:
    torch._dynamo.reset()

    def graph(x: torch.Tensor) -> torch.Tensor:
        return deadly(x.sin(), how).cos()

    found = torch.compile(graph, backend="fxpool", options=options or None)(X)
    torch.testing.assert_close(found, (X.sin() + 1).cos())
    return found


def strictly(how: str) -> BaseException:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        run(how, strict=True)
    return caught.value.inner_exception


@pytest.mark.slow
def test_it_is_compiled_twice_and_never_again(lone_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    submit = PoolClient.submit

    def submitted(pool: PoolClient, function: str, *arguments: Any, **more: Any) -> Any:
        asked.append(function)
        return submit(pool, function, *arguments, **more)

    monkeypatch.setattr(PoolClient, "submit", submitted)
    with pytest.warns(RuntimeWarning, match="runs eagerly") as warned:
        run("segfault 1")
    (record,) = quarantine.scan(str(cache))
    assert "signal 11" in record.error and "lowering" in record.error
    assert record.function.startswith("run.graph, ") and "test_quarantined.py:" in record.function
    warning = str(warned[0].message)
    # The cause in a sentence, where the rest can be read, and what to do: no part of a traceback.
    assert record.log in warning and "fxpool cache quarantine --release" in warning
    assert warning.count("Segmentation fault") == 1 and len(warning.splitlines()) == 2 and len(warning) < 700
    assert "test_quarantined.py" in warning.split(":")[1] and "most recent call" not in warning
    assert "\n" not in record.error
    assert "Segmentation fault" in Path(record.log).read_text()
    assert COMPILE_JOB in asked
    asked.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run("segfault 1")  # once is enough
    assert not asked
    stats = fxpool.stats()
    assert stats["eager_calls"] == {"worker_died": 1, "quarantined": 1}
    assert (stats["quarantined"], stats["compiles"]) == (1, {"worker": 0, "in_process": 0})
    error = strictly("segfault 1")
    assert isinstance(error, QuarantinedError)
    assert error.key == record.key and "fxpool cache quarantine --release" in str(error)
    run("harmless")
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}


PROGRAM = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
import torch, fxpool
from deadly import deadly
from fxpool.lowering.core.runtime import runtime
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        torch._dynamo.reset()
        x = torch.ones(6, 8)
        found = torch.compile(lambda x: deadly(x.sin(), sys.argv[2]).cos(), backend="fxpool")(x)
        torch.testing.assert_close(found, (x.sin() + 1).cos())
stats = fxpool.stats()
forks = runtime.pool().status().get("counters", {}).get("forks", 0)
print(json.dumps([forks, stats["eager_calls"], [str(w.message) for w in caught], stats["compiles"]]))
"""


@pytest.mark.slow
def test_other_processes_do_not_try(lone_pool: Path, cache: Path, tmp_path: Path) -> None:
    ready = tmp_path / "now-it-works"
    how = f"unless {ready}"
    first = json.loads(run_python(["-c", PROGRAM, str(HERE), how]))
    assert first[1] == {"worker_died": 1, "quarantined": 1}
    # In another pool, which has forked nothing yet.
    own = {"FXPOOL_RUNTIME_DIR": str(lone_pool / "q")}
    forks, eager, said, compiles = json.loads(run_python(["-c", PROGRAM, str(HERE), how], **own))
    assert eager == {"quarantined": 2}
    assert compiles == {"worker": 0, "in_process": 0}
    (record,) = quarantine.scan(str(cache))
    assert [record.log in text for text in said] == [True], "one warning, and it names the log"
    assert not forks, "nobody was asked to compile anything"
    ready.touch()
    result = CliRunner().invoke(main, ["cache", "quarantine"])
    assert record.key[:12] in result.output and "signal 11" in result.output
    assert CliRunner().invoke(main, ["cache", "quarantine", "--release", "0" * 12]).exit_code == 2
    released = CliRunner().invoke(main, ["cache", "quarantine", "--release", record.key[:12]])
    assert released.output == "released 1 graph\n"
    assert json.loads(run_python(["-c", PROGRAM, str(HERE), how]))[3] == {"worker": 1, "in_process": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "said"), [("kill", "signal 9"), ("_exit", "code 4"), ("abort", "signal 6")])
def test_however_it_dies(lone_pool: Path, cache: Path, how: str, said: str) -> None:
    error = strictly(how)
    assert isinstance(error, WorkerDiedError)
    assert said in str(error) and "graph" in str(error) and "lowering" in str(error)
    assert isinstance(strictly(how), QuarantinedError)


def test_an_exit_is_an_error_of_the_graph_s(lone_pool: Path, cache: Path) -> None:
    """sys.exit in a worker is an exception like any other: it crosses, and ends nobody."""
    error = strictly("exit")
    assert "SystemExit" in str(error)
    assert not list(quarantine.scan(str(cache)))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "stop"])
def test_over_its_time(lone_pool: Path, cache: Path, how: str) -> None:
    fxpool.configure(job_timeout=4)
    error = strictly(how)
    assert isinstance(error, JobTimeoutError)
    assert (error.seconds, error.attempts) == (4.0, 2)
    assert isinstance(strictly(how), QuarantinedError)


@pytest.mark.slow
def test_over_its_memory(lone_pool: Path, cache: Path) -> None:
    fxpool.configure(job_memory="700M")
    error = strictly("eat")
    assert isinstance(error, JobMemoryError)
    assert error.limit == 700 << 20 < error.used < 2 << 30
    assert "lowering" in str(error) and "700 MB" in str(error)
    assert isinstance(strictly("eat"), QuarantinedError)
    fxpool.configure(job_memory="700M")
    run("harmless too")  # an ordinary graph is far from it


@pytest.mark.slow
def test_a_larger_limit_of_time_is_another_chance(lone_pool: Path, cache: Path) -> None:
    fxpool.configure(job_timeout=1.5)
    assert isinstance(strictly("take 5"), JobTimeoutError)
    (record,) = quarantine.scan(str(cache))
    assert (record.limit, record.value) == ("timeout", 1.5)
    error = strictly("take 5")
    assert isinstance(error, QuarantinedError)
    for said in ("1.5 s", "FXPOOL_JOB_TIMEOUT", record.log, "fxpool cache quarantine --release"):
        assert said in str(error)
    fxpool.configure(job_timeout=2.5)
    late = strictly("take 5")
    assert isinstance(late, JobTimeoutError) and late.seconds == 2.5
    (record,) = quarantine.scan(str(cache))
    assert (record.limit, record.value) == ("timeout", 2.5)
    assert isinstance(strictly("take 5"), QuarantinedError)
    fxpool.configure(job_timeout=None)  # an hour
    run("take 5")
    assert not list(quarantine.scan(str(cache)))
    assert fxpool.stats()["quarantine_retries"] == {"timeout": 2}
    assert fxpool.stats()["compiles"]["worker"] == 1


@pytest.mark.slow
def test_a_larger_limit_of_memory_is_another_chance(lone_pool: Path, cache: Path) -> None:
    fxpool.configure(job_memory="700M")
    assert isinstance(strictly("hold 900"), JobMemoryError)
    (record,) = quarantine.scan(str(cache))
    assert (record.limit, record.value) == ("memory", 700 << 20)
    error = strictly("hold 900")
    assert isinstance(error, QuarantinedError)
    assert "700 MB" in str(error) and "FXPOOL_JOB_MEMORY" in str(error)
    fxpool.configure(job_memory=None)
    run("hold 900")
    assert not list(quarantine.scan(str(cache)))
    assert fxpool.stats()["quarantine_retries"] == {"memory": 1}


def test_a_death_is_none_of_a_limit_s(lone_pool: Path, cache: Path) -> None:
    strictly("_exit of its own")
    fxpool.configure(job_timeout=7200, job_memory="64G")
    assert isinstance(strictly("_exit of its own"), QuarantinedError)


@pytest.mark.slow
def test_one_process_s_limits_are_not_its_neighbours(cache: Path) -> None:
    """The one that starts the host's server does not set them."""
    fxpool.configure(pool="host", idle_timeout=1.0, job_timeout=2.0, job_memory="600M")
    runtime.pool().start(wait=True)
    limits = runtime.pool().status()["limits"]
    assert limits["job_seconds"] == 3600.0
    assert limits["rules"]["job_bytes"] != "configured"
    fxpool.close()


# --- what the host lacks ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_out_of_descriptors_puts_no_graph_in_quarantine(lone_pool: Path, cache: Path) -> None:
    pool = runtime.pool()
    pool.start(wait=True)
    server = psutil.Process(pool.server_pid)
    before = server.rlimit(psutil.RLIMIT_NOFILE)
    server.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    try:
        error = strictly("harmless without descriptors")
    finally:
        server.rlimit(psutil.RLIMIT_NOFILE, before)
    assert isinstance(error, NoWorkerError) and error.code == "EMFILE"
    assert not list(quarantine.scan(str(cache)))
    assert fxpool.stats()["quarantined"] == 0
    run("harmless without descriptors")
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}


@pytest.mark.slow
def test_without_its_directory_of_logs_a_server_goes_on(lone_pool: Path, cache: Path) -> None:
    pool = runtime.pool()
    pool.start(wait=True)
    shutil.rmtree(Path(pool.status()["directory"]) / "logs")
    run("harmless without logs")
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}
    assert not list(quarantine.scan(str(cache)))


def test_without_a_cache_there_is_no_quarantine(lone_pool: Path, cache: Path) -> None:
    with pytest.warns(RuntimeWarning, match="runs eagerly"):
        run("_exit 2", cache=False)
    assert not list(quarantine.scan(str(cache)))


# --- servers -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_server_is_replaced_and_the_graph_compiled_by_a_worker(cache: Path, tmp_path: Path) -> None:
    fxpool.close()
    pool = runtime.pool()
    pool.start(wait=True)
    first = pool.server_pid
    assert first is not None

    def once(x: torch.Tensor) -> torch.Tensor:
        return deadly(x.sin(), f"kill-server {first}").cos()

    import threading

    def hunt() -> None:
        while not pool.status().get("running"):
            pass
        os.kill(first, signal.SIGKILL)

    hunter = threading.Thread(target=hunt, daemon=True)
    hunter.start()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(once, backend="fxpool")(X), (X.sin() + 1).cos())
    hunter.join()
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}
    assert fxpool.stats()["fallbacks"] == {}
    assert runtime.pool().server_pid not in (None, first)
    fxpool.close()


@pytest.mark.slow
def test_a_server_that_falls_silent_is_replaced(cache: Path) -> None:
    fxpool.close()
    pool = runtime.pool()
    pool.start(wait=True)
    first = pool.server_pid
    assert first is not None
    psutil.Process(first).suspend()
    run("harmless three")
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}
    assert runtime.pool().server_pid not in (None, first)
    fxpool.close()
