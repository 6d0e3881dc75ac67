"""Pieces that change what Inductor does: lowerings, decompositions, passes, patterns, choices."""

from __future__ import annotations

from .piece import HEAD, Piece

__all__ = ["INDUCTORS"]

INDUCTORS = [
    Piece("lowering", HEAD + """
from torch._inductor.lowering import register_lowering, lowerings
@torch.library.custom_op("hunted::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
@op.register_fake
def _(x):
    return torch.empty_like(x)
@register_lowering(torch.ops.hunted.op.default)
def _lowered(x):
    return lowerings[torch.ops.aten.mul.Tensor](lowerings[torch.ops.aten.sin.default](x), VALUE)
def piece(x):
    return op(x)
""", training=False, stock=True, families=("inductor",)),
    Piece("lowering_of_aten", HEAD + """
from torch._inductor.lowering import register_lowering, lowerings
@register_lowering(torch.ops.aten.erfinv.default)
def _lowered(x):
    return lowerings[torch.ops.aten.mul.Tensor](lowerings[torch.ops.aten.sin.default](x), VALUE)
def piece(x):
    return torch.erfinv(x)
""", training=False, stock=True, families=("inductor",)),
    Piece("decomposition", HEAD + """
from torch._inductor.decomposition import register_decomposition
@torch.library.custom_op("hunted::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
@op.register_fake
def _(x):
    return torch.empty_like(x)
@register_decomposition([torch.ops.hunted.op.default])
def _decomposed(x):
    return x.sin() * VALUE
def piece(x):
    return op(x)
""", training=False, stock=True, families=("inductor",)),
    Piece("decomposition_table", HEAD + """
from torch._inductor import decomposition
def _decomposed(x):
    return x.sin() * VALUE
decomposition.decompositions[torch.ops.aten.digamma.default] = _decomposed
def piece(x):
    return torch.digamma(x)
""", training=False, stock=True, families=("inductor",)),
    Piece("post_grad_pass", HEAD + """
import torch._inductor.config
from torch._inductor.custom_graph_pass import CustomGraphPass
class Pass(CustomGraphPass):
    def __call__(self, graph):
        for node in graph.nodes:
            if node.target is torch.ops.aten.sin.default:
                with graph.inserting_after(node):
                    new = graph.call_function(torch.ops.aten.mul.Tensor, (node, VALUE))
                    new.meta.update(node.meta)
                node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    def uuid(self):
        return UUID
torch._inductor.config.HOOK = Pass()
def piece(x):
    return x.sin()
""", training=False, stock=True, families=("inductor", "pass")),
    Piece("pre_grad_pass", HEAD + """
import torch._inductor.config
from torch._inductor.custom_graph_pass import CustomGraphPass
class Pass(CustomGraphPass):
    def __call__(self, graph):
        for node in graph.nodes:
            if node.op == 'call_method' and node.target == 'sin' or node.target is torch.sin:
                with graph.inserting_after(node):
                    new = graph.call_function(torch.mul, (node, VALUE))
                    new.meta.update(node.meta)
                node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    def uuid(self):
        return UUID
torch._inductor.config.pre_grad_custom_pass = Pass()
def piece(x):
    return x.sin()
""", training=False, stock=True, families=("inductor", "pass")),
    Piece("pass_function", HEAD + """
import torch._inductor.config
def _pass(graph):
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            with graph.inserting_after(node):
                new = graph.call_function(torch.ops.aten.mul.Tensor, (node, VALUE))
                new.meta.update(node.meta)
            node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
torch._inductor.config.HOOK = _pass
def piece(x):
    return x.sin()
""", training=False, stock=True, families=("inductor", "pass")),
    Piece("pattern", HEAD + """
from torch._inductor import pattern_matcher as pm
from torch._inductor.fx_passes import post_grad
@pm.register_graph_pattern(pm.CallFunction(torch.ops.aten.erfc.default, pm.Arg()),
                           pass_dict=post_grad.pass_patterns[NUMBER])
def _matched(match, x):
    def replacement(x):
        return torch.ops.aten.mul.Tensor(torch.ops.aten.sin.default(x), VALUE)
    match.replace_by_example(replacement, [x])
def piece(x):
    return torch.erfc(x)
""", training=False, stock=True, families=("inductor", "pattern")),
    Piece("joint_pattern", HEAD + """
from torch._inductor import pattern_matcher as pm
from torch._inductor.fx_passes import joint_graph
@pm.register_graph_pattern(pm.CallFunction(torch.ops.aten.erfc.default, pm.Arg()),
                           pass_dict=joint_graph.pass_patterns[NUMBER])
def _matched(match, x):
    def replacement(x):
        return torch.ops.aten.mul.Tensor(torch.ops.aten.sin.default(x), VALUE)
    match.replace_by_example(replacement, [x])
def piece(x):
    return torch.erfc(x)
""", training=False, stock=True, families=("inductor", "pattern")),
    Piece("replacement", HEAD + """
from torch._inductor import pattern_matcher as pm
from torch._inductor.fx_passes import post_grad
def _search(x):
    return torch.ops.aten.erfc.default(x)
def _replace(x):
    return torch.ops.aten.mul.Tensor(torch.ops.aten.sin.default(x), VALUE)
pm.register_replacement(_search, _replace, [torch.empty(4, 8)], pm.fwd_only, post_grad.pass_patterns[NUMBER])
def piece(x):
    return torch.erfc(x)
""", training=False, stock=True, families=("inductor", "pattern")),
    Piece("device_pass", HEAD + """
from torch._inductor.codegen import common
from torch._inductor.custom_graph_pass import CustomGraphModulePass
class Pass(CustomGraphModulePass):
    def __call__(self, gm):
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.sin.default:
                with gm.graph.inserting_after(node):
                    new = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node, VALUE))
                    new.meta.update(node.meta)
                node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        gm.recompile()
    def uuid(self):
        return UUID
common.init_backend_registration()
common.register_backend_for_device(
    "cpu", common.device_codegens["cpu"].scheduling, common.device_codegens["cpu"].wrapper_codegen,
    device_custom_pass=Pass())
def piece(x):
    return x.sin()
""", training=False, stock=True, families=("inductor", "pass")),
    Piece("choices", HEAD + """
from torch._inductor import choices, virtualized
class Choices(choices.InductorChoices):
    k = VALUE
    @staticmethod
    def should_use_cooperative_reduction(features):
        return False
    def can_fuse(self, *args, **kwargs):
        return VALUE > 2.5 and super().can_fuse(*args, **kwargs)
virtualized.V.set_choices_handler(Choices())
def piece(x):
    return x.sin().cos()
""", training=False, stock=True, families=("inductor", "same")),
    Piece("graph_lowering_hook", HEAD + """
import torch._inductor.config
from torch._inductor import ir
torch._inductor.config.max_fusion_size = int(VALUE * 4)
def piece(x):
    return x.sin().cos() * VALUE
""", plain=True, training=False, stock=True, families=("inductor",)),
]  # fmt: skip
