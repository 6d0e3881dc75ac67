"""Chooses the cuts of a graph: equal calls first, the remaining nodes in parts large enough to keep the cores busy.

Combines the numbers of `plan` with the cuts that `cut_points` allows and the pieces that `pieces` considers equal.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from fxpool import config, counters, notices
from fxpool.lowering.regions import plan, symbols
from fxpool.lowering.regions.cut_points import Interval, TracedGraph, UncuttableError
from fxpool.lowering.regions.pieces import Identity, Piece, extract, identity
from fxpool.lowering.regions.plan import Call
from fxpool.lowering.regions.symbols import OwnSymbols
from fxpool.torch_compat.dynamo import tracing

__all__ = ["Cut"]

log = notices.logger(__name__)


class Cut:
    """The pieces of a graph; for each piece, a name that equal pieces share, and its symbols in an order that equal
    pieces share.

    `asked_for`: the caller wants pieces; otherwise they have to be clearly cheaper than the whole graph. Raises
    UncuttableError: the graph stays whole.
    """

    def __init__(self, graph: TracedGraph, *, asked_for: bool = True) -> None:
        self._graph = graph
        self._identities: dict[Call, Identity | None] = {}
        self._found: dict[Call, Piece] = {}
        self._weights = plan.weights_of(graph.nodes)
        root = plan.tree(graph.nodes)
        regions = plan.repeated(root, self._weights, self._digest)
        self.pieces = self._pieces([self._found[call] for call in regions])
        known = {piece.interval: self._identities[call] for call, piece in self._found.items()}
        identities = [known.get(piece.interval) or _identity_or_own(piece) for piece in self.pieces]
        self.names = [one.digest for one in identities]
        self.symbols = [one.symbols for one in identities]
        sizes: dict[str, int] = {}
        for piece, name in zip(self.pieces, self.names, strict=True):
            if not _is_views(graph, piece.interval):
                sizes[name] = sum(self._weights[piece.interval.first : piece.interval.end])
        fixed = plan.FIXED_AT_LEAST
        if not asked_for:
            fixed = plan.FIXED_ON_GPU if graph.on_gpu else plan.FIXED_ON_CPU
        if not plan.is_worth_it(sum(self._weights), list(sizes.values()), len(self.pieces), _cores(), fixed):
            raise UncuttableError("nothing_to_gain", f"{len(self.pieces)} pieces, {len(sizes)} distinct")

    def renamings(self) -> dict[int, symbols.Renaming]:
        """Return, by piece number, the renaming from the first equal piece's symbols to this piece's symbols.

        Pieces with the same symbols as the first are left out.
        """
        first: dict[str, OwnSymbols] = {}
        made = {}
        for number, (name, own) in enumerate(zip(self.names, self.symbols, strict=True)):
            if first.setdefault(name, own) != own:
                made[number] = dict(zip(first[name], own, strict=True))
        return made

    def distinct(self) -> dict[str, Piece]:
        """Return, by name, the first piece of each kind that has to be compiled."""
        first: dict[str, Piece] = {}
        for piece, name in zip(self.pieces, self.names, strict=True):
            if not _is_views(self._graph, piece.interval):
                first.setdefault(name, piece)
        return first

    def _digest(self, call: Call) -> str | None:
        if call not in self._identities:
            try:
                interval = self._graph.interval(*self._graph.grown(call.first, call.last + 1))
                self._graph.check(interval)
                piece = extract(self._graph, interval)
                self._identities[call] = identity(piece, _constraints(piece))
                self._found[call] = piece
            except UncuttableError as error:
                log.info("not cutting out %s: %s", call.name, error)
                counters.count("regions", f"refused:{error.reason}")
                self._identities[call] = None
        known = self._identities[call]
        return known.digest if known is not None else None

    def _pieces(self, regions: Sequence[Piece]) -> list[Piece]:
        """Return the regions and the pieces between them, in order. Raises UncuttableError."""
        pieces: list[Piece] = []
        end = 0
        for region in [*regions, None]:
            first = region.interval.first if region is not None else len(self._graph.nodes)
            if first < end:
                raise UncuttableError("overlap", "two calls claim the same nodes")
            pieces += self._between(end, first)
            if region is not None:
                pieces.append(region)
                end = region.interval.end
        if len(pieces) < 2:
            raise UncuttableError("nothing_repeats", "and the graph is too small, or has no thin place")
        return pieces

    def _between(self, first: int, end: int) -> list[Piece]:
        """Return pieces for an interval without repetition, of a size that keeps the cores busy."""
        if first == end:
            return []
        weights = self._weights[first:end]
        cuts: list[int] = []
        if _cores() > 1 and sum(weights) >= plan.WORTH_SPREADING:
            live = self._graph.live()[first : end + 1]
            cuts = plan.spread(weights, live, sum(weights) // (plan.WORTH_SPREADING // 2), plan.WORTH_SPREADING // 4)
        borders = [first, *(first + cut for cut in cuts), end]
        made = []
        for begin, stop in itertools.pairwise(borders):
            interval = self._graph.interval(begin, stop)
            if not _is_views(self._graph, interval):
                self._graph.check(interval)
            made.append(extract(self._graph, interval))
        return made


def _identity_or_own(piece: Piece) -> Identity:
    try:
        return identity(piece, _constraints(piece))
    except UncuttableError:  # a piece that cannot be compared may still compile
        return Identity(f"piece at {piece.interval.first}", ())


def _constraints(piece: Piece) -> list[Any]:
    context = tracing.current_context()
    if context is None:
        return []
    return [tracing.constraints(context, value) for value in piece.inputs]


def _is_views(graph: TracedGraph, interval: Interval) -> bool:
    """Return whether all nodes only make views or compute sizes: such an interval runs eagerly."""
    return all(graph.only_looks(node) for node in interval.nodes)


def _cores() -> int:
    return config.current().workers or len(os.sched_getaffinity(0))
