"""`included_headers` knows the headers that Inductor's sources name, and its flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch._inductor import config, cpu_vec_isa

from fxpool.lowering.cpp.unit_source import unit_source
from fxpool.torch_compat.cpp import compile_commands, included_headers, instruction_sets

# Code for other devices, and for template libraries, whose headers `source_toolchain` identifies as directories.
_ELSEWHERE = re.compile(r"mps|metal|xpu|sycl|rocm|cutlass|ck_|cute/|halide", re.I)
_NAME = re.compile(r"[\"'<]((?:ATen|c10|torch)/[\w./{}]+\.h)[\"'>]")


def named_by_torch() -> set[str]:
    """The headers of torch's that Inductor's sources name, with a device in place of expressions."""
    top = Path(torch.__file__).parent
    found: set[str] = set()
    for path in (top / "_inductor").rglob("*.py"):
        if not _ELSEWHERE.search(path.name) and path.name != "cpu_vec_isa.py":  # its headers are of probes
            for name in _NAME.findall(path.read_text()):
                for device in ("cpu", "cuda"):
                    found.add(re.sub(r"\{[^}]*\}", device, name))
    return {name for name in found if not _ELSEWHERE.search(name) and (top / "include" / name).exists()}


def test_every_header_that_inductor_names_is_asked_for() -> None:
    named = named_by_torch()
    assert "torch/csrc/inductor/cpp_wrapper/cpu.h" in named and "ATen/native/CPUBlas.h" in named
    asked = set()
    for kind in ("kernels", "wrapper", "package"):
        for device in ("cpu", "cuda"):
            asked.update(included_headers._names(included_headers.Kind(kind, device)))
    asked.update(name for name, _ in included_headers._INCLUDE.findall(compile_commands.HEADER))
    assert named <= asked


def test_units_include_nothing_else() -> None:
    source = unit_source(
        [("0", compile_commands.CollectedKernel(["float*"], f"{compile_commands.HEADER}\nvoid kernel(float* x) {{}}"))]
    )
    assert "#include" in source and not included_headers.unasked(source)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("#include <mine.h>", "mine.h"),
        ('  #  include "mine.h" // of the program', "mine.h"),
        ("#include_next <cmath>", "cmath"),
        ("#include MINE", "MINE"),
        ("#include<torch/csrc/inductor/cpp_wrapper/cpu.h>", "torch/csrc/inductor/cpp_wrapper/cpu.h"),
    ],
)
def test_other_headers_are_noticed(line: str, name: str) -> None:
    assert included_headers.unasked(f"{compile_commands.HEADER}\n#include <c10/util/Unroll.h>\n{line}\n") == {name}


def test_the_configuration_decides() -> None:
    """Comments of Python's, in the source of a kernel of Triton's inside a wrapper, name nothing."""
    source = "#include <torch/csrc/inductor/cpp_wrapper/cpu.h>\n# import triton\n# include padding\n"
    assert included_headers.unasked(source)
    with config.patch(cpp_wrapper=True):
        assert not included_headers.unasked(source)


@pytest.mark.parametrize("isa", [*instruction_sets.candidates(), None], ids=str)
@pytest.mark.parametrize("options", [{}, {"cpp.march": "x86-64"}, {"aot_inductor.debug_compile": True}], ids=str)
def test_flags_are_those_of_kernels(
    isa: instruction_sets.InstructionSet | None, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not all(hasattr(getattr(config, name.partition(".")[0]), name.partition(".")[2]) for name in options):
        pytest.skip("not an option of this torch")
    with instruction_sets.instruction_sets_known([isa] if isa is not None else []), config.patch(options):
        words, _ = compile_commands.Command(("g++",)).compile("/source.cpp", "source")
        assert not included_headers.unlike(words)
        assert included_headers.unlike([*words, "-DOTHER"]) == {"-DOTHER"}
        assert included_headers.unlike([word for word in words if word != "-fopenmp"]) == {"-fopenmp"}
        assert included_headers.unlike([*words[:1], "-I/ahead", *words[1:]])


def test_each_set_of_macros_is_asked_for_once() -> None:
    sets = instruction_sets.reported()
    assert sets[-1] is cpu_vec_isa.invalid_vec_isa
    macros = [tuple(isa.build_macro()) for isa in sets]
    assert len(macros) == len(set(macros))
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        assert tuple(cpu_vec_isa.pick_vec_isa().build_macro()) in macros
        chosen = [isa for isa in cpu_vec_isa.valid_vec_isa_list() if tuple(isa.build_macro()) not in macros]
    assert not chosen
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def test_a_question_names_what_decides() -> None:
    before = included_headers.decided_by(included_headers.KERNELS)
    assert before == included_headers.decided_by(included_headers.KERNELS)
    with config.patch(cpp_cache_precompile_headers=not config.cpp_cache_precompile_headers):
        assert included_headers.decided_by(included_headers.KERNELS) != before
    assert included_headers.decided_by(included_headers.Kind("package")) != before
