"""Chooses templates by time in a process that has no device: hands out the work that Inductor would run.

Under `max_autotune` lowering compiles candidates for a matrix product or convolution, times them, and times them again
fused with their epilogues. In a worker both steps leave the process: other jobs compile the candidates, and the timing
goes as plain data to a process that has the device (`benchmarks`). A measurement that cannot be handed out raises
`UnansweredError`.

Source: torch/_inductor/select_algorithm.py (AlgorithmSelectorCache), scheduler.py (speedup_by_fusion), 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from fxpool import notices
from fxpool.torch_compat.cuda.device_answers import UnansweredError
from fxpool.torch_compat.patching import patched

log = notices.logger(__name__)


class Value(msgspec.Struct, array_like=True, frozen=True):
    """A tensor of a product, by its sizes.

    `device` is its device's number, `allocated` its sizes with padding, `base` the tensor it is a view of.
    """

    name: str
    device: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    allocated: tuple[int, ...]
    base: Value | None = None


class Choice(msgspec.Struct, array_like=True, frozen=True):
    """A candidate: its identity, and torch's own description of how to run it, pickled.

    torch's kernels (`extern`) take separate inputs. `dynamic` says which sizes of a product are dynamic, for the
    records of TunableOp.
    """

    identity: str
    request: bytes
    extern: bool = False
    name: str = ""
    inputs: list[Value] = []
    dynamic: tuple[bool, ...] | None = None


class Selection(msgspec.Struct, tag=True, frozen=True):
    """Candidates for one operation, to be timed on equal inputs."""

    operation: str
    inputs: list[Value]
    output: Value
    choices: list[Choice]

    def identity(self) -> list[Any]:
        """Return the facts that a candidate's time depends on, besides the candidate, the device and the installation.

        Of buffers' names only equality counts, so that the same product in the next layer has the same identity.
        """
        numbers: dict[str, str] = {}
        values = [_numbered(value, numbers) for value in (*self.inputs, self.output)]
        return [self.operation, msgspec.to_builtins(values)]

    def candidates(self) -> list[str]:
        """Return the identities of its candidates."""
        return [one.identity for one in self.choices]

    def describe(self) -> str:
        """Describe the operation in a few words, for logs."""
        sizes = " ".join("x".join(map(str, value.size)) for value in self.inputs)
        return f"{self.operation} {sizes} {self.output.dtype}"


def _numbered(value: Value, numbers: dict[str, str]) -> Value:
    name = numbers.setdefault(value.name, str(len(numbers)))
    base = _numbered(value.base, numbers) if value.base is not None else None
    return msgspec.structs.replace(value, name=name, base=base)


class Fused(msgspec.Struct, tag=True, frozen=True):
    """A kernel generated to be timed by itself; not timed if it spills more than `spills` registers."""

    source: str
    spills: int

    def identity(self) -> list[Any]:
        """Return the facts that the kernel's time depends on, besides the device and the installation."""
        return ["fused", self.source, self.spills]

    def candidates(self) -> list[str]:
        return [""]

    def describe(self) -> str:
        return "a fused kernel"


TimingQuestion = Selection | Fused

# A fused kernel that spills more registers is not timed; the number is torch's.
_SPILLS = 8


class Measure(Protocol):
    """Compiles and times candidates for a worker."""

    def compile(self, name: str, source: str) -> Future[bytes]:
        """Start to compile a kernel for the process that will time it."""

    def is_known(self, question: TimingQuestion) -> bool:
        """Return whether the answer is known, so that no compile is needed for it."""

    def times(self, question: TimingQuestion) -> list[float] | None:
        """Return milliseconds per candidate, infinite if it cannot run; None if no device is available."""


