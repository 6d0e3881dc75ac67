"""A record is proven when it is made: a copy in which any fact is changed fits no frame."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fxpool.torch_compat.frames import guard_tree, plain_sources


class Manager:
    """Takes any check."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.called.append(name)


def repeated(check: guard_tree.Check, value: Any) -> list[str]:
    manager = Manager()
    guard_tree.repeat(check, manager, value, lambda one: f"<{one}>", lambda *_: None, of_module=False)
    return manager.called


def passes(check: guard_tree.Check, value: Any) -> bool:
    try:
        repeated(check, value)
    except guard_tree.TreeDiffersError:
        return False
    return True


def written(*values: Any) -> list[Any]:
    return [plain_sources.Writer().write(value) for value in values]


HAS_HOOKS = SimpleNamespace(_forward_hooks={1: print})

#: Name of a check with its kind and arguments, a value that passes, and others that do not.
CHECKS: list[tuple[str, str, Any, Any, list[Any]]] = [
    ("add_equals_match_guard", "plain", written(3), 3, [4, 3.0, "3", None]),
    ("add_equals_match_guard", "plain", written(0.0), 0.0, [-0.0, 0, 1.0]),
    ("add_equals_match_guard", "plain", written((1, 2)), (1, 2), [(1, 2.0), (True, 2), [1, 2], (1, 2, 3)]),
    ("add_equals_match_guard", "plain", written(frozenset("ab")), frozenset("ba"), [frozenset("a"), set("ab")]),
    ("add_equals_match_guard", "plain", written(torch.float32), torch.float32, [torch.float64, "float32"]),
    ("add_none_match_guard", "plain", [], None, [0, False, ()]),
    ("add_not_none_guard", "plain", [], 0, [None]),
    ("add_true_match_guard", "plain", [], True, [1, False, None]),
    ("add_false_match_guard", "plain", [], False, [0, True, None]),
    ("add_dict_contains_guard", "plain", written(True, "a"), {"a": 1}, [{}, {"b": 1}]),
    ("add_dict_contains_guard", "plain", written(False, "a"), {"b": 1}, [{"a": 1}]),
    ("add_set_contains_guard", "plain", written(True, "a"), {"a"}, [set(), {"b"}]),
    ("add_length_check_guard", "plain", written(2), (1, 2), [(), (1, 2, 3)]),
    ("add_dict_length_check_guard", "plain", written(1), {"a": 1}, [{}, {"a": 1, "b": 2}]),
    ("add_no_hasattr_guard", "plain", written("real_part"), 1, [SimpleNamespace(real_part=1)]),
    ("add_float_is_nan_guard", "plain", [], float("nan"), [1.0, None]),
    ("add_complex_is_nan_guard", "plain", [], complex("nan"), [1j, float("nan")]),
    ("add_id_match_guard", "object", "<3>", 3, [4]),
    ("add_type_match_guard", "type", "<<class 'int'>>", 3, [3.0, True]),
    ("", "hooks", "_forward_hooks", SimpleNamespace(_forward_hooks={}), [HAS_HOOKS]),
]


@pytest.mark.parametrize(("method", "kind", "data", "value", "others"), CHECKS)
def test_a_check_passes_its_value_and_no_other(
    method: str, kind: str, data: Any, value: Any, others: list[Any]
) -> None:
    check = guard_tree.Check(1, method, kind, data, ["text"], 1)
    assert repeated(check, value) == ([method] if method else [])
    assert [other for other in others if passes(check, other)] == []
    flips = [*guard_tree.flips(check)]
    assert flips and not any(passes(flip, value) for flip in flips)


def tensor_check(tensor: torch.Tensor, sizes: list[int | None], strides: list[int | None]) -> guard_tree.Check:
    facts = guard_tree.tensor_facts(tensor, lambda one: f"<{one}>", of_module=False)
    return guard_tree.Check(
        1, guard_tree.TENSOR, "tensor", [*written(sizes, strides, "x"), ["type", None], facts], ["text"], 3
    )


def test_a_tensor_is_compared_with_all_that_tracing_reads() -> None:
    tensor = torch.zeros(4, 8)
    check = tensor_check(tensor, [None, 8], [8, 1])
    marked = torch.zeros(4, 8)
    torch._dynamo.mark_dynamic(marked, 0)
    others = {
        "type": torch.nn.Parameter(torch.zeros(4, 8)),
        "dtype": torch.zeros(4, 8, dtype=torch.float64),
        "device": torch.zeros(4, 8, device="meta"),
        "gradient": torch.zeros(4, 8, requires_grad=True),
        "size": torch.zeros(4, 9),
        "dimensions": torch.zeros(4, 8, 1),
        "strides": torch.zeros(8, 4).t(),
        "mark": marked,
        "conjugate": torch.zeros(4, 8, dtype=torch.complex64).conj(),
    }
    assert passes(check, tensor) and passes(check, torch.zeros(5, 8))
    assert [name for name, other in others.items() if passes(check, other)] == []
    flips = [*guard_tree.flips(check)]
    assert len(flips) == 7 and not any(passes(flip, tensor) for flip in flips)


def test_tensors_that_are_one_or_share_memory_are_told() -> None:
    one = torch.zeros(4)
    managers = [
        guard_tree.Manager(0, "framelocals_manager", ["tuple", name, 0], name, "GUARD_MANAGER") for name in "abc"
    ]

    def shared(*values: object, **others: object) -> list[str]:
        return guard_tree.Tree(managers).shared([None, *values], others)

    apart = shared(one, torch.zeros(4), torch.ones(4))
    assert len(apart) == 1
    assert shared(one, one, torch.ones(4))[:-1] == ["one memory: a, b", "one tensor: a, b"]
    assert shared(one, torch.ones(4), one.view(2, 2))[:-1] == ["one memory: a, c"]


def test_objects_that_are_one_are_told() -> None:
    managers = [
        guard_tree.Manager(0, "framelocals_manager", ["tuple", name, 0], name, "GUARD_MANAGER") for name in "ab"
    ]

    class Plain: ...

    def shared(*values: object, **others: object) -> list[str]:
        return guard_tree.Tree(managers).shared([None, *values], others)

    one, other = Plain(), Plain()
    apart = shared(one, other)
    assert apart == shared(Plain(), Plain()) == shared(1, 1) == shared("a", "b")
    assert len({*apart, *shared(one, one), *shared(one, 1, c=one), *shared(one, Plain), *shared({one: 1}, one)}) == 5


def test_a_source_that_is_an_import_is_read_outside_a_trace() -> None:
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        source = torch._dynamo.source.AttrSource(torch._dynamo.source.ImportSource("math"), "pi")
    writer = plain_sources.Writer()
    data = writer.write(source)
    assert plain_sources.Reader(writer.table).read(data) == source


def test_a_look_for_annotations_makes_none() -> None:
    class Base:
        width: int

    class Derived(Base):
        pass

    with pytest.raises(AttributeError, match="Derived has no annotations"):
        guard_tree.attribute(Derived, "__annotations__")
    assert "__annotations__" not in vars(Derived)  # `Derived().__annotations__` are the base's
    assert list(Base.__annotations__) == ["width"]
    assert list(guard_tree.attribute(Base, "__annotations__")) == ["width"]
