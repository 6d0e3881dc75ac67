"""Functions compiled as in a new process, whose results are those of eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None, **options: Any) -> Any:
    """What `function` gives once it is compiled, which is what it gives uncompiled."""
    torch._dynamo.reset()
    found = torch.compile(function, backend="fxpool", dynamic=dynamic, options=options or None)(*inputs)
    torch.testing.assert_close(found, function(*inputs))
    return found


def total(x: torch.Tensor) -> torch.Tensor:
    """Inductor guards on the length of the reduction: up to 4096 columns, or more."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:]).softmax(-1).sum(0)


def compiled_total(rows: int = 4, columns: int = 100, function: Callable[[torch.Tensor], torch.Tensor] = total) -> None:
    """`compiled` for any size. Sums of thousands are not as close."""
    torch._dynamo.reset()
    x = torch.randn(rows, columns)
    made = torch.compile(function, backend="fxpool", dynamic=True)
    torch.testing.assert_close(made(x), function(x), rtol=1e-4, atol=1e-4)
