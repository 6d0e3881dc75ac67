"""What is remembered of a compiled graph that was slower than another of the same graph."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fxpool.codecache.store import demoted_stages
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError

ONE, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def root(tmp_path: Path) -> str:
    return LocalStore(str(tmp_path / "store")).root


def test_it_is_remembered_until_the_store_is_cleared(root: str) -> None:
    assert demoted_stages.find(root, ONE) is None
    demoted_stages.add(root, ONE, OTHER)
    assert demoted_stages.find(root, ONE) == OTHER
    assert demoted_stages.find(root, OTHER) is None
    demoted_stages.add(root, ONE, "3" * 64)
    assert demoted_stages.find(root, ONE) == "3" * 64
    LocalStore(root).clear()
    assert demoted_stages.find(root, ONE) is None


@pytest.mark.parametrize("content", [b"", b"2" * 63, b"\xff" * 64, b"../../etc/passwd", b"2" * 65])
def test_what_is_no_key_is_nothing(root: str, content: bytes) -> None:
    demoted_stages.add(root, ONE, OTHER)
    path = Path(root, "slower", ONE)
    path.write_bytes(content)
    assert demoted_stages.find(root, ONE) is None


def test_somebody_else_s_word_is_not_taken(root: str) -> None:
    demoted_stages.add(root, ONE, OTHER)
    os.chmod(Path(root, "slower", ONE), 0o666)
    assert demoted_stages.find(root, ONE) is None


def test_what_can_not_be_remembered_says_so(root: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        demoted_stages.add(root, "../x", OTHER)
    Path(root).mkdir(mode=0o700, exist_ok=True)
    Path(root, "slower").write_text("in the way")
    with pytest.raises(StoreError):
        demoted_stages.add(root, ONE, OTHER)
