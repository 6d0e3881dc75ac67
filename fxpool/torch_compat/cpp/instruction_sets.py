"""Finds the vector instruction sets that Inductor may use on this host, with one compile.

Inductor builds one test program per instruction set and per extension of it, and loads it in a fresh interpreter (2.13:
up to seven programs, each including torch's vector headers). `probe_source` combines all of them into one program for
the best set that the CPU reports. If that program builds and loads, every lesser set is assumed to work, too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxpool.torch_compat.patching import patched

#: Name of an instruction set, and its extensions (``_is_avx512_bf16_supported`` ...).
InstructionSet = tuple[str, dict[str, bool]]


def usable_instruction_sets() -> list[InstructionSet]:
    """Return the vector instruction sets that this CPU, torch and the compiler support, best first.

    Builds and loads test programs: 8 s on a host that has not been probed before.
    """
    from torch._inductor import cpu_vec_isa

    usable: list[InstructionSet] = []
    for isa in cpu_vec_isa.valid_vec_isa_list():
        if isa:
            extra = {name: value for name, value in vars(isa).items() if name.startswith("_is_")}
            usable.append((str(isa), extra))
    return usable


def was_probed() -> bool:
    """Return whether this process has probed its host for instruction sets."""
    from torch._inductor import cpu_vec_isa

    return bool(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize)


def forget() -> None:
    """Forget the result of Inductor's own probe: this process may go on on another processor."""
    if (cpu_vec_isa := sys.modules.get("torch._inductor.cpu_vec_isa")) is not None:
        cpu_vec_isa.valid_vec_isa_list.cache_clear()


@contextlib.contextmanager
def instruction_sets_known(usable: Sequence[InstructionSet]) -> Iterator[None]:
    """Answer Inductor's probing of this host from the result of `usable_instruction_sets`."""
    from torch._inductor import cpu_vec_isa

    names = dict(usable)
    classes = [cpu_vec_isa.VecISA, *_subclasses(cpu_vec_isa.VecISA)]
    with contextlib.ExitStack() as stack:
        for cls in classes:
            if "__bool__" in vars(cls) and cls is not cpu_vec_isa.InvalidVecISA:
                stack.enter_context(patched(cls, "__bool__", lambda self: str(self) in names))
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        stack.callback(cpu_vec_isa.valid_vec_isa_list.cache_clear)
        for isa in cpu_vec_isa.valid_vec_isa_list():
            for name, value in names[str(isa)].items():
                setattr(isa, name, value)
        yield


def _subclasses(cls: type) -> list[Any]:
    direct: list[Any] = cls.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _subclasses(sub)]


@contextlib.contextmanager
def instruction_sets_found_by(find: Callable[[], Sequence[InstructionSet] | None]) -> Iterator[None]:
    """Let `find` answer when Inductor first asks for the usable instruction sets; None leaves that to Inductor."""
    from torch._inductor import cpu_vec_isa

    original = cpu_vec_isa.valid_vec_isa_list
    with contextlib.ExitStack() as stack:

        def ask() -> Any:
            cpu_vec_isa.valid_vec_isa_list = original
            usable = find()
            if usable is not None:
                stack.enter_context(instruction_sets_known(usable))
            return original()

        ask.cache_clear = original.cache_clear  # type: ignore[attr-defined]
        ask.cache_info = original.cache_info  # type: ignore[attr-defined]
        ask.__wrapped__ = original.__wrapped__  # type: ignore[attr-defined]
        stack.enter_context(patched(cpu_vec_isa, "valid_vec_isa_list", ask))
        yield


def candidates() -> list[InstructionSet]:
    """Return the instruction sets that this CPU reports, best first, in the form of `usable_instruction_sets`.

    Empty if Inductor does not choose among several, and on processors other than x86-64, where its own probe is
    already a single build.
    """
    from torch._inductor import cpu_vec_isa

    flags = set(cpu_vec_isa.x86_isa_checker())
    reported: list[InstructionSet] = []
    for isa in cpu_vec_isa.supported_vec_isa_list:
        if flags and all(flag in flags for flag in str(isa).split()):
            extra = {}
            if hasattr(isa, "_is_avx512_bf16_supported") and torch.cpu._is_avx512_bf16_supported():
                extra["_is_avx512_bf16_supported"] = True
            if hasattr(isa, "_is_amx_fp16_supported") and torch.cpu._is_amx_fp16_supported():
                extra["_is_amx_fp16_supported"] = True
            reported.append((str(isa), extra))
    return reported


def reported() -> list[Any]:
    """Return Inductor's instruction sets that this CPU reports, one for each set of macros, and the absence of any."""
    from torch._inductor import cpu_vec_isa

    names = dict(candidates())
    sets = [isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) in names]
    sets = sets or cpu_vec_isa.valid_vec_isa_list.__wrapped__()  # not for x86-64: builds nothing, and is not cached
    by_macros = {tuple(isa.build_macro()): isa for isa in reversed(sets)}
    return [*reversed(by_macros.values()), cpu_vec_isa.invalid_vec_isa]


_CHECKS = (  # attribute with a test program, and its instruction sets or extensions
    ("_avx_code", ""),
    ("_avx512_bf16_code", "_is_avx512_bf16_supported"),
    ("_avx512_vnni_code", "avx512_vnni"),
    ("_amx_code", "amx_tile"),
    ("_amx_fp16_code", "_is_amx_fp16_supported"),
)


def probe_source(best: InstructionSet) -> str:
    """Return C++ that uses everything in `best`: Inductor's own test programs, one after another."""
    from torch._inductor import cpu_vec_isa

    name, extra = best
    promised = {"", *name.split(), *(k for k, v in extra.items() if v)}
    owner = next(isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) == name)
    parts = []
    for number, (attribute, needs) in enumerate(_CHECKS):
        code = getattr(owner, attribute, None)
        if needs in promised and code:
            # The programs define functions and types of the same names.
            for repeated in ("__amx_chk_kernel", "amx_tilecfg"):
                code = code.replace(repeated, f"{repeated}_{number}")
            parts.append(code)
    return "\n".join(parts)


def enable_tiles() -> None:
    """Request the tile registers from the kernel if this CPU has them: without that, code that uses them is killed.

    Inductor does so while it probes, but a process that hits the cache never probes.
    """
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
