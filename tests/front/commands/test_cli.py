from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import fxpool
from fxpool.codecache.store.entry import Component, Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main
from fxpool.torch_compat.cuda import common_devices, device_facts


def run(*arguments: str, **kwargs: Any) -> Result:
    return CliRunner().invoke(main, list(arguments), **kwargs)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "c"))
    for label in ("gpt2 [forward]", "mlp"):
        entry = Entry(
            key=hashlib.sha256(label.encode()).hexdigest(),
            components=[Component("graph", "ab" * 32, "3 nodes")],
            metadata=Metadata(label=label, created=1.0, compile_seconds=2.5, torch_version="2.13.0"),
        )
        store.publish(entry, {"module": label.encode() * 100})
    return store


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"fxpool {fxpool.__version__}\n")


def test_an_empty_store_is_not_created_by_looking_at_it(tmp_path: Path) -> None:
    for command in (["stats"], ["cache", "ls"], ["cache", "verify"], ["cache", "clear"], ["cache", "gc"]):
        assert run(*command).exit_code == 0
    assert not (tmp_path / "c").exists()


def test_stats(store: LocalStore) -> None:
    data = json.loads(run("stats", "--json").output)
    assert (data["entries"], data["blobs"], data["compile_seconds"]) == (2, 2, 5.0)
    assert data["cache_dir"] == store.root
    assert "5.0 s" in run("stats").output


def test_cache_ls(store: LocalStore) -> None:
    lines = [json.loads(line) for line in run("cache", "ls", "--json").output.splitlines()]
    assert {line["label"] for line in lines} == {"gpt2 [forward]", "mlp"}
    shown = run("cache", "ls").output
    # Square brackets are markup to rich.
    assert "gpt2 [forward]" in shown and lines[0]["key"][:12] in shown


def test_cache_show(store: LocalStore) -> None:
    key = json.loads(run("cache", "ls", "--json").output.splitlines()[0])["key"]
    shown = run("cache", "show", key[:10]).output
    assert key in shown and "graph: abababababab 3 nodes" in shown and "module:" in shown
    (details,) = json.loads(run("cache", "show", key, "--json").output)
    assert details["components"] == [{"name": "graph", "digest": "ab" * 32, "text": "3 nodes"}]


def test_cache_show_of_nothing_or_of_too_much(store: LocalStore) -> None:
    result = run("cache", "show", "zz")
    assert result.exit_code == 2 and "no entry has a key that starts with 'zz'" in result.stderr
    assert run("cache", "show", "").exit_code == 2


def test_cache_verify_finds_damage(store: LocalStore) -> None:
    assert run("cache", "verify").exit_code == 0
    blob = next(store.scan_blobs())
    Path(blob.path).write_bytes(b"something else")
    entry = next(store.scan())
    Path(entry.path).write_bytes(b"no entry")
    result = run("cache", "verify")
    assert result.exit_code == 1
    assert "1 unreadable" in result.output and "unreadable: " + entry.path in result.output


def test_cache_clear_asks(store: LocalStore) -> None:
    assert run("cache", "clear", input="n\n").exit_code == 1
    assert store.sizes()["entries"] == 2
    assert run("cache", "clear", "--yes").exit_code == 0
    assert store.sizes() == {"entries": 0, "blobs": 0, "bytes": 0}


def test_mistakes_end_with_one_message_and_status_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FXPOOL_STRICT", "maybe")
    result = run("stats")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("fxpool: FXPOOL_STRICT: 'maybe' is not")
    monkeypatch.delenv("FXPOOL_STRICT")
    unsafe = tmp_path / "c"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    result = run("cache", "ls")
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert run("nothing").exit_code == 2


def test_python_dash_m(python: str, tmp_path: Path) -> None:
    done = subprocess.run([python, "-m", "fxpool", "cache", "show", "ab"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("fxpool: no entry") and "Traceback" not in done.stderr


def test_device_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run("device")
    assert result.exit_code == 1
    assert "sees no CUDA device" in result.output


def test_device_tells_facts_and_which_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [common_devices.COMMON[name] for name in ("NVIDIA H200", "NVIDIA H200", "NVIDIA A100-SXM4-80GB")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(device_facts, "capture", kinds.__getitem__)
    lines = run("device").output.splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert ["sm_90" in line for line in lines] == [True, True, False]
    assert ["shares compiled graphs with device 0" in line for line in lines] == [False, True, False]
    facts = [json.loads(line) for line in run("device", "--json").output.splitlines()]
    assert [fact["capability"] for fact in facts] == [[9, 0], [9, 0], [8, 0]]
    assert facts[0]["driver"]["max_shared_mem"] == 227 << 10
