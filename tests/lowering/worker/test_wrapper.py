"""The linker of wrappers: what stays of a generated module, and what it names instead."""

from __future__ import annotations

import ast
import contextlib
import inspect
import marshal
import textwrap
import types
from typing import Any

import pytest
import torch

from fxpool.lowering.worker import wrapper_linking
from fxpool.torch_compat.inductor import import_paths, output_code
from fxpool.torch_compat.inductor.output_code import LinkedWrapper

HEADER = """
from ctypes import c_void_p, c_long, c_int
import torch
import math
from torch._inductor.utils import maybe_profile
from torch._inductor.codegen.memory_planning import _align as align
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels

aten = torch.ops.aten
missing = torch._C._there_is_no_such_thing
async_compile = AsyncCompile()
"""
FOOTER = """
async_compile.wait(globals())
del async_compile

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def recursively_apply_fns(self, fns):
        self.partitions = [fn(c) for fn, c in zip(fns, self.partitions)]

    def call(self, args):
        BODY

runner = Runner(partitions=[])
call = runner.call
recursively_apply_fns = runner.recursively_apply_fns

def get_args():
    from torch._dynamo.testing import rand_strided
    return [rand_strided((2, ), (1, ))]

if __name__ == "__main__":
    from torch._inductor.wrapper_benchmark import compiled_module_main
    compiled_module_main('None', lambda times, repeat: None)
"""


def generated(body: str, kernels: str = "") -> str:
    return HEADER + kernels + FOOTER.replace("BODY", body)


def run(linked: LinkedWrapper, library: Any = None) -> dict[str, Any]:
    space: dict[str, Any] = {"_fxpool_library": library}
    exec(marshal.loads(linked.code), space)
    return space


def test_what_a_call_does_not_need_is_not_imported() -> None:
    linked = wrapper_linking.link(generated("return aten.sin(args[0])"), "<w>", {})
    assert linked.unlinked == []
    space = run(linked)
    assert torch.equal(space["call"]([torch.ones(2)]), torch.ones(2).sin())
    assert not {"AsyncCompile", "extern_kernels", "align", "missing", "math", "get_args", "async_compile"} & set(space)


def test_kernels_are_functions_of_the_library() -> None:
    kernels = "first = async_compile.cpp_pybinding(['float*'], r'''one''')\n"
    kernels += "second = async_compile.cpp_pybinding(['float*'], r'''two''')\n"
    names = {output_code.kernel_digest(["float*"], text): f"k{n}" for n, text in enumerate(("one", "two"))}
    linked = wrapper_linking.link(generated("return first(args), second(args)", kernels), "<w>", names)
    assert (linked.kernels, linked.unlinked) == (2, [])
    library = types.SimpleNamespace(k0=lambda args: "k0", k1=lambda args: "k1")
    assert run(linked, library)["call"]([]) == ("k0", "k1")


def test_a_kernel_that_nobody_compiled_keeps_torchs_loader() -> None:
    kernels = "first = async_compile.cpp_pybinding(['float*'], r'''one''')\n"
    linked = wrapper_linking.link(generated("return first(args)", kernels), "<w>", {})
    assert linked.kernels == 0
    assert "async_compile.cpp_pybinding" in linked.unlinked


@pytest.mark.parametrize("name", ["addmm", "mm", "bmm", "convolution"])
def test_external_kernels_are_named_where_torch_has_them(name: str) -> None:
    linked = wrapper_linking.link(generated(f"return extern_kernels.{name}"), "<w>", {})
    assert linked.unlinked == []
    assert run(linked)["call"]([]) is import_paths.extern_kernel(name)


def _imports(kernel: Any) -> bool:
    if not isinstance(kernel, types.FunctionType):
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel)))
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(tree))


def test_every_external_kernel_of_this_torch_is_linked() -> None:
    """Operators and functions that stand alone; what a later torch adds and this does not know shows here."""
    from torch._inductor.select_algorithm import extern_kernels

    names = [name for name in vars(extern_kernels) if not name.startswith("_") or callable(vars(extern_kernels)[name])]
    names = [name for name in names if callable(getattr(extern_kernels, name)) and not name.startswith("__")]
    assert len(names) > 10
    # One that imports a library of kernels when it is called stays where it is: torch's loader brings it.
    names = [name for name in names if not _imports(getattr(extern_kernels, name))]
    body = "return [" + ", ".join(f"extern_kernels.{name}" for name in names) + "]"
    linked = wrapper_linking.link(generated(body), "<w>", {})
    assert linked.unlinked == []
    assert all(callable(found) for found in run(linked)["call"]([]))


def test_a_function_of_inductors_comes_along() -> None:
    linked = wrapper_linking.link(generated("return align(65), extern_kernels.bias_addmm(*args)"), "<w>", {})
    assert linked.unlinked == []
    bias, a, b = torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)
    size, found = run(linked)["call"]([bias.expand(3, 4), a, b])
    assert size == 128
    torch.testing.assert_close(found, bias + a @ b)


