"""Facts of the machine, in a process that goes on on another one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fxpool.codecache.key import compiler_examination, system_facts
from fxpool.torch_compat.cuda import device_facts


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("one\n")
    monkeypatch.setattr(system_facts, "BOOT_ID", str(file))
    monkeypatch.setattr(system_facts, "_found", None)
    return file


def _extensions() -> object:
    with compiler_examination.under_way():
        return system_facts.system_facts()["cpu_extensions"]


def test_facts_are_read_once_per_boot(boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = _extensions()
    monkeypatch.setattr(system_facts, "cpu_extensions", lambda: ["of", "another"])
    assert _extensions() == own
    boot.write_text("two\n")
    assert _extensions() == "of another"
    monkeypatch.setattr(system_facts, "cpu_extensions", lambda: ["a", "third"])
    assert _extensions() == "of another"


def test_an_examination_that_began_before_the_restore_does_not_keep_them(
    boot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiler_examination.under_way():
        system_facts.system_facts()
        boot.write_text("two\n")
        monkeypatch.setattr(system_facts, "cpu_extensions", lambda: ["of", "another"])
        assert system_facts.system_facts()["cpu_extensions"] == "of another"


def test_facts_are_kept_where_no_boot_has_an_id(boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot.unlink()
    own = _extensions()
    monkeypatch.setattr(system_facts, "cpu_extensions", lambda: ["of", "another"])
    assert _extensions() == own
    system_facts.forget_machine()
    assert _extensions() == "of another"


def test_facts_of_devices_are_forgotten_with_those_of_the_machine(boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = []
    monkeypatch.setattr(device_facts, "forget", lambda: forgotten.append(True))
    _extensions()
    assert not forgotten
    boot.write_text("two\n")
    system_facts.notice_machine()
    assert forgotten


def test_an_examination_is_over_where_the_clock_went_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    examination = compiler_examination.Examination()
    assert not examination.is_over()
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    assert examination.is_over()
