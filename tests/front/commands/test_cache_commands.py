"""`stats` and `cache ...`: what they say is true, entries can be told apart, at any width."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import fxpool
from fxpool.codecache.store import catalogue, quarantine
from fxpool.codecache.store.entry import FORMAT_VERSION, Component, Entry, Metadata, Origin, decode_entry, encode_entry
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main

GPT2 = Origin(
    model="GPT2LMHeadModel",
    function="GPT2LMHeadModel.forward",
    file="transformers/models/gpt2/modeling_gpt2.py",
    line=712,
    inputs=["int64[2, 64]"],
    parameters=28,
)
STEP = Origin(function="main.step", file="train.py", line=17, resumed=True, part="backward", inputs=["float32[s0, 4]"])


def run(*arguments: str, columns: int | None = None, **kwargs: Any) -> Result:
    environment = {"COLUMNS": str(columns) if columns else None}
    return CliRunner(env=environment).invoke(main, list(arguments), **kwargs)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "c"))
    for number, origin in enumerate((GPT2, STEP, None)):
        entry = Entry(
            key=hashlib.sha256(str(number).encode()).hexdigest(),
            components=[Component("graph", "ab" * 32, "3 nodes\n" + "many words " * 30)],
            metadata=Metadata("graph 0 [0/0]", 1.7e9 + number, 2.5, "2.13.0", {"decided": "a b"}, origin),
        )
        store.publish(entry, {"module": str(number).encode() * 100})
    return store


def test_entries_can_be_told_apart(store: LocalStore) -> None:
    lines = run("cache", "ls").output.splitlines()
    assert len(lines) == 3 and len({line.split("  ", 1)[1] for line in lines}) == 3
    gpt2 = next(line for line in lines if "GPT2" in line)
    for part in (
        "GPT2LMHeadModel.forward",
        "modeling_gpt2.py:712",
        "int64[2, 64]",
        "28 parameters",
        "2023-11-1",
        "used",
    ):
        assert part in gpt2
    step = next(line for line in lines if "train.py" in line)
    assert "main.step (backward)  train.py:17 on  (float32[s0, 4])" in step
    assert sum("graph 0 [0/0]" in line for line in lines) == 1, "an entry without more is known by its label"


def test_names_of_an_entry_cannot_forge_lines(store: LocalStore) -> None:
    """A bundle or a remote cache may bring any entry."""
    forged = "step\nab12cd34ef56  forged\x1b[2K\r\u202e"
    origin = Origin(function=forged, file=forged, line=1, inputs=[forged])
    key = hashlib.sha256(b"forged").hexdigest()
    store.publish(Entry(key=key, metadata=Metadata(forged, 1.7e9, 2.5, "2.13.0", {"a": forged}, origin)), {})
    listed = run("cache", "ls", columns=1000).output
    assert len(listed.splitlines()) == 4 and not any(line.startswith("ab12cd34ef56") for line in listed.splitlines())
    for shown in (listed, run("cache", "show", key, columns=1000).output):
        assert "forged\\x1b[2K" in shown
        assert not {"\x1b", "\r", "\u202e"} & set(shown)


def test_what_is_known_is_in_the_json_too(store: LocalStore) -> None:
    rows = [json.loads(line) for line in run("cache", "ls", "--json").output.splitlines()]
    assert sorted(row["origin"]["model"] for row in rows if row["origin"]) == ["", "GPT2LMHeadModel"]
    assert [row["key"] for row in rows if row["origin"] is None]


def test_entries_from_before_there_were_origins_are_read(store: LocalStore) -> None:
    """Same format: a reader from before passes the new field over, and an entry from before has none."""
    plain = {"label": "graph 7", "created": 1.0, "compile_seconds": 2.0, "torch_version": "2.13.0", "extra": {}}
    old = msgspec.to_builtins(Entry(key="ab" * 32))
    old["metadata"] = plain
    entry = msgspec.convert(old, Entry)
    assert entry.metadata.origin is None and decode_entry(encode_entry(entry)) == entry
    again = decode_entry(encode_entry(msgspec.structs.replace(entry, metadata=Metadata(origin=GPT2))))
    assert again.metadata.origin == GPT2 and again.format_version == FORMAT_VERSION


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_are_no_longer_than_the_terminal_is_wide(store: LocalStore, columns: int) -> None:
    shown = run("cache", "ls", columns=columns).output
    # A path is not broken: it is copied, and the terminal breaks it.
    assert [line for line in shown.splitlines() if len(line) > columns and len(line.split()) > 1] == []
    # A part stays in one piece.
    for part in ("GPT2LMHeadModel.forward", "train.py:17 on", "(float32[s0, 4])"):
        assert part in shown
    for entry in store.scan():
        shown = run("cache", "show", entry.key, columns=columns).output
        # What is copied, a key or a path, is not broken: the terminal does that.
        assert [line for line in shown.splitlines() if len(line) > columns and len(line.split()) > 1] == []
        assert entry.key in shown
    keys = [entry.key for entry in store.scan()]
    explained = run("cache", "explain", *keys[:2], columns=columns).output.splitlines()
    assert [line for line in explained if len(line) > columns and len(line.split()) > 1] == []
    wide = run("stats", columns=columns).output.splitlines()
    assert [line for line in wide if len(line) > columns and store.root not in line] == []


def test_sizes_are_true(store: LocalStore) -> None:
    header = Path(store.root, "toolchain", "headers", "x.h.gch")
    header.parent.mkdir(parents=True)
    header.write_bytes(b"h" * 20_000_000)
    du = subprocess.run(["du", "-s", "-B1", store.root], capture_output=True, text=True, check=True)
    data = json.loads(run("stats", "--json").output)
    assert data["disk_bytes"] == int(du.stdout.split()[0]) == sum(part["bytes"] for part in data["parts"].values())
    shown = run("stats").output
    assert "precompiled headers" in shown and "19.1 MB" in shown
    assert "limited to 10.0 GB and 100,000 files" in " ".join(shown.split())
    assert (data["max_bytes"], data["max_files"], data["evicted"]) == (10 << 30, 100_000, None)
    assert data["disk_files"] == sum(part["files"] for part in data["parts"].values())
    fxpool.configure(cache_max_bytes="none", cache_max_files="none")
    assert "no limit" in run("stats").output


def age(store: LocalStore) -> None:
    """What was published just now is in use; make it old, the first entries most."""
    paths = [os.path.join(store.root, one.path) for one in (*store.scan(), *catalogue.blobs(store.root))]
    for number, path in enumerate(paths):
        os.utime(path, (time.time() - 10_000 + number,) * 2)


def test_gc_keeps_within_the_bounds_and_says_so(store: LocalStore) -> None:
    assert "removed 0 entries and 0 blobs (0 B)" in run("cache", "gc").output
    age(store)
    planned = run("cache", "gc", "--max-files", "6", "--dry-run")
    assert planned.exit_code == 0 and "would remove" in planned.output and store.sizes()["entries"] == 3
    done = run("cache", "gc", "--max-files", "6")
    assert done.exit_code == 0 and "removed 2 entries and 2 blobs" in done.output
    assert "limited to 10.0 GB and 6 files" in done.output
    assert store.sizes()["entries"] == 1
    assert "evicted so far  " in run("stats").output and "2 entries" in run("stats").output
    assert json.loads(run("stats", "--json").output)["evicted"]["entries"] == 2
    sizes = fxpool.stats()["store"]
    assert sizes is not None and sizes["evicted"] == 2


def test_gc_as_data(store: LocalStore) -> None:
    age(store)
    data = json.loads(run("cache", "gc", "--max-bytes", "1", "--max-files", "none", "--json").output)
    assert data["entries"] == data["blobs"] == 3 and data["freed_files"] == 6 and not data["failed"]
    assert (data["max_bytes"], data["max_files"], data["dry_run"]) == (1, None, False)
    assert data["over"] and data["left_bytes"] > 0, "directories and the index stay"


def test_gc_leaves_what_is_in_use_and_says_that(store: LocalStore) -> None:
    done = run("cache", "gc", "--max-files", "1")
    assert done.exit_code == 1 and store.sizes()["entries"] == 3
    assert "removed 0 entries" in done.output and "over the limits" in done.output


@pytest.mark.parametrize("arguments", [["--max-bytes", "much"], ["--max-files", "0"], ["--max-files", "-3"]])
def test_bounds_that_do_not_parse(store: LocalStore, arguments: list[str]) -> None:
    refused = run("cache", "gc", *arguments)
    assert refused.exit_code == 2 and "fxpool cache gc" in refused.stderr and store.sizes()["entries"] == 3


def test_clear_says_what_it_did(store: LocalStore) -> None:
    Path(store.root, "notes.txt").write_text("mine")
    asked = run("cache", "clear", input="n\n")
    assert asked.exit_code == 1 and "3 entries" in asked.output and "nothing was changed" in asked.stderr
    done = run("cache", "clear", "--yes")
    assert done.exit_code == 0 and "removed 3 entries, 3 blobs" in " ".join(done.output.split()).replace(" and", ",")
    assert "not touched: 1 file that fxpool did not write" in done.output
    assert os.listdir(store.root) == ["notes.txt"]


def test_one_is_one(store: LocalStore) -> None:
    for entry in list(store.scan())[1:]:
        store.remove(entry.key)
    assert "1 entry, 3 blobs" in run("cache", "clear", input="n\n").output.replace(" and", ",")
    quarantine.add(store.root, "ab" * 32, label="g", error="it died", log=None, function="step, train.py:12")
    row = json.loads(run("cache", "quarantine", "--json").output)
    assert row["function"] == "step, train.py:12" and (row["log"], row["limit"], row["value"]) == ("", "", 0.0)
    assert "g, step, train.py:12, 0 s ago: it died" in " ".join(run("cache", "quarantine").output.split())
    assert run("cache", "quarantine", "--release", "ab").output == "released 1 graph\n"


def test_a_directory_that_can_not_be_looked_into_is_said(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that it is empty, and not with a traceback."""
    real = os.scandir

    def closed(path: Any = ".") -> Any:
        if str(path) == store.root:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    for command in (["stats"], ["cache", "ls"], ["cache", "show", "ab"], ["cache", "verify"], ["cache", "clear"]):
        result = run(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert result.stderr == f"fxpool: {store.root}: Permission denied\n"


def test_a_name_that_is_no_directory_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / ("x" * 300), tmp_path / "file"):
        monkeypatch.setenv("FXPOOL_CACHE_DIR", str(path))
        result = run("cache", "ls")
        assert (
            result.exit_code == 2 and result.stderr.startswith("fxpool: ") and isinstance(result.exception, SystemExit)
        )
