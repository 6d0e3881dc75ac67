"""Every shell command in README and docs/: run as it is written, or listed with the reason why it is not.

Names in capitals, and directories and ports that belong to the machine, are replaced by the test's own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

from fxpool.codecache.store import quarantine
from fxpool.codecache.store.entry import Component, Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SETTINGS = "python -c 'from fxpool import config as c; print(c.current().remote_cache, c.current().remote_key_file)'"
MLP = """
from fxpool.bench.case import Case

def mlp(width):
    import torch
    return torch.nn.Linear(width, width), (torch.randn(8, width),)

CASES = [Case("mlp", mlp, arguments={"width": 64}, modes=("inference", "training"))]
"""
COMPILES = """
import torch
torch.compile(lambda x: x.sin() + 1, backend="fxpool")(torch.randn(8))
"""

#: Commands that end by themselves, with a text that they print.
QUICK = {
    "fxpool stats": "in 6 files",
    "fxpool cache ls": "gpt2",
    "fxpool stats --summary": "fxpool: 0 hits, 0 misses, 0 compiles, 0s saved",
    "fxpool frames ls": "no frames in",
    "fxpool cache gc --dry-run": "would remove 0 entries",
    "fxpool cache gc --max-bytes 2G": "removed 0 entries",
    "fxpool cache clear": "removed 2 entries",
    "fxpool cache explain KEY": "graph: digest abababababab -> digest cdcdcdcdcdcd",
    "fxpool cache explain KEY KEY": "graph: digest abababababab -> digest cdcdcdcdcdcd",
    "fxpool cache export cache.fxb": "2 entries",
    "fxpool cache import cache.fxb || true": "cache.fxb",
    "fxpool cache export model.fxb": "2 entries",
    "fxpool cache export more.fxb --since model.fxb": "0 entries",
    "fxpool cache quarantine": "it died",
    "fxpool cache quarantine --release KEY": "released",
    "fxpool cache key ~/.config/fxpool/key": "key",
    "fxpool status": "no server is running on this host",
    "fxpool stop": "0 servers",
    "fxpool metrics": "fxpool_store_entries 2",
    "export FXPOOL_REMOTE_KEY_FILE=~/.config/fxpool/key": ".config/fxpool/key",
    "export FXPOOL_REMOTE_CACHE=redis://cache.internal:6379/0": "redis://cache.internal:6379/0",
    "FXPOOL_CACHE_DIR=/opt/fxpool fxpool cache import /tmp/model.fxb && chmod -R go+rX /opt/fxpool"
    " && rm /tmp/model.fxb": "2 entries",
    "FXPOOL_CACHE_DIR=/opt/fxpool fxpool cache import /tmp/more.fxb && chmod -R go+rX /opt/fxpool"
    " && rm /tmp/more.fxb": "0 entries",
}
#: The same, with a compile or a process that imports torch.
SLOW = {
    "FXPOOL_CACHE_DIR=/opt/fxpool fxpool warm warm_up.py && chmod -R go+rX /opt/fxpool": "",
    "torchrun --standalone --nproc-per-node 2 examples/torchrun_training.py": "rank 1: loss",
    "pytest -n 2 examples/test_suite": "6 passed",
    "python examples/unchanged_code/run.py examples/unchanged_code/train.py": "not sent: {}",
    "fxpool bench mine.py --backends eager,fxpool --modes training --repetitions 3": "mlp",
}
#: Commands that run until Ctrl-C, with the text after which the test sends that.
UNTIL_STOPPED = {
    "fxpool status --watch": "no server is running on this host",
    "fxpool dashboard": "http://127.0.0.1:",
    "fxpool metrics --listen 9464": "http://127.0.0.1:9464/metrics",
}
SLOW_UNTIL_STOPPED = {
    "fxpool serve": "is ready",
    "fxpool serve --metrics 9464": "is ready",
}
#: pip finds these satisfied in an environment with all extras; nothing is downloaded.
EXTRAS = {
    "pip install 'fxpool[metrics]'": "prometheus-client",
    "pip install 'fxpool[redis]'": "redis",
    "pip install 'fxpool[dask]'": "distributed",
    "pip install 'fxpool[otel]'": "opentelemetry-api",
    "pip install pytest-xdist": "pytest-xdist",
}
ELSEWHERE = {
    "pytest": "tests/examples/test_ci_examples.py",
    "pip install fxpool": "tests/front/test_readme.py",
    "python examples/inference_server.py --port 8000": "tests/examples/test_examples.py",
    "curl -d '[1, 2, 3, 4]' localhost:8000/predict": "tests/examples/test_examples.py",
    "fxpool cache rm 2a74aafaf961": "tests/front/commands/test_cli.py",
    "fxpool frames show 1c0f25": "tests/lowering/frames/test_frames_served.py",
    "fxpool frames diff 1c0f25 9a3b11": "tests/lowering/frames/test_frames_served.py",
    "dask scheduler --port 8786": "tests/examples/test_farm_examples.py",
    "fxpool farm worker dask://scheduler.internal:8786": "tests/lowering/artifact/test_farm.py",
    "export FXPOOL_FARM=dask://scheduler.internal:8786": "tests/lowering/artifact/test_farm.py",
    "export TRITON_CACHE_MANAGER=fxpool.triton:CacheManager": "tests/front/jits/test_triton_cache.py",
    "fxpool farm status": "tests/lowering/artifact/test_farm.py",
    "fxpool stats --zero": "tests/front/commands/test_cli.py",
    "fxpool warm serve.py --batch 8": "tests/front/commands/test_program_commands.py",
    "fxpool run --summary train.py --epochs 3": "tests/front/commands/test_program_commands.py",
    "fxpool capture --to graphs examples/build_ahead.py": "tests/examples/test_examples.py",
    "fxpool capture --to graphs train.py": "tests/lowering/test_build_ahead.py",
    "fxpool build graphs --to graphs.bundle": "tests/lowering/test_build_ahead.py",
    "fxpool cache import graphs.bundle": "tests/lowering/test_build_ahead.py",
    "python examples/build_ahead.py": "tests/examples/test_examples.py",
    "export FXPOOL_INSTALL=1": "tests/lowering/test_serving.py",
}
NOT_RUN = {
    "pip install 'fxpool[vllm]'": "downloads several gigabytes",
    "vllm serve MODEL": "needs vLLM and a GPU",
    "fxpool bench kernels --devices cuda:0,cuda:1": "needs two GPUs",
    "fxpool bench kernels": "measures for many minutes",
    "fxpool bench transformers --warm": "measures for many minutes",
    "fxpool bench kernels --jobs 1 --fresh --warm": "measures for many minutes",
    "fxpool bench kernels --pyperf times.json": "measures for many minutes",
    "fxpool bench mine.py --compare bench-mine/results.jsonl --out new": "its exit status depends on times",
}
#: Blocks of sample output by their first line, with the test that compares them.
OUTPUTS = {
    "fxpool: 41 hits, 2 misses, 2 compiles, 3m12s saved": "tests/front/commands/test_cli.py",
    "cache_dir              /data/fxpool                  FXPOOL_CACHE_DIR": (
        "tests/front/commands/test_config_command.py"
    ),
    "0 from the cache; {'worker': 1, 'in_process': 0}": "tests/front/test_readme.py",
    "graph 0 [0/0], Sequential.forward, torch/nn/modules/container.py:248: the nearest cache entry differs": (
        "tests/front/test_readme.py"
    ),
    "graph 0 [0/0], Encoder.forward, model.py:31: the nearest cache entry differs": (
        "tests/front/test_sample_explanation.py"
    ),
}


def _blocks(*languages: str) -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    return [
        block for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if language in languages
    ]


def _commands() -> list[str]:
    lines = [line for block in _blocks("sh") for line in block.splitlines()]
    lines += [line[4:] for block in _blocks("dockerfile") for line in block.splitlines() if line.startswith("RUN ")]
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines if line.strip()]


def test_each_block_has_a_language() -> None:
    known = {"sh", "text", "python", "toml", "yaml", "dockerfile"}
    for page in PAGES:
        opening = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)[::2]
        assert {*opening} <= known, f"{page.name}: sh for commands, text for their output"


def test_each_command_is_in_one_table() -> None:
    tables = [QUICK, SLOW, UNTIL_STOPPED, SLOW_UNTIL_STOPPED, EXTRAS, ELSEWHERE, NOT_RUN]
    listed = [command for table in tables for command in table]
    assert sorted(listed) == sorted({*_commands()})


def test_each_output_is_compared_somewhere() -> None:
    assert {*OUTPUTS} == {block.splitlines()[0] for block in _blocks("text")}
    assert [test for test in {*OUTPUTS.values(), *ELSEWHERE.values()} if not (ROOT / test).exists()] == []


@pytest.mark.parametrize("command", [command for command in NOT_RUN if command.startswith("fxpool")])
def test_commands_that_are_not_run_are_valid(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MLP)
    (tmp_path / "bench-mine").mkdir()
    (tmp_path / "bench-mine" / "results.jsonl").touch()
    _, name, *arguments = shlex.split(command.partition(" > ")[0])
    with main.commands[name].make_context(name, arguments):
        pass


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Variables of a shell that has the programs of this environment, with `tmp_path` as its home."""
    programs = {
        "fxpool": "from fxpool.commands.main import main; main()",
        "torchrun": "from torch.distributed.run import main; main()",
        "pytest": "import pytest; raise SystemExit(pytest.main())",
    }
    (tmp_path / "bin").mkdir()
    for name, program in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!{sys.executable}\nimport sys\n{program}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "BROWSER": "true"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory with all files that the pages name, and a cache with two entries."""
    store = LocalStore(str(tmp_path / "c"))
    for label, digest in (("gpt2", "ab"), ("gpt2 again", "cd")):
        key = hashlib.sha256(label.encode()).hexdigest()
        components = [Component("graph", digest * 32, f"{digest}: 3 nodes")]
        metadata = Metadata(label=label, created=1.0, compile_seconds=2.5, torch_version="2.13.0")
        store.publish(Entry(key=key, components=components, metadata=metadata), {"module": label.encode() * 100})
    quarantine.add(store.root, key, label="g", error="it died", log=None)
    work = tmp_path / "work"
    (work / "tmp").mkdir(parents=True)
    (work / "mine.py").write_text(MLP)
    (work / "warm_up.py").write_text(COMPILES)
    (work / "examples").symlink_to(ROOT / "examples")
    return work


def _keys() -> list[str]:
    return [hashlib.sha256(label).hexdigest()[:12] for label in (b"gpt2", b"gpt2 again")]


def _replaced(command: str, directory: Path, port: int = 0) -> str:
    keys = iter(_keys() if command.count("KEY") == 2 else reversed(_keys()))
    command = re.sub(r"\bKEY\b", lambda _: next(keys), command)
    command = re.sub(r"(?<![\w.])/(opt|tmp)/", f"{directory}/\\1/", command)
    return command.replace("9464", str(port))


def _run(command: str, directory: Path, shell: dict[str, str]) -> str:
    (directory / "opt").mkdir(exist_ok=True)
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=shell, input="y\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", QUICK)
def test_quick(command: str, directory: Path, shell: dict[str, str]) -> None:
    line = _replaced(command, directory)
    if "model.fxb" in command or "more.fxb" in command:
        _run("fxpool cache export model.fxb && fxpool cache export more.fxb --since model.fxb", directory, shell)
        _run("cp *.fxb tmp && chmod 0600 tmp/*", directory, shell)
        if "import /tmp/more" in command:
            _run(f"FXPOOL_CACHE_DIR={directory}/opt/fxpool fxpool cache import tmp/model.fxb", directory, shell)
        elif "export" in command:
            (directory / command.split()[3]).unlink()
    if command.startswith("export"):
        line += f"; {SETTINGS}"
    assert QUICK[command] in _run(line, directory, shell)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", SLOW)
def test_slow(command: str, directory: Path, shell: dict[str, str]) -> None:
    if command.startswith("pytest -n") and importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed")
    assert SLOW[command] in _run(_replaced(command, directory), directory, shell)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _run_until(command: str, text: str, directory: Path, shell: dict[str, str]) -> None:
    port = _free_port()
    line = ["bash", "-c", f"exec {_replaced(command, directory, port)}"]
    with subprocess.Popen(
        line, cwd=directory, env=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        said = ""
        while text.replace("9464", str(port)) not in said:
            part = running.stdout.readline()
            assert part, said
            said += part
        running.send_signal(signal.SIGINT)
        running.stdout.read()
    assert running.returncode in (0, 130), said


@pytest.mark.parametrize("command", UNTIL_STOPPED)
def test_until_it_is_stopped(command: str, directory: Path, shell: dict[str, str]) -> None:
    _run_until(command, UNTIL_STOPPED[command], directory, shell)


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW_UNTIL_STOPPED)
def test_slow_until_it_is_stopped(command: str, directory: Path, shell: dict[str, str]) -> None:
    _run_until(command, SLOW_UNTIL_STOPPED[command], directory, shell)


@pytest.mark.slow
@pytest.mark.parametrize("command", EXTRAS)
def test_extras(command: str, directory: Path, shell: dict[str, str]) -> None:
    if importlib.util.find_spec(EXTRAS[command].replace("-", "_").removeprefix("pytest_")) is None:
        pytest.skip(f"{EXTRAS[command]} is not installed")
    said = _run(command, directory, {**shell, "PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1"})
    assert f"Requirement already satisfied: {EXTRAS[command]}" in said and "does not provide" not in said
