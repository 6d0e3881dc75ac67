"""Kernels compile while the rest of their graph is being lowered: what is begun, when, and that it is what is called.

Inductor and g++ are real; where a compile has to be under way for as long as a test likes, its future is the test's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest
import torch

from fxpool.lowering.cpp import kernels
from fxpool.lowering.cpp.unit_source import function_name
from fxpool.torch_compat.cpp import compile_commands, instruction_sets
from fxpool.torch_compat.inductor import aot, output_code

TYPES = ["const float*", "float*", "const int64_t"]


def kernel(expression: str, length: int = 0) -> compile_commands.CollectedKernel:
    body = f"for (int64_t i = 0; i < n; i++) out[i] = {expression};"
    source = f'extern "C" void kernel(const float* in, float* out, const int64_t n) {{ {body} }}\n'
    return compile_commands.CollectedKernel(TYPES, source + "/" * 2 + "-" * length + "\n")


class Jobs:
    """Compiles that are under way until the test ends them, and those after that at once."""

    def __init__(self) -> None:
        self.units: list[kernels.Unit] = []
        self._waiting: list[tuple[bytes, Future[bytes]]] = []
        self._held = True

    def submit(self, function: str, payload: bytes, label: str) -> Future[bytes]:
        assert function == kernels.COMPILE_UNIT
        self.units.append(msgspec.msgpack.decode(payload, type=kernels.Unit))
        future: Future[bytes] = Future()
        self._waiting.append((payload, future))
        if not self._held:
            self._run()
        return future

    def end(self) -> None:
        self._held = False
        self._run()

    def hold(self) -> None:
        self._held = True

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for payload, future in waiting:
            try:
                future.set_result(kernels.compile_unit(payload))
            except kernels.CppCompileError as error:
                future.set_exception(error)


Made = Callable[..., kernels.Linking]


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def linking(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A library in the making, with a header of the test's own because Inductor's takes seconds to read."""
    monkeypatch.setattr(compile_commands, "HEADER", "#include <cstdint>")

    def make(units: int, *, tools: str | None = None) -> kernels.Linking:
        return kernels.Linking(jobs.submit, units=lambda: units, toolchain_dir=tools, patient=tools is not None)

    return make


def test_the_first_begins_at_once_and_small_ones_wait_for_it(linking: Made, jobs: Jobs) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made = linking(2)
        each = [kernel(f"in[i] + {number}") for number in range(4)]
        for one in each[:3]:
            made.begin(one)
        assert len(jobs.units) == 1 and "in[i] + 0" in jobs.units[0].source
        jobs.end()
        jobs.hold()
        made.begin(each[3])
        assert len(jobs.units) == 2
        assert all(f"in[i] + {number}" in jobs.units[1].source for number in (1, 2, 3))
        made.take(each, True)
        assert len(jobs.units) == 2, "what was begun was begun again"
        jobs.end()
        assert made.library() is not None


def test_large_ones_begin_beside_one_another(linking: Made, jobs: Jobs) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made = linking(4)
        for number in range(3):
            made.begin(kernel(f"in[i] + {number}", length=20_000))
        assert len(jobs.units) == 3


def test_nothing_begins_where_no_core_is_free(linking: Made, jobs: Jobs) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made = linking(1)
        one = kernel("in[i]")
        made.begin(one)
        assert not jobs.units
        made.take([one], True)
        assert len(jobs.units) == 1


def test_nothing_begins_that_would_wait_for_a_header(linking: Made, jobs: Jobs, tmp_path: Path) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        linking(2, tools=str(tmp_path)).begin(kernel("in[i]"))
    assert not jobs.units


def test_one_that_no_module_calls_need_not_compile(linking: Made, jobs: Jobs) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made = linking(2)
        called = kernel("in[i]")
        made.begin(kernel("nonsense"))
        made.take([called], True)
        jobs.end()
        assert made.library() is not None


def test_one_that_is_called_has_to_compile(linking: Made, jobs: Jobs) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made = linking(2)
        called = kernel("nonsense")
        made.begin(called)
        made.take([called], True)
        jobs.end()
        with pytest.raises(kernels.CppCompileError, match="nonsense"):
            made.library()


def test_what_no_key_covers_is_noted(linking: Made, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that a source includes besides, and a flag that a release of torch adds."""
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made = linking(2)
        made.take([kernel("in[i]")], True)
        assert not made.unlisted
        made.take([compile_commands.CollectedKernel(["int*"], "#include <bit>\nvoid kernel(int* out) {}")], True)
        assert made.unlisted == {"bit"}
        original = compile_commands.Command.compile

        def compile_otherwise(self: compile_commands.Command, path: str, name: str) -> tuple[list[str], str]:
            words, target = original(self, path, name)
            return [*words, "-DNEW"], target

        monkeypatch.setattr(compile_commands.Command, "compile", compile_otherwise)
        made.take([kernel("in[i] + 1")], True)
        assert made.unlisted == {"bit", "-DNEW"}
        jobs.end()


# ---------------------------------------------------------------- as Inductor generates them


class Layers(torch.nn.Module):
    """Products between which pointwise work and reductions are, so that there are several kernels."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(3))
        self.norm = torch.nn.LayerNorm(24)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.nn.functional.gelu(layer(self.norm(x))) * (number + 1)
            x = torch.nn.functional.dropout(x, self.dropout, self.training)
        return torch.softmax(x, -1)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_begins_early_is_what_the_modules_call(training: bool, dtype: torch.dtype) -> None:
    """A source that was read otherwise would be compiled twice, and waited for."""
    seen: list[tuple[str, str]] = []

    def digest(one: compile_commands.CollectedKernel) -> str:
        return output_code.kernel_digest(one.argument_types, one.source)

    def collect(module: object, last: bool) -> None:
        seen.extend(("called", digest(one)) for one in module)  # type: ignore[attr-defined]

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        with compile_commands.collecting(collect, lambda one: seen.append(("begun", digest(one)))):
            aot.compile_graph(gm, inputs, keep_result=True)
        return gm.forward

    model = Layers(0.2).to(dtype).train(training)
    x = torch.randn(4, 24, dtype=dtype)
    torch._dynamo.reset()
    with torch.set_grad_enabled(training):
        torch.compile(model, backend=backend)(x)
    begun = [digest for kind, digest in seen if kind == "begun"]
    called = [digest for kind, digest in seen if kind == "called"]
    assert len(set(called)) >= 3
    assert set(begun) == set(called)
    assert next(kind for kind, _ in seen) == "begun"


def test_other_definitions_are_left_alone() -> None:
    assert compile_commands.defined_kernel("async_compile.triton('a', '''b''')") is None
    assert compile_commands.defined_kernel("async_compile.cpp_pybinding(types, source)") is None
    assert compile_commands.defined_kernel("async_compile.cpp_pybinding(['int'], r'''") is None
    defined = compile_commands.defined_kernel("async_compile.cpp_pybinding(['int'], r'''\n  \n a\\n'''\n)\n")
    assert defined is not None and (defined.argument_types, defined.source) == (["int"], "\n\n a\\n")


def test_kernels_have_the_same_names_in_every_library(linking: Made, jobs: Jobs) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        made, other = linking(2), linking(2)
        for number in range(3):
            made.begin(kernel(f"in[i] + {number}"))
            other.begin(kernel(f"in[i] + {2 - number}"))
    assert made.names == other.names and len(set(made.names.values())) == 3
    assert all(function_name(digest) == name for digest, name in made.names.items())
