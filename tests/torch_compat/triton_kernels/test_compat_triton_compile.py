"""`triton_compile` compiles Inductor's Triton kernels for a launch; here are the parts that need no Triton."""

from __future__ import annotations

import importlib.util
import pickle
import re
import struct
import types
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

from fxpool.torch_compat.triton import triton_compile

GENERATED = """
first = async_compile.triton('first', '''
the first source
''', device_str='cuda')
second = async_compile.triton('second', '''the second source''', device_str='cuda')
"""


def test_the_source_of_a_kernel_is_found_in_a_generated_module() -> None:
    assert triton_compile.source_of(GENERATED, "first") == "\nthe first source\n"
    assert triton_compile.source_of(GENERATED, "second") == "the second source"
    assert triton_compile.source_of(GENERATED, "third") is None


def test_inductor_writes_kernels_in_that_form() -> None:
    import inspect

    from torch._inductor.codegen import triton, wrapper

    form = re.compile(r"async_compile\.triton\(\{\w+!r\}, \'\'\'")
    assert form.search(inspect.getsource(triton) + inspect.getsource(wrapper))


def elf(symbols: dict[str, int]) -> bytes:
    """A CUDA binary, as far as it says how many registers kernels take: sections .nv.info, .symtab and .strtab."""
    strings, table = b"\0", b"\0" * 24
    info = b"\x04\x12\x08\x00" + b"\0" * 8 + b"\x03\x1b\xff\x00"  # attributes of other kinds come before
    for number, (name, count) in enumerate(symbols.items(), start=1):
        table += struct.pack("<IBBHQQ", len(strings), 0, 0, 0, 0, 0)
        strings += name.encode() + b"\0"
        info += b"\x04\x2f\x08\x00" + struct.pack("<II", number, count)
    sections = {"": b"", ".nv.info": info, ".symtab": table, ".strtab": strings}
    names = b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    sections[".shstrtab"] = names
    body, headers = b"", b""
    for name, content in sections.items():
        at = 64 + len(body)
        headers += struct.pack("<IIQQQQIIQQ", names.index(name.encode() + b"\0"), 1, 0, 0, at, len(content), 0, 0, 0, 0)
        body += content
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(sections), 4)
    return head + body + headers


def test_registers_of_a_kernel_are_read_from_its_binary() -> None:
    binary = elf({"first": 14, "second": 255})
    assert triton_compile.registers(binary, "first") == 14
    assert triton_compile.registers(binary, "second") == 255
    assert triton_compile.registers(binary, "third") is None
    assert triton_compile.registers(b"no binary", "first") is None
    assert triton_compile.registers(binary[:100], "first") is None


def test_kernels_are_collected_under_ordinary_configuration_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found" if name == "triton" else None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert triton_compile.may_collect()
    for option in ("cpp_wrapper", "profile_bandwidth", "triton.store_cubin"):
        with inductor_config.patch({option: True}):
            assert not triton_compile.may_collect(), option
    with inductor_config.patch({"triton.multi_kernel": 1}):
        assert not triton_compile.may_collect()
    with inductor_config.patch(use_static_triton_launcher=False):
        assert not triton_compile.may_collect()
    for name in triton_compile._OBSERVED:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, "1")
            assert not triton_compile.may_collect(), name
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not triton_compile.may_collect()


def test_the_table_of_configurations_tuned_elsewhere_is_a_copy() -> None:
    with inductor_config.patch(autotune_lookup_table={"f": {"c": {}}}):
        table = triton_compile.lookup_table()
        assert table == {"f": {"c": {}}}
        table.clear()
        assert inductor_config.autotune_lookup_table == {"f": {"c": {}}}


def test_files_of_triton_s_loader_are_put_into_a_graph() -> None:
    from torch._inductor.triton_bundler import TritonBundle

    graph: Any = types.SimpleNamespace(_triton_bundle=None)
    triton_compile.drop_empty_bundle(graph)
    assert vars(graph) == {"_triton_bundle": None}
    triton_compile.add_files(graph, pickle.dumps(["one"]))
    triton_compile.add_files(graph, pickle.dumps(["two"]))
    assert type(graph._triton_bundle) is TritonBundle
    assert (graph._triton_bundle.kernel_artifacts, graph._triton_bundle.static_autotuners) == (["one", "two"], [])
    triton_compile.drop_empty_bundle(graph)
    assert graph._triton_bundle is not None
    graph._triton_bundle = TritonBundle([], [])
    triton_compile.drop_empty_bundle(graph)
    assert graph._triton_bundle is None


def autotuner(**changed: Any) -> Any:
    """An autotuner of Inductor's, as far as it says what its launch needs."""

    class CachingAutotuner:
        inductor_meta: dict[str, Any] = {}
        device_props = types.SimpleNamespace(type="cuda", index=0)

    made = CachingAutotuner()
    vars(made).update(changed)
    return made


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"inductor_meta": {"coordinate_descent_tuning": True}}, "coordinate_descent_tuning"),
        ({"inductor_meta": {"store_cubin": True}}, "store_cubin"),
        ({"inductor_meta": {"host_tma_descriptor_args": {"a": 1}}}, "host_tma"),
        ({"device_props": types.SimpleNamespace(type="xpu", index=0)}, "device"),
        ({"device_props": types.SimpleNamespace(type="cuda", index=None)}, "device_agnostic"),
    ],
)
def test_a_kernel_that_triton_has_to_launch_is_known_before(changed: dict[str, Any], reason: str | None) -> None:
    assert triton_compile._keeps_triton(autotuner(**changed)) == reason
    assert triton_compile._keeps_triton(types.SimpleNamespace(inductor_meta={})) == "autotuner"


def test_earlier_choices_are_not_looked_up() -> None:
    from torch._inductor.runtime import triton_heuristics

    before = vars(triton_heuristics.AutotuneCache)["create"]
    with triton_compile.no_kept_choices():
        assert triton_heuristics.AutotuneCache.create({}, "name", []) is None
    assert vars(triton_heuristics.AutotuneCache)["create"] is before
