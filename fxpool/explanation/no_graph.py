"""Explains why no graph came to fxpool in a process: Dynamo is off, traced nothing, stopped, or has another backend."""

from __future__ import annotations

from dataclasses import dataclass

from fxpool import quantities
from fxpool.results import markup
from fxpool.torch_compat.dynamo.traced import Traced

__all__ = ["NoGraph", "explained"]

_BREAKS = 3  # reasons that are shown


@dataclass(frozen=True, repr=False)
class NoGraph:
    """Why no graph came to fxpool in this process: `why` is a sentence, `advice` a remedy.

    `breaks` are Dynamo's reasons to leave functions to Python.
    """

    why: str
    advice: str
    breaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"no graph: {self.why}", *(f"  {line}" for line in (*self.breaks, self.advice))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [("Dynamo", reason) for reason in self.breaks]
        return markup.block(f"no graph: {self.why}", markup.table([*rows, ("do", self.advice)]))


def explained(traced: Traced) -> NoGraph:
    """Explain why fxpool had no graph, from Dynamo's counts."""
    if traced.off:
        return NoGraph(f"{traced.off} turns torch.compile off, so functions run eagerly", "Remove that switch.")
    if traced.graphs:
        number = quantities.counted(traced.graphs, "graph")
        return NoGraph(
            f"Dynamo made {number}, but gave none to fxpool",
            'Use torch.compile(..., backend="fxpool"). After fxpool.install(), backend="inductor" sends whole graphs '
            "only in mode subprocess; see docs/install.md.",
        )
    if traced.breaks or traced.frames > traced.finished:
        stopped = quantities.counted(traced.frames - traced.finished, "function")
        more = len(traced.breaks) - _BREAKS
        breaks = (*traced.breaks[:_BREAKS], *([f"{more} more"] if more > 0 else []))
        return NoGraph(
            f"Dynamo stopped while it traced {stopped} (of {traced.frames}), which then ran eagerly",
            "torch.compile(..., fullgraph=True) raises the reason with its line; TORCH_LOGS=graph_breaks logs all.",
            breaks,
        )
    if traced.frames:
        return NoGraph(
            "the functions that Dynamo traced compute nothing with tensors",
            "Compile the function or module that does.",
        )
    return NoGraph(
        "Dynamo traced no function in this process, so everything ran eagerly",
        "Call the function that torch.compile returned, in this process: torch.compile alone traces nothing. Dynamo "
        "skips functions under torch.compiler.disable, and those of torch itself.",
    )
