"""The text of each removal is present, for every system. `test_systems` knows the tests of each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sources import ROOT

from .__main__ import chosen
from .removals import REMOVALS, Removal


def test_every_system_is_taken_out() -> None:
    assert {one.row for one in REMOVALS} == set(range(1, 33))


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda one: f"{one.row} {Path(one.file).stem}")
def test_what_is_taken_out_is_there(removal: Removal) -> None:
    text = (ROOT / removal.file).read_text()
    assert text.count(removal.old) == 1
    ast.parse(text.replace(removal.old, removal.new))
    assert removal.tests and len(removal.old) != len(removal.new), "bytecode is told by a file's size and time"


def test_rows_are_chosen() -> None:
    assert {one.row for one in chosen("4,5")} == {4, 5}
    assert chosen("") == list(REMOVALS)
    for wrong in ("33", "x", "4,x", "4,"):
        with pytest.raises(SystemExit, match="no such rows"):
            chosen(wrong)
