"""The key of a graph: the components of the table `components`, their hashes, and the hash of all components.

An entry stores the digests of all components, and their packed contents (`key_detail`), so that two keys can be
compared (`comparison`) and a miss explained.

A key does not depend on the process, the host's name, any path or insertion order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import marshal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fxpool.codecache.key.components import COMPONENTS, OF_A_FUNCTION, ORDER
from fxpool.codecache.store.entry import Component

# Bump if the meaning of an entry changes in a way that the digest of fxpool's own sources does not show.
KEY_VERSION = 1

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def canonical(data: Any) -> bytes:
    """Encode plain data as bytes that depend on its value only (mappings are sorted).

    Raises:
        TypeError: `data` contains an object that is not plain data.
    """
    return _ENCODER.encode(data)


@dataclasses.dataclass(frozen=True)
class GraphKey:
    """The key of a graph: `digest` is the key that entries are stored under, `components` its parts in `ORDER`.

    `detail` contains the values of the components, packed by `key_detail`; it is empty until `described` sets it.
    """

    digest: str
    components: tuple[Component, ...]
    detail: bytes = b""

    def __str__(self) -> str:
        return self.digest

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> GraphKey:
        """Return the key of `parts`, which map component names to plain data. Bytes are hashed without encoding.

        Raises:
            ValueError: the components are not exactly those of `ORDER`.
            TypeError: a component contains an object that is not plain data.
        """
        if set(parts) != set(ORDER):
            raise ValueError(f"components are {sorted(parts)}, not {sorted(ORDER)}")
        components = tuple(Component(name, _digest(name, parts[name])) for name in ORDER)
        return cls(_total(components), components)

    def holds(self, name: str, part: Any) -> bool:
        """Return whether component `name` has the value `part`."""
        return any(c.name == name and c.digest == _digest(name, part) for c in self.components)

    def kernel_conditions(self, *, but: Iterable[str] = ()) -> str:
        """Return a digest of the components that kernels depend on besides their source, without `but`."""
        left_out = OF_A_FUNCTION.union(but)
        lines = "".join(f"{one.name} {one.digest}\n" for one in self.components if one.name not in left_out)
        return hashlib.sha256(lines.encode()).hexdigest()

    def with_part(self, name: str, part: Any) -> GraphKey:
        """Return the key in which component `name` has the value `part`. It has no `detail`."""
        changed = tuple(
            Component(name, _digest(name, part), readable(part)) if component.name == name else component
            for component in self.components
        )
        return GraphKey(_total(changed), changed)

    def described(self, parts: Mapping[str, Any], texts: dict[str, str], detail: bytes = b"") -> GraphKey:
        """Return the same key with `detail` and a readable text per component: from `texts`, or its values, shortened.

        Needed only to write an entry; it takes longer than computing the key.
        """
        texts = {row.name: readable(row.shown(parts[row.name])) for row in COMPONENTS if row.name not in texts} | texts
        components = tuple(Component(c.name, c.digest, texts[c.name]) for c in self.components)
        return GraphKey(self.digest, components, detail)


def _total(components: Sequence[Component]) -> str:
    total = hashlib.sha256(f"fxpool key {KEY_VERSION}".encode())
    for component in components:
        total.update(f"\n{component.name} {component.digest}".encode())
    return total.hexdigest()


# Last value of each component that seldom changes between graphs, as bytes that distinguish types, and its digest.
_LAST: dict[str, tuple[bytes, str]] = {}
_SELDOM_CHANGING = frozenset(component.name for component in COMPONENTS if component.seldom_changes)


def _digest(name: str, part: Any) -> str:
    if isinstance(part, bytes):
        return hashlib.sha256(part).hexdigest()
    seen: bytes | None = None
    if name in _SELDOM_CHANGING:
        with contextlib.suppress(ValueError):  # marshal can't encode every value that `canonical` can
            seen = marshal.dumps(part, 2)  # version 2 has no references, so equal bytes mean equal values
            last = _LAST.get(name)
            if last is not None and last[0] == seen:
                return last[1]
    digest = hashlib.sha256(canonical(part)).hexdigest()
    if seen is not None:
        _LAST[name] = (seen, digest)
    return digest


def readable(data: Any, limit: int = 300) -> str:
    """Return a component's values as readable text, for a mapping with one ``name = value`` per line."""
    if isinstance(data, bytes):
        return f"{len(data)} bytes"
    if isinstance(data, Mapping):
        lines = [f"{name} = {value!r}" for name, value in sorted(data.items(), key=lambda pair: str(pair[0]))]
        text = "\n".join(lines)
    else:
        text = repr(data)
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text)} characters)"
