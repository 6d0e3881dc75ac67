"""`torch_sources` reads a module's source once per host, and again if its file changes."""

from __future__ import annotations

import importlib.util
import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fxpool.torch_compat.changes import torch_sources
from fxpool.torch_compat.changes.name_bindings import DEFINED
from fxpool.torch_compat.changes.torch_sources import Sources


class Answers:
    """Answers as another process on this host would find them."""

    def __init__(self) -> None:
        self.answers: dict[Any, dict[str, str]] = {}

    def read(self, question: Sequence[str], identity: Any) -> dict[str, str] | None:
        return self.answers.get((tuple(question), identity))

    def write(self, question: Sequence[str], identity: Any, answer: dict[str, str]) -> None:
        self.answers[tuple(question), identity] = answer


def imported(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("a_module", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module(tmp_path: Path) -> types.ModuleType:
    path = tmp_path / "a_module.py"
    path.write_text("LIMIT = 3\ndef defined():\n    pass\nalias = defined\n")
    return imported(path)


def test_constants_and_definitions(module: types.ModuleType) -> None:
    sources = Sources("here")
    assert sources.constants(module) == {"LIMIT": "3"}
    assert sources.binding(module, "defined") == DEFINED and sources.binding(module, "alias") == "= defined"


def test_another_process_reads_nothing(module: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    first = Sources("here", answers)
    assert (first.binding(module, "defined"), first.binding(module, "none")) == (DEFINED, None)
    first.constants(module)
    first.keep(answers)
    monkeypatch.setattr(torch_sources, "_compiled", lambda module: (_ for _ in ()).throw(OSError("is read again")))
    second = Sources("here", answers)
    assert second.constants(module) == {"LIMIT": "3"}
    assert (second.binding(module, "defined"), second.binding(module, "none")) == (DEFINED, None)
    with pytest.raises(OSError):
        Sources("another", answers).constants(module)


def test_a_changed_file_is_read_again(module: types.ModuleType) -> None:
    answers = Answers()
    first = Sources("here", answers)
    assert first.constants(module) == {"LIMIT": "3"} and first.binding(module, "alias") != DEFINED
    first.keep(answers)
    path = Path(str(module.__file__))
    path.write_text("LIMIT = 4\ndef alias():\n    pass\n")
    os.utime(path, (1, 1))
    second = Sources("here", answers)
    assert second.constants(imported(path)) == {"LIMIT": "4"} and second.binding(module, "alias") == DEFINED


def test_answers_that_cannot_be_read_are_left(module: types.ModuleType) -> None:
    answers = Answers()
    answers.write(torch_sources._QUESTION, ("here",), {"modules": "no JSON"})
    assert Sources("here", answers).constants(module) == {"LIMIT": "3"}


def test_a_process_has_one_set_of_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sources, "_last", None)
    without = torch_sources.loaded("here")
    assert torch_sources.loaded("here") is without
    with_answers = torch_sources.loaded("here", Answers())
    assert with_answers is not without and torch_sources.loaded("here") is with_answers
