"""README's "Try it", word for word in a fresh checkout, and what an editor finds there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

TRY_IT = (ROOT / "README.md").read_text().partition("## Try it")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TRY_IT, re.MULTILINE | re.DOTALL)


def block(beginning: str) -> str:
    """The code block of "Try it" that starts with `beginning`."""
    (found,) = [text for _, text in BLOCKS if text.startswith(beginning)]
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a clone would have."""
    root = tmp_path / "checkout"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and os.path.lexists(ROOT / name):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
    return root


def environment(checkout: Path, install: list[str]) -> Path:
    """Install fxpool from `checkout` into an environment that finds this one's packages below its own."""
    directory = checkout.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    (packages,) = (directory / "lib").glob("python*/site-packages")
    below = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "zz-below.pth").write_text("".join(f"{path}\n" for path in below))
    assert install[:2] == ["pip", "install"]
    pip = [python, "-m", *install, "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*map(str, pip), "--force-reinstall"], cwd=checkout, check=True, capture_output=True)
    return python


@pytest.mark.parametrize("install", ["pip install .", pytest.param("pip install -e .", marks=pytest.mark.slow)])
def test_try_it_works_word_for_word_in_a_checkout(install: str, checkout: Path, tmp_path: Path) -> None:
    assert block("pip install") == "pip install .\n"
    python = environment(checkout, install.split())
    quick = checkout / "quick.py"
    quick.write_text(block("import torch\n"))

    def run() -> str:
        # The server may serve all runs: it ends with the test.
        variables = {**os.environ, "FXPOOL_IDLE_TIMEOUT": "5", "VIRTUAL_ENV": str(tmp_path / "environment")}
        done = subprocess.run([python, "quick.py"], cwd=checkout, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run() + run() == block("0 from the cache")
    quick.write_text(block("import torch\n").replace("randn(8, 64)", "randn(16, 64)") + "print(fxpool.explain())\n")
    lines = run().splitlines()
    expected = block("graph 0 [0/0]").splitlines()
    assert lines[0] == "0 from the cache; {'worker': 1, 'in_process': 0}"
    without_digests = [re.sub(r"[0-9a-f]{12}", "", line) for line in lines[1:]]
    assert without_digests == [re.sub(r"[0-9a-f]{12}", "", line) for line in expected]


def test_a_bare_checkout_has_its_rooms(checkout: Path) -> None:
    program = "import fxpool.pool, fxpool.codecache, fxpool.lowering; print(fxpool.pool.__file__)"
    # -S: without site-packages' hooks, so that no editable install answers; torch is not needed for these.
    run = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path!r}; {program}"],
        cwd=checkout, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout.strip() == str(checkout / "fxpool/pool/__init__.py"), run.stderr


EDITOR = """
import jedi
project = jedi.Project(".", smart_sys_path=False, added_sys_path=["."])
script = jedi.Script("from fxpool.pool import PoolClient\\nPoolClient", project=project, path="a.py")
(definition,) = script.goto(2, 3, follow_imports=True)
print(definition.module_path.resolve())
"""


def test_an_editor_finds_definitions_in_a_bare_checkout(checkout: Path) -> None:
    # In a process of its own, with which jedi's helper ends.
    run = subprocess.run([sys.executable, "-c", EDITOR], cwd=checkout, capture_output=True, text=True)
    assert Path(run.stdout.strip()).is_relative_to(checkout / "pool"), run.stderr
