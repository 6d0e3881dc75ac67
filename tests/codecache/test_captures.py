"""Files of recorded requests: read only if no other user could have written them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxpool.codecache.bundle import capture_directory
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.bundle.capture_directory import Capture
from fxpool.codecache.key.components import ORDER
from fxpool.codecache.key.key import GraphKey
from fxpool.errors import CaptureError

CAPTURE = Capture(
    key="ab" * 32,
    label="graph 0",
    function="f",
    devices=("a GPU",),
    system={"torch": "2.13"},
    request=b"a request",
)
KEYS, OTHER_KEYS = Keyring([b"k" * 32]), Keyring([b"o" * 32])
NAME = capture_directory.name_of(CAPTURE.key, {"s0": 4})


@pytest.mark.parametrize("keyring", [None, KEYS], ids=["plain", "sealed"])
def test_a_capture_is_read_as_it_was_written(keyring: Keyring | None, tmp_path: Path) -> None:
    capture_directory.write(str(tmp_path / "new"), NAME, CAPTURE, keyring)
    (path,) = capture_directory.paths(str(tmp_path / "new"))
    assert capture_directory.read(path, keyring=keyring) == CAPTURE
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_names_are_by_key_and_sizes() -> None:
    assert capture_directory.name_of(CAPTURE.key, {"s1": 1, "s0": 4}) == capture_directory.name_of(
        CAPTURE.key, {"s0": 4, "s1": 1}
    )
    assert (
        len({NAME, capture_directory.name_of(CAPTURE.key, {"s0": 5}), capture_directory.name_of("cd" * 32, {"s0": 4})})
        == 3
    )


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    capture_directory.write(str(tmp_path), NAME, CAPTURE, None)
    assert capture_directory.paths(str(tmp_path)) == [str(tmp_path / NAME)]


def _refused(path: Path, reason: str, *, keyring: Keyring | None = None) -> None:
    with pytest.raises(CaptureError) as refused:
        capture_directory.read(str(path), keyring=keyring)
    assert refused.value.reason == reason
    assert str(path) in str(refused.value) and refused.value.remedy


def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    capture_directory.write(str(tmp_path), NAME, CAPTURE, None)
    path.chmod(0o666)
    _refused(path, "untrusted")
    assert capture_directory.read(str(path), trust=True) == CAPTURE


def test_a_seal_has_to_be_that_of_a_key_and_a_name(tmp_path: Path) -> None:
    path = tmp_path / NAME
    capture_directory.write(str(tmp_path), NAME, CAPTURE, KEYS)
    _refused(path, "sealed")
    _refused(path, "unsealed", keyring=OTHER_KEYS)
    moved = tmp_path / capture_directory.name_of(CAPTURE.key, {"s0": 5})
    moved.write_bytes(path.read_bytes())
    _refused(moved, "unsealed", keyring=KEYS)
    capture_directory.write(str(tmp_path), NAME, CAPTURE, None)
    _refused(path, "unsealed", keyring=KEYS)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "other_version"), (b"fxpool-capture 99\n", "other_version"), (None, "damaged")]
)
def test_other_bytes_are_refused(data: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    capture_directory.write(str(tmp_path), NAME, CAPTURE, None)
    path.write_bytes(path.read_bytes()[:-3] if data is None else data)
    path.chmod(0o600)
    _refused(path, reason)


def test_a_key_with_another_part_is_the_key_of_the_parts() -> None:
    parts = {name: {"a": 1} for name in ORDER}
    others = {**parts, "system": {"cuda_device_0": "another"}}
    changed = GraphKey.of(parts).with_part("system", others["system"])
    assert changed.digest == GraphKey.of(others).digest
    assert [one.digest for one in changed.components] == [one.digest for one in GraphKey.of(others).components]
