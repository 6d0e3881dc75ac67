"""A process with Triton and without a GPU: graphs with a program's own Triton kernels, as JSON of what came of them.

    user_kernels_child.py DIRECTORY COMMAND...

    keys        key of every graph
    variants    keys of graphs whose kernels are written a little differently
    refused     why graphs do not travel
    encode      requests as files in DIRECTORY, and what the graphs call here
    decode      what they call when another process rebuilds them
    compile     what workers make of them for a GPU

Triton and the directory of this file are in the import path. Dynamo traces on the CPU, and nothing of it is run there.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.utils._triton
import triton
import triton.language as tl

from fxpool.codecache.graph import graph_decoder
from fxpool.errors import CannotTravelError
from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import compiler as compiling
from fxpool.torch_compat.dynamo import shape_env, tensors

MODULE = "user_kernels_module"
COUNT = 100
Function = Callable[..., Any]


def captured(function: Function, *inputs: Any, dynamic: bool | None = None) -> list[Captured]:
    """What is captured of each graph; nothing is run, so that what Dynamo goes on with is zeros."""
    found: list[Captured] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append(capture.capture(gm, example_inputs, label="test", into=Destination()))
        (outputs,) = next(iter(reversed(gm.graph.nodes))).args
        return lambda *_: [torch.zeros(COUNT, requires_grad=torch.is_grad_enabled()) for _ in outputs]

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return found


def here(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(COUNT, meta["BLOCK"]),)


def functions(kernels: Any) -> dict[str, tuple[Function, bool | None]]:
    """Functions of one or two tensors that call kernels of a module, and whether sizes are dynamic."""

    def plain(a: Any, b: Any) -> Any:
        out = torch.empty_like(a)
        kernels.added[(triton.cdiv(a.numel(), 64),)](a, b, out, a.numel(), BLOCK=64)
        return out

    def twice(a: Any, b: Any) -> Any:
        first, second = torch.empty_like(a), torch.empty_like(a)
        kernels.added[here](a, b, first, COUNT, BLOCK=64)
        kernels.added[here](b, first, second, COUNT, BLOCK=32)
        return first + second

    def warps(a: Any, b: Any) -> Any:
        out = torch.empty_like(a)
        kernels.added[(2, 1)](a, b, out, COUNT, BLOCK=64, num_warps=8, num_stages=1)
        return out

    def tuned(a: Any, b: Any) -> Any:
        kernels.tuned[here](a, b, COUNT, KIND=tl.float32, LOW=float("-inf"))
        return b

    def several(a: Any, b: Any) -> Any:
        out = torch.zeros_like(a)
        kernels.tuned[here](a, out, COUNT, KIND=tl.float32, LOW=0.5)
        kernels.picked[here](out, b, COUNT)
        kernels.pruned[here](b, out, COUNT)
        kernels.squared[here](out, b, COUNT, BLOCK=64)
        return out

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            out = torch.empty_like(a)
            kernels.squared[here](a, out, COUNT, BLOCK=64)
            ctx.save_for_backward(a)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (a,) = ctx.saved_tensors
            out = torch.empty_like(a)
            kernels.squared_backward[here](a, grad.contiguous(), out, COUNT, BLOCK=64)
            return out

    def differentiable(a: Any, b: Any) -> Any:
        return Square.apply(a) * b.sin()

    found: dict[str, tuple[Function, bool | None]] = {
        f.__name__: (f, None) for f in (plain, twice, warps, tuned, several, differentiable)
    }
    return {**found, "dynamic": (plain, True)}


def graph(name: str, kernels: Any) -> Captured:
    function, dynamic = functions(kernels)[name]
    leaf = name == "differentiable"
    (only,) = captured(function, torch.ones(COUNT, requires_grad=leaf), torch.ones(COUNT), dynamic=dynamic)
    return only


NAMES = ("plain", "twice", "warps", "tuned", "several", "differentiable", "dynamic")


def digest(made: Captured) -> str:
    assert made.key is not None, made.bypass
    return made.key.digest


def keys(place: Path) -> dict[str, str]:
    module = importlib.import_module(MODULE)
    return {name: digest(graph(name, module)) for name in NAMES if name != "differentiable"}


# --- variants -----------------------------------------------------------------------------

#: What is written for what, in the module's text.
VARIANTS = {
    "same": ("", ""),
    "moved": ("import enum\n", "import enum\n# a line more\n\n"),
    "own source": ("+ tl.load(b + at, mask=mask), mask=mask)", "- tl.load(b + at, mask=mask), mask=mask)"),
    "helper": ("return value * FACTOR", "return value + FACTOR"),
    "constant": ("FACTOR = tl.constexpr(3)", "FACTOR = tl.constexpr(4)"),
    "dtype": ("NARROW = tl.constexpr(tl.float16)", "NARROW = tl.constexpr(tl.bfloat16)"),
    "configuration": ('triton.Config({"BLOCK": 128}, num_warps=4)', 'triton.Config({"BLOCK": 128}, num_warps=8)'),
    "restored": ('restore_value=["out"]', 'reset_to_zero=["out"]'),
    "pruning": ('> 64]', '< 128]'),
    "heuristic": ('% 2 == 0', '% 2 == 1'),
}  # fmt: skip


def variants(place: Path) -> dict[str, dict[str, str]]:
    """Keys of three graphs, by variant."""
    path = importlib.import_module(MODULE).__file__
    assert path is not None
    text = Path(path).read_text()
    report = {}
    for number, (variant, (old, new)) in enumerate(VARIANTS.items()):
        assert old in text
        directory = place / f"variant{number}"
        directory.mkdir()
        (directory / "varied.py").write_text(text.replace(old, new))
        sys.path.insert(0, str(directory))
        sys.modules.pop("varied", None)
        importlib.invalidate_caches()
        module = importlib.import_module("varied")
        report[variant] = {name: digest(graph(name, module)) for name in ("plain", "tuned", "several")}
        sys.path.remove(str(directory))
    return report


# --- refusals -----------------------------------------------------------------------------


@triton.jit
def of_main(a, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's language
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at, mask=at < count), mask=at < count)


def reason(kernel: Any, **constants: Any) -> list[str]:
    def calls(a: Any) -> Any:
        out = torch.empty_like(a)
        kernel[(2,)](a, out, COUNT, **constants)
        return out

    try:
        captured(calls, torch.ones(COUNT))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        found = error.inner_exception
        assert isinstance(found, CannotTravelError), repr(found)
        return [found.reason, found.detail]
    return ["it travels", ""]


def refused(place: Path) -> dict[str, list[str]]:
    module = importlib.import_module(MODULE)
    importlib.import_module("torch._inductor.config").unsafe_ignore_unsupported_triton_autotune_args = True  # type: ignore[attr-defined]
    return {
        "main": reason(of_main, BLOCK=64),
        "local": reason(module.local(), BLOCK=64),
        "object": reason(module.reads_an_object, BLOCK=64),
        "hook": reason(module.hooked),
        "constant": reason(module.squared, BLOCK=module.Color.RED),
    }


# --- there and back -----------------------------------------------------------------------


def calls(gm: torch.fx.GraphModule) -> list[dict[str, Any]]:
    """The calls of kernels in a graph, and what this process's tables have for them."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    found = []
    for module in gm.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if "triton_kernel_wrapper" not in str(node.target):
                continue
            kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
            inner = kernel.fn if hasattr(kernel, "configs") else kernel
            assert type(inner).__name__ == "JITFunction"
            known = vars(importlib.import_module(inner.fn.__module__))
            described = {
                "place": node.kwargs["kernel_idx"], "module": inner.fn.__module__,
                "names": [name for name, value in known.items() if any(part is inner for part in layers(value))],
                "configs": [sorted(vars(config).items()) for config in getattr(kernel, "configs", ())],
                "restored": getattr(kernel, "restore_value", None), "zeroed": getattr(kernel, "reset_to_zero", None),
                "constants": kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"]),
                "grid": node.kwargs["grid"], "tensors": node.kwargs["kwargs"],
            }  # fmt: skip
            found.append({name: repr(value) for name, value in described.items()})
    places = list(dict.fromkeys(call["place"] for call in found))
    return [{**call, "place": places.index(call["place"])} for call in found]


