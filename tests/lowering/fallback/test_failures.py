"""Bad input, damaged entries and dying workers: the result is right, or the error says what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_jobs
import psutil
import pytest
import torch
from compiling import compiled
from processes import HERE
from tiers import first_tier

import fxpool
from fxpool.errors import ConfigurationError, NoCompilerError, UnknownNameError, UnsupportedTorchError
from fxpool.lowering import torch_release
from fxpool.lowering.core.runtime import runtime
from fxpool.pool.client import hosts
from fxpool.torch_compat import versions


def total(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x).softmax(-1).sum(0)


X = torch.randn(6, 8)


def innermost(error: BaseException) -> BaseException:
    """The error inside Dynamo's wrapping of it."""
    while error.__cause__ is not None or isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
        inner = getattr(error, "inner_exception", None) or error.__cause__
        if inner is None:
            break
        error = inner
    return error


def raised(**options: Any) -> BaseException:
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        torch.compile(total, backend="fxpool", options=options or None)(X)
    return innermost(caught.value)


# --- entries ---------------------------------------------------------------------------------------


def files(cache: Path) -> list[Path]:
    return sorted(p for kind in ("entries", "blobs") for p in (cache / kind).rglob("*") if p.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("damage", first_tier(["flip", "cut", "empty"], "flip", "cut"))
@pytest.mark.parametrize("kind", ["entries", "blobs"])
def test_a_damaged_file_is_a_miss(kind: str, damage: str, lone_pool: Path, cache: Path) -> None:
    compiled(total, X)
    for path in (p for p in files(cache) if kind in p.parts):
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 1
        # A new file: this process still runs code out of the old one.
        other = path.with_name("damaged")
        other.write_bytes({"flip": bytes(data), "cut": bytes(data[:-7]), "empty": b""}[damage])
        other.chmod(0o600)
        other.replace(path)
    runtime.forget_stores()
    compiled(total, X)
    stats = fxpool.stats()
    assert (stats["hits"], stats["compiles"]["worker"]) == (0, 2)
    runtime.forget_stores()
    compiled(total, X)
    assert fxpool.stats()["hits"] == 1, "and what was damaged has been written anew"


@pytest.mark.slow
def test_a_directory_removed_between_calls(lone_pool: Path, cache: Path) -> None:
    import shutil

    compiled(total, X)
    for name in ("entries", "blobs"):
        shutil.rmtree(cache / name)
    compiled(total, X)
    assert fxpool.stats()["compiles"]["worker"] == 2


# --- directories that may not be used ----------------------------------------------------------------


@pytest.fixture
def stores_forgotten() -> Iterator[None]:
    runtime.forget_stores()
    yield
    runtime.forget_stores()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["writable by others", "owned by somebody else"])
def test_an_unsafe_cache_directory_is_refused_and_counted(
    how: str, lone_pool: Path, cache: Path, stores_forgotten: None
) -> None:
    if how == "writable by others":
        cache.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(cache, 12345, -1)
    else:
        pytest.skip("only root can give a directory away")
    try:
        compiled(total, X)
    finally:
        cache.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(cache, 0, -1)
    stats = fxpool.stats()
    assert stats["bypasses"]["cache_directory_refused"] >= 1
    assert (stats["compiles"]["worker"], stats["entries_written"]) == (1, 0)
    assert not (cache / "entries").exists()


# --- workers -----------------------------------------------------------------------------------------


def workers_busy() -> list[int]:
    """Pids of workers that compile a graph of this process; not if they are on their way, or wait for a kernel."""
    running = [job for job in own_jobs.running(runtime.pool().status()) if job["pid"] and job["reached"]]
    return [job["pid"] for job in running if not job["sub_job"] and job["label"].startswith("graph")]


def kill_next_worker(times: int) -> threading.Thread:
    def hunt() -> None:
        left, deadline, seen = times, time.monotonic() + 60, set()
        while left and time.monotonic() < deadline:
            for pid in workers_busy():
                if pid not in seen:
                    seen.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        left -= 1
                    break
            time.sleep(0.002)

    thread = threading.Thread(target=hunt, daemon=True)
    thread.start()
    return thread


