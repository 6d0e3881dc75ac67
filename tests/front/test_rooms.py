"""The house: no circle of imports, who may import whom, and a map of each package that is complete."""

from __future__ import annotations

import ast
import collections
import importlib.util
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sources import ROOT, sources

SCRIPT = ROOT / "docs" / "import_graph.py"


@pytest.fixture(scope="module")
def rooms() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("import_graph", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["import_graph"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["import_graph"]


def test_circles_are_found(rooms: Any) -> None:
    assert rooms.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}) == [["b", "c"]]
    assert rooms.circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_imports_itself_through_others(rooms: Any) -> None:
    graph = rooms.imports(rooms.modules())
    assert graph["fxpool.lowering.backend"], "imports in functions count"
    assert not rooms.circles(graph)


def test_no_package_imports_itself_through_others(rooms: Any) -> None:
    known = rooms.modules()
    assert not rooms.circles(rooms.packages(rooms.imports(known), known))


def test_the_table_is_of_these_sources(rooms: Any) -> None:
    assert rooms.PAGE.read_text() == rooms.page(), "run: python docs/import_graph.py"


def test_no_package_is_crowded() -> None:
    """More than 20 modules in one folder are a package that wants to be several."""
    modules = collections.Counter(path.parent for path in sources() if path.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): count for folder, count in modules.items() if count > 20} == {}


def named_in(docstring: str) -> list[str]:
    """The names of a map: the first word of a line with more than one space after it."""
    return re.findall(r"^ {0,4}(\w+) {2,}\S", docstring, re.MULTILINE)


def test_a_package_s_map_names_what_is_in_it() -> None:
    wrong = {}
    for init in sources():
        if init.name != "__init__.py" or init == ROOT / "fxpool" / "__init__.py":
            continue  # the front door's names the rooms
        there = {path.stem for path in init.parent.glob("*.py")} - {"__init__"}
        there |= {path.parent.name for path in init.parent.glob("*/__init__.py")}
        named = named_in(ast.get_docstring(ast.parse(init.read_text()), clean=False) or "")
        if sorted(named) != sorted(there):
            missing, other = sorted(there - set(named)), sorted(set(named) - there)
            twice = sorted({name for name in named if named.count(name) > 1})
            wrong[str(init.parent.relative_to(ROOT))] = f"missing {missing}, not there {other}, twice {twice}"
    assert not wrong, "\n".join(f"{package}: {what}" for package, what in wrong.items())
