"""A copy of the project with its own environment, in which a text is replaced while tests run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.children import Children
from sources import copy_checkout

from .removals import Removal

LIMIT = 7200.0  # seconds for all tests of all rows


class Project:
    """A copy below `place`, installed in an environment that has this one's packages below its own."""

    def __init__(self, place: Path) -> None:
        self.root = place / "project"
        self._children = Children()
        copy_checkout(self.root)
        self.python = self.root / ".venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.root / ".venv"], check=True)
        below = [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
        packages = next((self.root / ".venv" / "lib").glob("python*/site-packages"))
        (packages / "zz-below.pth").write_text("".join(f"{one}\n" for one in below))
        if (triton := Path(sys.prefix) / "triton").is_dir():  # where tests look for it
            (self.root / ".venv" / "triton").symlink_to(triton)
        install = [self.python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", self.root]
        subprocess.run([*map(str, install)], check=True)

    @contextlib.contextmanager
    def without(self, removal: Removal) -> Iterator[None]:
        """Take something out for the ``with`` block. Raises ValueError if its text is not there once."""
        file = self.root / removal.file
        text = file.read_text()
        if text.count(removal.old) != 1:
            raise ValueError(f"{removal.file} has {text.count(removal.old)} times: {removal.old.strip()}")
        file.write_text(text.replace(removal.old, removal.new))
        try:
            yield
        finally:
            file.write_text(text)

    def test(self, names: Sequence[str]) -> tuple[int | None, str]:
        """Run tests up to the first that fails; pytest's exit status, None if it was killed, and output."""
        command: list[str | Path] = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-rfE"]
        command += ["--show-capture=no", "-m", "not slow", *(f"tests/{name}" for name in names)]
        done = self._children.run(command, _environment(), LIMIT, cwd=self.root)
        return done.status, done.output + done.errors


def _environment() -> dict[str, str]:
    """This process's, without the path on which the project itself would come before its copy."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
