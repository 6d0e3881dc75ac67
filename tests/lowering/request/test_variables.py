"""Every variable of the environment that changes what Triton compiles is in the key, and a worker gets it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from capturing import captured, key_of
from processes import run_python

from fxpool.codecache.key import system_facts
from fxpool.lowering.request import ambient_state, environment_variables

X = torch.ones(4, 4)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")

# Sets every variable that the library or `knobs` names, in a process of its own, and asks which invalidate the cache.
ASKING = r"""
import json, mmap, os, re, sys
from triton._C import libtriton
with open(libtriton.__file__, "rb") as library:
    data = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
sections, count, names = (int.from_bytes(data[at : at + size], "little") for at, size in ((40, 8), (60, 2), (62, 2)))
def header(number):
    row = data[sections + 64 * number : sections + 64 * number + 64]
    return int.from_bytes(row[:4], "little"), int.from_bytes(row[24:32], "little"), int.from_bytes(row[32:40], "little")
texts = header(names)[1]
(constants,) = (h for h in map(header, range(count)) if data[texts + h[0] : texts + h[0] + 8] == b".rodata\0")
words = re.findall(rb"\0([A-Z][A-Z0-9]*_[A-Z0-9_]{2,60})(?=\0)", data[constants[1] : constants[1] + constants[2]])
import triton.knobs
read = re.findall(r'"([A-Z][A-Z0-9_]{4,})"', open(triton.knobs.__file__).read())
for word in {*(w.decode() for w in words), *read, *sys.argv[1:]}:
    os.environ.setdefault(word, "1")
print(json.dumps([sorted(libtriton.get_cache_invalidating_env_vars()), read]))
"""

# Variables that `triton.knobs` reads and that change no code.
NEUTRAL = {
    "CC": "compiles launchers, which fxpool brings itself",
    "TRITON_CUDACRT_PATH": "where launchers find headers",
    "TRITON_CUDART_PATH": "where launchers find headers",
    "TRITON_HOME": "where things are kept",
    "TRITON_CACHE_DIR": "where things are kept",
    "TRITON_DUMP_DIR": "where things are kept",
    "TRITON_OVERRIDE_DIR": "read under TRITON_KERNEL_OVERRIDE, under which nothing is kept",
    "TRITON_CACHE_MANAGER": "who keeps things",
    "TRITON_REMOTE_CACHE_BACKEND": "who keeps things",
    "TRITON_KERNEL_DUMP": "writes what is compiled",
    "TRITON_STORE_BINARY_ONLY": "which files are kept",
    "TRITON_ALWAYS_COMPILE": "whether Triton's own cache is used",
    "TRITON_FRONT_END_DEBUGGING": "how errors are shown",
    "TRITON_CACHE_AUTOTUNING": "Triton's own tuner",
    "TRITON_PRINT_AUTOTUNING": "Triton's own tuner",
    "TRITON_DUMP_PTXAS_LOG": "what is shown",
    "TRITON_LIBDEVICE_PATH": "counts by content",
    "TRITON_PTXAS_PATH": "counts by content",
    "TRITON_LIBCUDA_PATH": "links launchers",
    "TRITON_LIBHIP_PATH": "links launchers",
}
OF_A_PROFILER = ("TRITON_PROTON_", "TRITON_PROFILE_", "TRITON_CUPTI_", "TRITON_HSA_", "TRITON_ROC", "TRITON_ENABLE_HW_",
                 "TRITON_ENABLE_NVTX", "TRITON_REDIS_")  # fmt: skip


@needs_triton
def test_what_triton_says_is_in_the_key_and_travels() -> None:
    invalidating, read = json.loads(run_python(["-c", ASKING, *environment_variables._OF_TRITON]).splitlines()[-1])
    assert len(invalidating) > 25
    assert len(read) >= 50
    assert set(invalidating) <= set(environment_variables._OF_TRITON)
    assert all(environment_variables.in_key(name) and environment_variables.travels(name) for name in invalidating)
    undecided = {
        name
        for name in read
        if not (environment_variables.in_key(name) and environment_variables.travels(name))
        and name not in (*NEUTRAL, *environment_variables.FROM_FILES)
        and not name.startswith(OF_A_PROFILER)
    }
    assert not undecided


@pytest.mark.parametrize(
    "name", ["TRITON_FORCE_DISABLE_FP_FUSION", "DISABLE_LLVM_OPT", "DISABLE_MMA_V5", "PTXAS_OPTIONS", "USE_IR_LOC"]
)
def test_a_variable_of_tritons_is_in_the_key(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    plain = key_of(torch.sin, X)
    monkeypatch.setenv(name, "1")
    assert key_of(torch.sin, X) != plain
    assert ambient_state.capture(before_autograd=True).environment[name] == "1"


def test_variables_about_processes_are_not_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = key_of(torch.sin, X)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_WORKER_WATCHDOG_INTERVAL", "7")
    monkeypatch.setenv("TORCH_COMPILE_WORKER_MODE", "thread")
    monkeypatch.setenv("TRITON_KERNEL_DUMP", "1")
    assert key_of(torch.sin, X) == plain


@pytest.mark.parametrize(("name", "value"), [("TRITON_KERNEL_OVERRIDE", "1"), ("TRITON_SWAP_MIR", "/some/where")])
def test_code_from_files_is_not_kept(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    (found,) = captured(torch.sin, X)
    assert found.bypass is not None
    assert found.bypass.reason == "triton_override"
    monkeypatch.setenv(name, "0")
    (found,) = captured(torch.sin, X)
    assert found.bypass is None


def test_plugins_count_by_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, two = tmp_path / "one.so", tmp_path / "two.so"
    found = []
    for content in (b"\0a", b"\0b"):
        one.write_bytes(content)
        two.write_bytes(b"\0c")
        monkeypatch.setenv("TRITON_PLUGIN_PATHS", f"{two}:{one}")
        found.append(system_facts._assemblers(None)["triton_plugin_paths"])
    assert found[0] != found[1]
    monkeypatch.setenv("TRITON_PLUGIN_PATHS", str(tmp_path / "none.so"))
    assert "triton_plugin_paths" not in system_facts._assemblers(None)


@needs_triton
def test_a_worker_reads_what_triton_reads_when_it_is_imported() -> None:
    program = """
