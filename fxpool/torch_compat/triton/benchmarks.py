"""Times candidates on a CUDA device for a process without one: the counterpart of `autotuning`.

The candidates are run by torch's own code, on inputs made as torch makes them.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from fxpool import notices
from fxpool.torch_compat.patching import patched
from fxpool.torch_compat.triton.autotuning import Choice, Fused, Selection, TimingQuestion, Value

log = notices.logger(__name__)


class Times(msgspec.Struct, array_like=True, frozen=True):
    """Milliseconds, infinite for a candidate that cannot run, None if it was not tried. `device`: there is a device.

    `tainted`: a candidate broke the CUDA context, and this process can run no more candidates.
    """

    milliseconds: list[float | None]
    device: bool = True
    tainted: bool = False


def compile_candidate(name: str, source: str) -> None:
    """Compile all configurations of a kernel into Triton's cache directory. Raises what Triton raises."""
    from fxpool.torch_compat.triton import triton_compile

    # A module that times itself refers to this function, which builds for the CPU lack.
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    with triton_compile.no_driver(), patched(torch._C, "_cuda_getCurrentRawStream", stream, create=True):
        triton_compile.load(name, source).precompile(warm_cache_only=True)


def times(question: TimingQuestion) -> Times:
    """Time the candidates of `question`.

    Raises:
        AttributeError, TypeError: torch's code was called in a wrong way, which says nothing about a candidate.
        Exception: the inputs cannot be created.
    """
    count = len(question.choices) if isinstance(question, Selection) else 1
    if not torch.cuda.is_available():
        return Times([None] * count, device=False)
    milliseconds: list[float | None] = []
    tainted = False
    with _graph(question):
        runs = _of_selection(question) if isinstance(question, Selection) else iter([_of_kernel(question)])
        for run in runs:
            try:
                milliseconds.append(float(run()))
            except (AttributeError, TypeError):
                raise
            except Exception as error:  # any error of one candidate among many
                log.info("%s: a candidate failed to run: %s", question.describe(), error)
                milliseconds.append(math.inf)
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                log.warning("%s: a candidate broke the CUDA context: %s", question.describe(), error)
                milliseconds[-1], tainted = math.inf, True
                break
    return Times(milliseconds + [None] * (count - len(milliseconds)), tainted=tainted)


class _Graph:
    """Replaces the graph being lowered, with the methods that torch's benchmarks use."""

    device_type = "cuda"
    aot_mode = cpp_wrapper = False

    def __init__(self, values: list[Value], device: int) -> None:
        from torch._inductor.sizevars import SizeVarAllocator

        self.sizevars = SizeVarAllocator()
        self.buffer_layout_constraints: dict[str, Any] = {}
        self._allocated = {value.name: value.allocated for value in values}
        self._device = torch.device("cuda", device)

    def get_allocation_size(self, node: Any) -> Any:
        return self._allocated.get(node.get_name(), node.get_size())

    def get_current_device_or_throw(self) -> torch.device:
        return self._device


@contextlib.contextmanager
def _graph(question: TimingQuestion) -> Iterator[None]:
    from torch._inductor.virtualized import V

    values, device = [], torch.cuda.current_device()
    if isinstance(question, Selection):
        device = question.output.device
        for value in [*question.inputs, question.output, *(one for c in question.choices for one in c.inputs)]:
            values += [value] if value.base is None else [value.base]
    with torch.cuda.device(device), V.set_graph_handler(_Graph(values, device)):
        yield


def _of_kernel(question: Fused) -> Any:
    def run() -> float:
        from torch._inductor.codecache import PyCodeCache
        from torch._inductor.codegen.triton import TritonScheduling

        module = PyCodeCache.load(question.source)
        scheduling = types.SimpleNamespace()
        return float(TritonScheduling.benchmark_codegened_module(scheduling, module, question.spills)[0])

    return run


def _of_selection(question: Selection) -> Iterator[Any]:
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    nodes = [_node(value) for value in question.inputs]
    choices = [_runnable(choice) for choice in question.choices]
    inputs = AlgorithmSelectorCache.get_inputs(choices, nodes, _layout(question.output), None)
    for choice in choices:
        yield lambda choice=choice: AlgorithmSelectorCache.benchmark_choice(choice, inputs)


def _runnable(choice: Choice) -> Any:
    """Rebuild torch's caller of a choice, without the parts that generate code."""
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    kind: Any = ExternKernelCaller if choice.extern else TritonTemplateCaller
    made = kind.__new__(kind)
    made.name, made.description, made.failed = choice.name, "", False
    made.input_nodes = [_node(value) for value in choice.inputs]
    made._benchmark_with_cudagraphs = False
    made.tunable_dyn_dims_mask = choice.dynamic  # since 2.15
    made.bmreq = pickle.loads(choice.request)  # from a worker that compiles for this process
    return made


def _layout(value: Value) -> Any:
    import sympy
    from torch._inductor import ir

    size, stride = ([sympy.Integer(one) for one in sizes] for sizes in (value.size, value.stride))
    device = torch.device("cuda", value.device)
    return ir.FixedLayout(device, getattr(torch, value.dtype), size, stride, sympy.Integer(value.offset))


def _node(value: Value) -> Any:
    from torch._inductor import ir

    if value.base is None:
        return ir.InputBuffer(name=value.name, layout=_layout(value))
    return ir.ReinterpretView(data=ir.StorageBox(_node(value.base)), layout=_layout(value))
