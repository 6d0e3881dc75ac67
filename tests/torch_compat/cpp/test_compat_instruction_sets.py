"""`instruction_sets` knows which vector instructions Inductor may use, by one test program instead of seven."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
from torch._inductor import cpu_vec_isa

from fxpool.torch_compat.cpp import instruction_sets
from fxpool.torch_compat.cpp.instruction_sets import InstructionSet

X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere Inductor's own probe is one build already")
SETS = [str(isa) for isa in cpu_vec_isa.supported_vec_isa_list]


@pytest.fixture(autouse=True)
def _probed_as_before() -> Iterator[None]:
    yield
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def best_first(name: str) -> list[InstructionSet]:
    return [(name, {})]


@X86
def test_inductor_believes_what_is_known() -> None:
    before = cpu_vec_isa.VecISA.__bool__
    name = next(one for one in SETS if one == "avx2")
    with instruction_sets.instruction_sets_known(best_first(name)):
        assert instruction_sets.usable_instruction_sets() == [(name, {})]
        assert instruction_sets.was_probed()
        assert str(cpu_vec_isa.pick_vec_isa()) == name
    assert cpu_vec_isa.VecISA.__bool__ is before and not instruction_sets.was_probed()


@X86
def test_extensions_of_a_set_are_known_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(one for one in SETS if "avx512" in one and "amx" not in one)
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", name.split)  # on any processor
    with instruction_sets.instruction_sets_known([(name, {"_is_avx512_bf16_supported": True})]):
        ((found, extra),) = instruction_sets.usable_instruction_sets()
        assert (found, extra) == (name, {"_is_avx512_bf16_supported": True})


def test_no_vector_instructions_are_an_answer_too() -> None:
    with instruction_sets.instruction_sets_known([]):
        assert instruction_sets.usable_instruction_sets() == []
        assert not cpu_vec_isa.pick_vec_isa()


@X86
def test_the_first_question_is_answered_by_who_knows() -> None:
    original, asked = cpu_vec_isa.valid_vec_isa_list, []

    def find() -> list[InstructionSet]:
        asked.append(1)
        return best_first("avx2")

    with instruction_sets.instruction_sets_found_by(find):
        assert not instruction_sets.was_probed() and asked == []
        for _ in range(2):
            assert [str(isa) for isa in cpu_vec_isa.valid_vec_isa_list()] == ["avx2"]
        assert asked == [1]
    assert cpu_vec_isa.valid_vec_isa_list is original


def test_candidates_are_what_the_processor_reports() -> None:
    found = instruction_sets.candidates()
    assert [name for name, _ in found] == [name for name in SETS if name in dict(found)]  # best first
    flags = set(cpu_vec_isa.x86_isa_checker())
    for name, extra in found:
        assert set(name.split()) <= flags and all(extra.values())


@X86
@pytest.mark.parametrize("name", SETS)
def test_one_program_uses_all_that_a_set_includes(name: str) -> None:
    if not name.startswith(("avx", "amx")) and "avx" not in name:
        pytest.skip("of another processor")
    extra = {"_is_avx512_bf16_supported": True, "_is_amx_fp16_supported": True} if "avx512" in name else {}
    source = instruction_sets.probe_source((name, extra))
    assert "at::vec" in source or "_mm" in source
    owner = next(isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) == name)
    for attribute, needs in instruction_sets._CHECKS:
        code = getattr(owner, attribute, None)
        wanted = needs in {"", *name.split(), *extra} and bool(code)
        if wanted and code is not None and "amx" not in attribute:
            assert code in source, attribute
    # No two programs define the same function.
    assert source.count("void __amx_chk_kernel()") <= 1 and source.count("struct amx_tilecfg {") <= 1


def test_every_test_program_of_torch_s_is_known() -> None:
    """One that a release adds, and that is not here, would not be tried before its instructions are used."""
    programs = {
        name
        for isa in cpu_vec_isa.supported_vec_isa_list
        for name in dir(isa)
        if name.endswith("_code") and "_" in name
    }
    assert programs - {attribute for attribute, _ in instruction_sets._CHECKS} == set()


def test_tiles_are_asked_for_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    asked: list[int] = []
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append(1))
    for there in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda there=there: there)
        instruction_sets.enable_tiles()
    assert asked == [1]
