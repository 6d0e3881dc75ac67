"""Stock ``backend="inductor"`` on fxpool's pool, in processes of their own (`install_child.py`).

What is not tested: loading a Triton kernel and launching it, which takes a GPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch._inductor.config as inductor_config
from processes import HERE, run_python
from tiers import first_tier
from torch._inductor import async_compile
from torch._inductor.async_compile import AsyncCompile
from triton_place import path_with_triton

import fxpool
from fxpool import counters
from fxpool.errors import ConfigurationError, PoolUnavailableError, UnsupportedTorchError
from fxpool.lowering import torch_release
from fxpool.lowering.inductor import pools
from fxpool.torch_compat.inductor import hooks

Run = Callable[..., dict[str, Any]]
SUBPROCESS = {"TORCHINDUCTOR_FX_COMPILE_MODE": "subprocess"}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories in which Inductor finds what it found out about this host: that takes it half a minute."""
    root = tmp_path_factory.mktemp("n")
    for name in "it":
        (root / name).mkdir(mode=0o700)
    return root


@pytest.fixture
def run(known: Path) -> Run:
    """Run a scenario; Inductor has no graphs yet, unless `kept`."""

    def scenario(name: str, *, kept: bool = False, **environment: str) -> dict[str, Any]:
        if not kept:
            for directory in ("fxgraph", "aotautograd"):
                shutil.rmtree(known / "i" / directory, ignore_errors=True)
        places = {"TORCHINDUCTOR_CACHE_DIR": str(known / "i"), "TMPDIR": str(known / "t")}
        places["FXPOOL_POOL"] = "embedded"  # ends with the child; a server of the host would outlive this test
        printed = run_python([str(HERE / "install_child.py"), name], **places, **environment)
        report: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
        assert not report.get("sidecars"), "Inductor started processes of its own"
        return report

    return scenario


# --- graphs ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_graphs_are_compiled_by_workers_and_kept_by_inductor(run: Run) -> None:
    first = run("graphs", **SUBPROCESS)
    assert first["right"]
    assert first["lowerings"] == 0, "a graph was lowered in the process that asked"
    assert len(set(first["workers"])) == 4, "forward and backward of two models, each in a worker of its own"
    assert first["stats"]["borrowed"] == {"fx": 4}
    assert (first["hits"], first["misses"], first["stats"]["fallbacks"]) == (0, 4, {})
    second = run("graphs", kept=True, **SUBPROCESS)
    assert second["right"]
    assert (second["hits"], second["misses"], second["workers"]) == (4, 0, [])


@pytest.mark.slow
def test_installed_after_inductor_was_imported_and_shapes_that_change(run: Run) -> None:
    report = run("dynamic", **SUBPROCESS)
    assert (report["right"], report["lowerings"]) == (True, 0)
    assert report["stats"] == {"borrowed": {"fx": 2}, "fallbacks": {}, "compiles": {"worker": 0, "in_process": 0}}


@pytest.mark.slow
def test_a_worker_that_is_killed_has_a_successor(run: Run) -> None:
    report = run("killed_once", **SUBPROCESS)
    assert (report["right"], report["lowerings"], report["stats"]["fallbacks"]) == (True, 0, {})
    assert max(report["attempts"]) == 2


@pytest.mark.slow
def test_a_graph_that_kills_its_workers_is_an_error_and_not_compiled_here(run: Run) -> None:
    report = run("killed_always", **SUBPROCESS)
    assert "WorkerDiedError: worker" in report["error"] and "signal 9" in report["error"]
    assert (report["lowerings"], report["stats"]["fallbacks"]) == (0, {})


@pytest.mark.slow
def test_without_a_pool_graphs_are_compiled_here_unless_strict(run: Run) -> None:
    report = run("pool_off", **SUBPROCESS)
    assert "PoolUnavailableError: the pool is switched off" in report["strict"]
    assert (report["right"], report["lowerings"], report["workers"]) == (True, 2, [])
    assert report["stats"]["fallbacks"] == {"borrowed:pool_unavailable": 2}


