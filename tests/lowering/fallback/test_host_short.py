"""What the host lacks, or lets others do, costs a graph its worker and nothing else, under a name of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch._inductor.config
from compiling import compiled
from tiers import first_tier

import fxpool
from fxpool.codecache.store import quarantine
from fxpool.lowering.core.runtime import runtime
from fxpool.pool import JobSpec

X = torch.randn(6, 8)


def attended(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    return (x.sin() @ x.T).softmax(-1) * factor


def counts() -> dict[str, Any]:
    stats = fxpool.stats()
    return {name: stats[name] for name in ("fallbacks", "compiles", "eager_calls", "quarantined")}


def here_for(reason: str) -> dict[str, Any]:
    return {
        "fallbacks": {reason: 1},
        "compiles": {"worker": 0, "in_process": 1},
        "eager_calls": {},
        "quarantined": 0,
    }


@contextlib.contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.parametrize("who", first_tier(["server", "zygote"], "server"))
def test_a_graph_for_which_no_worker_can_be_had_is_compiled_here(lone_pool: Path, cache: Path, who: str) -> None:
    pool = runtime.pool()
    # A zygote that is through with its own start: it has forked a worker that was told of no such function.
    with pytest.raises(ModuleNotFoundError):
        pool.submit("no.such.module:function", b"", JobSpec(label="first")).result(timeout=100)
    facts = pool.status()
    with without_descriptors(facts["server_pid"] if who == "server" else facts["zygote"]["pid"]):
        compiled(attended, X)
    assert counts() == here_for("no_worker")
    assert not list(quarantine.scan(str(cache)))
    compiled(attended, X)
    assert fxpool.stats()["hits"] == 1, "what was compiled here is kept"
    compiled(lambda x: attended(x, 2.0), X)
    assert fxpool.stats()["compiles"]["worker"] == 1


@pytest.mark.slow
def test_a_runtime_directory_that_others_can_replace_is_refused_by_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fxpool.close()
    above = tmp_path / "o"
    above.mkdir()
    above.chmod(0o777)
    monkeypatch.setenv("FXPOOL_RUNTIME_DIR", str(above / "r"))
    compiled(attended, X)
    assert counts() == here_for("runtime_directory_refused")
    fxpool.close()


# A compiler that something kills while it compiles kernels in a worker: the first times, or always.
KILLED = """#!/bin/sh
case "$*" in *fxpool-tmp-unit-*)
    echo >> {calls}
    [ $(wc -l < {calls}) -gt {times} ] || kill -KILL $$ ;;
esac
exec g++ "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("times", "outcome"), [(3, {"worker": 1, "in_process": 0}), (9999, None)])
def test_a_compiler_that_is_killed(
    times: int, outcome: dict[str, int] | None, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, compiler = tmp_path / "calls", tmp_path / "g++"
    calls.touch()
    compiler.write_text(KILLED.format(calls=calls, times=times))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    fxpool.close()
    with torch._inductor.config.patch({"cpp.cxx": (None, str(compiler))}):  # it reads CXX when it is imported
        compiled(attended, X)
    assert calls.read_text().count("\n") >= min(times, 5)
    if outcome is not None:
        assert (fxpool.stats()["compiles"], fxpool.stats()["fallbacks"]) == (outcome, {})
    else:
        assert counts() == here_for("shortage:SIGKILL")
    assert not list(cache.glob("failed/*")) + list(quarantine.scan(str(cache)))
    fxpool.close()