def test_an_unknown_external_kernel_keeps_torchs_namespace() -> None:
    linked = wrapper_linking.link(generated("return extern_kernels.there_is_no_such_kernel"), "<w>", {})
    assert linked.unlinked == ["extern:there_is_no_such_kernel"]
    assert "extern_kernels" in run(linked)


def test_what_may_do_more_than_define_is_kept_in_its_order() -> None:
    extra = "seen = []\nseen.append(1)\nseen.append(len(seen))\n"
    linked = wrapper_linking.link(generated("return seen", extra), "<w>", {})
    assert run(linked)["call"]([]) == [1, 1]


def test_lines_are_those_of_the_text() -> None:
    source = generated("return 1 / args[0]")
    line = source.splitlines().index("        return 1 / args[0]") + 1
    with pytest.raises(ZeroDivisionError) as raised:
        run(wrapper_linking.link(source, "<fxpool key>", {}))["call"]([0])
    frame = raised.traceback[-1]
    assert (frame.lineno + 1, str(frame.path)) == (line, "<fxpool key>")


def test_operators_besides_atens_are_listed() -> None:
    body = "return torch.ops.quantized_decomposed.quantize_per_tensor.default, torch.ops.aten.sin.default"
    assert wrapper_linking.link(generated(body), "<w>", {}).operators == ["quantized_decomposed::quantize_per_tensor"]


def test_text_that_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        wrapper_linking.link("def (", "<w>", {})


# ------------------------------------------------------------------------------ devices

OF_DEVICES = """
from torch import device
def call(args):
    with torch.cuda._DeviceGuard(1):
        torch.cuda.set_device(1)
        stream1 = get_raw_stream(1)
        made = torch.device('cuda', 3), device(type='cuda', index=1), device(type='cpu', index=0), 'cuda:3'
    return made, stream1
"""


def test_devices_are_those_of_who_loads() -> None:
    linked = wrapper_linking.link(OF_DEVICES, "<graph>", {}, {}, indices=(3, 1))
    assert linked.devices == [0, 1], "by number in the graph"
    told: list[Any] = []

    class Cuda:
        @staticmethod
        def _DeviceGuard(index: int) -> contextlib.nullcontext[None]:
            told.append(index)
            return contextlib.nullcontext()

        set_device = staticmethod(told.append)

    class Torch:
        cuda, device = Cuda, torch.device

    names = {"_fxpool_device_0": 5, "_fxpool_device_1": 6, "_fxpool_device_name_0": "cuda:5"}
    space: dict[str, Any] = {"torch": Torch, "get_raw_stream": lambda index: 100 + index, **names}
    exec(marshal.loads(linked.code), space)
    made, stream = space["call"]([])
    assert told == [6, 6]
    assert stream == 106
    assert made == (torch.device("cuda", 5), torch.device("cuda", 6), torch.device("cpu", 0), "cuda:5")


def test_texts_that_operators_take_stay_as_they_are() -> None:
    source = """
from torch import device
def call(args):
    at = torch.ops.own.at.default(args, 'cuda:3', where=['cuda:1'], device=device(type='cuda', index=1))
    return at, torch.ops.own.at.default(torch.device('cuda:1'))
"""
    linked = wrapper_linking.link(source, "<graph>", {}, {}, indices=(3, 1))
    operator = types.SimpleNamespace(default=lambda *args, **kwargs: (args, kwargs))
    names = {"_fxpool_device_1": 6, "_fxpool_device_name_1": "cuda:6"}
    own = types.SimpleNamespace(ops=types.SimpleNamespace(own=types.SimpleNamespace(at=operator)), device=torch.device)
    space: dict[str, Any] = {"torch": own, **names}
    exec(marshal.loads(linked.code), space)
    taken, named = space["call"](7)
    assert taken == ((7, "cuda:3"), {"where": ["cuda:1"], "device": torch.device("cuda", 6)})
    assert named == ((torch.device("cuda", 6),), {})


def test_a_graph_that_torch_loads_stays_where_it_was_compiled() -> None:
    class Graph:
        device_idxs, runnable_graph_str, fx_kwargs = {1}, "", {"graph_id": 7}

    class Surroundings:
        indices, groups = (2,), ()
        missed = staticmethod(lambda what: None)

    graph = Graph()
    output_code.compiled_for(graph, (1,))
    with pytest.raises(output_code.ElsewhereError, match="CUDA device"):
        output_code.put_into(graph, Surroundings())  # type: ignore[arg-type]
    Surroundings.indices = (1,)
    output_code.put_into(graph, Surroundings())  # type: ignore[arg-type]
    assert graph.device_idxs == {1}
