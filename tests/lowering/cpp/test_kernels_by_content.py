"""Kernels that an earlier graph had are not compiled again: the same code is called, under the same facts only."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest
import torch
from processes import run_python
from tiers import first_tier

from fxpool.codecache.store.kernel_files import KernelFiles
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.cpp import kernels
from fxpool.lowering.cpp.library import Library
from fxpool.torch_compat.cpp import compile_commands, instruction_sets
from fxpool.torch_compat.inductor.output_code import kernel_digest

TYPES = ["const float*", "float*", "const int64_t"]


def kernel(expression: str, before: str = "") -> compile_commands.CollectedKernel:
    body = f"for (int64_t i = 0; i < n; i++) out[i] = {expression};"
    source = f'{before}\nextern "C" void kernel(const float* in, float* out, const int64_t n) {{ {body} }}\n'
    return compile_commands.CollectedKernel(TYPES, source)


class Graphs:
    """Compiles graphs one after another, and counts the kernels of each unit that is compiled."""

    def __init__(self, store: LocalStore, scratch: Path) -> None:
        self.store, self._scratch = store, scratch
        self.compiled: list[int] = []

    def submit(self, function: str, payload: bytes, label: str) -> Future[bytes]:
        self.compiled.append(int(label.split()[0]))
        future: Future[bytes] = Future()
        try:
            future.set_result(kernels.compile_unit(payload))
        except kernels.CppCompileError as error:
            future.set_exception(error)
        return future

    def linking(self, conditions: str = "", units: int = 1) -> kernels.Linking:
        stored = KernelFiles(self.store, conditions)
        return kernels.Linking(self.submit, units=lambda: units, toolchain_dir=None, patient=True, stored=stored)

    def run(self, *expressions: str, conditions: str = "", units: int = 1, keep: bool = True) -> list[float]:
        """Compile a graph of kernels; return what each makes of 3."""
        return self.run_kernels([kernel(one) for one in expressions], conditions, units, keep)

    def run_kernels(
        self, collected: list[compile_commands.CollectedKernel], conditions: str = "", units: int = 1, keep: bool = True
    ) -> list[float]:
        self.compiled.clear()
        linking = self.linking(conditions, units)
        linking.take(collected, True)
        library = linking.library()
        assert library is not None
        if keep:
            linking.keep()
        digest = hashlib.sha256(library).hexdigest()
        if not (self._scratch / digest).exists():  # it may be loaded
            (self._scratch / digest).write_bytes(library)
        with open(self._scratch / digest, "rb") as file:
            module = Library(digest, lambda: contextlib.nullcontext(file.fileno())).load()
        results = []
        for one in collected:
            out = torch.zeros(4)
            getattr(module, linking.names[kernel_digest(one.argument_types, one.source)])(torch.full((4,), 3.0), out, 4)
            results.append(out[-1].item())
        return results


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    monkeypatch.setattr(compile_commands, "HEADER", "#include <cstdint>")
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        yield Graphs(LocalStore(str(tmp_path / "store")), tmp_path)


def test_only_new_kernels_are_compiled(graphs: Graphs) -> None:
    assert graphs.run("in[i] + 1", "in[i] + 2", "in[i] + 3") == [4, 5, 6] and graphs.compiled == [3]
    assert graphs.run("in[i] + 2", "in[i] * 9", "in[i] + 3") == [5, 27, 6] and graphs.compiled == [1]
    assert graphs.run("in[i] + 1", "in[i] * 9") == [4, 27] and graphs.compiled == []


def test_an_object_that_shares_a_kernel_with_another_is_not_used(graphs: Graphs) -> None:
    """Both would define it, and the linker would refuse the library."""
    assert graphs.run("in[i] + 1", "in[i] + 2") == [4, 5]
    first = graphs.linking()
    first.take([kernel("in[i] + 2"), kernel("in[i] + 3")], True)
    other = KernelFiles(graphs.store, "elsewhere")  # another process did not find the first object
    apart = kernels.Linking(graphs.submit, units=lambda: 1, toolchain_dir=None, patient=True, stored=other)
    apart.take([kernel("in[i] + 2"), kernel("in[i] + 3")], True)
    assert apart.library() is not None
    apart._stored = KernelFiles(graphs.store, "")
    apart.keep()
    assert graphs.run("in[i] + 3", "in[i] + 1") == [6, 4] and graphs.compiled == [1], "the new object has + 2, too"
    assert graphs.run("in[i] + 1", "in[i] + 2", "in[i] + 3") == [4, 5, 6]


@pytest.mark.slow
def test_helpers_of_one_name_stay_apart(graphs: Graphs) -> None:
    first, second = (kernel("helper(in[i])", f"inline float helper(float x) {{ return x * {n}; }}") for n in (2, 10))
    assert graphs.run_kernels([first]) == [6] and graphs.run_kernels([second]) == [30]
    assert graphs.run_kernels([second, first]) == [30, 6] and graphs.compiled == []


def test_other_conditions_and_flags_compile_anew(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    graphs.run("in[i] + 1")
    graphs.run("in[i] + 1", conditions="another key")
    assert graphs.compiled == [1]
    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        graphs.run("in[i] + 1")
        assert graphs.compiled == [1]
        graphs.run("in[i] + 1")
        assert graphs.compiled == []
    graphs.run("in[i] + 1")
    assert graphs.compiled == []


def test_only_graphs_that_are_kept_leave_kernels(graphs: Graphs) -> None:
    graphs.run("in[i] + 1", keep=False)
    graphs.run("in[i] + 1")
    assert graphs.compiled == [1]


@pytest.mark.slow
@pytest.mark.parametrize("lost", first_tier(["objects", "records", "everything", "damaged"], "objects"))
def test_lost_files_cost_a_compile(graphs: Graphs, lost: str) -> None:
    graphs.run("in[i] + 1", "in[i] + 2")
    paths = sorted(Path(graphs.store.root, "kernels").iterdir(), key=lambda path: path.stat().st_size)
    for path in {"objects": paths[-1:], "records": paths[:-1]}.get(lost, paths):
        if lost == "damaged":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            path.unlink()
    assert graphs.run("in[i] + 2", "in[i] + 1") == [5, 4] and sum(graphs.compiled) == 2
    assert graphs.run("in[i] + 2", "in[i] + 1") == [5, 4] and graphs.compiled == []


@pytest.mark.slow
def test_a_kernel_that_needs_the_global_namespace_is_never_reused(graphs: Graphs) -> None:
    special = (
        "#include <functional>\nstruct mine {}; template <> struct std::hash<mine> { int operator()() { return 7; } };"
    )
    pair = [kernel("std::hash<mine>()()", special), kernel("in[i]")]
    for compiled in ([2, 1, 1, 1], [1, 1]):
        assert graphs.run_kernels(pair) == [7, 3]
        assert graphs.compiled == compiled


def test_a_rejected_kernel_leaves_nothing(graphs: Graphs) -> None:
    with pytest.raises(kernels.CppCompileError, match="nonsense"):
        graphs.run("in[i]", "nonsense")
    assert not Path(graphs.store.root).exists()


def test_kernels_found_early_start_nothing(graphs: Graphs) -> None:
    graphs.run("in[i] + 1", "in[i] + 2", units=2)
    assert graphs.compiled == [1, 1]
    graphs.compiled.clear()
    linking = graphs.linking(units=2)
    linking.begin(kernel("in[i] + 1"))
    assert graphs.compiled == []
    linking.begin(kernel("in[i] + 3"))
    assert graphs.compiled == [1]
    linking.take([kernel("in[i] + 1"), kernel("in[i] + 3")], True)
    assert linking.library() is not None and graphs.compiled == [1] and not linking.without_header


PROGRAM = """
import sys, torch
def graph(x):
    for factor in (2, 3, 4):
        x = (x * factor).softmax(-1) @ x
    return x.sin() if sys.argv[1] == "sin" else x.cos() + 1