import os
for name in ("PTXAS_OPTIONS", "TRITON_DEBUG", "TRITON_INSTRUMENTATION_MODE"):
    os.environ.pop(name, None)
import triton.knobs
from triton.backends.nvidia.compiler import CUDAOptions
from fxpool.torch_compat.inductor import preload
preload.settle_assembler()
before = CUDAOptions()
assert before.ptx_options is None
os.environ.update(PTXAS_OPTIONS="--verbose", TRITON_DEBUG="1", TRITON_INSTRUMENTATION_MODE="fpsan")
preload.settle_assembler()
assert CUDAOptions().ptx_options == "--verbose"
assert CUDAOptions(num_warps=8).num_warps == 8
assert (triton.knobs.runtime.debug, triton.knobs.compilation.instrumentation_mode) == (True, "fpsan")
for name in ("PTXAS_OPTIONS", "TRITON_DEBUG", "TRITON_INSTRUMENTATION_MODE"):
    del os.environ[name]
preload.settle_assembler()
assert CUDAOptions() == before
assert not triton.knobs.runtime.debug
"""
    run_python(["-c", program])


@pytest.mark.parametrize("name", ["REDIS_URL", "REDIS_HOST", "REDIS_PORT", "FX_GRAPH_REMOTE_CACHE"])
def test_addresses_of_remote_caches_stay_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may contain passwords, and say nothing of the code: machines that share a cache may reach it differently."""
    before = key_of(torch.sin, X)
    monkeypatch.setenv(f"TORCHINDUCTOR_{name}", "redis://user:planted@host")
    (graph,) = captured(torch.sin, X)
    assert key_of(torch.sin, X) == before
    assert "planted" not in str(graph.request.ambient)
