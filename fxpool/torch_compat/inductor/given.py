"""Constants that the caller of a compile has: results refer to them by number and do not contain them.

A frozen graph's weights are its constants. An entry that contained them would be as large as the model, and the caller
has them anyway, as the key covers their content. Weights that oneDNN has packed have no form outside it: a worker gets
the same numbers in a tensor of the same kind, which is enough to compile for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch._dynamo  # first, see torch_compat
from torch._inductor.output_code import CompiledFxGraphConstants

__all__ = ["Constants", "leave_out"]


class Constants(CompiledFxGraphConstants):
    """A loaded graph's constants: its own, and those of the caller's `given` that it refers to."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        self._given = given

    def unwrap(self, g: Any) -> dict[str, Any]:
        """Return the constants, by their names in the graph's code."""
        named: Mapping[str, int] = getattr(g, "_fxpool_given", {})
        return {**super().unwrap(g), **{name: self._given[number] for name, number in named.items()}}


def leave_out(graph: Any, given: Sequence[torch.Tensor]) -> None:
    """Replace constants that are among `given` by their numbers, in a graph that is about to be pickled."""
    numbers = {id(tensor): number for number, tensor in enumerate(given)}
    constants = graph.constants or {}
    named = {name: numbers[id(value)] for name, value in constants.items() if id(value) in numbers}
    graph.constants = {name: value for name, value in constants.items() if name not in named}
    graph._fxpool_given = named
