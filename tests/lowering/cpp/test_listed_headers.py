"""When the headers of C++ are in a graph's key, and when a graph is not kept because of them."""

from __future__ import annotations

from pathlib import Path

import capturing
import pytest
import torch

import fxpool
from fxpool.codecache.key import headers, source_toolchain
from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.device_placement import Placement
from fxpool.lowering.worker import compiler
from fxpool.torch_compat.cpp import included_headers
from fxpool.torch_compat.cuda.common_devices import COMMON


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_graph_that_includes_another_header_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3

    compiled = torch.compile(function, backend="fxpool", options={"mode": "serialize"})
    with monkeypatch.context() as context:
        context.setattr(included_headers, "unasked", lambda source: {"mine.h"} if "sin(" in source else set())
        x = torch.rand(8)
        torch.testing.assert_close(compiled(x), function(x))
    stats = fxpool.stats()
    assert (stats["bypasses"], stats["entries_written"], stats["fallbacks"]) == ({"headers_unlisted": 1}, 0, {})
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(x), function(x))
    assert (fxpool.stats()["hits"], fxpool.stats()["entries_written"]) == (0, 1)


def captured_for_a_gpu(monkeypatch: pytest.MonkeyPatch, directory: str) -> Captured:
    """A graph of the CPU's, in a place of a graph for one GPU."""
    monkeypatch.setattr(capture, "placement_of", lambda *_: Placement((0,), (COMMON["NVIDIA H200"],)))
    into = Destination(store=directory, toolchain_dir=directory)
    monkeypatch.setattr(capturing, "Destination", lambda: into)
    (captured,) = capturing.captured(lambda x: x.sin(), torch.ones(3))
    return captured


def test_a_graph_for_a_gpu_needs_the_headers_of_cpp_on_a_miss_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def digests(*_: object) -> dict[str, str]:
        asked.append("asked")
        return {headers.KERNELS: "digest"}

    monkeypatch.setattr(headers, "digests", digests)
    found = captured_for_a_gpu(monkeypatch, str(tmp_path))
    assert found.request.devices and found.key is not None and not asked
    found.explain_key()
    assert asked and found.request.host_key is not None
    toolchain_facts = source_toolchain.key_facts(str(tmp_path))
    assert found.request.host_key.holds("toolchain", toolchain_facts) and toolchain_facts[headers.KERNELS] == "digest"


def test_it_is_kept_where_the_compiler_lists_no_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But with C++ in it, the worker that compiles it finds no key that holds."""

    def digests(*_: object) -> dict[str, str]:
        raise headers.UnlistedError("no")

    monkeypatch.setattr(headers, "digests", digests)
    found = captured_for_a_gpu(monkeypatch, str(tmp_path))
    found.explain_key()
    assert found.key is not None and not compiler._why_unkept(found.request, False, ())
    assert compiler._why_unkept(found.request, True, ())
