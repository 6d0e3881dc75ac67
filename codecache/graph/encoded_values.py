"""Render values encoded by `graph_codec` as text: arguments, functions, tensors.

Reads plain data only. Unknown forms are printed verbatim and shortened, because another version may have written the
entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from fxpool.codecache.guards import guards

__all__ = ["Reference", "called", "is_tensor", "shortened", "tensor_fields", "text"]

#: A function from the number of a node to its text.
Reference = Callable[[int], str]

_SHOWN = 120  # characters of a value that are printed
#: Fields of an encoded tensor, in the order of `torch_compat.dynamo.tensors.TensorFacts`.
_TENSOR = ("number", "storage", "bytes", "dtype", "device", "sizes", "strides", "offset", "requires_grad", "is_leaf",
           "is_parameter", "is_conj", "is_neg", "is_inference", "creation", "base", "item")  # fmt: skip


def shortened(value: str, limit: int = _SHOWN) -> str:
    """Shorten a long text and append a digest of the full text, so that different texts stay distinct."""
    if len(value) <= limit:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{value[: limit - 12]}... {digest}"


def _node(number: int) -> str:
    return f"%{number}"


def text(value: Any, node: Reference = _node) -> str:
    """Return an encoded value roughly as Python code; `node` renders references to nodes."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        return repr(value)
    tag, *parts = value
    show = _SHOWS.get(tag)
    if show is None:
        return f"{tag}({', '.join(text(part, node) for part in parts)})"
    try:
        return show(parts, node)
    except (IndexError, TypeError, ValueError, AttributeError, KeyError):  # written by another version
        return repr(value)


def called(target: Any) -> str:
    """Return the name of a node's target."""
    return target if isinstance(target, str) else text(target)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor encoded by metadata."""
    return isinstance(value, list) and len(value) == 2 and value[0] == "tensor" and isinstance(value[1], list)


def tensor_fields(value: Any) -> dict[str, str]:
    """Return the facts of an encoded tensor by name. For a view, facts of its base tensor have the prefix ``base.``."""
    fields: dict[str, str] = {}
    facts = value[1] if is_tensor(value) else value
    for name, fact in zip(_TENSOR, facts, strict=False):
        if name == "base" and isinstance(fact, list):
            fields[name] = _tensor([fact], _node)
            fields |= {f"base.{inner}": shown for inner, shown in tensor_fields(fact).items()}
        elif name == "base":
            fields[name] = "none"
        elif name == "device" and isinstance(fact, list):
            fields[name] = _device(fact)
        elif name in ("sizes", "strides") and isinstance(fact, list):
            fields[name] = f"[{', '.join(map(text, fact))}]"
        elif name in ("dtype", "creation"):
            fields[name] = str(fact)
        else:
            fields[name] = text(fact)
    return fields


def _device(parts: list[Any]) -> str:
    kind, index = parts
    return str(kind) if index is None else f"{kind}:{index}"


def _tensor(parts: list[Any], node: Reference) -> str:
    fields = tensor_fields(["tensor", *parts])
    plain = {name: shown for name, shown in fields.items() if name in ("dtype", "sizes", "device")}
    return f"{plain['dtype']}{plain['sizes']} on {plain['device']}"


def _each(parts: list[Any], node: Reference) -> str:
    return ", ".join(text(part, node) for part in parts)


def _dict(parts: list[Any], node: Reference) -> str:
    return "{" + ", ".join(f"{text(name, node)}: {text(value, node)}" for name, value in parts) + "}"


_SHOWS: Mapping[str, Callable[[list[Any], Reference], str]] = {
    "n": lambda parts, node: node(parts[0]),
    "t": lambda parts, node: f"({_each(parts, node)}{',' if len(parts) == 1 else ''})",
    **dict.fromkeys(("l", "il", "size"), lambda parts, node: f"[{_each(parts, node)}]"),
    "set": lambda parts, node: "{" + _each(parts, node) + "}",
    **dict.fromkeys(("d", "id"), _dict),
    **dict.fromkeys(("op", "packet", "hop", "i", "f"), lambda parts, node: str(parts[0])),
    "py": lambda parts, node: ".".join(parts),
    "fn": lambda parts, node: text(parts[0], node),
    "numpy": lambda parts, node: f"numpy {called(parts[1])}",
    "attention": lambda parts, node: f"scaled_dot_product_attention (implementation {parts[0]})",
    **dict.fromkeys(("dtype", "layout", "memory_format"), lambda parts, node: f"torch.{parts[0]}"),
    "device": lambda parts, node: _device(parts),
    "y": lambda parts, node: guards.render(parts[1]),
    "...": lambda parts, node: "...",
    "slice": lambda parts, node: ":".join("" if part is None else text(part, node) for part in parts),
    "range": lambda parts, node: f"range({_each(parts, node)})",
    "enum": lambda parts, node: f"{text(parts[0], node)}.{parts[1]}",
    "group": lambda parts, node: f"process group {parts[0]}",
    "kernel": lambda parts, node: f"a Triton kernel with source digest {parts[1][:12]}",
    "constant": lambda parts, node: f"a constant with digest {parts[1][:12]}",
    "tensor": _tensor,
}