def layers(value: Any) -> Iterator[Any]:
    """A kernel, and what is in its autotuner and its heuristics."""
    while value is not None:
        yield value
        value = getattr(value, "fn", None)


def encode(place: Path) -> dict[str, Any]:
    module: Any = importlib.import_module(MODULE)
    seen: list[Any] = []
    before = capture.capture

    def noted(gm: Any, *args: Any, **more: Any) -> Captured:
        seen.append(calls(gm))
        return before(gm, *args, **more)

    capture.capture = noted
    report = {}
    for name in NAMES:
        seen.clear()
        made = graph(name, module)
        (place / name).write_bytes(made.request.dump())
        report[name] = {"calls": seen[0], "modules": made.request.modules}
    capture.capture = before
    module.FACTOR, factor = tl.constexpr(5), module.FACTOR
    (place / "changed").write_bytes(graph("plain", module).request.dump())
    module.FACTOR = factor
    return report


def decoded(request: CompileRequest) -> torch.fx.GraphModule:
    env = shape_env.load(request.shapes, request.hints) if request.shapes is not None else None
    fake_mode = tensors.new_fake_mode(env if env is not None else shape_env.ShapeEnv())
    decoder = graph_decoder.GraphDecoder(tensors.Builder(fake_mode), env, request.constants)
    for row in msgspec.msgpack.decode(request.inputs):
        decoder.value(row)
    return decoder.decode(msgspec.msgpack.decode(request.graph), request.names)


