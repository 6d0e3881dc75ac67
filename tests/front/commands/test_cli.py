from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner, Result

import fxpool
from fxpool.codecache.store import catalogue, host_statistics
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


def test_the_hit_rate_and_counters_set_to_zero(store: LocalStore) -> None:
    assert (
        "hit rate" not in run("stats").output and json.loads(run("stats", "--json").output)["host"]["hit_rate"] is None
    )
    counted = {"hits": 6, "misses": 1, "guard_misses": 1}
    host_statistics.add(store.root, host_statistics.Totals(processes=2, counted=counted))
    assert "hit rate                 75 %" in run("stats").output
    result = run("stats", "--zero")
    assert result.exit_code == 0 and f"the counters in {store.root} are zero now" in result.output
    data = json.loads(run("stats", "--json").output)
    assert (data["host"]["total"]["hits"], data["host"]["days"], data["entries"]) == (0, {}, 2)


def test_the_summary_is_one_line(store: LocalStore) -> None:
    assert run("stats", "--summary").output == "fxpool: 0 hits, 0 misses, 0 compiles, 0s saved\n"
    counted, compiles = {"hits": 41, "misses": 2}, {"compiles": {"worker": 1, "in_process": 1}}
    totals = host_statistics.Totals(processes=3, counted=counted, reasons=compiles, seconds_saved=192.2)
    host_statistics.add(store.root, totals)
    assert run("stats", "--summary").output == "fxpool: 41 hits, 2 misses, 2 compiles, 3m12s saved\n"


def test_the_summary_of_a_missing_directory() -> None:
    assert run("stats", "--summary").output == "fxpool: 0 hits, 0 misses, 0 compiles, 0s saved\n"


def test_cache_rm(store: LocalStore) -> None:
    first, other = sorted({stored.key for stored in store.scan()})
    refused = run("cache", "rm", first[:8], input="n\n")
    assert refused.exit_code == 1 and "aborted, nothing was changed" in refused.stderr
    assert store.sizes()["entries"] == 2
    result = run("cache", "rm", first[:8], "--yes")
    assert result.exit_code == 0 and "removed 1 entry and 1 blob, " in result.output and "freed" in result.output
    assert [stored.key for stored in store.scan()] == [other]
    assert store.sizes()["blobs"] == 1 and run("cache", "verify").exit_code == 0


def test_cache_rm_leaves_what_others_use(store: LocalStore) -> None:
    stored = next(store.scan())
    assert stored.entry is not None
    twin = msgspec.structs.replace(stored.entry, key="ab" * 32)
    store.publish(twin, {"own": b"own" * 100})
    result = run("cache", "rm", "abab", "--yes")
    assert "removed 1 entry and 1 blob" in result.output and "left: 1 blob that other entries may use" in result.output
    assert store.complete(stored.entry)
    # An entry that cannot be read may need any blob.
    unreadable = next(other for other in store.scan() if other.key != stored.key)
    Path(store.root, unreadable.path).write_bytes(b"of another version")
    assert "removed 1 entry and 0 blobs" in run("cache", "rm", stored.key, "--yes").output


def test_cache_rm_of_nothing_or_of_too_much(store: LocalStore, tmp_path: Path) -> None:
    for key in ("zz", ""):
        result = run("cache", "rm", key, "--yes")
        assert result.exit_code == 2 and f"no entry has a key that starts with {key!r}" in result.stderr
    store.publish(Entry(key="ab" * 32, components=[]), {})
    store.publish(Entry(key="ab" * 31 + "ac", components=[]), {})
    result = run("cache", "rm", "abab", "--yes")
    assert result.exit_code == 2 and "2 keys start with 'abab'\n  ababab" in result.stderr
    store.clear()
    assert store.sizes()["entries"] == 0
    assert run("cache", "rm", "ab").exit_code == 2


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
    blob = next(catalogue.blobs(store.root))
    Path(store.root, blob.path).write_bytes(b"something else")
    entry = next(store.scan())
    Path(store.root, entry.path).write_bytes(b"no entry")
    result = run("cache", "verify")
    assert result.exit_code == 1
    assert "1 unreadable" in result.output and f"unreadable: {store.root}/{entry.path}" in result.output


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
