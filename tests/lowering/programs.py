"""Small programs of several files, for tests that change something between two processes."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.children import ChildError
from harness.loader import Loader


class Programs:
    """Runs programs in forks of a process that has imported torch; their files lie in a directory of the test's."""

    def __init__(self, loader: Loader, directory: Path, settings: Mapping[str, str]) -> None:
        self._loader, self._directory, self._settings = loader, directory, settings
        self._directory.mkdir(exist_ok=True)

    def write(self, files: Mapping[str, str]) -> None:
        """Write modules, by name; a name may lead into a directory."""
        for name, text in files.items():
            path = self._directory / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def run(
        self, main: str, *, environment: Mapping[str, str] | None = None, path: str = "", **asked: Any
    ) -> dict[str, Any]:
        """Run a program; what program_child.py reports of it. Its results must be what was expected."""
        directories = [str(self._directory / path), str(self._directory)] if path else [str(self._directory)]
        request = {"path": directories, "main": textwrap.dedent(main), **asked}
        try:
            report = self._loader.run(
                [json.dumps(request)], {**os.environ, **self._settings, **(environment or {})}, "program", limit=280
            )
        except ChildError as error:
            pytest.fail(f"{error.message}:\n{error.output}")
        assert_close(report)
        return report


def assert_close(report: dict[str, Any]) -> None:
    for got, expected in zip(report["got"], report["expected"], strict=True):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5), report["stats"]
