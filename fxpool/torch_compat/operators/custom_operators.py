"""Operators that `torch.library.custom_op` and `triton_op` made, behind the objects that these return."""

from __future__ import annotations

from typing import Any


def operator_behind(value: Any) -> Any | None:
    """The operator (an OpOverload) that a decorated function stands for, else None; the same in 2.11 to 2.13."""
    from torch._library.custom_ops import CustomOpDef

    return value._opoverload if isinstance(value, CustomOpDef) else None
