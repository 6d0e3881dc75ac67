"""Workers import a program's modules once per program, whichever graph asks, and not again where that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs

MODULE = """
import os, time, torch
os.mkdir(os.path.join({directory!r}, str(time.monotonic_ns())))
{before}

@torch.library.custom_op("modules::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}

@scale.register_fake
def _(x):
    return torch.empty_like(x)
"""

MAIN = """
import torch
import scaling
def function(x):
    x = scaling.scale(x) + {number}
    torch._dynamo.graph_break()
    x = scaling.scale(x).sin() * {number}
    torch._dynamo.graph_break()
    return scaling.scale(x) - {number}
inputs = [torch.linspace(-1, 1, 8)]
"""


def _imports(directory: Path) -> int:
    """Return how often the module was imported since the last call, or tried to be, in all processes."""
    names = list(directory.iterdir())
    for name in names:
        name.rmdir()
    return len(names)


def _written(programs: Programs, tmp_path: Path, before: str = "", factor: int = 2) -> Path:
    directory = tmp_path / "imports"
    directory.mkdir(exist_ok=True)
    programs.write({"scaling": MODULE.format(directory=str(directory), before=before, factor=factor)})
    return directory


@pytest.mark.slow
def test_workers_import_a_module_once(programs: Programs, tmp_path: Path) -> None:
    directory = _written(programs, tmp_path)
    report = programs.run(MAIN.format(number=1))
    assert report["lowerings"] == 0 and report["stats"]["compiles"] == {"worker": 3, "in_process": 0}
    assert _imports(directory) == 2, "by the program, and by one worker"
    report = programs.run(MAIN.format(number=2))
    assert report["lowerings"] == 0 and report["stats"]["compiles"]["worker"] == 3
    assert _imports(directory) == 1, "by the program: later programs have the workers' copy"

    _written(programs, tmp_path, factor=3)
    report = programs.run(MAIN.format(number=3))
    assert report["lowerings"] == 0 and report["stats"]["compiles"] == {"worker": 3, "in_process": 0}
    assert _imports(directory) == 2, "the module has changed"


@pytest.mark.slow
def test_an_import_that_fails_is_not_tried_again(programs: Programs, tmp_path: Path) -> None:
    """Not by another level, another graph or another process, while the module is the same."""
    directory = _written(programs, tmp_path, before='os.environ["MODULES_HERE_ONLY"]')
    there = {"MODULES_HERE_ONLY": "1"}
    report = programs.run(MAIN.format(number=1), environment=there)
    assert report["stats"]["compiles"] == {"worker": 0, "in_process": 3}
    assert report["stats"]["fallbacks"] == {"code_not_importable": 3}
    assert _imports(directory) == 2, "by the program, and once by a worker"
    report = programs.run(MAIN.format(number=2), environment=there)
    assert report["stats"]["fallbacks"] == {"code_not_importable": 3}
    assert _imports(directory) == 1, "by the program"

    _written(programs, tmp_path)
    report = programs.run(MAIN.format(number=3), environment=there)
    assert report["lowerings"] == 0 and report["stats"]["compiles"] == {"worker": 3, "in_process": 0}
    assert _imports(directory) == 2
