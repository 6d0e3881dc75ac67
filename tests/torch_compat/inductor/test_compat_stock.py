"""`stock` compiles as ``backend="inductor"`` does, by names that public documents show: the end of all fallbacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor as inductor

from fxpool.torch_compat.cpp.instruction_sets import instruction_sets_known
from fxpool.torch_compat.inductor import aot_graph


def test_a_graph_is_compiled_and_computes() -> None:
    """A product: Inductor calls ATen's and compiles no kernel."""
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    compiled: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        compiled.append(aot_graph.compile_stock(gm, inputs, None, {"compat_unknown": 1}))
        return compiled[-1]

    torch._dynamo.reset()
    with instruction_sets_known([]):
        result = torch.compile(lambda x, w: x @ w, backend=backend)(x, w)
    torch._dynamo.reset()
    torch.testing.assert_close(result, x @ w)
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        (None, None, {}),
        ("default", {"max_autotune": True}, {"max_autotune": True}),
        (None, {"max-autotune": True, "compat_unknown": 1}, {"max-autotune": True}),
        ("compat_unknown", None, {}),
        ("reduce-overhead", {"epilogue_fusion": False}, {"triton.cudagraphs": True, "epilogue_fusion": False}),
    ],
)
def test_modes_and_options_that_torch_knows_are_passed_on(
    mode: str | None, options: Any, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(inductor, "compile", lambda gm, inputs, options: asked.append((inputs, options)))
    aot_graph.compile_stock(torch.fx.symbolic_trace(lambda x: x.sin()), (1, 2), mode, options)
    assert asked == [([1, 2], expected)]
