"""The first use of fxpool in several threads at once, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from processes import run_python

THREADS = """
import json, os, sys, threading
import torch

def in_threads(*works):
    together, said = threading.Barrier(len(works)), [""] * len(works)
    def run(number):
        together.wait()
        try:
            works[number]()
        except BaseException as error:
            said[number] = f"{type(error).__name__}: {error}"
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return said

def work(number, backend="fxpool"):
    def graph(x):
        return (x * (number + 1)).sin()
    def run():
        x = torch.randn(8)
        torch.testing.assert_close(torch.compile(graph, backend=backend)(x), graph(x))
    return run
"""

COMPILES = """
assert "fxpool.lowering.entry_point" not in sys.modules
said = in_threads(*map(work, range(4)))
assert "fxpool" in torch._dynamo.list_backends()
import fxpool
print(json.dumps([said, len(fxpool.stats()["graphs"])]))
"""

EVERYTHING = """
import fxpool
def install():
    fxpool.install()
    from torch._inductor.async_compile import AsyncCompile
    from fxpool.lowering.inductor.pools import KernelPool
    assert isinstance(AsyncCompile.process_pool(), KernelPool), "it was still at it"
def settings():
    assert fxpool.configure(workers=1).workers == 1
def looks():
    for _ in range(200):
        fxpool.stats(), fxpool.wait(0)
said = in_threads(work(0), install, settings, looks, work(1), install, fxpool.close, looks)
fxpool.uninstall()
print(json.dumps(said))
"""


# With any back end, "eager" too.
crashes = pytest.mark.skipif(
    torch.__version__.startswith("2.11."), reason="this torch's Dynamo crashes when threads compile at once"
)


@pytest.mark.slow
@crashes
def test_the_first_compiles_of_a_program_that_imports_torch_alone(shared_pool: Path, cache: Path) -> None:
    printed = run_python(["-c", THREADS + COMPILES])
    assert json.loads(printed.splitlines()[-1]) == [[""] * 4, 4]


@pytest.mark.slow
@crashes
def test_everything_public_at_once(shared_pool: Path, cache: Path) -> None:
    printed = run_python(["-c", THREADS + EVERYTHING], FXPOOL_POOL="embedded")
    assert json.loads(printed.splitlines()[-1]) == [""] * 8


def test_the_name_still_stands_for_one_backend() -> None:
    from torch._dynamo.backends import registry

    def other(gm: torch.fx.GraphModule, inputs: object) -> object:
        return gm

    ours = registry.lookup_backend("fxpool")
    registry.register_backend(ours, name="fxpool")
    with pytest.raises(AssertionError, match="duplicate name: fxpool"):
        registry.register_backend(other, name="fxpool")
    registry.register_backend(other, name="of_test_threads")
    assert registry.lookup_backend("of_test_threads") is other
    with pytest.raises(AssertionError, match="duplicate name: of_test_threads"):
        registry.register_backend(other, name="of_test_threads")
    assert registry.lookup_backend("fxpool") is ours
    assert {"fxpool", "of_test_threads"} <= set(registry.list_backends())
