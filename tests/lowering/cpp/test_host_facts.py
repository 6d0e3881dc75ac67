"""Facts of the tool chain: found once, and one set per CPU where a directory is shared by several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fxpool.codecache.key import system_facts, toolchain
from fxpool.lowering.cpp import host_facts
from fxpool.torch_compat.cpp.instruction_sets import InstructionSet


class Host:
    """A machine whose CPU can be changed, and that counts how often it is asked what it can do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu = "one"
        self.probes: list[str] = []
        real = dict(system_facts.system_facts())
        monkeypatch.setattr(system_facts, "system_facts", lambda root: {**real, "cpu": self.cpu})
        monkeypatch.setattr(host_facts, "_probe", self._probe)

    def _probe(self, toolchain_dir: str | None) -> list[InstructionSet]:
        self.probes.append(self.cpu)
        return [(f"set of {self.cpu}", {"tile": True})]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    yield Host(monkeypatch)


@pytest.fixture
def toolchain_dir(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path / "toolchain")


def test_a_directory_shared_by_two_cpus_keeps_both(host: Host, toolchain_dir: str) -> None:
    for cpu in ("one", "two", "one", "two", "one"):
        host.cpu = cpu
        assert host_facts.find(toolchain_dir) == [(f"set of {cpu}", {"tile": True})]
        assert host_facts.are_kept(toolchain_dir)
    assert host.probes == ["one", "two"]
    host.cpu = "three"
    assert not host_facts.are_kept(toolchain_dir)


def test_another_compiler_is_asked_again(host: Host, toolchain_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host_facts.find(toolchain_dir)
    real = toolchain.toolchain_facts(toolchain_dir)
    monkeypatch.setattr(toolchain, "toolchain_facts", lambda where: {**real, "compiler": "another"})
    host_facts.find(toolchain_dir)
    assert host.probes == ["one", "one"]


@pytest.mark.parametrize("damage", [b"", b"[", b"[1]", b'[["a", 1]]', b"\xff\xfe"])
def test_damaged_facts_are_found_again(host: Host, toolchain_dir: str, damage: bytes) -> None:
    found = host_facts.find(toolchain_dir)
    (kept,) = Path(toolchain_dir).glob("instruction-sets-*.json")
    kept.write_bytes(damage)
    assert not host_facts.are_kept(toolchain_dir)
    assert host_facts.find(toolchain_dir) == found
    assert host.probes == ["one", "one"]
