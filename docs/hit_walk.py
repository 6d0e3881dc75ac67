"""Lists the files of fxpool that cache hits run code of, in order of their first call.

    python docs/hit_walk.py    writes the list into docs/architecture/index.md

Two processes compile two small models and share a cache; the second is recorded from the call of the backend to the end
of each model's first call. Functions count; the bodies of modules and classes, and the calls that they make, do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["CHAIN", "Walk", "hits"]

CHAIN = "lowering/fallback/chain.py"
_PAGE = Path(__file__).parent / "architecture" / "index.md"
_HEADING = "## A hit, file by file\n"
_PACKAGE = str(Path(__file__).resolve().parents[1] / "fxpool") + os.sep
_IS_FUNCTION = 0x1  # CO_OPTIMIZED: the body of a module or class lacks it


class Walk:
    """A profile function for the thread of a hit: the `files` in order, and the number of `entries` into the chain."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.entries = 0
        self._bodies = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = _name(frame.f_code)
        if file is None or event not in ("call", "return"):
            return
        if not frame.f_code.co_flags & _IS_FUNCTION:
            self._bodies += 1 if event == "call" else -1
        elif event == "call" and not self._bodies:
            self.files[file] = None
            self.entries += file == CHAIN and _caller(frame) != CHAIN


def _name(code: CodeType) -> str | None:
    return code.co_filename.removeprefix(_PACKAGE) if code.co_filename.startswith(_PACKAGE) else None


def _caller(frame: FrameType) -> str | None:
    """Return the nearest file of fxpool that a call comes from."""
    back = frame.f_back
    while back is not None and _name(back.f_code) is None:
        back = back.f_back
    return _name(back.f_code) if back is not None else None


def _compile() -> list[tuple[list[str], int]]:
    import torch  # in child processes only

    from fxpool.lowering import backend

    walks: list[Walk] = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        walks.append(Walk())
        sys.setprofile(walks[-1])
        return backend.fxpool_backend(*arguments, **options)

    for layer in (torch.nn.ReLU(), torch.nn.Sigmoid()):
        model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), layer), backend=recorded)
        with torch.no_grad():
            model(torch.ones(2, 8))
        sys.setprofile(None)
    return [(list(walk.files), walk.entries) for walk in walks]


def hits() -> list[tuple[list[str], int]]:
    """Return the files of a process's first and second hit, with their numbers of entries into the chain."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "FXPOOL_CACHE_DIR": cache, "PYTHONPATH": os.path.dirname(_PACKAGE[:-1])}
        for _ in ("misses", "hits"):
            command = [sys.executable, __file__, "child"]
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: list[tuple[list[str], int]] = json.loads(output)
    return result


def _section() -> str:
    (first, entries), (second, _) = hits()
    times = "once" if entries == 1 else f"{entries} times"
    text = (
        f"A hit calls functions of {len(first)} files if it is the first of its process, of {len(second)} later, and "
        f"enters `{CHAIN}` {times}. By package, in order of the first call, from `python docs/hit_walk.py`:"
    )
    packages: dict[str, list[str]] = {}
    for file in first:
        package, _, module = file.removesuffix(".py").rpartition("/")
        packages.setdefault(package, []).append(module)
    return "\n".join([_HEADING, _wrapped(text), "", *(_row(*row) for row in packages.items())]) + "\n"


def _row(package: str, modules: Sequence[str]) -> str:
    return _wrapped(f"- `{package or '.'}` ({len(modules)}): {', '.join(modules)}", "  ")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(_compile()))
    else:
        _PAGE.write_text(_PAGE.read_text().partition(_HEADING)[0].rstrip() + "\n\n" + _section())


if __name__ == "__main__":
    main()
