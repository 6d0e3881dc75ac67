"""Facts read from byte code are the same in every Python, whichever instructions it has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

# The modules need nothing but the standard library; the packages above them do.
READING = r"""
import json, sys, types
for name in ("fxpool", "fxpool.torch_compat", "fxpool.torch_compat.changes"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
from fxpool.torch_compat.changes import assigned_literals, name_bindings

code = compile(sys.stdin.read(), "<module>", "exec")
assigned, body = assigned_literals.assigned(code), assigned_literals.body(code)
bound = name_bindings.bindings(code, "package")
print(json.dumps({
    "written": [sorted(map(str, part)) for part in (assigned.variables, assigned.attributes, assigned.contents)],
    "literals": {name: str(value) for name, value in sorted(body.literals.items())},
    "displays": {name: str(value) for name, value in sorted(body.displays.items())},
    "imports": sorted(map(str, bound.imports.items())),
}))
"""
SOURCE = """
import torch, os.path as path
from a.b import c as d, e
NUMBER = 3
TUPLE, LIST = (1, 2.0, "x"), [1, 2, torch.float32]
TABLE = {torch.half: torch.float32, "a": {1, 2}}
SET, NUMBERS = OrderedSet([1, 2]), [1, 2, 3, 4, 5, 6]
CHOSEN = 1 if FLAG else 2
def function(x, y=5, *, z=(1, 2)):
    global NUMBER
    NUMBER = 4
    SET_ITEM[x] = y
    del DELETED[x]
    self.table[x][1] = 2
    for first, second in PAIRS:
        x = first[second]
        first[second] = x
        first[second], x[first] = OTHERS[x], y
    cls.sliced[:] = [one for one in x]
    cls.cut[x:] = y
    APPENDED.append(x)
    module.EXTENDED.extend(x)
    TABLE.update(x)
    x.attribute = 3
    return [one.name for one in x if one[0]]
class Class:
    table, number = {}, 7
    def method(self, a=1):
        self.items.append(a)
"""


def facts(interpreter: str) -> dict[str, object]:
    done = subprocess.run(
        [interpreter, "-c", READING, str(ROOT)], input=SOURCE, capture_output=True, text=True, check=True, timeout=60
    )
    read: dict[str, object] = json.loads(done.stdout)
    return read


def interpreters() -> dict[str, str]:
    """The Pythons of this machine, by version."""
    paths = {version: shutil.which(f"python{version}") for version in VERSIONS}
    for directory in Path(sys.base_prefix).parent.glob("3.*"):  # of pyenv
        version = ".".join(directory.name.split(".")[:2])
        if version in paths and (directory / "bin/python3").exists():
            paths[version] = str(directory / "bin/python3")
    return {version: path for version, path in paths.items() if path is not None and _runs(path)}


def _runs(path: str) -> bool:
    return subprocess.run([path, "-c", ""], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_other_pythons_read_the_same(version: str) -> None:
    path = interpreters().get(version)
    if path is None:
        pytest.skip(f"no Python {version} here")
    read = facts(path)
    assert read == facts(sys.executable)
    containers = ["APPENDED", "DELETED", "EXTENDED", "SET_ITEM", "TABLE", "cut", "items", "sliced", "table"]
    assert read["written"] == [["NUMBER"], ["attribute"], containers]
