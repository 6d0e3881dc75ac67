"""A pool that is started before the first graph comes, and one that is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from processes import run_python

import fxpool

PROGRAM = """
import json, sys, psutil, torch
def is_server(process):
    try: return "server" + ".server" in " ".join(process.cmdline())
    except psutil.Error: return False  # a compiler that has ended
def children(): return sum(map(is_server, psutil.Process().children()))
before, (mode, call) = children(), sys.argv[1:]
function = torch.compile(lambda x: x @ x, backend="fxpool", options={"mode": mode})
asked = children()
if call == "call": function(torch.ones(3, 3))
print(json.dumps([before, asked, children()]))
"""


def children_of(mode: str, call: str, **environment: str) -> list[int]:
    """Children of a program before it asks for the backend, after that, and at its end. A server of its own is one."""
    printed = run_python(["-c", PROGRAM, mode, call], FXPOOL_POOL="embedded", **environment)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.slow
def test_asking_for_the_backend_starts_a_pool_where_nothing_is_kept(cache: Path) -> None:
    assert children_of("subprocess", "do not call") == [0, 1, 1]


@pytest.mark.slow
def test_the_compiler_lists_headers_meanwhile(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert children_of("subprocess", "do not call", FXPOOL_CACHE_DIR=str(kept)) == [0, 1, 1]
    answers = [json.loads(path.read_bytes()) for path in (kept / "toolchain").rglob("*.json")]
    assert [answer for answer in answers if "paths" in answer]


@pytest.mark.slow
def test_so_it_does_for_compiles_in_the_background_where_a_core_is_free(cache: Path) -> None:
    mode = "async+subprocess"
    ahead = int(len(os.sched_getaffinity(0)) > 2)
    assert children_of(mode, "do not call", TORCHINDUCTOR_FX_COMPILE_MODE=mode) == [0, ahead, ahead]


@pytest.mark.slow
def test_where_something_is_kept_the_first_graph_may_be_a_hit(shared_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()
    torch.compile(lambda x: x @ x, backend="fxpool")(torch.ones(3, 3))
    assert fxpool.stats()["entries_written"] == 1
    assert children_of("subprocess", "do not call") == [0, 0, 0]


@pytest.mark.slow
def test_a_graph_that_is_compiled_here_ends_it(cache: Path) -> None:
    assert children_of("normal", "call") == [0, 1, 0]
