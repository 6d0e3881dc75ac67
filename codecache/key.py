"""The key of a graph: named components, each hashed, and the hash of those.

    graph          nodes, targets, arguments, nested graphs, constants by content
    inputs         tensors by metadata, views, shared storages, overlaps; plain numbers by value
    shapes         what is proven about the symbols that occur, hints left out
    ambient        global switches: grad mode, autocast, SDPA backends, threads, ...
    configuration  Inductor's, functorch's and the shape machinery's options; custom passes by uuid
    code           sources of functions and operators that are not torch's
    system         torch, Python, CPU or device, fxpool
    toolchain      the C++ compiler

All components are kept with an entry, so that two keys can be compared and a miss explained.
Nothing in a key depends on the process, the host's name, a path or an insertion order.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from fxpool.codecache.entry import Component

# Bump when the meaning of an entry changes in a way the digest of fxpool's own sources does not show.
KEY_VERSION = 1

ORDER = ("graph", "inputs", "shapes", "ambient", "configuration", "code", "system", "toolchain")

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def canonical(data: Any) -> bytes:
    """Plain data as bytes that depend on nothing but its value (mappings are sorted).

    Raises:
        TypeError: something in `data` is not plain.
    """
    return _ENCODER.encode(data)


@dataclasses.dataclass(frozen=True)
class GraphKey:
    """`digest` is what an entry is stored under; `components` say what went into it, in `ORDER`."""

    digest: str
    components: tuple[Component, ...]

    def __str__(self) -> str:
        return self.digest

    @classmethod
    def of(cls, parts: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> GraphKey:
        """Key of plain data by component name.

        `texts` are what a person is shown of a component; a component without one is shown by its
        own values, cut.

        Raises:
            ValueError: the components are not exactly those of `ORDER`.
        """
        if set(parts) != set(ORDER):
            raise ValueError(f"components are {sorted(parts)}, not {sorted(ORDER)}")
        components = []
        for name in ORDER:
            encoded = parts[name] if isinstance(parts[name], bytes) else canonical(parts[name])
            text = (texts or {}).get(name)
            if text is None:
                text = readable(parts[name])
            components.append(Component(name, hashlib.sha256(encoded).hexdigest(), text))
        total = hashlib.sha256(f"fxpool key {KEY_VERSION}".encode())
        for component in components:
            total.update(f"\n{component.name} {component.digest}".encode())
        return cls(total.hexdigest(), tuple(components))


def readable(data: Any, limit: int = 4000) -> str:
    """A component's values for a person: one ``name = value`` per line where there are names."""
    if isinstance(data, bytes):
        return f"{len(data)} bytes"
    if isinstance(data, Mapping):
        lines = [f"{name} = {value!r}" for name, value in sorted(data.items(), key=lambda pair: str(pair[0]))]
        text = "\n".join(lines)
    else:
        text = repr(data)
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text)} characters)"
