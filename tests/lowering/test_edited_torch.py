"""Another torch, of the same version: a tree in front of the installed one, with a file of Inductor's edited."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import HERE, run_python
from tiers import first_tier

PLAIN, EDITED = [0.2, 1.0], [0.24, 0.92]  # rounded to one decimal and doubled; to two
FILE = "_inductor/decomposition.py"


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """Links to the installed torch, but for one file, which is a copy: packages above it are directories."""
    farm, real = tmp_path / "overlay" / "torch", Path(torch.__file__).parent
    farm.mkdir(parents=True)
    _link(real, farm)
    (farm / "_inductor").unlink()
    (farm / "_inductor").mkdir()
    _link(real / "_inductor", farm / "_inductor")
    (farm / FILE).unlink()
    shutil.copy(real / FILE, farm / FILE)
    return farm.parent


def _link(real: Path, farm: Path) -> None:
    for name in os.listdir(real):
        if name != "__pycache__":
            (farm / name).symlink_to(real / name)


def edit(overlay: Path) -> None:
    path = overlay / "torch" / FILE
    before = path.read_text()
    after = before.replace("ten_pow_decimals = 10.0**decimals", "ten_pow_decimals = 100.0**decimals")
    assert after != before
    path.write_text(after)


@pytest.fixture(params=first_tier(["variable", "program"], "variable"))
def child(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Start a child that imports torch from an overlay, named by PYTHONPATH or by the program itself."""

    def run(overlay: Path | None) -> dict[str, Any]:
        arguments, environment = [str(HERE / "edited_child.py")], dict[str, str]()
        if overlay is not None and request.param == "program":
            arguments.append(str(overlay))
        elif overlay is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(overlay), os.environ.get("PYTHONPATH", "")]))
        report: dict[str, Any] = json.loads(run_python(arguments, **environment).splitlines()[-1])
        assert not report["fallbacks"], report
        assert (overlay is None) or report["torch"].startswith(str(overlay))
        return report

    yield run


@pytest.mark.timeout(600)
def test_an_edited_torch_is_compiled_with_and_has_a_key_of_its_own(child: Any, overlay: Path) -> None:
    first = child(None)
    assert (first["result"], first["misses"]) == (PLAIN, 1)
    edit(overlay)
    other = child(overlay)
    assert (other["result"], other["misses"]) == (EDITED, 1), "neither the entry of another torch nor its worker"
    assert other["content"] != first["content"]
    for place, expected in ((overlay, EDITED), (None, PLAIN)):
        again = child(place)
        assert (again["result"], again["hits"], again["misses"]) == (expected, 1, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tree_with_the_same_content_shares_entries(child: Any, overlay: Path) -> None:
    """A file that was copied or touched is no edit."""
    first = child(None)
    assert first["misses"] == 1
    os.utime(overlay / "torch" / FILE)
    again = child(overlay)
    assert (again["result"], again["hits"], again["content"]) == (PLAIN, 1, first["content"])
