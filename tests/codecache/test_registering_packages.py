"""Functions that an installed package registers with Inductor count by its files and by what they refer to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fxpool.codecache.code import grammar, packages
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.code.proof import digest_of

TEXT = """
import functools, logging, os

log = logging.getLogger("registers")
FACTOR = 2
TABLE = {"a": [1, 2]}
NAMES = {"sin", "cos"}

class Attributes:
    def __init__(self, name, scale):
        self.name, self.scale = name, scale

def helper(node):
    return node.target in NAMES and os.environ.get("UNSEEN", "") == ""

@functools.lru_cache(None)
def cached(number):
    return number * FACTOR

def register(*held):
    def handler(match, *args):
        log.debug("a match of %s", held)
        return helper(match.output_node()) and cached(TABLE["a"][0])
    return handler
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An installed package, whose passes do what the grammar refuses in a program's code."""
    directory = tmp_path / "site-packages" / "registers"
    directory.mkdir(parents=True)
    (directory / "__init__.py").write_text(TEXT)
    monkeypatch.setattr(grammar, "REGISTERING_PACKAGES", frozenset({"registers"}))
    monkeypatch.setattr(packages, "_CHECKED_FOR", -1.0)
    monkeypatch.syspath_prepend(str(directory.parent))
    monkeypatch.delitem(sys.modules, "registers", raising=False)
    import registers

    monkeypatch.setitem(sys.modules, "registers", registers)
    return registers


def digest(function: Callable[..., Any]) -> str:
    return digest_of(function, of_inductor=True)


def test_the_same_functions_and_values_are_the_same(package: ModuleType) -> None:
    def held() -> list[Any]:
        attributes = package.Attributes("relu", 0.5)
        return [[torch.float32, (1, "x")], {"op": torch.ops.aten.sin.default}, attributes, [attributes], package.helper]

    assert digest(package.register(*held())) == digest(package.register(*held()))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.float32, torch.bfloat16),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
    ],
)
def test_what_they_hold_counts(first: Any, second: Any, package: ModuleType) -> None:
    assert digest(package.register(first)) != digest(package.register(second))
    objects = [package.Attributes("relu", value) for value in (first, second)]
    assert digest(package.register(objects[0])) != digest(package.register(objects[1]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("FACTOR", 3), ("TABLE", {"a": [1, 3]}), ("NAMES", {"sin"}), ("helper", lambda node: False), ("cached", abs)],
)
def test_what_a_program_changes_in_the_package_counts(
    name: str, value: Any, package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(package.register(1))
    monkeypatch.setattr(package, name, value)
    assert digest(package.register(1)) != before


def test_an_edit_of_any_of_its_files_counts(package: ModuleType) -> None:
    before = digest(package.register(1))
    (Path(package.__path__[0]) / "other.py").write_text("x = 1\n")
    assert digest(package.register(1)) != before


@pytest.mark.parametrize("value", [object(), open, sys, lambda: print, [object()], {"a": sys}])
def test_objects_of_others_are_refused(value: Any, package: ModuleType) -> None:
    with pytest.raises(UnprovenError):
        digest(package.register(value))


def test_a_program_s_directory_of_that_name_is_not_the_package(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "program" / "registers"
    directory.mkdir(parents=True)
    (directory / "__init__.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(directory.parent))
    monkeypatch.delitem(sys.modules, "registers")
    import registers

    with pytest.raises(UnprovenError):
        digest(registers.register(1))


def test_only_code_that_inductor_calls_is_accepted(package: ModuleType) -> None:
    with pytest.raises(UnprovenError):
        digest_of(package.register(1))
