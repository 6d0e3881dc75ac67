"""Answers about files: kept as long as the file is the same, asked again otherwise, never in the way."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from fxpool import installed_packages
from fxpool.codecache.key import probe_cache

QUESTION = ["version of", "this"]


@pytest.fixture
def root(tmp_path: Path) -> str:
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return str(made)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def test_an_answer_is_kept_until_the_file_changes(root: str, file: Path) -> None:
    identity = probe_cache.identity_of(str(file))
    assert probe_cache.read(root, QUESTION, identity) is None
    probe_cache.write(root, QUESTION, identity, {"version": "1"})
    assert probe_cache.read(root, QUESTION, probe_cache.identity_of(str(file))) == {"version": "1"}
    assert probe_cache.read(root, ["another question"], identity) is None
    link = file.with_name("link")
    link.symlink_to(file)
    assert probe_cache.identity_of(str(link)) == identity
    file.write_text("three")
    assert probe_cache.read(root, QUESTION, probe_cache.identity_of(str(file))) is None
    other = file.with_name("other")
    other.write_text("three")
    os.replace(other, file)  # the same text, another file
    assert probe_cache.read(root, QUESTION, probe_cache.identity_of(str(file))) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"version": 1}', b"\xff"])
def test_damage_is_no_answer(root: str, file: Path, damage: bytes) -> None:
    identity = probe_cache.identity_of(str(file))
    probe_cache.write(root, QUESTION, identity, {"version": "1"})
    (kept,) = Path(root, "toolchain").iterdir()
    kept.write_bytes(damage)
    assert probe_cache.read(root, QUESTION, identity) is None
    probe_cache.write(root, QUESTION, identity, {"version": "2"})
    assert probe_cache.read(root, QUESTION, identity) == {"version": "2"}


def test_a_directory_that_others_can_write_to_is_not_believed(root: str, file: Path) -> None:
    identity = probe_cache.identity_of(str(file))
    probe_cache.write(root, QUESTION, identity, {"version": "1"})
    os.chmod(root, 0o777)
    assert probe_cache.read(root, QUESTION, identity) is None
    probe_cache.write(root, ["more"], identity, {"version": "1"})
    assert len(list(Path(root, "toolchain").iterdir())) == 1


def test_what_is_installed_is_read_once(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's RECORD is a megabyte; the next process reads none."""
    read = []
    original = importlib.metadata.PathDistribution.read_text

    def counted(self: importlib.metadata.PathDistribution, name: str) -> str | None:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", counted)
    first = installed_packages.facts(probe_cache.FactCache(root))
    records = read.count("RECORD")
    assert records and first["torch_files"] and first["sympy_files"]
    assert installed_packages.facts(probe_cache.FactCache(root)) == first
    assert read.count("RECORD") == records
    assert installed_packages.facts(probe_cache.FactCache(None)) == first
    assert read.count("RECORD") == 2 * records
