"""`dispatch_probe` finds the Python code behind a kernel that the dispatcher holds in C++."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.library import Library

from fxpool.torch_compat.operators import dispatch_probe
from fxpool.torch_compat.operators.dispatch_probe import NotFoundError

NAMESPACE = "compat_probe"
# Every kind of argument that the probe has a stand-in for.
EVERY = (
    "every(Tensor a, Tensor? b, Tensor[] c, int d, SymInt e, float f, bool g, Scalar h, str i, ScalarType j, Device k, "
    "Layout l, MemoryFormat m, int[] n, float? o, *, Tensor p, int q=3) -> Tensor"
)


@pytest.fixture
def library() -> Iterator[Any]:
    made = Library(NAMESPACE, "FRAGMENT")
    yield made
    made._destroy()


def op(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def kernels(name: str) -> list[tuple[str, Any, dict[str, Any]]]:
    """Key, function and other arguments of each kernel."""
    return [(key, function, others) for key, _, function, others in dispatch_probe.python_kernels(op(name))]


def scaling(factor: float, calls: list[int]) -> Callable[..., torch.Tensor]:
    def scaled(x: torch.Tensor, offset: float = 0.5) -> torch.Tensor:
        calls.append(1)
        return x * factor + offset

    return scaled


def test_a_kernel_s_code_closure_and_defaults_are_found_without_running_it(library: Any) -> None:
    calls: list[int] = []
    kernel = scaling(2.5, calls)
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", kernel, "CPU")
    ((key, function, others),) = kernels("scaled")
    assert key == "CPU" and calls == []
    assert function.__code__ is kernel.__code__ and function.__globals__ is kernel.__globals__
    assert others == {"offset": 0.5}
    cells = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__), strict=True))
    assert cells == {"calls": calls, "factor": 2.5}


def test_a_kernel_for_many_keys_is_probed_once(library: Any) -> None:
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x + 1, "CompositeImplicitAutograd")
    assert len(kernels("composite")) == 1


def test_kernels_of_several_keys_are_told_apart(library: Any) -> None:
    def on_cpu(x: torch.Tensor) -> torch.Tensor:
        return x

    def on_meta(x: torch.Tensor) -> torch.Tensor:
        return x

    library.define("several(Tensor x) -> Tensor")
    library.impl("several", on_cpu, "CPU")
    library.impl("several", on_meta, "Meta")
    found = {key: function.__code__ for key, function, _ in kernels("several")}
    assert found == {"CPU": on_cpu.__code__, "Meta": on_meta.__code__}


def test_a_callable_object_is_among_the_arguments_of_its_call(library: Any) -> None:
    class Kernel:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    kernel = Kernel()
    library.define("object(Tensor x) -> Tensor")
    library.impl("object", kernel, "CPU")
    ((_, function, others),) = kernels("object")
    assert function.__code__ is Kernel.__call__.__code__ and others == {"self": kernel}


def test_every_kind_of_argument_has_a_stand_in(library: Any) -> None:
    def every(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("not run")

    library.define(EVERY)
    library.impl("every", every, "CPU")
    ((key, function, _),) = kernels("every")
    assert (key, function.__code__) == ("CPU", every.__code__)


def test_a_kernel_without_python_code_is_named(library: Any) -> None:
    library.define("builtin(Tensor x) -> Tensor")
    library.impl("builtin", functools.partial(torch.neg), "CPU")
    with pytest.raises(NotFoundError, match=f"the kernel of {NAMESPACE}::builtin for CPU"):
        kernels("builtin")


def test_the_program_s_profiler_and_collector_are_left_in_force(library: Any) -> None:
    library.define("profiled(Tensor x) -> Tensor")
    library.impl("profiled", lambda x: x, "CPU")

    def profile(*event: Any) -> None: ...

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        found = kernels("profiled")
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(before)
    assert len(found) == 1 and gc.isenabled()
    assert len(kernels("profiled")) == 1 and sys.getprofile() is before and gc.isenabled()


def test_places_of_registration_are_read_from_the_dispatcher(library: Any) -> None:
    library.define("placed(Tensor x) -> Tensor")
    library.impl("placed", lambda x: x, "CPU")
    assert dispatch_probe.defined_at(op("placed")) == __file__
    assert dispatch_probe.python_places(op("placed"), "CPU") == {__file__}
    assert dispatch_probe.python_places(op("placed"), "CUDA") == set()
    assert dispatch_probe.foreign_sources(op("placed")) == {}


def test_torch_s_own_kernels_are_of_c() -> None:
    sin = torch.ops.aten.sin.default
    sources = dispatch_probe.foreign_sources(sin)
    assert sources and all(not source.endswith(".py") for source in sources.values())
    assert "CPU" in sources or "CompositeExplicitAutograd" in sources
    assert dispatch_probe.defined_at(sin) == ""
    assert "CPU" not in {key for key, *_ in dispatch_probe.python_kernels(sin)}
