"""Finds the operators behind the objects that `torch.library.custom_op` and `triton_op` return."""

from __future__ import annotations

from typing import Any


def operator_behind(value: Any) -> Any | None:
    """Return the operator (an OpOverload) of a decorated function, else None; the same in 2.11 to 2.13."""
    from torch._library.custom_ops import CustomOpDef

    return value._opoverload if isinstance(value, CustomOpDef) else None
