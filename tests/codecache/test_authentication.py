"""Key files, and what passes as authentic."""

from __future__ import annotations

import hmac
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpool.codecache.bundle.authentication import KEY_BYTES, OVERHEAD, Keyring, new_key
from fxpool.errors import ConfigurationError, NotAuthenticError

ONE, TWO = bytes(range(KEY_BYTES)), bytes(range(1, KEY_BYTES + 1))


def key_file(path: Path, *lines: str, mode: int = 0o600) -> Path:
    path.write_text("\n".join(lines))
    path.chmod(mode)
    return path


@given(st.binary(), st.text())
def test_what_was_sealed_is_opened_under_its_name(data: bytes, name: str) -> None:
    ring = Keyring([ONE])
    sealed = ring.seal(name, data)
    assert ring.open(name, sealed) == data and len(sealed) == len(data) + OVERHEAD
    with pytest.raises(NotAuthenticError):
        ring.open(name + "x", sealed)


def test_a_changed_byte_anywhere_does_not_pass() -> None:
    ring = Keyring([ONE])
    sealed = ring.seal("name", b"some data")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(NotAuthenticError):
            ring.open("name", bytes(changed))
        with pytest.raises(NotAuthenticError):
            ring.open("name", sealed[:place])


def test_keys_are_rotated_one_after_another() -> None:
    old, both, new = Keyring([ONE]), Keyring([TWO, ONE]), Keyring([TWO])
    assert both.open("n", old.seal("n", b"x")) == b"x"
    assert new.open("n", both.seal("n", b"x")) == b"x"
    with pytest.raises(NotAuthenticError, match="not accepted here"):
        new.open("n", old.seal("n", b"x"))


def test_macs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time can be asserted, so the function that takes the same time for all bytes is watched instead."""
    compared: list[tuple[Any, Any, bool]] = []
    compare = hmac.compare_digest

    def watched(left: Any, right: Any) -> bool:
        compared.append((left, right, compare(left, right)))
        return compared[-1][2]

    monkeypatch.setattr(hmac, "compare_digest", watched)
    ring = Keyring([TWO, ONE])
    sealed = Keyring([ONE]).seal("name", b"data")
    assert ring.open("name", sealed) == b"data"
    assert [equal for *_, equal in compared] == [False, True, True]
    for end in (1, 32):
        wrong = bytearray(sealed)
        wrong[OVERHEAD - end] ^= 1
        compared.clear()
        with pytest.raises(NotAuthenticError, match="its MAC is wrong"):
            ring.open("name", bytes(wrong))
        mac, made, equal = compared[-1]
        assert (len(mac), len(made), equal) == (32, 32, False)


def test_name_and_data_can_not_trade_places() -> None:
    ring = Keyring([ONE])
    with pytest.raises(NotAuthenticError):
        ring.open("na", ring.seal("n", b"ax")[:-2] + b"x")


def test_a_key_file(tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    path = key_file(tmp_path / "keys", "# since May", first, "", second.upper(), "")
    ring = Keyring.load(path)
    assert ring.open("n", Keyring([bytes.fromhex(first)]).seal("n", b"x")) == b"x"
    assert ring.open("n", Keyring([bytes.fromhex(second)]).seal("n", b"x")) == b"x"


def test_key_files_that_are_refused(tmp_path: Path) -> None:
    key = new_key()
    for mode in (0o640, 0o604, 0o660, 0o602):
        with pytest.raises(ConfigurationError, match="chmod 600"):
            Keyring.load(key_file(tmp_path / f"open-{mode:o}", key, mode=mode))
    with pytest.raises(ConfigurationError, match="cannot read the key file"):
        Keyring.load(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="holds no key"):
        Keyring.load(key_file(tmp_path / "empty", "# nothing"))
    with pytest.raises(ConfigurationError, match="key 2 of") as refused:
        Keyring.load(key_file(tmp_path / "short", key, key[:-2]))
    assert not re.search(key[:16], str(refused.value))
    link = tmp_path / "link"
    link.symlink_to(key_file(tmp_path / "real", key))
    with pytest.raises(ConfigurationError):
        Keyring.load(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which only root can")
def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", new_key())
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigurationError, match="cannot be trusted"):
        Keyring.load(path)


def test_no_key_no_ring() -> None:
    for keys in ([], [b"short"]):
        with pytest.raises(ValueError, match="32 bytes"):
            Keyring(keys)
