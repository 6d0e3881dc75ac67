"""Pack the details of a key into an entry, so that the items in which two keys differ can be named later.

    level, graph, inputs     as they were hashed (`graph_codec`)
    names                    those of the graph (`graph_names`)
    layout, constraints      memory that inputs share; the program's marks of their sizes
    others                   by the component's name, as their rows in `components` say
    covered                  the functions and variables that each digest of the component `code` covers

Details are packed once per miss; a hit never unpacks them.

zstandard is imported inside functions, because a hit does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fxpool.codecache.graph import graph_names
from fxpool.codecache.key.components import COMPONENTS

__all__ = ["MAX_UNPACKED", "packed", "unpacked"]

#: Maximum size in bytes. fxpool never writes a packed detail with a larger content size.
MAX_UNPACKED = 32 << 20
# Maximum bytes of graph and inputs, about 100,000 nodes. Above it only the digests of the components are stored.
_MOST = 8 << 20
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def packed(
    parts: Mapping[str, Any],
    *,
    level: str,
    graph: bytes,
    names: Sequence[Any],
    inputs: bytes,
    layout: Sequence[Any] = (),
    constraints: Sequence[Any] = (),
    covered: Mapping[str, Mapping[str, str]] | None = None,
) -> bytes:
    """Pack the parts of a key; return b"" if the graph, or all of it, is too large to be stored twice.

    `covered`: the items that each digest of the program's code covers (`program_code.Covered`).
    """
    if len(graph) + len(inputs) > _MOST:
        return b""
    detail = {
        "level": level,
        "graph": graph,
        "names": names,
        "inputs": inputs,
        "layout": layout,
        "constraints": constraints,
        "covered": covered or {},
        **{row.name: row.detail(parts[row.name]) for row in COMPONENTS if row.detail is not None},
    }
    import zstandard

    encoded = _ENCODER.encode(detail)
    return zstandard.ZstdCompressor(level=3).compress(encoded) if len(encoded) <= MAX_UNPACKED else b""


def unpacked(detail: bytes) -> dict[str, Any]:
    """Return the parts passed to `packed`, with the graph and its names, and inputs, decoded; empty for other data.

    Never raises: another version may have written the entry.
    """
    if not detail:
        return {}
    import zstandard

    try:
        # The header of a frame declares the size of its content.
        if not 0 <= zstandard.frame_content_size(detail) <= MAX_UNPACKED:
            return {}
        found = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(detail, max_output_size=MAX_UNPACKED))
        if not isinstance(found, dict):
            return {}
        return {
            **found,
            "graph": graph_names.named(msgspec.msgpack.decode(found["graph"]), found["names"]),
            "inputs": msgspec.msgpack.decode(found["inputs"]),
        }
    except (zstandard.ZstdError, msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
        return {}
