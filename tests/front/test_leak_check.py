"""The check after every test must be able to fail."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

CASES = """
import os, subprocess, sys, tempfile
from pathlib import Path

SLEEP = "import time; time.sleep(4)"  # ends by itself, well after the check has seen it

def test_leaves_a_process():
    subprocess.Popen([sys.executable, "-c", SLEEP])

def test_leaves_an_orphan(tmp_path):
    start = "import subprocess, sys; subprocess.Popen([sys.executable, *sys.argv[1:]])"
    subprocess.run([sys.executable, "-c", start, "-c", SLEEP, str(tmp_path)], check=True)

def test_leaves_a_socket_directory():
    Path(os.environ["FXPOOL_RUNTIME_DIR"], "pool-1").mkdir()

def test_leaves_a_temporary_file():
    tempfile.mkstemp(prefix="fxpool")

def test_leaves_nothing():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def test_what_a_test_leaves_behind_fails_it(python: str, tmp_path: Path) -> None:
    conftest = (Path(__file__).parents[1] / "conftest.py").read_text()
    conftest, replaced = re.subn(r"(?m)^GRACE = .*$", "GRACE = 0.2", conftest)
    assert replaced == 1
    (tmp_path / "conftest.py").write_text(conftest)
    shutil.copy(Path(__file__).parents[1] / "session.py", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run([*command, "--basetemp", str(tmp_path / "b")], capture_output=True, text=True, cwd=tmp_path)
    assert "5 passed, 4 errors" in done.stdout, done.stdout
    blocks = done.stdout.split("ERROR at teardown of ")[1:]
    seen = {block.split()[0]: block.partition("left behind: ")[2].split()[0] for block in blocks}
    assert seen == {
        "test_leaves_a_process": "process",
        "test_leaves_an_orphan": "process",
        "test_leaves_a_socket_directory": "file",
        "test_leaves_a_temporary_file": "file",
    }
