"""Facts for the key: the same in every process, and asked of no device that is not used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fxpool.codecache.key import system_facts

_PROGRAM = """
import json, sys
from fxpool.codecache.key import system_facts
facts = {**system_facts.system_facts(), **system_facts.device_facts({"cpu", "meta"})}
import torch
assert not torch.cuda.is_initialized()
print(json.dumps(facts))
"""


def test_another_process_finds_the_same() -> None:
    facts = system_facts.system_facts()
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd="/",
        env={**os.environ, "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == facts


def test_what_is_in_them() -> None:
    import torch

    facts = system_facts.system_facts()
    assert facts["torch"] == torch.__version__ and len(str(facts["torch_git"])) >= 7
    assert re.fullmatch("[0-9a-f]{64}", str(facts["torch_files"]))
    assert re.fullmatch("[0-9a-f]{64}", str(facts["fxpool_files"]))
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in str(facts["python"])
    for value in facts.values():
        assert isinstance(value, (str, int))
        assert not re.search(r"(^|\s)/\w", str(value)), f"a path: {value}"
        assert os.uname().nodename not in str(value).split()
    facts["torch"] = "changed by the caller"
    assert system_facts.system_facts()["torch"] == torch.__version__


def test_an_assembler_of_the_environments_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ptxas"
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))
    assert system_facts._assemblers(None) == {}, "not there: Triton takes its own"
    found = []
    for text in ("one", "two"):
        path.write_text(f"#!/bin/sh\necho {text}")
        found.append(system_facts._assemblers(None))
    assert found[0] != found[1] and found[0].keys() == {"triton_ptxas_path"}
    import torch

    monkeypatch.setenv("TRITON_PTXAS_PATH", os.path.join(os.path.dirname(torch.__file__), "__init__.py"))
    assert system_facts._assemblers(None) == {}, "counted with torch's files"


def test_graphs_on_the_cpu_touch_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked"))
    assert system_facts.device_facts({"cpu"}) == {} == system_facts.device_facts(set())


def test_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Properties:
        name, major, minor, multi_processor_count, warp_size = "NVIDIA H200", 9, 0, 132, 32

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    one = system_facts.device_facts({"cuda", "cpu"})
    assert one["cuda_targets"] == "sm_90" and "H200 9.0" in str(one["cuda_devices"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert system_facts.device_facts({"cuda"}) == one
    monkeypatch.setattr(Properties, "minor", 3)
    assert system_facts.device_facts({"cuda"}) != one


def test_a_device_nobody_knows() -> None:
    assert system_facts.device_facts({"privateuseone"}) == {"privateuseone_devices": "unknown"}


def test_extensions() -> None:
    x86 = "processor: 0\nflags\t\t: fpu sse4_2 avx2 hypervisor avx512f sha_ni constant_tsc\n"
    assert system_facts._extensions_in(x86) == ["avx2", "avx512f", "sha_ni", "sse4_2"]
    assert system_facts._extensions_in(x86 + x86.replace("avx512f ", "")) == ["avx2", "sha_ni", "sse4_2"]
    assert system_facts._extensions_in("Features\t: fp asimd sve bf16\n") == ["asimd", "bf16", "fp", "sve"]
    assert system_facts._extensions_in("no such line") == []


def test_own_sources_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = system_facts.own_source_digest()
    (tmp_path / "new.py").write_text("x = 1")
    real = system_facts._sources_of

    def more(package: str) -> list[tuple[str, str]]:
        return [*real(package), ("new.py", str(tmp_path / "new.py"))]

    monkeypatch.setattr(system_facts, "_sources_of", more)
    system_facts.own_source_digest.cache_clear()
    try:
        with_new = system_facts.own_source_digest()
        (tmp_path / "new.py").write_text("x = 2")
        system_facts.own_source_digest.cache_clear()
        assert len({before, with_new, system_facts.own_source_digest()}) == 3
    finally:
        system_facts.own_source_digest.cache_clear()
