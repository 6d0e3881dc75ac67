"""Kinds of change in registrations for operators that stand in no graph of Dynamo's: they come of others on the way.

A decomposition introduces them, a backward, functionalization, or the graph of a higher-order operator holds them.
"""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

_LOWERING = """
import torch
from torch._inductor.lowering import lowerings
original = lowerings[torch.ops.aten.{operator}]
def mine(*arguments, **named):
    return lowerings[torch.ops.aten.mul.Tensor](original(*arguments, **named), KKK)
lowerings[torch.ops.aten.{operator}] = mine
"""
_DECOMPOSITION = """
import torch
from torch._inductor import decomposition
decomposition.decompositions[torch.ops.aten.digamma.default] = lambda x: x.sin() * KKK
"""
_PATTERN = """
import torch
from torch._inductor import pattern_matcher as pm
from torch._inductor.fx_passes import post_grad
aten = torch.ops.aten
@pm.register_graph_pattern(pm.CallFunction(aten.{operator}, pm.Arg()), pass_dict=post_grad.pass_patterns[1])
def _matched(match, x):
    match.replace_by_example(lambda x: aten.mul.Tensor(x, KKK), [x])
"""
_FORMULA = """
import torch
LIB = torch.library.Library("hunted", "DEF")
LIB.define("op(Tensor x) -> Tensor")
@torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
def _op(x):
    return x.sin() * KKK
"""
_EXPLICIT = _FORMULA.replace("Implicit", "Explicit")
_BACKWARD = """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * {call}(ctx.saved_tensors[0])
"""


def _reached(name: str, ops: str, body: str, *, setup: str = "", training: bool = False, stock: bool = True) -> Change:
    return Change(name, ops=ops, body=body, setup=setup, training=training, stock=stock)


_SUBGRAPHS = {
    "cond": "return torch.cond(x.sum() > 0, lambda x: CALL(x), lambda x: x.cos(), (x,)) + 1",
    "checkpoint": "return torch.utils.checkpoint.checkpoint(lambda x: CALL(x).sin(), x, use_reentrant=False) + 1",
    "nested_region": "return region(x) + 1",
    "scan": "from torch._higher_order_ops import scan\n"
    "return scan(lambda carry, row: (carry + CALL(row), carry * 1.0), torch.zeros(8), x)[0] + 1",
    "while_loop": "from torch._higher_order_ops import while_loop\n"
    "return while_loop(lambda n, x: n < 2, lambda n, x: (n + 1, CALL(x)), (torch.tensor(0), x))[1] + 1",
    "vmap": "return torch.vmap(lambda row: CALL(row))(x) + 1",
    "gradient": "return torch.func.grad(lambda x: CALL(x).sum())(x) + 1",
    "autograd_function": "return F.apply(x) + 1",
}
_REGION = "@torch.compiler.nested_compile_region\ndef region(x):\n    return CALL(x)"


def _in_subgraph(subgraph: str, what: str, ops: str, call: str, *, stock: bool) -> Change:
    setup = {"nested_region": _REGION.replace("CALL", call), "autograd_function": _BACKWARD.format(call=call)}
    return _reached(
        f"{what}_in_{subgraph}",
        ops,
        _SUBGRAPHS[subgraph].replace("CALL", call),
        setup=setup.get(subgraph, ""),
        training=subgraph in ("checkpoint", "autograd_function"),
        stock=stock,
    )


register(
    "reach",
    [
        # Operators of decompositions, of backwards, of functionalization.
        _reached("lowering_behind_decomposition", _LOWERING.format(operator="erf.default"), "return torch.nn.functional.gelu(x) + 1"),
        _reached("lowering_behind_softmax", _LOWERING.format(operator="exp.default"), "return x.softmax(-1) + 1"),
        _reached("lowering_of_backward", _LOWERING.format(operator="cos.default"), "return torch.sin(x) + 1", training=True),
        _reached("lowering_behind_mutation", _LOWERING.format(operator="sin.default"), "y = x.clone()\ny.sin_()\nreturn y + 1"),
        _reached("lowering_of_copied_input", _LOWERING.format(operator="cos.default"), "x.cos_()\nreturn x + 1"),
        _reached("decomposition_behind_formula", _DECOMPOSITION + _FORMULA.replace("x.sin() * KKK", "torch.digamma(x)"), "return torch.ops.hunted.op(x) + 1"),
        _reached("decomposition_of_backward", _DECOMPOSITION, "return torch.lgamma(x) + 1", training=True),
        _reached("pattern_behind_decomposition", _PATTERN.format(operator="erf.default"), "return torch.nn.functional.gelu(x) + 1"),
        _reached("pattern_of_backward", _PATTERN.format(operator="cos.default"), "return torch.sin(x) + 1", training=True),
        _reached("formula_behind_formula", _FORMULA + """
LIB.define("outer(Tensor x) -> Tensor")
@torch.library.impl(LIB, "outer", "CompositeImplicitAutograd")
def _outer(x):
    return torch.ops.hunted.op(x) + 1
""", "return torch.ops.hunted.outer(x) + 1", stock=False),
        _reached("formula_of_backward", _FORMULA + """
@torch.library.custom_op("hunted::outer", mutates_args=())
def outer(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
outer.register_fake(lambda x: torch.empty_like(x))
outer.register_autograd(lambda ctx, gradient: torch.ops.hunted.op(gradient))
""", "return torch.ops.hunted.outer(x) + 1", training=True, stock=False),
        # Graphs of higher-order operators.
        *(_in_subgraph(name, "formula", _FORMULA, "torch.ops.hunted.op", stock=False) for name in _SUBGRAPHS),
        *(_in_subgraph(name, "lowering", _LOWERING.format(operator="erfc.default"), "torch.erfc", stock=True)
          for name in _SUBGRAPHS),
    ],
)  # fmt: skip

