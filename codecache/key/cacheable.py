"""Decide which graphs may be cached, and under which reason each bypass is counted.

An entry is served to every later request with the same key. A graph may therefore be cached only if its key
distinguishes it from every graph that compiles to something else. Graphs with parts that have no hash (a function
without a fixed source, a pass without a uuid, a TorchScript object) are refused here, in the process that captured
them. A refused graph is still compiled in a worker, but the result is not stored.

A frozen graph is identified by the content of its constants, like any graph with constants.
"""

from __future__ import annotations

from typing import Any

import torch

from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.operators import operators
from fxpool.torch_compat.state import configs


class Bypass(Exception):
    """Raised if a graph may not be cached. `reason` is counted; `detail` is for messages."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


#: Reasons that apply only to the graph from Dynamo: the graphs that AOTAutograd derives from it may still be cached.
OF_DYNAMOS_GRAPH = frozenset(
    ("autograd_cache_off", "checkpoint_context_fn", "function", "higher_order_operator_of_autograd",
     "method_of_unknown")
)  # fmt: skip

#: Reasons for a bypass that the user chose.
SWITCHED_OFF = frozenset(("autograd_cache_off", "cache_off", "caches_disabled"))

# Modules of public functions that Dynamo puts into graphs, whose results depend on their arguments only.
_PUBLIC_HOMES = ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "torch._C", "torch._tensor",
                 "torch.special", "torch.linalg", "torch.fft")  # fmt: skip
_PURE_MODULES = ("operator", "_operator", "builtins", "math", "einops.einops", "torch._functorch.predispatch")
_PURE_PACKAGES = ("torch._numpy.",)
# Private functions whose results depend on their arguments only.
_KNOWN = frozenset(
    ("torch._sym_sqrt", "torch.sym_float", "torch.sym_int", "torch.sym_sum", "torch.Size", "torch._tensor.Tensor",
     "torch.autograd.grad", "torch._assert", "torch._assert_async", "torch._check_is_size", "torch.sym_max",
     "torch.sym_min", "torch.sym_not", "torch.sym_ite", "torch.amp.autocast_mode._enter_autocast",
     "torch.amp.autocast_mode._exit_autocast")
)  # fmt: skip


def check(gm: torch.fx.GraphModule, context: tracing.TracingContext | None, *, after_autograd: bool = False) -> None:
    """Raise `Bypass` unless `gm`, compiled under the current configuration, may be cached.

    `after_autograd`: the graph comes from AOTAutograd, which also runs in a process that hits the entry.
    """
    if switch := configs.caches_disabled():
        raise Bypass("caches_disabled", f"by {switch}")
    if not after_autograd and configs.autograd_cache_disabled():
        raise Bypass("autograd_cache_off", "enable_autograd_cache is off")
    if not after_autograd and tracing.real_inputs_expected(context):
        raise Bypass("fakify_first_call", "DDPOptimizer traces the inputs of the first call again")
    check_graph(gm)


def check_graph(gm: torch.fx.GraphModule) -> None:
    """Raise `Bypass` unless the nodes of `gm`, and of every graph nested in it, may be cached."""
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        context_fn = module.meta.get("_checkpoint_context_fn")
        if context_fn is not None and getattr(context_fn, "cache_hash", None) is None:
            raise Bypass("checkpoint_context_fn", "it has no attribute cache_hash")
        accepted: set[int] = set()  # ids of functions: a graph calls few of them, each many times
        for node in module.graph.nodes:
            _check_node(module, node, accepted)


def _check_node(gm: torch.fx.GraphModule, node: torch.fx.Node, accepted: set[int]) -> None:
    if node.op == "call_function":
        if id(node.target) in accepted:
            return
        if node.meta.get("is_wrapped") and node.meta.get("user_cache_hash"):
            return  # torch.fx.wrap, with a hash that the user supplies
        reason = _refusal(node.target)
        if reason is not None:
            raise Bypass(reason, operators.pretty_name(node.target))
        accepted.add(id(node.target))
    elif node.op == "call_method":
        owner = node.args[0] if node.args else None
        if not isinstance(owner, torch.fx.Node) or ("example_value" not in owner.meta and "val" not in owner.meta):
            raise Bypass("method_of_unknown", str(node.target))
    elif node.op == "get_attr":
        attribute: Any = gm
        for part in str(node.target).split("."):
            attribute = getattr(attribute, part, None)
        if operators.is_script_object(attribute):
            raise Bypass("torchbind", str(node.target))


def _refusal(target: Any) -> str | None:
    """Return the bypass reason for a function in a graph, or None if the graph may be cached with it."""
    if operators.is_overload(target) or operators.is_packet(target):
        return None  # a program's own operators are hashed by content: see program_code
    if operators.is_higher_order(target):
        if operators.higher_order_cacheable(target) or operators.is_autograd_function(target):
            return None
        ends = operators.ends_with_autograd(target)
        return "higher_order_operator_of_autograd" if ends else "higher_order_operator"
    wrapped = operators.numpy_wrapper(target)
    if wrapped is not None:
        return None if isinstance(wrapped[1], str) else _refusal(wrapped[1])
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", "")
    if type(target).__name__ in ("builtin_function_or_method", "method_descriptor", "wrapper_descriptor"):
        return None
    if f"{module}.{name}" in _KNOWN or module in _PURE_MODULES or module.startswith(_PURE_PACKAGES):
        return None
    if module in _PUBLIC_HOMES and not name.startswith("_"):
        return None
    if isinstance(target, type) and module.startswith("torch"):
        return None
    if callable(target) and module.startswith("torch") and operators.torch_function_is_cacheable(target):
        return None
    if f"{module}.{name}" in configs.functions_marked_cacheable():
        return None
    return "function"
