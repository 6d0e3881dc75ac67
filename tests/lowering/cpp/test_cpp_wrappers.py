"""A hit calls no compiler; for graphs that are called through C++, the library is built in a worker, too."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from programs import Programs
from tiers import first_tier

from fxpool.errors import CorruptEntryError
from fxpool.lowering.cpp.built_libraries import BuiltLibraries
from fxpool.lowering.worker import wrapper_linking
from fxpool.torch_compat.cpp import cpp_wrappers

# `seen` has the programs that this process started.
MAIN = """
import sys
import torch
seen = []
sys.addaudithook(lambda event, given: seen.append(str(given[1])) if event == "subprocess.Popen" else None)
weights = torch.linspace(-1, 1, 64).reshape(8, 8)
function = lambda x: torch.nn.functional.gelu(x @ weights) + torch.arange(8)
inputs = [torch.linspace(-2, 2, 32, requires_grad={gradient}).reshape(4, 8){detached}]
"""


@pytest.mark.parametrize(
    ("through_cpp", "train"), first_tier([(True, False), (True, True), (False, True)], (True, True), (False, True))
)
def test_a_hit_calls_no_compiler(programs: Programs, through_cpp: bool, train: bool) -> None:
    main = MAIN.format(gradient=train, detached=".detach().requires_grad_()" if train else "")
    first = programs.run(main, options={"cpp_wrapper": through_cpp})
    second = programs.run(main, options={"cpp_wrapper": through_cpp})
    for report, worker, hits in ((first, 1, 0), (second, 0, 1)):
        stats = report["stats"]
        assert report["lowerings"] == 0
        assert (stats["compiles"]["worker"], stats["compiles"]["in_process"], stats["hits"]) == (worker, 0, hits)
        assert not stats["fallbacks"]
    assert not [started for started in second["seen"] if "g++" in started or "c++" in started], second["seen"]


GENERATED = '''
from torch._inductor.codecache import CppWrapperCodeCache
source = """int f();"""
inductor_entry = CppWrapperCodeCache.load_pybinding(argtypes=["std::vector<AtenTensorHandle>"], main_code=source,
    num_outputs=1, kernel_code=None, extra_flags=())
call = inductor_entry
'''


def _told(source: str = "int f();") -> dict[str, Any]:
    types = ["std::vector<AtenTensorHandle>"]
    return {"argtypes": types, "main_code": source, "num_outputs": 1, "kernel_code": None, "extra_flags": ()}


def test_an_entry_takes_the_place_of_its_source() -> None:
    linked = wrapper_linking.link(GENERATED, "<w>", {}, built={cpp_wrappers.digest((), _told()): "e0"})
    assert linked.built == 1
    assert not linked.unlinked
    assert b"int f" not in linked.code


def test_another_source_keeps_torchs_loader() -> None:
    linked = wrapper_linking.link(GENERATED, "<w>", {}, built={cpp_wrappers.digest((), _told("int g();")): "e0"})
    assert linked.built == 0
    assert linked.unlinked


def test_a_wrapper_that_refers_to_a_scratch_directory_is_not_taken() -> None:
    from torch._inductor.codecache import CppWrapperCodeCache

    taken: list[str] = []
    with cpp_wrappers.collecting(lambda digest, source, build: taken.append(digest)):
        with pytest.raises(NotImplementedError, match=r"/scratch/cutlass\.so by a path"):
            CppWrapperCodeCache.load_pybinding(**{**_told(), "extra_flags": ("/scratch/cutlass.so",)})
    assert not taken


def test_what_is_found_out_when_it_runs_is_not_guessed() -> None:
    call = ast.parse("CppWrapperCodeCache.load_pybinding(main_code=made())", mode="eval").body
    assert isinstance(call, ast.Call)
    with pytest.raises(ValueError, match="malformed"):
        cpp_wrappers.generated_digest(call, {})


def test_a_wrapper_that_is_missing_is_named() -> None:
    with pytest.raises(CorruptEntryError, match="e1"):
        _ = BuiltLibraries([]).e1
