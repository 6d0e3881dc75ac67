"""`registrations` collects what a program registers for an operator: it decides what is compiled, and is in the key."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.library import Library

from fxpool.torch_compat.operators import libraries, registrations
from fxpool.torch_compat.operators.registrations import NotFoundError, Part, registration

NAMESPACE = "compat_registered"


def forward(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


def on_cpu(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


def fake(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scale = inputs[1]


def backward(ctx: Any, grad: torch.Tensor) -> Any:
    return grad * ctx.scale, None


def vmapped(info: Any, in_dims: Any, x: torch.Tensor, scale: float) -> Any:
    return x * scale, in_dims[0]


@pytest.fixture(scope="module")
def operator() -> Any:
    made: Any = torch.library.custom_op(f"{NAMESPACE}::scaled", forward, mutates_args=())
    made.register_kernel("cpu")(on_cpu)
    made.register_fake(fake)
    made.register_autograd(backward, setup_context=setup_context)
    made.register_vmap(vmapped)
    made.register_autocast("cpu", torch.bfloat16)
    return made._opoverload


def functions_in(value: Any) -> set[str]:
    """The names of the functions in a part, or in a tuple of values."""
    if isinstance(value, Part):
        return functions_in(value.value)
    if isinstance(value, tuple):
        return {name for item in value for name in functions_in(item)}
    return {value.__name__} if isinstance(value, types.FunctionType) else set()


def test_all_parts_of_a_custom_operator_are_there(operator: Any) -> None:
    found = registration(operator)
    assert found.name == f"{NAMESPACE}::scaled.default" and found.is_known
    assert found.files == [__file__] and found.libraries == [] and found.home is None
    assert found.parts["schema"].value == f"{NAMESPACE}::scaled(Tensor x, float scale) -> Tensor"
    named = {name: functions_in(part) for name, part in found.parts.items()}
    assert named["_abstract_fn"] == {"fake"} and named["_backward_fn"] == {"backward"}
    assert named["_setup_context_fn"] == {"setup_context"} and named["_vmap_fn"] == {"vmapped"}
    dtypes = [part.value for name, part in found.parts.items() if "autocast" in name]
    assert any("bfloat16" in str(dtype) for dtype in dtypes)


def test_kernels_that_compute_are_no_parts(operator: Any) -> None:
    """Compiled code calls them in the program's process; their file has to be imported by a worker all the same."""
    parts = registration(operator).parts
    assert not {"forward", "on_cpu"} & {name for part in parts.values() for name in functions_in(part)}
    assert {name for name, part in parts.items() if not part.traced_only} == {"schema", "tags", "_abstract_fn"}


def test_a_packet_has_the_parts_of_its_overloads(operator: Any) -> None:
    packet = registration(getattr(torch.ops, NAMESPACE).scaled)
    assert packet.name == f"{NAMESPACE}::scaled"
    assert packet.parts.keys() == registration(operator).parts.keys()
    library = Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("several(Tensor x) -> Tensor")
        library.define("several.scaled(Tensor x, float scale) -> Tensor")
        parts = registration(getattr(torch.ops, NAMESPACE).several).parts
        assert {f"{NAMESPACE}::several schema", f"{NAMESPACE}::several.scaled schema"} <= parts.keys()
    finally:
        library._destroy()


def test_an_operator_of_c_whose_library_is_not_there_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of torch's own: its libraries are not looked at."""
    monkeypatch.setattr(libraries, "_mapped", lambda operator: set())
    with pytest.raises(NotFoundError, match="the library that registered aten::sin"):
        registration(torch.ops.aten.sin)


def test_a_kernel_that_is_switched_off_counts(operator: Any) -> None:
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS[f"{NAMESPACE}::scaled"]
    assert "_disabled_kernel" not in registration(operator).parts
    with definition.set_kernel_enabled("cpu", False):
        assert registration(operator).parts["_disabled_kernel"].value == ("cpu",)


