"""A compiled graph that carries its own parts, so that torch can write it to a file and load it without a cache.

entry or inline artifact ─┬─▶ `bundle`  ──▶ torch's bundled result, with its libraries inside ──▶ a file of Dynamo's
                          └─▶ `carried` ──▶ the libraries of one graph after AOTAutograd ──▶ torch's own caches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fxpool.lowering.artifact.entry_parts import Artifact, Parts, parts_of_artifact
from fxpool.lowering.request.captured_graph import Captured
from fxpool.torch_compat.inductor import aot, output_code

__all__ = ["CarriedParts", "bundle", "carried"]


class CarriedParts:
    """The parts of a linked graph besides its result, pickled with it."""

    def __init__(self, artifact: bytes, indices: Sequence[int], groups: Sequence[str]) -> None:
        self._artifact = artifact
        self.indices: Sequence[int] = list(indices)
        self.groups: Sequence[str] = list(groups)
        self._parts: Parts | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return CarriedParts, (self._artifact, self.indices, self.groups)

    def _carried(self) -> Parts:
        if self._parts is None:
            self._parts = parts_of_artifact(msgspec.msgpack.decode(self._artifact, type=Artifact))
        return self._parts

    def library(self) -> Any:
        return self._carried().library()

    def built(self) -> Any:
        return self._carried().built()

    def triton(self) -> Any:
        return self._carried().triton()

    def missed(self, part: str) -> None:
        self._carried().missed(part)


def bundle(parts: Parts, captured: Captured) -> Any:
    """Return torch's bundled result of a graph, to be pickled. Raises CorruptEntryError: a part is gone by now."""
    artifact = parts.inline()
    result = aot.for_dynamo(aot.load_result(artifact.result), captured.sources)
    surroundings = _carried(artifact, captured)
    for graph in aot.graphs_of(result):
        output_code.put_into(graph, surroundings)
    return result


def carried(parts: Parts, captured: Captured) -> CarriedParts:
    """Return what a graph carries if it is pickled alone. Raises CorruptEntryError: a part is gone by now."""
    return _carried(parts.inline(), captured)


def _carried(artifact: Artifact, captured: Captured) -> CarriedParts:
    alone = msgspec.structs.replace(artifact, result=b"")
    return CarriedParts(msgspec.msgpack.encode(alone), captured.placement.indices, captured.groups)
