"""A script in the C++ compiler's place that changes what it compiles: another script, another entry.

Stock Inductor runs the script that is there. So must the next process here, and not be served what an earlier script
made of the same graph.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python
from tiers import first_tier

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")

# The factor in the generated source becomes another one.
REWRITE = 'for word in "$@"; do case "$word" in *.cpp) sed -i "s/(3\\.0)/(%s)/g" "$word";; esac; done\n'
Change = Callable[[Path], dict[str, str]]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # what a process runs can't be written to
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def edited(place: Path, factor: str) -> dict[str, str]:
    """The script itself."""
    return {"CXX": str(script(place / "c++", REWRITE % factor + 'exec g++ "$@"'))}


def behind_it(place: Path, factor: str) -> dict[str, str]:
    """A script that the script runs, in a directory with a space in its name."""
    script(place / "my tools/real", REWRITE % factor + 'exec g++ "$@"')
    return {"CXX": str(script(place / "c++", 'exec "$(dirname "$0")/my tools/real" "$@"'))}


def told_by_a_variable(place: Path, factor: str) -> dict[str, str]:
    return {"CXX": str(script(place / "c++", REWRITE % "$FACTOR" + 'exec g++ "$@"')), "FACTOR": factor}


def earlier_on_a_relative_path(place: Path, factor: str) -> dict[str, str]:
    """Relative to the program's working directory; a compiler is started in others."""
    environment = earlier_on_the_path(place, factor)
    first, _, rest = environment["PATH"].partition(os.pathsep)
    return {"PATH": os.pathsep.join([os.path.relpath(first, HERE), rest])}


def assembler(place: Path, factor: str) -> dict[str, str]:
    """What the compiler runs is found on the path, too."""
    (bits,) = struct.unpack("<I", struct.pack("<f", float(factor)))
    (three,) = struct.unpack("<I", struct.pack("<f", 3.0))
    rewrite = f'for word in "$@"; do case "$word" in *.s) sed -i "s/\\b{three}\\b/{bits}/g" "$word";; esac; done\n'
    directory = place / f"assembler of {factor}"
    script(directory / "as", rewrite + f'exec {shutil.which("as")} "$@"')
    return {"PATH": os.pathsep.join([str(directory), os.environ["PATH"]])}


def earlier_on_the_path(place: Path, factor: str) -> dict[str, str]:
    """A directory of scripts named like compilers."""
    directory = place / f"of {factor}"
    script(directory / "g++", REWRITE % factor + f'exec {shutil.which("g++")} "$@"')
    return {"PATH": os.pathsep.join([str(directory), os.environ["PATH"]])}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "change",
    first_tier(
        [edited, behind_it, told_by_a_variable, earlier_on_the_path, earlier_on_a_relative_path, assembler],
        edited,
        assembler,
    ),
)
def test_another_script_is_another_compiler(
    change: Callable[[Path, str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tools"
    if "CXX" not in change(place, "3.0"):
        monkeypatch.delenv("CXX", raising=False)  # with it, nobody looks on the path
    for factor, expected, misses in (("3.0", 6.0, 1), ("5.0", 10.0, 1), ("3.0", 6.0, 0), ("5.0", 10.0, 0)):
        printed = run_python([str(HERE / "wrapper_child.py")], **change(place, factor))
        report: dict[str, Any] = json.loads(printed.splitlines()[-1])
        assert not report["fallbacks"], report
        assert report["result"] == [expected] * 2, (factor, report)
        assert (report["misses"], report["hits"]) == (misses, 1 - misses), (factor, report)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_another_compiler_compiled_meanwhile_is_not_kept(tmp_path: Path) -> None:
    """Between the key and the kernels, as an update does that comes while graphs wait."""
    compiler, update = tmp_path / "tools/c++", tmp_path / "tools/updated"
    swap = 'case "$*" in *fxpool-tmp-unit*) if [ -e "$UPDATE" ]; then mv "$UPDATE" "$0"; exec "$0" "$@"; fi;; esac\n'
    environment = {"CXX": str(compiler), "UPDATE": str(update)}
    for there, expected, kept in ((True, 10.0, 0), (False, 6.0, 1)):
        script(compiler, swap + REWRITE % "3.0" + 'exec g++ "$@"')
        if there:
            script(update, swap + REWRITE % "5.0" + 'exec g++ "$@"')
        report = json.loads(run_python([str(HERE / "wrapper_child.py")], **environment).splitlines()[-1])
        assert report["result"] == [expected] * 2, report
        assert (report["misses"], report["hits"], report["entries_written"]) == (1, 0, kept), report
        assert report["bypasses"] == report["switched_off"] == ({} if kept else {"compiler_changed": 1})
        assert not report["fallbacks"], report
