"""The programs in examples/, as their first lines say to run them: in separate processes, with empty caches."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
H200 = "NVIDIA H200"
#: Where `make test-all` puts Triton, which is not in the environment itself.
BESIDE = os.environ.get("FXPOOL_TEST_TRITON", str(Path(sys.prefix) / "triton"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*arguments: str, **environment: str) -> str:
    """Standard output of a Python process in the repository's root."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=400,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


# ------------------------------------------------------------------------------ training under torchrun

_RANK = re.compile(
    r"rank (\d): loss (\S+) -> (\S+), weights (\S+), compiled (\d), joined (\d), cached (\d), in process (\d)"
)


def ranks() -> list[dict[str, Any]]:
    names = ("rank", "first", "last", "weights", "compiled", "joined", "cached", "in_process")
    printed = run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        str(EXAMPLES / "torchrun_training.py"),
    )
    found = [dict(zip(names, map(float, match), strict=True)) for match in _RANK.findall(printed)]
    assert [one["rank"] for one in sorted(found, key=lambda one: one["rank"])] == [0, 1], printed
    return found


def test_ranks_share_a_compile_and_later_ones_the_cache() -> None:
    first, second = ranks(), ranks()
    assert sum(one["compiled"] for one in first) == 1, "one graph, compiled by whoever came first"
    assert sum(one["joined"] + one["cached"] for one in first) == 1
    assert [(one["compiled"], one["cached"]) for one in second] == [(0, 1), (0, 1)]
    assert all(one["in_process"] == 0 and one["last"] < one["first"] for one in first + second)
    assert len({one["weights"] for one in first + second}) == 1, (
        "gradients were averaged, and compiled code is the same"
    )


# ------------------------------------------------------------------------------ a server that restarts


@contextmanager
def served() -> Iterator[tuple[str, str]]:
    """A running inference server: its address, and the line it printed."""
    command = [sys.executable, str(EXAMPLES / "inference_server.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            assert line.startswith("ready on port "), process.stderr.read()[-4000:]
            yield f"http://127.0.0.1:{line.split()[3]}", line
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0


def fetch(url: str, data: Any = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, body, timeout=60) as answer:
        return json.load(answer)


def test_a_restarted_server_loads_what_the_first_start_compiled() -> None:
    rows = [[1, 2, 3, 4], [0, -1, 0.5, 8]]
    found = []
    for started in ("1 compiled, 0 cached", "0 compiled, 1 cached"):
        with served() as (address, line):
            assert started in line
            found.append([fetch(f"{address}/predict", row)["probabilities"] for row in rows])
            stats = fetch(f"{address}/stats")
            assert stats["compiles"]["in_process"] == 0 and stats["fallbacks"] == {}
    assert found[0] == found[1]
    eager = _example("inference_server").load_model()
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(torch.tensor(found[0]), eager(torch.tensor(rows)), rtol=1e-4, atol=1e-5)


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------ a test suite


def test_a_test_suite_compiles_each_graph_once_for_all_of_pytests_processes() -> None:
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed; `make test-all` installs it")
    counted = []
    for _ in range(2):
        printed = run("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(EXAMPLES / "test_suite"))
        assert "6 passed" in printed
        numbers = re.search(r"fxpool: (\d+) compiled, (\d+) joined, (\d+) cached, (\d+) in process", printed)
        assert numbers is not None, printed
        counted.append(tuple(map(int, numbers.groups())))
    compiled, joined, cached, in_process = counted[0]
    assert (compiled, joined + cached, in_process) == (3, 3, 0)
    assert counted[1] == (0, 0, 6, 0)


# ------------------------------------------------------------------------------ unchanged code


def test_install_has_unchanged_code_compiled_by_workers() -> None:
    script = EXAMPLES / "unchanged_code"
    printed = run(str(script / "run.py"), str(script / "train.py")).splitlines()
    assert printed[1] == "graphs compiled by fxpool's workers: 2; not sent: {}", "forward and backward"
    stock = run(str(script / "train.py")).splitlines()
    eager = run(str(script / "train.py"), TORCH_COMPILE_DISABLE="1").splitlines()
    losses = [float(lines[0].split()[1]) for lines in (printed, stock, eager)]
    assert losses == pytest.approx([losses[2]] * 3, rel=1e-3)


# ------------------------------------------------------------------------------ captured here, compiled there


def test_graphs_are_captured_compiled_elsewhere_and_served(tmp_path: Path) -> None:
    """On a GPU, bench/gpu/elsewhere.py does the same."""
    script, graphs, bundle = str(EXAMPLES / "build_ahead.py"), str(tmp_path / "graphs"), str(tmp_path / "graphs.bundle")
    fxpool = ("-m", "fxpool")
    captured, *_ = run(*fxpool, "capture", "--to", graphs, script, FXPOOL_CACHE_DIR=str(tmp_path / "a")).splitlines()
    assert captured == "hits: 0, compiled: 0, recorded: 1"
    built = run(*fxpool, "build", graphs, "--to", bundle, FXPOOL_CACHE_DIR=str(tmp_path / "b"))
    assert "1 graph: 1 compiled, 0 in the cache, 0 not compiled" in built
    run(*fxpool, "cache", "import", bundle, FXPOOL_CACHE_DIR=str(tmp_path / "c"))
    assert run(script, FXPOOL_CACHE_DIR=str(tmp_path / "c")).startswith("hits: 1, compiled: 0, recorded: 0")
