"""Replaces functions of Inductor while graphs are lowered: a worker refuses to begin if any are replaced already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

__all__ = ["while_lowering"]


@contextlib.contextmanager
def while_lowering(owner: Any, **functions: Any) -> Iterator[None]:
    """Set attributes of `owner` when the lowering of the first graph begins; put them back in the end."""
    from torch._inductor.graph import GraphLowering

    begin: Any = GraphLowering.__init__  # programs may wrap it

    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        for name, function in functions.items():
            setattr(owner, name, function)
        begin(self, *args, **kwargs)

    before = {name: getattr(owner, name) for name in functions}
    with mock.patch.multiple(owner, **before), mock.patch.object(GraphLowering, "__init__", patched):
        yield
