"""`device_guard` is a small C++ library that answers torch's C++ about devices: it is built against torch's headers.

It takes half a minute to build, so that is left to the tests of compiles for a GPU; here its text is compared with the
headers of this release.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from fxpool.torch_compat.cuda import device_guard
from fxpool.torch_compat.cuda.no_devices import guards_can_be_replaced

INCLUDE = Path(torch.__file__).parent / "include"
HEADERS = re.findall(r"^#include <((?:ATen|c10)/[^>]+)>", device_guard.SOURCE, re.MULTILINE)


def text_of(header: str, depth: int = 1) -> str:
    """A header with those that it includes."""
    path = INCLUDE / header
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if depth:
        text += "".join(text_of(one, depth - 1) for one in re.findall(r"^#include <([^>]+)>", text, re.MULTILINE))
    return text


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_it_includes_is_there(header: str) -> None:
    assert (INCLUDE / header).is_file()


def overridden(struct: str) -> list[str]:
    body = re.search(rf"struct {struct} final : \S+ {{\n(.*?)\n}};", device_guard.SOURCE, re.DOTALL)
    assert body is not None
    return re.findall(r"(\w+)\([^()]*\) const(?: noexcept)? override", body[1])


@pytest.mark.parametrize("name", overridden("Guard"))
def test_a_function_of_guards_is_virtual(name: str) -> None:
    text = text_of("c10/core/impl/DeviceGuardImplInterface.h")
    assert re.search(rf"virtual [\w:<>\s*&]*\b{name}\(", text), name


@pytest.mark.parametrize("name", overridden("Hooks"))
def test_a_function_of_hooks_is_virtual(name: str) -> None:
    text = text_of("ATen/detail/CUDAHooksInterface.h")
    assert re.search(rf"virtual [\w:<>\s*&]*\b{name}\(", text) or re.search(rf"\b{name}\([^)]*\) const override", text)
    assert f"place(&Base::{name})" in device_guard.SOURCE  # or it would not be put into torch's table


def test_what_it_replaces_besides_is_declared() -> None:
    assert "device_guard_impl_registry" in text_of("c10/core/impl/DeviceGuardImplInterface.h")
    assert "_fused_sdp_choice_stub" in text_of("ATen/native/transformers/attention.h")
    assert "getCUDAHooks" in text_of("ATen/detail/CUDAHooksInterface.h")
    assert guards_can_be_replaced()


def test_numbers_of_attention_are_torch_s() -> None:
    from fxpool.torch_compat.cuda.attention import _IMPLEMENTATIONS

    text = text_of("ATen/SDPBackend.h", 0)
    numbers = {name: int(number) for name, number in re.findall(r"(\w+) = (-?\d+)", text)}
    assert numbers["math"] == 0
    for name, number in _IMPLEMENTATIONS.items():
        short = name.removeprefix("aten::_scaled_dot_product_").removesuffix("_attention")
        short = {"fused_attention_overrideable": "overrideable", "cudnn": "cudnn_attention"}.get(short, short)
        assert number in (numbers.get(short), numbers.get(f"{short}_attention")), name


def test_the_command_is_for_this_torch() -> None:
    words = device_guard.command("g++", "/tmp/guard.cpp", "/tmp/guard.so")
    assert words[0] == "g++" and words[words.index("-o") + 1] == "/tmp/guard.so" and "/tmp/guard.cpp" in words
    (include,) = [word.removeprefix("-I") for word in words if word.startswith("-I")]
    (libraries,) = [word.removeprefix("-L") for word in words if word.startswith("-L")]
    assert os.path.isdir(os.path.join(include, "ATen"))
    for word in words:
        if word.startswith("-l"):
            assert os.path.isfile(os.path.join(libraries, f"lib{word.removeprefix('-l')}.so")), word
    assert f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}" in words


def test_nothing_is_chosen_without_the_library() -> None:
    if device_guard._library is not None:
        pytest.skip("another test of this process has installed it")
    assert device_guard.choose_attention(2) == -1
