"""Effects of a node of a Dynamo graph besides its value: tensors it writes to, thread state it sets.

Dynamo's graphs are not functional. A node may write to an argument, and a pair of nodes may put a stretch of the graph
under another state (autocast, gradients off). Code that cuts such a graph has to know both. Unknown nodes are treated
conservatively: a function from elsewhere may write to all its arguments, and an unknown call without a value may set
any state.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from fxpool.torch_compat.operators import operators

#: Modules whose functions write only to the arguments that their names or signatures imply.
_KNOWN = ("torch", "_operator", "operator", "math", "builtins", "einops")
_INPLACE = frozenset(
    (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.iand,
     operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.ipow, operator.imatmul)
)  # fmt: skip
# Parameters that a normalization writes to in training.
_STATISTICS = ("running_mean", "running_var")
_WITHOUT_EFFECT = ("_log_api_usage_once",)


def value_of(node: Node) -> Any:
    """Return a node's value as Dynamo saw it: fake tensors, symbols, numbers; None if it recorded no value."""
    about = node.meta
    return about["example_value"] if "example_value" in about else about.get("val")


def nodes_in(argument: Any) -> Iterator[Node]:
    """Yield the nodes in an argument, including nested lists and dicts."""
    if isinstance(argument, Node):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from nodes_in(part)
    elif isinstance(argument, dict):
        for part in argument.values():
            yield from nodes_in(part)
    elif isinstance(argument, slice):
        yield from nodes_in((argument.start, argument.stop, argument.step))


def written_by(node: Node) -> list[Node]:
    """Return the arguments that a node may write to."""
    if node.op == "call_method":
        return _written_by_method(node)
    if node.op != "call_function":
        return []
    target = node.target
    written = list(nodes_in(node.kwargs.get("out")))
    if operators.is_overload(target) or operators.is_packet(target):
        return [*written, *_written_by_schema(node)]
    if operators.is_higher_order(target):
        return _written_by_higher_order(node)
    if target is operator.setitem or target in _INPLACE:
        return list(nodes_in(node.args[0]))
    module, name = str(getattr(target, "__module__", "")), str(getattr(target, "__name__", ""))
    if module.partition(".")[0] not in _KNOWN and not isinstance(target, _BUILTIN):
        return list(node.all_input_nodes)
    if name.endswith("_") and not name.endswith("__"):
        return [*written, *nodes_in(node.args[0] if node.args else list(node.kwargs.values()))]
    return [*written, *_written_by_arguments(node)]


_BUILTIN = (type(len), type(torch.Tensor.add), type(int.__add__))


def _written_by_method(node: Node) -> list[Node]:
    name = str(node.target)
    out = list(nodes_in(node.kwargs.get("out")))
    inplace = name.endswith("_") and not name.endswith("__")
    if inplace or name == "__setitem__" or (name.startswith("__i") and name.endswith("__") and name != "__invert__"):
        return [*out, *nodes_in(node.args[0])]
    return out


def _written_by_schema(node: Node) -> list[Node]:
    target: Any = node.target
    written: dict[Node, None] = {}
    for overload in operators.overloads_of(target):
        for position, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            written.update(dict.fromkeys(nodes_in(given)))
    return list(written)


def _written_by_arguments(node: Node) -> list[Node]:
    """Return the arguments written to because of another argument: ``inplace=True``, statistics in training."""
    target: Any = node.target
    signature = _signature(target)
    try:
        given = signature.bind(*node.args, **node.kwargs) if signature is not None else None
    except TypeError:
        given = None
    if given is None:  # a builtin without a signature
        if getattr(target, "__name__", "") in ("batch_norm", "instance_norm"):
            return [*nodes_in(node.args[1:5])]
        return []
    given.apply_defaults()
    values = given.arguments
    written: list[Node] = []
    if values.get("inplace") is True:
        written += nodes_in(next(iter(values.values())))
    if values.get("training", values.get("use_input_stats")) is True:
        written += nodes_in([values.get(name) for name in _STATISTICS])
    if values.get("max_norm") is not None:
        written += nodes_in(values.get("weight"))
    return written


@functools.lru_cache(4096)  # a graph of many layers calls the same few functions hundreds of times
def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _written_by_higher_order(node: Node) -> list[Node]:
    """Return the arguments of a higher-order operator: all of them if one of its subgraphs writes to its inputs."""
    inner = list(bodies(node))
    if inner and not any(_writes_to_inputs(body) for body in inner):
        return []
    return [argument for argument in node.all_input_nodes if isinstance(value_of(argument), torch.Tensor)]


def bodies(node: Node) -> Iterator[torch.fx.GraphModule]:
    """Yield the subgraphs of a higher-order operator."""
    root = node.graph.owning_module
    for argument in node.all_input_nodes:
        if argument.op == "get_attr" and root is not None:
            value = operator.attrgetter(str(argument.target))(root)
            if isinstance(value, torch.fx.GraphModule):
                yield value


def _writes_to_inputs(body: torch.fx.GraphModule) -> bool:
    storages = {_storage(value_of(node)) for node in body.graph.nodes if node.op == "placeholder"}
    for node in body.graph.nodes:
        for written in written_by(node):
            if written.op in ("placeholder", "get_attr") or _storage(value_of(written)) in storages:
                return True
    return False


def _storage(value: Any) -> Any:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def storages_of(value: Any) -> Iterator[int]:
    """Yield an identity of each tensor's storage in a node's value."""
    for tensor in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            yield tensor.untyped_storage()._cdata


# ---------------------------------------------------------------- state


def state_set_by(node: Node) -> str:
    """Return the name of a call that may set thread state instead of computing; empty for any other node."""
    if node.op != "call_function" or node.target is operator.setitem:
        return ""
    module, name = str(getattr(node.target, "__module__", "")), str(getattr(node.target, "__name__", node.target))
    if "functorch" in module or "_vmap" in name:
        return f"{module}.{name}"
    if operators.is_overload(node.target) or operators.is_packet(node.target) or name in _WITHOUT_EFFECT:
        return ""
    if any(word in name for word in ("_enter_", "_exit_", "_set_grad_enabled", "set_stream", "_sdp_")):
        return f"{module}.{name}"
    if "example_value" in node.meta and node.meta["example_value"] is not None:
        return ""
    return "" if "val" in node.meta else f"{module}.{name}"


def gradients_set_by(node: Node) -> bool | None:
    """Return whether a node enables or disables gradients; None for any other node."""
    if node.op == "call_function" and node.target is torch._C._set_grad_enabled:
        return bool(node.args[0])
    return None


def enters(node: Node) -> bool:
    """Return whether a node begins a stretch of the graph. It is an argument of the node that ends the stretch."""
    return node.op == "call_function" and "_enter_" in str(getattr(node.target, "__name__", ""))


def leaves(node: Node) -> bool:
    """Return whether a node ends the stretch that its first argument began."""
    return node.op == "call_function" and "_exit_" in str(getattr(node.target, "__name__", ""))
