"""README's first commands, word for word, its figures, and what an editor finds in a fresh checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT, copy_checkout
from tiers import first_tier

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def block(beginning: str) -> str:
    """The code block that starts with `beginning`."""
    (found,) = [text for _, text in BLOCKS if text.startswith(beginning)]
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a clone would have."""
    root = tmp_path / "checkout"
    copy_checkout(root)
    return root


def environment(directory: Path) -> Path:
    """Make an environment that finds this one's packages below its own; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    below = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "zz-below.pth").write_text("".join(f"{path}\n" for path in below))
    return directory / "bin" / "python"


def pip(python: Path, command: str, cwd: Path, **variables: str) -> None:
    """Run a line of pip as it is written, without network; an older fxpool below the environment does not count."""
    switches = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_QUIET": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    switches |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_FORCE_REINSTALL": "1"} if "install" in command else {}
    subprocess.run(
        [str(python), "-m", *command.split()],
        cwd=cwd, env={**os.environ, **switches, **variables}, check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "install", first_tier(["pip install fxpool", "pip install .", "pip install -e ."], "pip install fxpool")
)
def test_try_it_works_word_for_word(install: str, checkout: Path, tmp_path: Path) -> None:
    assert block("pip install") == "pip install fxpool\n" and "`pip install .` in a checkout" in README
    python = environment(tmp_path / "environment")
    if install == "pip install fxpool":
        pip(python, "pip wheel . -w dist", checkout)
        index = str(checkout / "dist")
        checkout = tmp_path / "elsewhere"
        checkout.mkdir()
        pip(python, install, checkout, PIP_FIND_LINKS=index)
    else:
        pip(python, install, checkout)
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


def test_each_figure_is_in_the_results() -> None:
    results = (ROOT / "bench" / "RESULTS.md").read_text().splitlines()
    table = README.partition("| first call |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 10
    for row in table:
        _, _, *cells, _ = (cell.strip() for cell in row.split("|"))
        figures = [cell.removesuffix(" s") for cell in cells]
        assert any(all(figure in line.replace("**", "") for figure in map(_plain, figures)) for line in results), row


def _plain(figure: str) -> str:
    return figure.replace("**", "")


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
