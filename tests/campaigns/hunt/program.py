"""A case: a program, and the processes in which it runs, one thing different between them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Built", "Case", "Step", "write_files"]


class Built(Protocol):
    """A file that is made when it is written, because that takes long. `repr()` says what it will hold."""

    def content(self) -> bytes: ...


@dataclasses.dataclass
class Step:
    """One process of a case.

    `files` is the whole program, by path under the case's directory. `calls` has one statement text per call, executed
    in the program's module before it (empty: nothing is changed). `path` are directories of the case ahead on
    ``sys.path``. `expect_hit`: nothing that counts differs from an earlier step.
    """

    name: str
    files: dict[str, str | bytes | Built]
    calls: list[str] = dataclasses.field(default_factory=lambda: [""])
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    path: list[str] = dataclasses.field(default_factory=lambda: [""])
    cwd: str = ""
    expect_hit: bool = False


@dataclasses.dataclass
class Case:
    """A program and its processes, in order.

    `stock`: eager execution says nothing about it, only stock Inductor does (passes, lowerings, precision). `anew`:
    every call compiles. `fresh`: each process is a separate interpreter, not a fork of one that has imported
    torch. `shared_stock`: kernels that stock Inductor compiled for other cases serve this one. `note`: what was drawn.
    """

    kind: str
    number: int
    steps: list[Step]
    stock: bool = False
    anew: bool = False
    fresh: bool = False
    training: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    tolerance: float = 1.0
    shared_stock: bool = True
    note: dict[str, Any] = dataclasses.field(default_factory=dict)

    def request(self, step: Step, directory: Path, backend: str) -> dict[str, Any]:
        """Return the request to a process of phases.py."""
        return {
            "directory": str(directory),
            "path": step.path,
            "cwd": step.cwd,
            "calls": step.calls,
            "backend": backend,
            "anew": self.anew,
            "training": self.training,
            "dynamic": self.dynamic,
            "mode": self.mode if backend == "fxpool" else None,
        }

    def state_digest(self, step: Step) -> str:
        """Names what stock Inductor's result for a step depends on."""
        files = {
            name: hashlib.sha256(content if isinstance(content, bytes) else str(content).encode()).hexdigest()
            for name, content in step.files.items()
        }
        flags = [self.training, self.dynamic, self.anew, self.shared_stock, step.calls, step.path, step.cwd]
        return hashlib.sha256(json.dumps([files, step.environment, flags], sort_keys=True).encode()).hexdigest()


def write_files(directory: Path, files: Mapping[str, str | bytes | Built]) -> None:
    """Make `directory` hold exactly `files`; files with the right content are not written again."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {directory / name for name in files}
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if path.name == "__pycache__":
                shutil.rmtree(path)
        elif path not in wanted:
            path.unlink()
    for name, content in files.items():
        path = directory / name
        if isinstance(content, str):
            data = content.encode()
        else:
            data = content if isinstance(content, bytes) else content.content()
        if path.exists() and path.read_bytes() == data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if data[:2] == b"#!":
            path.chmod(0o755)
