"""A CPU that says more of itself than the compiler can do with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from processes import run_python

from fxpool.torch_compat.cpp import instruction_sets

PROGRAM = """
import json, sys, torch, fxpool
def function(x): return (x.sin() + 1).softmax(-1)
x = torch.randn(64, 33)
found = torch.compile(function, backend="fxpool")(x)
stats = fxpool.stats()
print(json.dumps([float((found - function(x)).abs().max()), stats["fallbacks"], stats["compiles"]]))
"""


@pytest.mark.slow  # Inductor's own probes build one program after another
def test_what_the_compiler_refuses_is_asked_about_and_compiled_again(tmp_path: Path) -> None:
    names = [name for name, _ in instruction_sets.candidates()]
    if not names or "avx512" not in names[0]:
        pytest.skip("no instruction set to refuse, with another below it")
    script = tmp_path / "g++"
    refusal = 'case "$*" in *mavx512*) echo "no avx512 here" >&2; exit 1;; esac'
    script.write_text(f'#!/bin/sh\n{refusal}\nexec {shutil.which("g++")} "$@"\n')
    script.chmod(0o700)
    (tmp_path / "c").mkdir(mode=0o700, exist_ok=True)
    out = run_python(["-c", PROGRAM], CXX=str(script), FXPOOL_CACHE_DIR=str(tmp_path / "c"))
    difference, fallbacks, compiles = json.loads(out.splitlines()[-1])
    assert difference < 1e-5
    assert (fallbacks, compiles) == ({}, {"worker": 1, "in_process": 0})
    kept = [json.loads(path.read_text()) for path in (tmp_path / "c" / "toolchain").glob("instruction-sets-*.json")]
    assert kept and all("avx512" not in name for facts in kept for name, _ in facts)