@pytest.mark.slow
def test_what_torch_does_not_hand_on_is_counted_and_said_once(run: Run) -> None:
    report = run("unsent", **SUBPROCESS)
    assert report["stats"]["fallbacks"] == {"borrowed:not_picklable": 2, "borrowed:higher_order_operator": 1}
    assert (report["lowerings"], report["stats"]["borrowed"]) == (3 + 2, {"fx": 1}), "of branches, too"
    assert [line.count("\n") for line in report["said"]] == [0, 0], report["said"]
    pickle, higher = report["said"]
    assert pickle.startswith("fxpool: not compiled by a worker: it is compiled in this process (reported once, ")
    assert "borrowed:not_picklable" in pickle and "Unable to pickle" in pickle
    assert "borrowed:higher_order_operator" in higher and "cond" in higher
    assert "higher_order_operator" in report["strict"]


@pytest.mark.slow
def test_an_error_of_the_compile_comes_out_as_from_inductors_pool(run: Run) -> None:
    report = run("compile_error", **SUBPROCESS)
    assert report["error"].startswith("InductorError: SubprocException: An exception occurred in a subprocess")
    assert "InvalidCxxCompiler" in report["error"]
    assert (report["lowerings"], report["stats"]["fallbacks"]) == (0, {})


@pytest.mark.slow
def test_async_is_what_it_is_for_fxpool_with_caches_on(run: Run, tmp_path: Path) -> None:
    settings = {"TORCHINDUCTOR_FX_COMPILE_MODE": "async+subprocess", "FXPOOL_CACHE_DIR": str(tmp_path / "c")}
    report = run("background", **settings)
    assert report["equal"], "the first step of a graph is eager's"
    assert (report["states"], report["how"]) == (["ready"], ["async", "worker"])
    assert report["calls"] == [[1, 1]], "a step before the swap, one after it"
    assert (report["lowerings"], report["stats"]["fallbacks"], report["stats"]["borrowed"]) == (0, {}, {})
    again = run("background", **settings)
    assert (again["hit"], again["how"], again["states"]) == (1, ["hit"], []), "used at once, in the next process"
    assert (again["lowerings"], again["workers"]) == (0, [])


@pytest.mark.slow
def test_progressive_starts_with_code_and_goes_on_in_the_background(run: Run, tmp_path: Path) -> None:
    report = run(
        "background",
        TORCHINDUCTOR_FX_COMPILE_MODE="progressive+subprocess",
        FXPOOL_CACHE_DIR=str(tmp_path / "c"),
        FXPOOL_STAGES='[{}, {"max_autotune_pointwise": true}]',
    )
    assert (report["states"], report["calls"]) == (["ready"], [[0, 2]]), "never eager"
    assert (report["lowerings"], report["stats"]["fallbacks"], report["stats"]["borrowed"]) == (0, {}, {})
    assert len(set(report["workers"])) >= 2, "two stages"


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", first_tier(["asynchronous", "progressive"], "progressive"))
def test_torchs_own_wrappers_send_to_the_pool(wrapper: str, run: Run) -> None:
    # With its graph caches, torch refuses its own wrappers' results (NotImplementedError), installed or not.
    report = run(wrapper, TORCHINDUCTOR_FX_GRAPH_CACHE="0", TORCHINDUCTOR_AUTOGRAD_CACHE="0", **SUBPROCESS)
    assert report["changed_over"]
    assert report["stats"]["borrowed"] == {"fx": 2}
    assert report["stats"]["fallbacks"] == {}
    assert report["without_pool"] == {"borrowed:pool_unavailable": 1}


# --- kernels -----------------------------------------------------------------------------------------


def test_jobs_of_async_compile_run_in_workers_as_their_asker_would(run: Run, known: Path) -> None:
    report = run("kernels", TORCHINDUCTOR_COMPILE_THREADS="2")
    assert report["ready"] is True, "and no job was needed to say so"
    made = report["made"]
    assert [one["value"] for one in made] == [0, 1, 2]
    assert len({one["pid"] for one in made} | {report["me"]}) == 4
    assert {(one["variable"], one["size"], one["cache"]) for one in made} == {("yes", True, str(known / "i"))}
    name, text = report["error"]
    assert name == "SubprocException"
    assert "KeyError: 'of a kernel'" in text
    assert report["deadly"] == "WorkerDiedError", "and it was not called here"
    assert report["stats"]["fallbacks"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_triton_kernels_are_compiled_by_workers(run: Run, mode: str) -> None:
    if mode == "thread" and not hasattr(AsyncCompile, "get_worker_pool"):
        pytest.skip("this torch compiles kernels in processes only")
    variables = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "TORCH_COMPILE_WORKER_MODE": mode}
    report = run("triton", PYTHONPATH=path_with_triton(), **variables)
    assert len({*report["workers_of_kernels"], report["me"]}) == 3
    assert all(report["candidates"])
    assert report["said"].startswith("SubprocException")
    assert "nobody is not defined" in report["said"]
    assert report["stats"]["borrowed"] == {"triton": 3}


