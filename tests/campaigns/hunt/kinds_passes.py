"""Kinds of change in passes and patterns that a program configures: what they are made of, and their order."""

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

_SCALES = """
import torch, functools
import torch._inductor.config, torch._functorch.config
aten = torch.ops.aten
def scale(graph, k):
    for node in graph.nodes:
        if node.target is aten.sin.default:
            with graph.inserting_after(node):
                new = graph.call_function(aten.mul.Tensor, (node, k))
                new.meta.update(node.meta)
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
"""
_PATTERNS = """
import torch
from torch._inductor import pattern_matcher as pm
from torch._inductor.fx_passes import post_grad
aten = torch.ops.aten
ERFC = pm.CallFunction(aten.erfc.default, pm.Arg())
def replace(match, x, k):
    def replacement(x):
        return aten.mul.Tensor(aten.sin.default(x), k)
    match.replace_by_example(replacement, [x])
"""
_SIN, _ERFC = "return torch.sin(x) + 1", "return torch.erfc(x) + 1"


def _pass(name: str, text: str, *, training: bool = False) -> Change:
    return Change(name, ops=_SCALES + text, body=_SIN, stock=True, training=training)


def _pattern(name: str, text: str, values: tuple[object, ...] = (2.0, 3.0), body: str = _ERFC) -> Change:
    return Change(name, values=values, ops=_PATTERNS + text, body=body, stock=True)


register(
    "pass",
    [
        _pass("is_partial", "torch._inductor.config.post_grad_custom_post_pass = functools.partial(scale, k=KKK)"),
        _pass(
            "is_bound_method",
            """
class Passes:
    def __init__(self, k):
        self.k = k
    def run(self, graph):
        scale(graph, self.k)
torch._inductor.config.post_grad_custom_pre_pass = Passes(KKK).run
""",
        ),
        _pass(
            "is_object_without_uuid",
            """
class Pass:
    k = KKK
    def __call__(self, graph):
        scale(graph, self.k)
torch._inductor.config.post_grad_custom_post_pass = Pass()
""",
        ),
        _pass(
            "is_closure_of_object",
            """
class Table:
    __slots__ = ('k',)
table = Table()
table.k = KKK
torch._inductor.config.joint_custom_post_pass = lambda graph: scale(graph, table.k)
""",
        ),
        _pass(
            "reads_what_another_pass_writes",
            """
STATE = {}
torch._inductor.config.post_grad_custom_pre_pass = lambda graph: STATE.update(k=KKK)
torch._inductor.config.post_grad_custom_post_pass = lambda graph: scale(graph, STATE['k'])
""",
        ),
        _pass(
            "of_joint_graph",
            """
def joint(module, inputs):
    scale(module.graph, KKK)
    module.recompile()
    return module
torch._functorch.config.joint_custom_pass = joint
""",
            training=True,
        ),
        _pass(
            "is_partitioner",
            """
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
class Partitioner(CustomPartitionerFn):
    def __call__(self, module, inputs, **named):
        scale(module.graph, KKK)
        module.recompile()
        return min_cut_rematerialization_partition(module, inputs, **named)
    def uuid(self):
        return 'partitioner'
torch._inductor.config.custom_partitioner_fn = Partitioner()
""",
            training=True,
        ),
        _pattern(
            "pattern_with_a_constant",
            """
@pm.register_graph_pattern(pm.CallFunction(aten.mul.Tensor, pm.Arg(), KKK), pass_dict=post_grad.pass_patterns[1])
def _(match, x):
    replace(match, x, 5.0)
""",
            body="return x * 2.0, x * 3.0",
        ),
        _pattern(
            "pattern_class_of_program",
            """
class Near(pm.CallFunction):
    def _match(self, node, ctx):
        return super()._match(node, ctx) if KKK > 2.5 else pm.FailedMatch('no')
@pm.register_graph_pattern(Near(aten.erfc.default, pm.Arg()), pass_dict=post_grad.pass_patterns[1])
def _(match, x):
    replace(match, x, 5.0)
""",
        ),
        _pattern(
            "patterns_in_another_order",
            """
def register(k):
    @pm.register_graph_pattern(ERFC, pass_dict=post_grad.pass_patterns[1])
    def _(match, x):
        replace(match, x, k)
for k in (KKK):
    register(k)
""",
            values=("2.0, 3.0", "3.0, 2.0"),
        ),
        _pattern(
            "lowering_pattern",
            """
from torch._inductor.lowering import lowerings
@pm.register_lowering_pattern(ERFC, pass_dict=post_grad.pass_patterns[1])
def _(match, x):
    return lowerings[aten.mul.Tensor](x, KKK)
""",
        ),
        _pattern(
            "handler_is_partial",
            """
import functools
handler = functools.partial(lambda k, match, x: replace(match, x, k), KKK)
pm.register_graph_pattern(ERFC, pass_dict=post_grad.pass_patterns[1])(handler)
""",
        ),
        _pattern(
            "check_reads_a_global",
            """
import helper
check = lambda match: helper.enabled
@pm.register_graph_pattern(ERFC, extra_check=check, pass_dict=post_grad.pass_patterns[1])
def _(match, x):
    replace(match, x, 5.0)
helper.enabled = KKK
""",
            values=(False, True),
        ),
    ],
)