@contextlib.contextmanager
def measuring(measure: Measure) -> Iterator[None]:
    """Let Inductor choose by the times of `measure`."""
    from torch._inductor import autotune_process, scheduler, select_algorithm
    from torch._inductor.codegen.triton import TritonScheduling

    selector = select_algorithm.AlgorithmSelectorCache
    precompile_here, benchmark_here = selector.make_precompile_fn, selector.make_benchmark_fn

    def make_precompile_fn(self: Any, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not _all_on_cuda(choices):
            return precompile_here(self, choices, *args, **kwargs)
        return _Precompile(measure, choices)

    def make_benchmark_fn(
        cls: Any, choices: Any, input_nodes: Any, layout: Any, input_gen_fns: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not _all_on_cuda(choices):
            return benchmark_here(choices, input_nodes, layout, input_gen_fns, *args, **kwargs)
        if input_gen_fns:
            raise UnansweredError("a measurement on inputs that are made for it")
        if kwargs.get("is_collective"):
            raise UnansweredError("a measurement of several ranks")
        hint = kwargs.get("hint_override")
        return lambda wanted: _timed(measure, wanted, input_nodes, layout, hint)

    # Newer releases pass, in `_`, whether torch's own cache of times is used. It is not used here.
    def compile_kernel(self: Any, nodes: Any, hint_override: int | None = None, **_: Any) -> tuple[None, Any]:
        source = self.generate_kernel_code_from_nodes(nodes, benchmark_kernel=True, hint_override=hint_override)
        return None, _Generated(measure, source)

    def benchmark_fused_nodes(self: Any, nodes: Any, n_spills_threshold: int = _SPILLS, **_: Any) -> tuple[float, str]:
        source = self.generate_kernel_code_from_nodes(nodes, benchmark_kernel=True)
        return benchmark_codegened_module(self, _Generated(measure, source), n_spills_threshold)

    def benchmark_codegened_module(
        self: Any, mod: Any, n_spills_threshold: int = _SPILLS, node_names: Any = None, **_: Any
    ) -> tuple[float, str]:
        if not isinstance(mod, _Generated):
            raise UnansweredError("a measurement of a module that torch loaded by itself")
        try:
            mod.precompile()
        except Exception as error:  # like torch: a kernel that does not compile is not fused
            log.info("a fused candidate failed to compile: %s", error)
            return math.inf, mod.__file__
        times = measure.times(Fused(mod.source, n_spills_threshold))
        return (times[0] if times is not None else 1.0), mod.__file__

    with (
        patched(autotune_process, "get_tuning_process_pool", lambda: None, create=True),
        patched(selector, "make_precompile_fn", make_precompile_fn),
        patched(selector, "make_benchmark_fn", classmethod(make_benchmark_fn)),
        patched(scheduler.Scheduler, "compile_kernel", compile_kernel),
        patched(TritonScheduling, "benchmark_fused_nodes", benchmark_fused_nodes),
        patched(TritonScheduling, "benchmark_codegened_module", benchmark_codegened_module),
    ):
        yield


def _all_on_cuda(choices: Sequence[Any]) -> bool:
    return all(choice.layout is not None and choice.layout.device.type == "cuda" for choice in choices)


class _Precompile:
    """torch's "precompile function": waits for the candidates, and marks those that do not compile."""

    def __init__(self, measure: Measure, choices: Sequence[Any]) -> None:
        self._choices = list(choices)
        self._begun: dict[str, Future[bytes]] = {}
        templates = [choice for choice in self._choices if _module_path(choice) is not None]
        if templates and measure.is_known(_selection(choices, templates[0].input_nodes, templates[0].layout, None)):
            return
        for choice in templates:
            path = choice.bmreq.module_path
            if path not in self._begun:
                with open(path, encoding="utf-8") as file:
                    source = file.read()
                self._begun[path] = measure.compile(choice.bmreq.kernel_name, source)

    def __call__(self) -> dict[Any, float]:
        for choice in self._choices:
            compiling = self._begun.get(_module_path(choice) or "")
            if compiling is None:
                continue
            try:
                compiling.result()
            except Exception as error:  # one candidate of many
                log.info("candidate %s failed to compile: %s", choice.name, error)
                choice.mark_failed()
        return {}


def _module_path(choice: Any) -> str | None:
    from torch._inductor.select_algorithm import TritonTemplateCaller

    return choice.bmreq.module_path if isinstance(choice, TritonTemplateCaller) else None


def _timed(measure: Measure, choices: Sequence[Any], nodes: Any, layout: Any, hint: int | None) -> dict[Any, float]:
    selection = _selection(choices, nodes, layout, hint)
    times = measure.times(selection)
    if times is None:
        # As without autotuning: torch's own kernel, if it is a candidate.
        default = next((number for number, one in enumerate(selection.choices) if one.extern), 0)
        times = [1.0 if number == default else math.inf for number in range(len(choices))]
    return dict(zip(choices, times, strict=True))


def _selection(choices: Sequence[Any], nodes: Any, layout: Any, hint: int | None) -> Selection:
    described = [_choice(choice, hint) for choice in choices]
    operation = next((one.name for one in described if one.extern), choices[0].name.rsplit("_", 1)[0])
    return Selection(operation, [_value(node, hint) for node in nodes], _value(layout, hint), described)


def _choice(choice: Any, hint: int | None) -> Choice:
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    if isinstance(choice, ExternKernelCaller):
        inputs = [_value(node, hint) for node in choice.input_nodes]
        dynamic = getattr(choice, "tunable_dyn_dims_mask", None)  # since 2.15
        return Choice(choice.hash_key(), _pickled(choice.bmreq), True, choice.name, inputs, dynamic)
    if isinstance(choice, TritonTemplateCaller):
        return Choice(choice.hash_key(), _pickled(choice.bmreq), False, choice.name)
    raise UnansweredError(f"a measurement of a {type(choice).__name__}")


def _pickled(request: Any) -> bytes:
    try:
        return pickle.dumps(request)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UnansweredError(f"a measurement of what does not pickle ({error})") from error


def _value(node: Any, hint: int | None) -> Value:
    from torch._inductor import ir, select_algorithm
    from torch._inductor.virtualized import V

    if isinstance(node, ir.Layout):
        node = ir.Buffer(name="output", layout=node)
    strides = getattr(select_algorithm, "get_strides_with_layout_constraints", lambda one: one.get_stride())

    def hints(sizes: Any) -> tuple[int, ...]:
        values = V.graph.sizevars.optimization_hints_with_override(sizes, hint_override=hint)
        return tuple(int(size) for size in values)

    base = node.unwrap_view() if isinstance(node, ir.BaseView) else None
    whole = node if base is None else base
    device = node.get_device()
    assert device is not None
    return Value(
        node.get_name(),
        device.index or 0,
        str(node.get_dtype()).removeprefix("torch."),
        hints(node.get_size()),
        hints(strides(node)),
        hints([node.get_layout().offset])[0],
        hints(V.graph.get_allocation_size(whole)),
        _value(base, hint) if base is not None else None,
    )


class _Generated:
    """Replaces a generated module that is not executed here, and its kernel for code that only compiles that."""

    def __init__(self, measure: Measure, source: str) -> None:
        from torch._inductor.codecache import PyCodeCache

        self.source = source
        known = measure.is_known(Fused(source, _SPILLS))
        self._compiling = None if known else measure.compile("triton_", source)
        _, self.__file__ = PyCodeCache.write(source)
        self.triton_ = self

    def precompile(self) -> None:
        """Wait until it is compiled. Raises what the job raised."""
        if self._compiling is not None:
            self._compiling.result()
