"""Records of graphs that are not compiled again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fxpool.codecache.store import quarantine
from fxpool.codecache.store.store import LocalStore
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
        with pytest.raises(ValueError, match="is not a key"):
            quarantine.find(root, key)


def test_a_limit_is_over_for_who_allows_more(root: str) -> None:
    record = quarantine.add(root, KEY, label="graph", error="late", log=None, limit="timeout", value=5.0)
    assert quarantine.find(root, KEY) == record
    assert record.holds_under({"timeout": 5.0, "memory": 9e9}) and record.holds_under({"timeout": 4.0})
    assert record.holds_under({"memory": 9e9}), "of another limit nothing follows"
    assert not record.holds_under({"timeout": 5.1, "memory": 0.0})
    died = quarantine.add(root, OTHER, label="graph", error="died", log=None)
    assert died.holds_under({"timeout": 9e9, "memory": 9e18})


def test_what_says_more_stays(root: str) -> None:
    def add(error: str, limit: str = "", value: float = 0.0) -> str:
        quarantine.add(root, KEY, label="graph", error=error, log=None, limit=limit, value=value)
        found = quarantine.find(root, KEY)
        assert found is not None
        return found.error

    assert add("after 5", "timeout", 5.0) == "after 5"
    assert add("after 3", "timeout", 3.0) == "after 5"
    assert add("after 9", "timeout", 9.0) == "after 9"
    assert add("over 1000", "memory", 1000.0) == "over 1000"
    assert add("died") == "died"
    assert add("after 99", "timeout", 99.0) == "died"


def test_a_record_of_before_there_were_limits(root: str) -> None:
    quarantine.add(root, KEY, label="graph", error="died", log=None)
    path = Path(root, "quarantine", f"{KEY}.json")
    path.write_bytes(msgspec.json.encode({"key": KEY, "label": "g", "error": "e", "when": 1.0}))
    record = quarantine.find(root, KEY)
    assert record is not None and record.holds_under({"timeout": 9e9})
    assert record.name == "g"


def test_a_record_names_its_function_and_may_have_fields_of_a_later_version(root: str) -> None:
    record = quarantine.add(root, KEY, label="graph 0 [0/0]", error="died", log=None, function="step, train.py:12")
    assert record.name == "graph 0 [0/0], step, train.py:12" and quarantine.find(root, KEY) == record
    path = Path(root, "quarantine", f"{KEY}.json")
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(record) | {"later": 1}))
    assert quarantine.find(root, KEY) == record