def decode(place: Path) -> dict[str, Any]:
    report: dict[str, Any] = {}
    assert MODULE not in sys.modules
    for name in NAMES:
        request = CompileRequest.load((place / name).read_bytes())
        compiling.load_code(request.modules, request.libraries, request.code)
        report[name] = {"calls": calls(decoded(request)), "modules": request.modules}
    try:
        decoded(CompileRequest.load((place / "changed").read_bytes()))
    except CannotTravelError as error:
        report["changed"] = pickle.loads(pickle.dumps(error)).reason
    return report


def compiled(place: Path) -> dict[str, Any]:
    """What workers make of the graphs, which see no device."""
    import capturing
    import gpu_child

    import fxpool
    from fxpool.codecache.store.store import LocalStore
    from fxpool.lowering.artifact.entry_content import content_of
    from fxpool.lowering.artifact.entry_parts import TRITON, generated_code
    from fxpool.lowering.cuda import triton_kernels

    module = importlib.import_module(MODULE)
    os.mkdir(place / "store", mode=0o700)
    report: dict[str, Any] = {}
    try:
        for name in ("several", "differentiable", "dynamic"):
            made = graph(name, module)
            complete = capturing.complete(made, str(place))
            request = gpu_child.for_device(complete, "NVIDIA H200")
            report[name] = gpu_child.compiled(request, answers=True)
            assert request.store is not None and request.key is not None
            store = LocalStore(request.store)
            (entry,) = store.entries(request.key.digest)
            data = store.read_blob(entry.blobs[TRITON])
            assert data is not None
            report[name]["written"] = {k.name: k.written for k in triton_kernels.decode(data)}
            report[name]["mutated"] = content_of(entry).effects.mutated_inputs
            report[name]["launches"] = launches([text for _, text in generated_code(entry, store)])
            if name == "differentiable":
                others = (gpu_child.for_device(complete, device) for device in ("NVIDIA A100-SXM4-80GB", "NVIDIA B200"))
                report[name]["elsewhere"] = [gpu_child.compiled(other, answers=True)["targets"] for other in others]
    finally:
        fxpool.close()
    return report


def launches(texts: list[str]) -> dict[str, bool]:
    """Of each of the program's kernels in generated modules: whether it is launched as torch's own launcher does."""
    import triton_child

    from fxpool.lowering.cuda import triton_kernels
    from fxpool.torch_compat.triton import triton_compile

    results: list[Any] = []
    original = triton_compile.Candidate.__init__

    def noted(self: Any, result: Any) -> None:
        results.append(result)
        original(self, result)

    triton_compile.Candidate.__init__ = noted  # type: ignore[method-assign]
    report = {}
    for text in texts:
        for found in re.finditer(r"= async_compile\.triton\('(\w+)', \'\'\'(.*?)\'\'\'", text, re.DOTALL):
            name, source = found.groups()
            if "user_autotune" not in source:
                continue
            results.clear()
            payload = msgspec.msgpack.encode(triton_kernels.KernelSource(name, source, {}))
            answer = triton_kernels.compile_kernel(payload)
            kernel = msgspec.msgpack.decode(answer, type=triton_kernels.CompiledKernel).kernel
            assert kernel is not None
            arguments = list(range(3, 3 + len(kernel.parameters)))
            report[name] = all(
                triton_child.launched(candidate, arguments) == triton_child.launched_by_torch(result, arguments)
                for candidate, result in zip(kernel.candidates, results, strict=True)
            )
    triton_compile.Candidate.__init__ = original  # type: ignore[method-assign]
    return report


def main(place: Path, commands: list[str]) -> None:
    os.environ["TORCH_WARM_POOL"] = "0"
    torch.utils._triton.has_triton = lambda **_: True  # as Dynamo finds it where there is a GPU
    known: dict[str, Callable[[Path], Any]] = {
        "keys": keys, "variants": variants, "refused": refused, "encode": encode, "decode": decode,
        "compile": compiled,
    }  # fmt: skip
    print(json.dumps({command: known[command](place) for command in commands}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
