"""The page of systems: each of them once, and every module and test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from campaigns.without.removals import REMOVALS, Removal

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture" / "systems.md"
TESTS = ROOT / "tests"


def rows() -> dict[int, tuple[str, list[str], list[str]]]:
    """By number: what a row says, the modules and the tests that it names."""
    found: dict[int, tuple[str, list[str], list[str]]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        assert int(cells[0]) not in found, f"{cells[0]} is there twice"
        where, shown = (re.findall(r"`([^`]+)`", cell) for cell in cells[2:])
        found[int(cells[0])] = (cells[1], where, shown)
    return found


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return name.startswith("fxpool") and (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file())


def is_test(name: str) -> bool:
    """Is there a file of that name, and the test in it? A file alone is named where all of its tests are meant."""
    file, _, test = name.partition("::")
    path = TESTS / file
    if not path.is_file() or not path.name.startswith("test_"):
        return False
    functions = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return test in functions if test else any(one.startswith("test_") for one in functions)


def test_all_systems_are_there() -> None:
    assert sorted(rows()) == list(range(1, 33))


@pytest.mark.parametrize("number", range(1, 33))
def test_what_a_row_names_exists(number: int) -> None:
    text, where, shown = rows()[number]
    assert where and [name for name in where if not is_module(name)] == []
    assert shown or "Not there yet" in text
    assert [name for name in shown if not is_test(name)] == []


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda one: f"{one.row} {Path(one.file).stem}")
def test_what_takes_a_system_out_is_seen_by_tests_of_its_row(removal: Removal) -> None:
    assert {*removal.tests} <= {*rows()[removal.row][2]}


def test_names_that_are_not_there_are_found() -> None:
    assert (
        is_module("fxpool.codecache.store.store")
        and is_module("fxpool.counters")
        and is_module("fxpool.bench.measurement")
    )
    assert not is_module("fxpool.codecache.nothing") and not is_module("torch.fx")
    assert is_test("front/test_systems.py::test_all_systems_are_there") and is_test("front/test_systems.py")
    assert not is_test("front/test_systems.py::test_nothing") and not is_test("front/test_nothing.py")
