"""All pieces, by name."""

from __future__ import annotations

from .piece import Piece
from .pieces_in_graph import IN_GRAPH
from .pieces_inductor import INDUCTORS
from .pieces_registered import REGISTERED

__all__ = ["EARLY", "PIECES", "Piece"]

# They read the number when their module is imported.
EARLY = frozenset(("operator_autocast", "low_autocast", "module_attribute", "module_buffer", "module_parameter",
                   "module_list", "global_tensor", "choices", "graph_lowering_hook"))  # fmt: skip

PIECES: dict[str, Piece] = {piece.name: piece for piece in [*REGISTERED, *IN_GRAPH, *INDUCTORS]}