def test_what_sends_kernels_to_threads_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(AsyncCompile, "get_worker_pool"):
        pytest.skip("this torch compiles kernels in processes only")
    from torch._inductor import autotune_process, utils

    mine = pools.KernelPool(Nowhere())
    monkeypatch.setattr(autotune_process, "get_tuning_process_pool", lambda: mine)
    with inductor_config.patch(compile_worker_mode="thread"):
        assert utils.should_use_thread_workers()
        hooks.take_in_worker(mine, 2)
        try:
            assert AsyncCompile.get_worker_pool() is mine
            assert not AsyncCompile.should_use_thread_workers()
            assert autotune_process.get_tuning_pool() is mine
        finally:
            hooks.uninstall()
        assert AsyncCompile.should_use_thread_workers()


def test_only_what_compiles_for_a_named_device_runs_without_one() -> None:
    jobs = [value for name, value in vars(async_compile).items() if name.startswith("_worker_")]
    assert [job.__name__ for job in jobs if hooks.compiles_only(job)] == ["_worker_compile_triton"]


class Nowhere:
    def __call__(self, function: str, payload: bytes, label: str, /, *, unseen: bool = False) -> Future[bytes]:
        raise PoolUnavailableError("there is none")


def test_a_kernel_without_a_pool_is_an_error_under_strict() -> None:
    fxpool.configure(strict=True)
    future = pools.KernelPool(Nowhere()).submit(max, 3, 4)
    assert isinstance(future.exception(5), PoolUnavailableError)
    fxpool.configure(strict=None)
    assert pools.KernelPool(Nowhere()).submit(max, 3, 4).result(30) == 4
    assert counters.snapshot()["fallbacks"] == {"borrowed:pool_unavailable": 1}


# --- installing --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_uninstall_puts_everything_back(run: Run) -> None:
    report = run("restored")
    expected = {"process_pool", "get_worker_pool", "should_use_thread_workers"}.intersection(vars(AsyncCompile))
    assert {f"AsyncCompile.{name}" for name in expected} <= set(report["changed"])
    assert (report["once"], report["back"]) == (True, True)
    assert (report["workers"], report["stats"]["borrowed"], report["lowerings"]) == ([], {}, 2)


def test_a_torch_that_is_not_supported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_release, "current_refusal", lambda: "this is torch 1.0")
    with pytest.raises(UnsupportedTorchError, match="this is torch"):
        fxpool.install()
    assert not hooks.installed()


def test_a_setting_that_does_not_parse_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_WORKERS", "many")
    with pytest.raises(ConfigurationError):
        fxpool.install()
    assert not hooks.installed()


OTHER_COMPILES = """
import json, os
import torch, fxpool
from torch._inductor import compile_fx
fxpool.install()
model = torch.nn.Linear(4, 4)
x = torch.ones(2, 4)
path = torch._inductor.aoti_compile_and_package(torch.export.export(model, (x,)), package_path="{path}")
assert torch.allclose(torch._inductor.aoti_load_package(path)(x), model(x), atol=1e-6)
graph = torch.fx.symbolic_trace(lambda x: x.sin() + 1)
assert torch.allclose(compile_fx.compile_fx(graph, [x])(x), x.sin() + 1)
print(json.dumps(fxpool.stats()["fallbacks"]))
"""


@pytest.mark.slow
def test_packages_and_direct_calls_are_compiled_here(tmp_path: Path) -> None:
    """Where torch's own subprocess fails."""
    out = run_python(
        ["-c", OTHER_COMPILES.format(path=tmp_path / "model.pt2")],
        TORCHINDUCTOR_FX_COMPILE_MODE="subprocess",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "i"),
    )
    assert json.loads(out.splitlines()[-1]) == {"borrowed:aot_inductor": 1, "borrowed:no_shapes": 1}
