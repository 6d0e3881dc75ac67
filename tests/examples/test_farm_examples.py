"""The files in examples/farm: manifests fit the schemas of Docker and Kubernetes, and the scripts run here."""

from __future__ import annotations

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


def _run(script: str, tmp_path: Path, *arguments: str, path: str = "", **settings: str) -> str:
    for name in ("c", "r"):
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(filter(None, [path, str(BIN), os.environ["PATH"]])),
        "FXPOOL_CACHE_DIR": str(tmp_path / "c"),
        "FXPOOL_RUNTIME_DIR": str(tmp_path / "r"),
        "FXPOOL_REMOTE_KEY_FILE": str(tmp_path / "key"),
        "FXPOOL_IDLE_TIMEOUT": "1",
        "PORT": str(free_port()),
        **settings,
    }
    done = subprocess.run(
        ["bash", str(FOLDER / script), *arguments],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_training_job_is_compiled_by_a_farm_on_its_machine(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = (ROOT / "examples" / "torchrun_training.py").read_text()
    program.write_text(text + "\nprint('farm', fxpool.stats()['farm'], fxpool.stats()['compiles'])\n")
    said = _run("torchrun.sh", tmp_path, str(program))
    assert "compiles for this host" in said
    farms = re.findall(r"farm \{'compiled': (\d)\} \{'worker': (\d), 'in_process': (\d)\}", said)
    assert len(farms) == 2 and sum(int(one[0]) for one in farms) >= 1
    assert all(one[1:] == ("0", "0") for one in farms), said


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_job_of_slurms_starts_its_farm_first(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    program = tmp_path / "program.py"
    text = (ROOT / "examples" / "torchrun_training.py").read_text()
    program.write_text(text + "\nprint('farm', fxpool.stats()['farm'], fxpool.stats()['compiles'])\n")
    said = _run(
        "slurm.sh", tmp_path, str(program),
        path=str(tmp_path), RANKS="2", SLURMD_NODENAME="127.0.0.1", MASTER="127.0.0.1", MASTER_PORT=str(free_port()),
    )  # fmt: skip
    farms = re.findall(r"farm \{'compiled': (\d)\} \{'worker': (\d), 'in_process': (\d)\}", said)
    assert len(farms) == 2 and sum(int(one[0]) for one in farms) >= 1
    assert all(one[1:] == ("0", "0") for one in farms), said