x = torch.randn(16, 16)
torch.testing.assert_close(torch.compile(graph, backend="fxpool")(x), graph(x))
"""


@pytest.mark.slow
def test_an_edited_graph_compiles_what_changed(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    compiled = []
    for edit in ("sin", "cos"):
        trace = tmp_path / edit
        run_python(["-c", PROGRAM, edit], FXPOOL_TRACE=str(trace), FXPOOL_STRICT="1")
        names = [row["name"] for row in json.loads(trace.read_text()) if row["ph"] == "X"]
        compiled.append(sum(int(name.split()[0]) for name in names if name.endswith((" kernel", " kernels"))))
    assert compiled[0] >= 3 and compiled[1] == 1


def test_units_are_plain_data(graphs: Graphs) -> None:
    """A unit names its kernels by digest only, so that equal units have equal sources."""
    sent: list[kernels.Unit] = []

    def submit(function: str, payload: bytes, label: str) -> Future[bytes]:
        sent.append(msgspec.msgpack.decode(payload, type=kernels.Unit))
        return graphs.submit(function, payload, label)

    for _ in range(2):
        linking = kernels.Linking(submit, units=lambda: 1, toolchain_dir=None, patient=True)
        linking.take([kernel("in[i] + 1")], True)
        assert linking.library() is not None
    assert sent[0] == sent[1]
