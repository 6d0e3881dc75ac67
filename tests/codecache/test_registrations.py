"""What is registered for operators: by a program for torch's, and by torch for its own."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fxpool.torch_compat.operators import registrations


class Cycle:
    """Garbage with a finalizer, which has a place in the registry that is listed until it is collected."""

    def __init__(self) -> None:
        self.me = self
        weakref.finalize(self, int)


def test_finalizers_may_run_while_libraries_are_listed() -> None:
    list(registrations.overridden())
    # Python keeps freed pairs for the next ones, which are no allocations then.
    pairs = [(number, str(number)) for number in range(5000)]
    thresholds, registered = gc.get_threshold(), weakref.finalize._registry  # type: ignore[attr-defined]
    try:
        for later in range(0, 1000, 10):  # allocations after which garbage is collected: before, while and after
            gc.disable()
            for _ in range(50):
                Cycle()
            before = len(registered)
            gc.set_threshold(gc.get_count()[0] + later)
            gc.enable()
            list(registrations.overridden())
            if later < 10:
                assert len(registered) < before, "collected"
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert len(pairs) == 5000


@pytest.mark.parametrize(
    ("module", "operator"),
    [
        ("torch.nn.attention.varlen", "torch_attn::_varlen_attn"),
        ("torch._functorch._activation_offloading.offload_ops", "ao::offload"),
        ("torch.ao.quantization.fx._decomposed", "quantized_decomposed::quantize_per_tensor"),
    ],
)
def test_an_operator_of_torch_is_of_the_module_that_defines_it(module: str, operator: str) -> None:
    """A worker has to import that one; a decorator of torch's is what defines most of them."""
    pytest.importorskip(module, exc_type=ImportError)
    namespace, name = operator.split("::")
    found = registrations.registration(getattr(getattr(torch.ops, namespace), name))
    assert (found.home, found.files) == (module, [])
