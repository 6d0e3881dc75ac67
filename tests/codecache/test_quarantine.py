"""Records of graphs that are not compiled again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fxpool.codecache import quarantine
from fxpool.codecache.store import LocalStore
from fxpool.errors import StoreError

KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "c").mkdir(0o700)
    return str(tmp_path / "c")


def test_there_and_back(root: str, tmp_path: Path) -> None:
    output = tmp_path / "worker.log"
    output.write_bytes(b"x" * 100_000 + b"the end")
    assert quarantine.find(root, KEY) is None
    record = quarantine.add(root, KEY, label="graph 1", error="it died", log=str(output))
    assert quarantine.find(root, KEY) == record
    kept = Path(record.log)
    assert kept.read_bytes().endswith(b"the end") and kept.stat().st_size == 64 << 10
    assert kept.stat().st_mode & 0o777 == 0o600
    quarantine.add(root, OTHER, label="graph 2", error="so did it", log=str(tmp_path / "gone"))
    assert [(one.key, one.log) for one in quarantine.scan(root)] == [(KEY, record.log), (OTHER, "")]
    assert quarantine.release(root, KEY) and not quarantine.release(root, KEY)
    assert not kept.exists()
    assert [one.key for one in quarantine.scan(root)] == [OTHER]


def test_clearing_the_store_releases_all(root: str) -> None:
    quarantine.add(root, KEY, label="graph", error="died", log=None)
    LocalStore(root).clear()
    assert quarantine.find(root, KEY) is None
    assert not list(quarantine.scan(root))


def test_what_can_t_be_read_is_no_record(root: str) -> None:
    quarantine.add(root, KEY, label="graph", error="died", log=None)
    path = Path(root, "quarantine", f"{KEY}.json")
    for damage in (b"", b"{", b"[]", path.read_bytes()[:-3], b'{"key": 3}'):
        path.write_bytes(damage)
        assert quarantine.find(root, KEY) is None
    path.chmod(0o666)
    assert quarantine.find(root, KEY) is None


def test_a_directory_of_somebody_else_s_says_nothing(root: str) -> None:
    quarantine.add(root, KEY, label="graph", error="died", log=None)
    os.chmod(root, 0o777)
    assert quarantine.find(root, KEY) is None
    with pytest.raises(StoreError):
        quarantine.add(root, OTHER, label="graph", error="died", log=None)


def test_a_key_is_no_path(root: str) -> None:
    for key in ("../" + "a" * 61, "", "AB" * 32):
        with pytest.raises(ValueError, match="no key"):
            quarantine.find(root, key)