def test_a_killed_worker_costs_a_retry(lone_pool: Path, cache: Path) -> None:
    runtime.pool().start(wait=True)
    hunter = kill_next_worker(1)
    compiled(total, X)
    hunter.join()
    stats = fxpool.stats()
    assert (stats["compiles"]["worker"], stats["compiles"]["in_process"], stats["eager_calls"]) == (1, 0, {})
    assert runtime.pool().status()["counters"]["deaths"] >= 1


def test_a_graph_that_kills_workers_runs_eagerly_and_says_so(lone_pool: Path, cache: Path) -> None:
    runtime.pool().start(wait=True)
    hunter = kill_next_worker(2)
    with pytest.warns(RuntimeWarning, match="runs eagerly"):
        compiled(total, X)
    hunter.join()
    stats = fxpool.stats()
    assert stats["eager_calls"] == {"worker_died": 1}
    assert stats["compiles"] == {"worker": 0, "in_process": 0}


@pytest.mark.slow
def test_a_backward_that_kills_workers_runs_eagerly(lone_pool: Path, cache: Path) -> None:
    """On the second rung it is compiled when the first backward pass runs, in the middle of the user's step."""

    def local(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    torch._dynamo.allow_in_graph(local)
    torch._dynamo.reset()
    runtime.pool().start(wait=True)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    function = torch.compile(lambda x: torch.nn.functional.gelu(local(x) * 2).softmax(-1)[0].sum(), backend="fxpool")
    with torch._functorch.config.patch(force_non_lazy_backward_lowering=False):
        found = function(x)
        assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}
        hunter = kill_next_worker(2)
        with pytest.warns(RuntimeWarning, match="backward runs eagerly"):
            found.backward()
    hunter.join()
    expected = torch.nn.functional.gelu((y.sin() + 1) * 2).softmax(-1)[0].sum()
    expected.backward()
    torch.testing.assert_close((found, x.grad), (expected, y.grad))
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}
    assert fxpool.stats()["eager_calls"] == {"worker_died": 1}


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["host", "embedded"])
def test_ctrl_c_ends_the_compile_and_its_worker(
    pool: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FXPOOL_POOL", pool)
    program = (
        "import torch, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored below a shell's background job
        "def total(x):\n"
        "    for i in range(60): x = torch.nn.functional.gelu(x @ x).softmax(-1).sum(0) * x\n"
        "    return x\n"
        "print('compiling', flush=True)\n"
        "try:\n"
        "    torch.compile(total, backend='fxpool')(torch.randn(64, 64))\n"
        "except KeyboardInterrupt:\n"
        "    from fxpool.lowering.core.runtime import runtime\n"
        "    import time\n"
        "    time.sleep(1)\n"
        "    labels = [row['label'] for row in runtime.pool().status()['running']]\n"
        "    print('interrupted', *(label for label in labels if label != \"this host's toolchain\"), flush=True)\n"
    )
    with (tmp_path / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=HERE,
            env=dict(os.environ),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "compiling\n"
        deadline = time.monotonic() + 120
        while not _has_worker(process.pid, tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        errors.seek(0)
        assert (out, process.returncode) == ("interrupted\n", 0), errors.read()[-3000:]


def _has_worker(pid: int, directory: Path) -> bool:
    """Of a process's own pool, or of the host's in a test's runtime directory."""
    if any(hosts.status(link).get("running") for link in hosts.links(directory / "r")):
        return True
    try:
        return any(child.name() == "fxpool worker" for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return False


# --- what the caller got wrong -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["embedded", "off"])
def test_no_compiler(pool: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "import torch, fxpool\n"
        "try:\n"
        "    torch.compile(lambda x: x.sin() + 1, backend='fxpool')(torch.randn(8))\n"
        "except Exception as e:\n"
        "    print(type(e.inner_exception).__name__ if hasattr(e, 'inner_exception') else type(e).__name__)\n"
        "    print(str(e))\n"
    )
    empty = tmp_path / "bin"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PATH": str(empty), "CXX": "", "FXPOOL_POOL": pool},
    )  # fmt: skip
    assert "NoCompilerError" in done.stdout, done.stdout + done.stderr
    assert "apt-get install g++" in done.stdout


def test_errors_are_classes_of_ours() -> None:
    assert issubclass(NoCompilerError, fxpool.errors.FxpoolError)


def test_an_unsupported_torch_is_refused_with_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_release, "current_refusal", lambda: versions.refusal("2.10.1", (3, 11), "linux"))
    error = raised()
    assert isinstance(error, UnsupportedTorchError)
    assert "2.11 to 2.15" in str(error)
    assert "2.10.1" in str(error)


@pytest.mark.parametrize(
    ("version", "python", "platform", "refused"),
    [
        ("2.13.0+cpu", (3, 11), "linux", False),
        ("2.11.0+cu130", (3, 12), "linux", False),
        ("2.12.0a0+git123", (3, 10), "linux", False),
        ("2.10.0", (3, 11), "linux", True),
        ("2.15.0", (3, 14), "linux", False),
        ("2.16.0", (3, 11), "linux", True),
        ("3.0", (3, 11), "linux", True),
        ("2.13.0", (3, 9), "linux", True),
        ("2.15.0", (3, 15), "linux", True),
        ("2.13.0", (3, 11), "darwin", True),
        ("unknown", (3, 11), "linux", True),
    ],
)
def test_the_supported_range(version: str, python: tuple[int, int], platform: str, refused: bool) -> None:
    assert (versions.refusal(version, python, platform) is not None) == refused


def test_a_newer_torch_is_named_with_the_switch_that_tries_it() -> None:
    refused = versions.refusal("2.16.0", (3, 11), "linux")
    assert refused is not None and "FXPOOL_UNTESTED_TORCH=1" in refused
    assert versions.refusal("2.16.0", (3, 11), "linux", untested=True) is None
    assert versions.refusal("2.10.0", (3, 11), "linux", untested=True) is not None  # older ones are known not to do


def test_an_unknown_option_lists_the_known_ones() -> None:
    error = raised(max_fusoin_size=3)
    assert isinstance(error, UnknownNameError)
    assert "max_fusoin_size" in str(error)
    assert "max_fusion_size" in str(error)
    assert "mode" in str(error)


def test_an_option_of_the_wrong_type() -> None:
    error = raised(max_fusion_size="big")
    assert isinstance(error, ConfigurationError)
    assert "int" in str(error)


@pytest.mark.parametrize("mode", ["subproces", "progressive+normal", "async+subprocess+progressive"])
def test_a_mode_that_does_not_exist(mode: str) -> None:
    error = raised(mode=mode)
    assert isinstance(error, ConfigurationError)
    assert "subprocess" in str(error)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="subprocess"):
        torch.compile(total, backend="fxpool", mode=mode)(X)


@pytest.mark.slow
def test_torchs_own_mode_names_are_options(lone_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()
    found = torch.compile(total, backend="fxpool", mode="max-autotune-no-cudagraphs")(X)
    torch.testing.assert_close(found, total(X))
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}


def test_strict_makes_a_step_down_an_error() -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch._dynamo.allow_in_graph(local)

    def caller(x: torch.Tensor) -> torch.Tensor:
        return local(x) * 2

    torch._dynamo.reset()
    with pytest.raises(Exception, match="cannot be sent to a worker"):
        torch.compile(caller, backend="fxpool", options={"strict": True})(X)


@pytest.mark.slow
def test_a_graph_that_cannot_travel_steps_down_and_is_counted(lone_pool: Path, cache: Path) -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    torch._dynamo.allow_in_graph(local)
    torch._dynamo.reset()
    found = torch.compile(lambda x: local(x) * 2, backend="fxpool")(X)
    torch.testing.assert_close(found, (X.sin() + 1) * 2)
    stats = fxpool.stats()
    assert stats["fallbacks"] == {"function": 1}
    assert stats["compiles"] == {"worker": 1, "in_process": 0}, "after AOTAutograd the function is gone"


def test_an_error_of_inductors_comes_with_the_workers_frames(lone_pool: Path, cache: Path) -> None:
    """A lowering that fails fails everywhere; what the user sees is the worker's error."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_fuse_int_mm_with_mul=False), pytest.raises(Exception) as caught:
        torch.compile(broken, backend="fxpool")(X)
    error = innermost(caught.value)
    assert "fake kernel" in str(error) or "broken" in str(error)


@torch.library.custom_op("fxpool_test::broken", mutates_args=())
def _broken(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@_broken.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    if torch.is_grad_enabled() and x.shape[0] < 0:
        raise RuntimeError("never")
    return torch.empty_like(x)


def broken(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("broken on purpose")
