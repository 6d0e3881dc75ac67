"""`cache export` and `cache import`: what they write, what they say, and what they refuse."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fxpool.codecache.bundle.authentication import new_key
from fxpool.codecache.store.entry import Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["cache", *arguments])


def key_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "c"))
    for number in (1, 2, 3):
        add(store, number)
    return store


def add(store: LocalStore, number: int, created: float = 0.0) -> None:
    metadata = Metadata(label=f"graph {number}", created=created or 1.7e9 + 86400 * number)
    store.publish(Entry(key=key_of(number), metadata=metadata), {"result": b"%d" % number, "kernels": b"shared"})


@pytest.fixture
def other(tmp_path: Path) -> dict[str, str]:
    return {"FXPOOL_CACHE_DIR": str(tmp_path / "other")}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "all.fxb")


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(new_key() + "\n")
    return str(file)


def shown(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_to_another_directory_and_back(store: LocalStore, path: str, other: dict[str, str]) -> None:
    exported = run("export", path)
    assert exported.exit_code == 0 and "wrote 3 entries and 4 blobs" in exported.output
    imported = run("import", path, **other)
    assert imported.exit_code == 0 and "3 entries and 4 blobs new in" in imported.output
    assert run("verify", **other).output == "3 sound, 0 unreadable, 0 incomplete\n"
    again = shown(run("import", path, "--json", **other))
    assert again["bundles"] == [{"file": path, "entries": 0, "blobs": 0, "already_there": 3}]
    assert "3 entries already there" in run("import", path, **other).output


def test_what_is_exported_can_be_chosen(store: LocalStore, path: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"# the decoder\n{key_of(1)}\n\n")
    for arguments, entries in (
        ([key_of(1)[:12]], 1),
        ([key_of(1)[:12].upper(), key_of(2)], 2),
        (["--keys", str(keys)], 1),
        (["--keys", str(keys), key_of(3)], 2),
        (["--since", "2023-11-16T12:00+00:00"], 2),
        (["--since", "1h"], 0),
        ([], 3),
    ):
        assert shown(run("export", path, *arguments, "--json"))["entries"] == entries, arguments
    add(store, 4, created=time.time())
    assert shown(run("export", path, "--since", "1h", "--json"))["entries"] == 1


def test_a_key_that_no_entry_has(store: LocalStore, path: str, tmp_path: Path) -> None:
    for arguments in (["abcdef"], ["--keys", os.devnull, "abcdef"]):
        result = run("export", path, *arguments)
        assert result.exit_code == 2 and "no entry has a key that starts with 'abcdef'" in result.stderr
    assert not os.path.exists(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "is not a text file" in run("export", path, "--keys", str(tmp_path / "binary")).stderr


def test_increments_and_their_order(store: LocalStore, path: str, tmp_path: Path, other: dict[str, str]) -> None:
    more = str(tmp_path / "more.fxb")
    run("export", path)
    add(store, 4)
    exported = shown(run("export", more, "--since", path, "--json"))
    assert (exported["entries"], exported["blobs"], exported["expected_blobs"]) == (1, 1, 1)
    for files in ([more], [more, path]):
        refused = run("import", *files, **other)
        assert refused.exit_code == 2 and "import the bundles it builds on first" in refused.stderr
        assert not os.path.exists(other["FXPOOL_CACHE_DIR"])
    assert [one["entries"] for one in shown(run("import", path, more, "--json", **other))["bundles"]] == [3, 1]
    assert "4 sound" in run("verify", **other).output


def test_one_damaged_file_keeps_all_out(store: LocalStore, path: str, tmp_path: Path, other: dict[str, str]) -> None:
    run("export", path)
    data = Path(path).read_bytes()
    damaged = tmp_path / "damaged.fxb"
    damaged.touch(0o600)
    damaged.write_bytes(data[:100] + b"?" + data[101:])
    result = run("import", path, str(damaged), **other)
    assert result.exit_code == 1 and "its digest is wrong" in result.stderr and "nothing was imported" in result.stderr
    assert not os.path.exists(other["FXPOOL_CACHE_DIR"])
    assert run("export", str(tmp_path / "new"), "--since", str(damaged)).exit_code == 1
    assert run("export", str(tmp_path / "new"), "--since", "yesterday").exit_code == 2


def test_keys_seal_and_are_demanded(
    store: LocalStore, path: str, key_file: str, tmp_path: Path, other: dict[str, str]
) -> None:
    plain = str(tmp_path / "plain.fxb")
    run("export", plain)
    assert "sealed" in run("export", path, "--key-file", key_file).output
    assert shown(run("export", path, "--json", FXPOOL_REMOTE_KEY_FILE=key_file))["sealed"]
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text(new_key())
    for arguments, said in (
        ([plain, "--key-file", key_file], "it has no MAC"),
        ([plain, "--key-file", key_file, "--trust"], "it has no MAC"),
        ([path, "--key-file", str(wrong)], "not authentic"),
        ([path, "--key-file", str(tmp_path / "none")], "cannot read the key file"),
    ):
        refused = run("import", *arguments, **other)
        assert refused.exit_code == 2 and said in refused.stderr, arguments
    assert not os.path.exists(other["FXPOOL_CACHE_DIR"])
    os.chmod(path, 0o666)  # whose file it is does not matter to who has the key
    assert run("import", path, FXPOOL_REMOTE_KEY_FILE=key_file, **other).exit_code == 0


def test_a_file_of_others_needs_trust(store: LocalStore, path: str, other: dict[str, str]) -> None:
    run("export", path)
    os.chmod(path, 0o666)
    refused = run("import", path, **other)
    assert refused.exit_code == 2 and "--trust" in refused.stderr
    assert not os.path.exists(other["FXPOOL_CACHE_DIR"])
    assert run("import", path, "--trust", **other).exit_code == 0


def test_entries_without_their_blobs_are_left_out(store: LocalStore, path: str) -> None:
    (entry,) = store.entries(key_of(1))
    store.remove_blob(entry.blobs["result"])
    result = run("export", path)
    assert "wrote 2 entries and 3 blobs" in result.output and "left out: 1 entry" in result.output


def test_there_is_nothing_to_export(tmp_path: Path, path: str) -> None:
    result = run("export", path, FXPOOL_CACHE_DIR=str(tmp_path / "nowhere"))
    assert result.exit_code == 2 and "no cache in" in result.stderr
    assert not (tmp_path / "nowhere").exists() and not os.path.exists(path)


def test_a_place_that_can_not_be_written(store: LocalStore, tmp_path: Path) -> None:
    result = run("export", str(tmp_path / "no" / "b.fxb"))
    assert result.exit_code == 2 and "name a file in" in result.stderr
