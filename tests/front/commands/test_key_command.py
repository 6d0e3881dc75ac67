"""`fxpool cache key`: key files that the keyring takes, and that nobody else can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fxpool.codecache.bundle.authentication import Keyring
from fxpool.commands.main import main
from fxpool.errors import NotAuthenticError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", "key", *arguments])


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        result = run(str(tmp_path / "new" / "key"))
    finally:
        os.umask(before)
    assert result.exit_code == 0 and "FXPOOL_REMOTE_KEY_FILE=" in result.output
    file = tmp_path / "new" / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in result.output, "a terminal may be recorded"
    ring = Keyring.load(file)
    assert ring.open("name", ring.seal("name", b"data")) == b"data"


def test_two_files_have_two_keys(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(str(one)).exit_code == run(str(two)).exit_code == 0
    with pytest.raises(NotAuthenticError):
        Keyring.load(two).open("name", Keyring.load(one).seal("name", b"data"))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("my notes")
    result = run(str(file))
    assert result.exit_code == 2 and "--add" in result.output
    assert file.read_text() == "my notes"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert run(str(tmp_path / "link")).exit_code == 2
    assert not (tmp_path / "nowhere").exists()


def test_a_key_is_added_in_front(tmp_path: Path) -> None:
    file = tmp_path / "key"
    run(str(file))
    old = Keyring.load(file)
    file.write_text(f"# of the team\n{file.read_text()}")
    result = run(str(file), "--add")
    assert result.exit_code == 0 and "2 keys" in result.output
    both = Keyring.load(file)
    assert both.open("name", old.seal("name", b"data")) == b"data"
    with pytest.raises(NotAuthenticError):
        old.open("name", both.seal("name", b"data"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, "no key"])
def test_a_key_is_added_to_a_key_file_only(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    assert run(str(file), "--add").exit_code == 2
    assert (file.read_text() if file.exists() else None) == content


def test_a_directory_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(str(tmp_path / "file" / "key"))
    assert result.exit_code == 2 and "cannot write" in result.output
