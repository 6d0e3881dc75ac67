"""Rows about the C++ compiler: missing, another, wrapped, in an odd site, changed between two runs of one server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .environment import Site
from .needs import command
from .row import PLAIN, Row
from .verdict import Expected

__all__ = ["ROWS"]

_COMPILERS = ("g++", "c++", "gcc", "cc", "clang", "cpp", "ccache")


def _path_without_compilers(site: Site) -> None:
    """A directory ``{without}`` of links to all that is in PATH, except compilers."""
    without = site.root / "without"
    without.mkdir()
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            name = program.name.split("-")
            if not any(part.startswith(_COMPILERS) for part in name) and not (without / program.name).exists():
                (without / program.name).symlink_to(program)
    site.names["without"] = str(without)


def _gxx() -> str:
    return shutil.which("g++") or "/usr/bin/g++"


def _wrapper(directory: str, name: str, text: str) -> dict[str, str]:
    return {f"{directory}/{name}": f"#!/bin/sh\n{text}\n"}


# Says what it passes on, as ccache and distcc do when they are asked.
_CCACHE = f'echo "$*" >> "{{tmp}}/compiled" && exec {_gxx()} "$@"'
_ERROR = Expected(error=r"no working C\+\+ compiler.*apt-get install g\+\+", status=1, again_status=1, processes=0,
                  again_processes=0, pool=False, cache=False)  # fmt: skip

ROWS = [
    Row(
        name="no g++ in PATH",
        environment={"PATH": "{without}"},
        prepare=_path_without_compilers,
        fresh=True,
        expected=_ERROR,
    ),
    Row(name="CXX not there", environment={"CXX": "/nowhere/g++"}, fresh=True, expected=_ERROR),
    Row(name="CXX=clang++", environment={"CXX": "clang++"}, needs=(command("clang++"),), fresh=True),
    Row(
        name="CXX=clang++ after g++",
        again_environment={"CXX": "clang++"},
        needs=(command("clang++"),),
        expected=Expected(cache=False),
    ),
    Row(
        name="CXX in a path with a space",
        files=_wrapper("a path", "g++", f'exec {_gxx()} "$@"'),
        shell='chmod +x a*/g++; exec "$@"',
        environment={"CXX": "{directory}/a path/g++"},
        fresh=True,
    ),
    Row(
        name="CXX a script like ccache's",
        files=_wrapper("bin", "g++", _CCACHE),
        shell='chmod +x bin/g++; exec "$@"',
        environment={"CXX": "{directory}/bin/g++"},
        fresh=True,
        also=lambda site, run: "" if (site.tmp / "compiled").exists() else "CXX was not run",
    ),
    Row(
        name="a script like ccache's first in PATH",
        files=_wrapper("bin", "g++", _CCACHE),
        shell='chmod +x bin/g++; PATH="{directory}/bin:$PATH" exec "$@"',
        fresh=True,
        also=lambda site, run: "" if (site.tmp / "compiled").exists() else "the first g++ in PATH was not run",
    ),
    Row(
        name="another CXX in the second run",
        files=_wrapper("bin", "g++", _CCACHE),
        program=PLAIN,
        shell='chmod +x bin/g++; exec "$@"',
        again_environment={"CXX": "{directory}/bin/g++"},
        expected=Expected(cache=False),
    ),
    Row(
        name="a compiler that fails",
        files=_wrapper("bin", "g++", 'echo "out of licences" >&2; exit 1'),
        shell='chmod +x bin/g++; exec "$@"',
        environment={"CXX": "{directory}/bin/g++"},
        fresh=True,
        expected=Expected(
            status=1,
            again_status=1,
            processes=0,
            again_processes=0,
            pool=False,
            cache=False,
            error="out of licences|no working C",
        ),
    ),
    Row(name="CXXFLAGS and CPATH set", environment={"CXXFLAGS": "-O0 -g", "CPATH": "{directory}"}),
]
