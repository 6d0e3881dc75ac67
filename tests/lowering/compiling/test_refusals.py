"""A module that a worker could not import is known: in this process, and for a while in others."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fxpool.errors import CannotTravelError
from fxpool.lowering.compiling import refusals
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.worker import compiler

NAME = "unimportable_in_a_worker"


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The part of a captured graph that counts: it needs a module of this test's."""
    (tmp_path / f"{NAME}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(NAME)
    (tmp_path / "cache").mkdir(0o700)
    yield SimpleNamespace(
        stays=None,
        request=SimpleNamespace(
            code=None,
            modules=[NAME],
            libraries=[],
            toolchain_dir=str(tmp_path / "cache"),
            ambient=SimpleNamespace(environment={}),
        ),
    )
    del sys.modules[NAME]
    as_another_process()


def as_another_process() -> None:
    runtime.part(refusals._Code).reset()


def refuse(captured: Any) -> None:
    no_store: Any = SimpleNamespace(store=None)
    refusals.refuse(captured, no_store)


def failed(error: str, reason: str = refusals.NOT_IMPORTABLE) -> CannotTravelError:
    return CannotTravelError(reason, f"{NAME}: {error}")


def test_it_is_refused_here_and_in_other_processes(captured: Any) -> None:
    refuse(captured)
    refusals.remember_code(captured, failed("KeyError: 'HERE_ONLY'"))
    for _ in range(2):
        with pytest.raises(CannotTravelError, match="HERE_ONLY"):
            refuse(captured)
        as_another_process()


def test_another_module_is_not(captured: Any) -> None:
    refusals.remember_code(captured, failed("KeyError: 'HERE_ONLY'"))
    captured.request.modules = ["another"]
    refuse(captured)


def test_other_reasons_are_not_kept(captured: Any) -> None:
    refusals.remember_code(captured, failed("differs", reason="code_differs"))
    refuse(captured)


@pytest.mark.parametrize("way", ["an edit", "an hour"])
def test_other_processes_try_again_after(way: str, captured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals.remember_code(captured, failed("KeyError: 'HERE_ONLY'"))
    with pytest.raises(CannotTravelError):
        refuse(captured)
    as_another_process()
    if way == "an edit":
        Path(captured.request.toolchain_dir, "..", f"{NAME}.py").write_text("# edited")
    if way == "an hour":
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3601)
    refuse(captured)


def test_a_removed_directory_is_no_error(captured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refuse(captured)
    refusals.remember_code(captured, failed("KeyError: 'HERE_ONLY'"))
    as_another_process()
    with pytest.raises(CannotTravelError):
        refuse(captured)


def test_short_memory_says_nothing_about_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "module_of_a_host_that_is_short_of_memory"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text("raise MemoryError")
    argument = msgspec.msgpack.encode(([name], []))
    with pytest.raises(MemoryError):
        compiler.import_code(argument)
    (tmp_path / f"{name}.py").write_text("")
    compiler.import_code(argument)
    del sys.modules[name]
