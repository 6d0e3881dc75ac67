"""Key files, and what passes as authentic."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_no_key_no_ring() -> None:
    for keys in ([], [b"short"]):
        with pytest.raises(ValueError, match="32 bytes"):
            Keyring(keys)
