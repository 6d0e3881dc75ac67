"""Pack the details of a key into an entry, so that the items in which two keys differ can be named later.

    level, graph, inputs     as they were hashed (`graph_codec`)
    names                    those of the graph (`graph_names`)
    layout, constraints      memory that inputs share; the program's marks of their sizes
    shapes                   a row per symbol
    ambient, configuration, system, toolchain     name to value, long values shortened
    code                     digests by name, and of each function and variable they cover

Values of environment variables may be secrets, so only their digests are stored. Details are packed once per miss; a
hit never unpacks them.

zstandard is imported inside functions, because a hit does not need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fxpool.codecache.graph import graph_names
from fxpool.codecache.graph.encoded_values import shortened

__all__ = ["MAX_UNPACKED", "packed", "unpacked", "without_values"]

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
        "shapes": parts["shapes"],
        "ambient": {
            **_flat({name: value for name, value in parts["ambient"].items() if name != "environment"}),
            **of_variables(parts["ambient"].get("environment", {})),
        },
        "configuration": _flat(parts["configuration"]),
        "code": {name: digest[:16] for name, digest in parts["code"].items()},
        "covered": covered or {},
        "system": _flat(parts["system"]),
        "toolchain": _flat(parts["toolchain"]),
    }
    import zstandard

    encoded = _ENCODER.encode(detail)
    return zstandard.ZstdCompressor(level=3).compress(encoded) if len(encoded) <= MAX_UNPACKED else b""


def of_variables(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return environment variables by name, with digests instead of their values."""
    return {
        f"environment variable {name}": "not set" if value is None else f"a value of digest {_short_digest(value)}"
        for name, value in variables.items()
    }


def _short_digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def without_values(ambient: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ambient component for display, with digests of environment variables instead of values."""
    return {**ambient, "environment": of_variables(ambient.get("environment", {}))}


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


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Flatten nested mappings: ``inductor.max_autotune`` to its value as text."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = shortened(_stable(value))
    return flat


def _stable(value: Any) -> str:
    """Return a value as text that does not depend on the order of a set."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_stable, value))) + "}"
    return repr(value)