# Facts that a pass can read of a graph beside its operators: names, places in modules, lines, annotations.
_READS = """
import torch
import torch._inductor.config
def scale(graph):
    aten, sines = torch.ops.aten, ('sin', torch.sin, torch.ops.aten.sin.default)
    for node in graph.nodes:
        if node.target in sines and ({condition}):
            with graph.inserting_after(node):
                new = graph.call_function(torch.mul if node.target is not aten.sin.default else aten.mul.Tensor, (node, 3.0))
                new.meta.update(node.meta)
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
torch._inductor.config.{hook} = scale
"""
_NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.KKK = Sine()
    def forward(self, x):
        return self.KKK(x)
class Sine(torch.nn.Module):
    def forward(self, x):
        return x.sin()
NET = Net()
"""
_HOOKS = {"before": "pre_grad_custom_pass", "after": "post_grad_custom_post_pass"}


def _reads(name: str, hook: str, condition: str, values: tuple[str, str], body: str, setup: str = "") -> Change:
    return Change(
        f"{name}_{hook}_autograd",
        values=values,
        ops=_READS.format(condition=condition, hook=_HOOKS[hook]),
        body=body,
        setup=setup,
        stock=True,
    )


register(
    "names",
    [
        _reads("node", "before", "node.name == 'special'", ("special", "other"), "KKK = x.sin()\nreturn KKK + 1"),
        _reads("argument", "before", "'special' in str(node.args[0])", ("special", "other"),
               "return scaled(x)", "def scaled(KKK):\n    return KKK.sin() + 1"),
        *(
            change
            for hook in _HOOKS
            for change in (
                _reads("module_stack", hook, "'special' in str(node.meta.get('nn_module_stack'))", ("special", "other"),
                       "return NET(x) + 1", _NET),
                _reads("stack_trace", hook, "'special' in str(node.meta.get('stack_trace'))", ("special", "other"),
                       "y = x.sin()  # KKK\nreturn y + 1"),
                _reads("custom_metadata", hook, "'special' in str(node.meta.get('custom'))", ("special", "other"),
                       "with torch.fx.traceback.annotate({'part': 'KKK'}):\n    y = x.sin()\nreturn y + 1"),
                _reads("source_function", hook, "'special' in str(node.meta.get('source_fn_stack'))", ("special", "other"),
                       "return KKK(x) + 1", "def KKK(x):\n    return x.sin()"),
            )
        ),
    ],
)  # fmt: skip

_LAYERS = """
torch.manual_seed(3)
A, B = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
P, Q = torch.rand(8), torch.rand(8)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('p', torch.zeros(8))
        self.register_buffer('q', torch.zeros(8))
    def forward(self, x):
        self.KKK.add_(x.detach().sum(0))
        return x + self.p * 2 + self.q * 3
NET = Net()
def state():
    return [NET.p.clone(), NET.q.clone()]
"""

register(
    "swapped",
    [
        Change("layers", values=("A(B(x))", "B(A(x))"), setup=_LAYERS.replace("KKK", "p"), body="return KKK", tolerance=4.0),
        Change("constants", values=("x * P + Q", "x * Q + P"), setup=_LAYERS.replace("KKK", "p"), body="return KKK"),
        Change("buffers_written", values=("p", "q"), setup=_LAYERS, body="return NET(x)"),
        Change("outputs", values=("x.sin(), x.cos()", "x.cos(), x.sin()"), body="return KKK"),
        Change("output_is_input", values=("x", "x.clone()"), body="y = x.sin()\nreturn y, KKK"),
        Change("output_twice", values=("y", "y + 0"), body="y = x.sin()\nreturn y, KKK"),
        Change("input_written", values=("x.add_(1)", "x = x.add(1)"), body="KKK\nreturn x.sin()"),
        Change("gradient_stopped", values=("y", "y.detach()"), body="y = x.sin()\nreturn y, KKK * 2", training=True),
        Change("offset_seen_by_absolute_stride", values=("0:32", "16:48"), inputs="torch.arange(128.0)[KKK].view(4, 8)",
               body="return x.as_strided((4, 8), (8, 1), 20) + 1"),
        Change("offset_read", values=("0:32", "16:48"), inputs="torch.arange(64.0)[KKK].view(4, 8)", body="return x * x.storage_offset() + 1"),
        Change("storage_behind_view", values=("0:32", "0:64"), inputs="torch.arange(64.0)[KKK].clone()[:32].view(4, 8)",
               body="return x.as_strided((4, 8), (8, 1), min(32, x.untyped_storage().nbytes() // 4 - 32)) + 1"),
    ],
)  # fmt: skip
