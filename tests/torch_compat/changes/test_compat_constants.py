"""`changed_constants` finds what a program set to other values than torch's source has."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.codegen.common as common
import torch._inductor.ir as ir
import torch._inductor.runtime.hints as hints
import torch.nn.functional as F

from fxpool.torch_compat.changes import changed_constants, torch_sources


class Answers:
    """Answers as another process on this host would find them."""

    def __init__(self) -> None:
        self.answers: dict[Any, dict[str, str]] = {}
        self.written = 0

    def read(self, question: Sequence[str], identity: Any) -> dict[str, str] | None:
        return self.answers.get((tuple(question), identity))

    def write(self, question: Sequence[str], identity: Any, answer: dict[str, str]) -> None:
        self.answers[tuple(question), identity] = answer
        self.written += 1


ANSWERS = Answers()


@pytest.fixture(autouse=True)
def _listed_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(changed_constants, "_listed", changed_constants._Listed())
    monkeypatch.setattr(torch_sources, "_last", None)
    yield


def changed() -> dict[str, Any]:
    sources = torch_sources.loaded("here", ANSWERS)
    found = {change.name: change.value for change in changed_constants.changed(sources)}
    sources.keep(ANSWERS)
    return found


def test_torch_as_it_was_imported_has_no_changes() -> None:
    not_imported = ("compile_worker", "__main__", "cutlass", "migrate_gradual", "test_case", "pytree_hacks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in ("torch._inductor", "torch._functorch", "torch.fx", "torch._refs", "torch._higher_order_ops"):
            for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
                if not any(part in module.name for part in not_imported):
                    with contextlib.suppress(ImportError):  # a library that is not installed
                        importlib.import_module(module.name)
    assert changed() == {}
    (batch,) = changed_constants._listed.batches
    assert len(batch.rows) > 2000 and len(batch.contents.containers) > 300


def test_a_constant_is_found_and_after_it_is_put_back_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed() == {}
    with monkeypatch.context() as patch:
        patch.setattr(hints, "TRITON_MAX_RSPLIT", 16)
        patch.setattr(ir.ExternKernel, "__doc__", "another")  # documentation is not code
        assert changed() == {"torch._inductor.runtime.hints.TRITON_MAX_RSPLIT": "16"}
    assert changed() == {}


def test_a_container_is_found_that_is_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed() == {}
    monkeypatch.setitem(hints.TRITON_MAX_BLOCK, "X", 8192)
    assert list(changed()) == ["torch._inductor.runtime.hints.TRITON_MAX_BLOCK"]
    first = changed()
    monkeypatch.setitem(hints.TRITON_MAX_BLOCK, "X", 2048)
    assert changed() != first


@pytest.mark.parametrize(
    ("table_name", "key", "value"),
    [
        ("torch._prims_common._computation_dtype_map", torch.bfloat16, torch.float64),
        ("torch._prims_common._computation_dtype_map", torch.int8, torch.float64),
        ("torch._inductor.ir.REDUCTION_COMBINE_FN", "sum", lambda a, b: a * b),
        ("torch._inductor.codegen.cpp_utils.DTYPE_TO_CPP", torch.float32, "double"),
        ("torch._inductor.codegen.cpp.RTYPE_TO_CPP", "sum", "*"),
        ("torch._inductor.codegen.cpp.RTYPE_TO_CPP", "another", len),
        ("torch._inductor.codegen.common.pointwise_overrides_data", "airy_ai", lambda: None),
        ("torch._inductor.utils.op_dtype_propagation_rules", "sin", lambda: None),
        ("torch._subclasses.fake_tensor._DISPATCH_META_HANDLERS", torch.ops.prim.device.default, lambda arguments: 3),
    ],
)
def test_an_entry_of_a_container_is_found(
    monkeypatch: pytest.MonkeyPatch, table_name: str, key: Any, value: Any
) -> None:
    module, _, name = table_name.rpartition(".")
    table = getattr(importlib.import_module(module), name)
    assert changed() == {}
    with monkeypatch.context() as patch:
        patch.setitem(table, key, value)
        assert list(changed()) == [table_name]
    assert changed() == {}


def test_another_container_in_the_place_of_an_imported_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.graph as graph

    assert changed() == {}
    monkeypatch.setattr(graph, "lowerings", {**graph.lowerings})
    assert list(changed()) == ["torch._inductor.graph.lowerings"]


def test_an_equal_value_of_another_type_is_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "TRITON_MAX_RSPLIT", float(hints.TRITON_MAX_RSPLIT))
    assert list(changed().values()) == ["64.0"]


def test_an_equal_item_of_another_type_is_another_item(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed() == {}
    monkeypatch.setitem(hints.TRITON_MAX_BLOCK, "X", float(hints.TRITON_MAX_BLOCK["X"]))
    assert list(changed()) == ["torch._inductor.runtime.hints.TRITON_MAX_BLOCK"]


def test_a_constant_of_a_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.Kernel, "newvar_prefix", "my")
    assert changed() == {"torch._inductor.codegen.common.Kernel.newvar_prefix": "'my'"}


def test_defaults_of_functions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F.softmax, "__defaults__", (None, 5, None))
    monkeypatch.setattr(F.dropout, "__kwdefaults__", {"p": 0.25})  # its defaults are positional
    assert changed() == {"torch.nn.functional.softmax.__defaults__": "tuple['None', '5', 'None']"}


def test_defaults_of_a_function_in_the_place_of_torch_s_are_not_its(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropout(input: Any, p: float = 0.25) -> Any:  # `changed_namespaces` finds the program's functions
        return input

    monkeypatch.setattr(F, "dropout", dropout)
    assert changed() == {}


def test_what_another_process_has_read_is_not_read_again() -> None:
    assert changed() == {}
    before = ANSWERS.written
    changed_constants._listed = changed_constants._Listed()
    torch_sources._last = None
    assert changed() == {} and ANSWERS.written == before and before > 0


def test_a_module_that_cannot_be_read_counts_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader:
        def get_code(self, name: str) -> None:
            raise OSError("gone")

    monkeypatch.setattr(hints, "__loader__", Loader())
    monkeypatch.setattr(torch_sources, "_last", ("answers", "here", torch_sources.Sources("here")))
    assert changed() == {"torch._inductor.runtime.hints": "its code can't be read: OSError: gone"}


def test_without_a_place_for_answers_modules_are_read() -> None:
    assert changed_constants.changed(torch_sources.loaded("here")) == []
    assert sum(len(batch.rows) for batch in changed_constants._listed.batches) > 1000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's, about its own code
def test_compiles_change_nothing() -> None:
    """Containers that torch's own code fills while it runs are not told from a program's changes."""

    def attended(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.T).softmax(-1) + x.sum()

    x = torch.randn(8, 8, requires_grad=True)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Dropout())
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        for dynamic in (False, True):
            torch._dynamo.reset()
            torch.compile(attended, dynamic=dynamic)(x).sum().backward()
        torch.compile(network)(torch.randn(2, 3, 8, 8)).sum().backward()
        with torch.no_grad(), torch._inductor.config.patch(freezing=True, max_autotune=True):
            torch.compile(torch.nn.Linear(16, 16).eval())(torch.randn(4, 16))
            torch.compile(lambda x: x[x > 0].sum() + x.topk(2).values.sum())(torch.randn(9))
    torch._dynamo.reset()
    assert changed() == {}