def test_a_library_s_kernels_are_probed_and_its_rules_read() -> None:
    library = Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("plain(Tensor x, float scale) -> Tensor")
        library.impl("plain", on_cpu, "CPU")
        torch.library.register_fake(f"{NAMESPACE}::plain", fake, lib=library)
        found = registration(getattr(torch.ops, NAMESPACE).plain.default)
        assert found.files == [__file__]
        by_name = {name: functions_in(part) for name, part in found.parts.items()}
        assert not any(name.startswith("kernel for CPU") for name in by_name)
        assert {"fake"} in [functions for name, functions in by_name.items() if name.startswith("fake implementation")]
    finally:
        library._destroy()


def test_a_rule_for_a_tensor_class_is_read() -> None:
    class Wrapped(torch.Tensor):
        pass

    def rule(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return None

    library = Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("ruled(Tensor x) -> Tensor")
        torch.library.register_torch_dispatch(f"{NAMESPACE}::ruled", Wrapped, rule, lib=library)
        parts = registration(getattr(torch.ops, NAMESPACE).ruled.default).parts
        (name,) = [name for name in parts if name.startswith("rule for")]
        assert name.endswith("Wrapped") and functions_in(parts[name]) == {"rule"}
    finally:
        library._destroy()


def test_an_effect_is_read() -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    library = Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("effectful(Tensor x) -> Tensor")
        target = getattr(torch.ops, NAMESPACE).effectful.default
        assert "effect" not in registration(target).parts
        handle = _register_effectful_op(target, _EffectType.ORDERED)
        assert "ORDERED" in registration(target).parts["effect"].value
        handle.destroy()
        assert "effect" not in registration(target).parts
    finally:
        library._destroy()


@pytest.fixture
def overriding() -> Iterator[Any]:
    made = Library("aten", "IMPL")
    yield made
    made._destroy()


def test_nothing_of_torch_s_own_counts_as_overridden() -> None:
    assert list(registrations.overridden()) == []


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel:UserWarning")
@pytest.mark.filterwarnings("ignore:.*other operators may also be overridden:UserWarning")
def test_a_program_s_kernel_for_an_operator_of_torch_is_found(overriding: Any) -> None:
    def erfinv(x: torch.Tensor) -> torch.Tensor:
        return x

    overriding.impl("special_log_ndtr", erfinv, "CPU")
    ((name, part),) = registrations.overridden()
    assert name.startswith("aten::special_log_ndtr.default for CPU") and functions_in(part) == {"erfinv"}
    # A second look at a library that was judged already, and one at another kernel in it.
    assert [name for name, _ in registrations.overridden()] == [name]
    overriding.impl("special_ndtri", erfinv, "CPU")
    assert len(list(registrations.overridden())) == 2


def test_the_module_of_a_file_is_found() -> None:
    assert registrations.module_of_file(__file__) == __name__
    assert registrations.module_of_file("/nowhere/module.py") is None


def test_a_backward_that_torch_wraps_is_opened() -> None:
    library = Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("differentiable(Tensor x, float scale) -> Tensor")
        library.impl("differentiable", on_cpu, "CPU")
        name = f"{NAMESPACE}::differentiable"
        torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)
        found = registration(getattr(torch.ops, NAMESPACE).differentiable.default)
        above = [part for name, part in found.parts.items() if name.startswith("kernel for Autograd")]
        assert above and all(part.traced_only for part in above)
        assert {"backward", "setup_context"} <= functions_in(above[0])
    finally:
        library._destroy()


@pytest.mark.parametrize(("key", "traced_only"), [("CompositeImplicitAutograd", True), ("Meta", False)])
def test_a_kernel_that_is_traced_is_a_part(key: str, traced_only: bool) -> None:
    library = Library(NAMESPACE, "FRAGMENT")
    try:
        library.define("traced(Tensor x, float scale) -> Tensor")
        library.impl("traced", fake, key)
        found = registration(getattr(torch.ops, NAMESPACE).traced.default)
        kernels = [part for name, part in found.parts.items() if name.startswith("kernel for")]
        assert [functions_in(part) for part in kernels] == [{"fake"}]
        assert kernels[0].traced_only is traced_only
    finally:
        library._destroy()
