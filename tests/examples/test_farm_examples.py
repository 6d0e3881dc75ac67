"""The files in examples/farm: manifests fit the schemas of Docker and Kubernetes, and the scripts run here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from remote_servers import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "farm"
BIN = Path(sys.executable).parent

#: Runs a part of a job as Slurm's does, on the one machine that there is. The farm's part has its own directories.
SRUN = """#!/bin/sh
if [ "$1" = --het-group=0 ]; then
    export FXPOOL_CACHE_DIR="$FXPOOL_CACHE_DIR-cpu" FXPOOL_RUNTIME_DIR="$FXPOOL_RUNTIME_DIR-cpu"
    mkdir -m 700 "$FXPOOL_CACHE_DIR" "$FXPOOL_RUNTIME_DIR"
fi
shift
exec "$@"
"""


def _checked(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_manifests_fit_their_schemas() -> None:
    compose = str(FOLDER / "compose.yaml")
    _checked(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", compose)
    said = _checked(str(BIN / "kubernetes-validate"), "--strict", str(FOLDER / "kubernetes.yaml"))
    assert len(re.findall("passed for resource", said)) == 4


def test_manifests_have_the_same_address_everywhere() -> None:
    for name in ("compose.yaml", "kubernetes.yaml"):
        text = (FOLDER / name).read_text()
        assert len(set(re.findall(r"dask://[\w-]+:\d+", text))) == 1
        assert 'command: [dask, scheduler, --port, "8786", --no-dashboard]' in text


#: Appended to the program: each rank writes a line of what it counted.
COUNTED = """
stats = fxpool.stats()
counts = {name: stats[name] for name in ("farm", "compiles", "joined", "hits", "fallbacks", "bypasses")}
sys.stdout.write(f"counted {json.dumps(counts)}\\n")
"""


def _program(tmp_path: Path) -> str:
    program = tmp_path / "program.py"
    text = (ROOT / "examples" / "torchrun_training.py").read_text()
    program.write_text(f"import json\nimport sys\n{text}{COUNTED}")
    return str(program)


def _run(script: str, tmp_path: Path, *arguments: str, path: str = "", **settings: str) -> str:
    """Run a script; return all that it and the ranks have written."""
    for name in ("c", "r"):
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(filter(None, [path, str(BIN), os.environ["PATH"]])),
        "FXPOOL_CACHE_DIR": str(tmp_path / "c"),
        "FXPOOL_RUNTIME_DIR": str(tmp_path / "r"),
        "FXPOOL_REMOTE_KEY_FILE": str(tmp_path / "key"),
        # After the default of 30 s the graph would be compiled here as well, which a loaded machine may take.
        "FXPOOL_FARM_WAIT": "300",
        "FXPOOL_IDLE_TIMEOUT": "1",
        "PORT": str(free_port()),
        **settings,
    }
    done = subprocess.run(
        ["bash", str(FOLDER / script), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=ROOT, env=environment, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-9000:]
    assert "compiles for this host" in done.stdout, done.stdout[-9000:]
    return done.stdout


def _check_counts(said: str, ranks: int) -> None:
    """The farm compiled the only graph once, and each other rank waited for it or found it in the cache."""
    counts = [json.loads(line.partition(" ")[2]) for line in said.splitlines() if line.startswith("counted ")]
    shown = "\n".join(map(str, counts)) + f"\n{said[-9000:]}"
    assert len(counts) == ranks, shown
    for one in counts:
        assert not any(one["compiles"].values()) and one["fallbacks"] == one["bypasses"] == {}, shown
        assert {reason for reason, count in one["farm"].items() if count} <= {"compiled"}, shown
        assert one["farm"]["compiled"] + one["joined"] + one["hits"] == 1, shown
    assert sum(one["farm"]["compiled"] for one in counts) == 1, shown


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_training_job_is_compiled_by_a_farm_on_its_machine(tmp_path: Path) -> None:
    _check_counts(_run("torchrun.sh", tmp_path, _program(tmp_path)), 2)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_job_of_slurms_starts_its_farm_first(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    said = _run(
        "slurm.sh", tmp_path, _program(tmp_path),
        path=str(tmp_path), RANKS="2", SLURMD_NODENAME="127.0.0.1", MASTER="127.0.0.1", MASTER_PORT=str(free_port()),
    )  # fmt: skip
    _check_counts(said, 2)
