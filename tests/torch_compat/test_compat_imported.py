"""`imported` calls back when a module of torch's is there: importing it only to patch it would take seconds."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import pytest

from fxpool.torch_compat.patching import when_imported

NAME = "compat_module_to_import"


@pytest.fixture
def not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `NAME` that can be imported and is not."""
    (tmp_path / f"{NAME}.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setitem(sys.modules, NAME, types.ModuleType(NAME))  # so that the import is undone afterwards
    del sys.modules[NAME]


def test_a_module_that_is_there_is_passed_at_once() -> None:
    seen: list[types.ModuleType] = []
    before = list(sys.meta_path)
    when_imported("torch.nn.functional", seen.append)
    assert seen == [sys.modules["torch.nn.functional"]]
    assert sys.meta_path == before


def test_a_module_is_passed_when_its_first_import_is_done(not_imported: None) -> None:
    seen: list[tuple[str, int]] = []
    for _ in range(2):
        when_imported(NAME, lambda module: seen.append((module.__name__, module.value)))
    finders = list(sys.meta_path)
    assert importlib.util.find_spec(NAME) is not None and seen == []
    module = importlib.import_module(NAME)
    assert seen == [(NAME, 7), (NAME, 7)]
    # The list is unchanged, as other threads may be going through it, and all names have one finder.
    assert sys.meta_path == finders and sum(type(one).__name__ == "_Finder" for one in finders) == 1
    # `inspect` asks the loader for the source.
    assert module.__spec__ is not None and module.__spec__.loader is module.__loader__
    assert inspect.getsource(module) == "value = 7\n"


def test_a_module_that_is_being_imported_is_passed_only_when_it_is_complete(tmp_path: Path, not_imported: None) -> None:
    seen: list[list[str]] = []
    (tmp_path / f"{NAME}.py").write_text("import torch_compat_asks\nvalue = 7\n")
    (tmp_path / "torch_compat_asks.py").write_text("ask()\n")
    asks = types.ModuleType("torch_compat_asks")
    sys.modules["torch_compat_asks"] = asks
    try:
        when_imported(NAME, lambda module: seen.append(sorted(name for name in vars(module) if name == "value")))
        importlib.import_module(NAME)
    finally:
        del sys.modules["torch_compat_asks"]
    assert seen == [["value"]]
