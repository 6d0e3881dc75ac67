"""Recipes of graphs in pieces (`artifact.load.Recipe`): how to compose their callable again without the graph.

A recipe has the composing code as text, a recipe for each distinct piece, and as plain data the pieces that only make
views, which run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpool.codecache.graph.graph_codec import GraphEncoder
from fxpool.codecache.graph.graph_decoder import GraphDecoder
from fxpool.errors import CannotTravelError, CorruptEntryError
from fxpool.lowering.artifact.load import Recipe
from fxpool.lowering.regions.compose import run
from fxpool.lowering.regions.pieces import Piece
from fxpool.torch_compat.dynamo import tracing

__all__ = ["PIECES", "compose_again", "of_pieces", "of_views"]

#: The kind of recipe of a graph in pieces.
PIECES = "pieces"
_VIEWS = "views"


def of_pieces(text: str, steps: Sequence[tuple[Recipe | None, bool]]) -> Recipe | None:
    """Return the recipe of the callable that `text` composes (`compose.source`); None if a piece has no recipe.

    `steps` are the recipes of ``f0``, ``f1``, ..., with whether that takes its inputs in a list.
    """
    distinct: list[Recipe] = []
    rows = []
    for recipe, boxed in steps:
        if recipe is None:
            return None
        if recipe not in distinct:
            distinct.append(recipe)
        rows.append([distinct.index(recipe), boxed])
    return [PIECES, text, rows, distinct]


def of_views(piece: Piece) -> Recipe | None:
    """Return the recipe of a piece that only makes views; None if it has no form as plain data."""
    bare = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in piece.graph.nodes:
        copies[node] = bare.node_copy(node, copies.__getitem__)
        copies[node].meta = {}
    try:
        encoded = GraphEncoder(own_indices=True).encode(torch.fx.GraphModule(piece.attributes, bare))
    except CannotTravelError:
        return None
    needs_more = encoded.constants or encoded.dependencies or encoded.symbols or encoded.groups
    return None if needs_more else [_VIEWS, encoded.description, encoded.names]


def compose_again(recipe: Recipe, load: Callable[[Recipe, bool], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the callable of a recipe of `of_pieces`.

    `load` makes the callable of another recipe; it is told whether that takes its inputs in a list. Raises
    CorruptEntryError, and what `load` raises.
    """
    _, text, rows, distinct = recipe
    made: dict[tuple[int, bool], Callable[..., Any]] = {}
    for number, boxed in rows:
        if (number, boxed) not in made:
            of_piece = distinct[number]
            made[number, boxed] = _view(of_piece) if of_piece[0] == _VIEWS else load(of_piece, boxed)
    calls = {f"f{at}": made[number, boxed] for at, (number, boxed) in enumerate(rows)}
    return tracing.never_traced(run(text, "a served frame", calls))


def _view(recipe: Recipe) -> Callable[..., Any]:
    _, description, names = recipe
    try:
        builder: Any = None  # it has no tensors
        forward: Callable[..., Any] = GraphDecoder(builder, None, ()).decode(description, names).forward
    except (CannotTravelError, ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptEntryError(f"a piece cannot be made again: {type(error).__name__}: {error}") from error
    return forward
