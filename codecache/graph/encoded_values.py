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
    tag, *rest = value
    show = _SHOWS.get(tag)
    if show is None:
        return f"{tag}({', '.join(text(part, node) for part in rest)})"
    try:
        return show(rest, node)
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


def _device(rest: list[Any]) -> str:
    kind, index = rest
    return str(kind) if index is None else f"{kind}:{index}"


def _tensor(rest: list[Any], node: Reference) -> str:
    fields = tensor_fields(["tensor", *rest])
    plain = {name: shown for name, shown in fields.items() if name in ("dtype", "sizes", "device")}
    return f"{plain['dtype']}{plain['sizes']} on {plain['device']}"


def _each(rest: list[Any], node: Reference) -> str:
    return ", ".join(text(part, node) for part in rest)


def _dict(rest: list[Any], node: Reference) -> str:
    return "{" + ", ".join(f"{text(name, node)}: {text(value, node)}" for name, value in rest) + "}"


def _constant(rest: list[Any], node: Reference) -> str:
    return f"a constant with digest {rest[1][:12]}"


def _python(rest: list[Any], node: Reference) -> str:
    module, name = rest
    return f"{module}.{name}"


_SHOWS: Mapping[str, Callable[[list[Any], Reference], str]] = {
    "n": lambda rest, node: node(rest[0]),
    "t": lambda rest, node: f"({_each(rest, node)}{',' if len(rest) == 1 else ''})",
    "l": lambda rest, node: f"[{_each(rest, node)}]",
    "il": lambda rest, node: f"[{_each(rest, node)}]",
    "size": lambda rest, node: f"[{_each(rest, node)}]",
    "set": lambda rest, node: "{" + _each(rest, node) + "}",
    "d": _dict,
    "id": _dict,
    "op": lambda rest, node: str(rest[0]),
    "packet": lambda rest, node: str(rest[0]),
    "hop": lambda rest, node: str(rest[0]),
    "py": _python,
    "fn": lambda rest, node: text(rest[0], node),
    "numpy": lambda rest, node: f"numpy {called(rest[1])}",
    "attention": lambda rest, node: f"scaled_dot_product_attention (implementation {rest[0]})",
    "dtype": lambda rest, node: f"torch.{rest[0]}",
    "layout": lambda rest, node: f"torch.{rest[0]}",
    "memory_format": lambda rest, node: f"torch.{rest[0]}",
    "device": lambda rest, node: _device(rest),
    "y": lambda rest, node: guards.render(rest[1]),
    "i": lambda rest, node: str(rest[0]),
    "f": lambda rest, node: str(rest[0]),
    "...": lambda rest, node: "...",
    "slice": lambda rest, node: ":".join("" if part is None else text(part, node) for part in rest),
    "range": lambda rest, node: f"range({_each(rest, node)})",
    "enum": lambda rest, node: f"{text(rest[0], node)}.{rest[1]}",
    "group": lambda rest, node: f"process group {rest[0]}",
    "kernel": lambda rest, node: f"a Triton kernel with source digest {rest[1][:12]}",
    "constant": _constant,
    "tensor": _tensor,
}
