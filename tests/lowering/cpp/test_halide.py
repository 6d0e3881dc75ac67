"""Halide programs that Inductor generates: built in a worker, kept, and loaded without Halide or a compiler."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from typing import Any

import pytest
import torch
from programs import Programs

import fxpool
from fxpool.codecache.key import source_toolchain
from fxpool.errors import NoHalideError
from fxpool.lowering.cpp.built_libraries import BuiltLinking
from fxpool.torch_compat.cpp import source_kernels
from fxpool.torch_compat.cpp.source_kernels import Built

HALIDE = {"cpu_backend": "halide"}
needs_halide = pytest.mark.skipif(importlib.util.find_spec("halide") is None, reason="no halide (pip install halide)")

# Two kernels; `seen` has the programs that this process started.
MAIN = """
import sys
import torch
seen = []
sys.addaudithook(lambda event, given: seen.append(str(given[1])) if event == "subprocess.Popen" else None)
def function(x, y):
    z = (x.sin() * y).sum(1)
    return z.cos(), (x @ y.t()).relu() + z
inputs = [torch.linspace(-2, 2, 32).reshape(4, 8), torch.linspace(0, 1, 32).reshape(4, 8)]
imported = lambda: "halide" in sys.modules
"""


@needs_halide
def test_a_hit_runs_neither_halide_nor_a_compiler(programs: Programs) -> None:
    first = programs.run(MAIN, options=HALIDE)
    second = programs.run(MAIN, options=HALIDE)
    for report, worker, hits in ((first, 1, 0), (second, 0, 1)):
        stats = report["stats"]
        assert report["lowerings"] == 0
        assert (stats["compiles"]["worker"], stats["compiles"]["in_process"], stats["hits"]) == (worker, 0, hits)
        assert not stats["fallbacks"], "no part was left to torch's loader"
    assert not second["seen"], "no generator and no compiler"


def test_without_halide_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "halide", None)
    before = fxpool.stats()
    torch._dynamo.reset()
    with pytest.raises(Exception, match="pip install halide") as raised:
        torch.compile(torch.sin, backend="fxpool", options=HALIDE)(torch.ones(3))
    assert isinstance(raised.value.__cause__ or raised.value, NoHalideError) or "NoHalideError" in str(raised.value)
    after = fxpool.stats()
    assert (after["compiles"], after["fallbacks"]) == (before["compiles"], before["fallbacks"]), "nothing was tried"


def test_a_graph_on_another_device_needs_no_halide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "halide", None)
    with torch._inductor.config.patch(HALIDE):
        source_toolchain.require({"cuda"})
        with pytest.raises(NoHalideError):
            source_toolchain.require({"cpu"})


@needs_halide
def test_halides_version_is_in_the_key() -> None:
    with torch._inductor.config.patch(HALIDE):
        assert source_toolchain.key_facts()[source_toolchain.SOURCES]["halide"]["version"]


def test_kernels_share_a_runtime() -> None:
    linking = BuiltLinking(None)
    try:
        for number in range(2):
            linking.take("h", f"digest {number}", functools.partial(Built, b"kernel %d" % number, b"runtime"))
        linking.take("h", "digest 0", lambda: pytest.fail("built twice"))
        assert linking.names == {"digest 0": "h0", "digest 1": "h1"}
        assert linking.libraries() == [b"kernel 0", b"kernel 1", b"runtime"]
    finally:
        linking.close()


def test_a_generated_call_has_the_digest_of_what_it_asks_for() -> None:
    from torch._inductor.runtime.hints import HalideInputSpec, HalideMeta

    taken: list[str] = []
    meta = HalideMeta([HalideInputSpec("float*", "in_ptr0", ["8L"], ["1L"], "0")], "host-no_runtime", "Anderson2021")

    def take(kind: str, digest: str, source: str, build: Any) -> None:
        taken.append(digest)

    with source_kernels.collecting(take):
        from torch._inductor.async_compile import AsyncCompile

        made = AsyncCompile().halide(meta, "import halide")
    with pytest.raises(RuntimeError, match="in the process that compiled it"):
        made()
    call = ast.parse(f"async_compile.halide({meta!r}, '''import halide''')", mode="eval").body
    assert isinstance(call, ast.Call)
    assert taken == [source_kernels.generated_digest(call)]
