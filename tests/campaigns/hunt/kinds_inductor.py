"""Kinds of change in Inductor's registries: lowerings, decompositions, patterns, and rules of operators."""

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

_LOWERINGS = """
import torch, functools
from torch._inductor import lowering
from torch._inductor.lowering import lowerings
aten = torch.ops.aten
"""
_PATTERNS = """
import torch
from torch._inductor import pattern_matcher as pm
from torch._inductor.fx_passes import post_grad
aten = torch.ops.aten
ERFC = pm.CallFunction(aten.erfc.default, pm.Arg())
"""
_REPLACES = """
def handle(match, x):
    def replacement(x):
        return aten.mul.Tensor(aten.sin.default(x), SCALE)
    match.replace_by_example(replacement, [x])
"""
_SIN, _ERFC, _DIGAMMA = "return torch.sin(x) + 1", "return torch.erfc(x) + 1", "return torch.digamma(x) + 1"

register(
    "registry",
    [
        Change(
            "lowering_wrapped_with_wraps",
            ops=_LOWERINGS
            + """
original = lowerings[aten.sin.default]
@functools.wraps(original)
def mine(*arguments, **named):
    return lowerings[aten.mul.Tensor](original(*arguments, **named), KKK)
lowerings[aten.sin.default] = mine
""",
            body=_SIN,
            stock=True,
        ),
        Change(
            "lowering_of_another",
            values=("cos", "exp"),
            ops=_LOWERINGS + "lowerings[aten.sin.default] = lowerings[aten.KKK.default]",
            body=_SIN,
            stock=True,
        ),
        Change(
            "lowering_is_partial_of_torchs",
            values=(0, 1),
            ops=_LOWERINGS
            + """
lowerings[aten.sin.default] = functools.partial(lowerings[aten.cumsum.default], axis=KKK)
""",
            body=_SIN,
            stock=True,
        ),
        Change(
            "decomposition_of_another",
            values=("cos", "exp"),
            ops="""
            import torch
            from torch._inductor import decomposition
            decomposition.decompositions[torch.ops.aten.digamma.default] = torch._refs.KKK
            """,
            body=_DIGAMMA,
            stock=True,
        ),
        Change(
            "pattern_handler_is_bound_method",
            ops=_PATTERNS
            + """
class Handler:
    def handle(self, match, x):
        def replacement(x):
            return aten.mul.Tensor(aten.sin.default(x), KKK)
        match.replace_by_example(replacement, [x])
pm.register_graph_pattern(ERFC, pass_dict=post_grad.pass_patterns[1])(Handler().handle)
""",
            body=_ERFC,
            stock=True,
        ),
        Change(
            "pattern_extra_check_is_object",
            ops=_PATTERNS
            + _REPLACES.replace("SCALE", "2.0")
            + """
class Check:
    def __init__(self, k):
        self.k = k
    def __call__(self, match):
        return self.k > 2.5
pm.register_graph_pattern(ERFC, extra_check=Check(KKK), pass_dict=post_grad.pass_patterns[1])(handle)
""",
            body=_ERFC,
            stock=True,
        ),
        Change(
            "pattern_pass_appended",
            ops=_PATTERNS
            + _REPLACES.replace("SCALE", "KKK")
            + """
MINE = pm.PatternMatcherPass()
pm.register_graph_pattern(ERFC, pass_dict=MINE)(handle)
post_grad.pass_patterns.append(MINE)
""",
            body=_ERFC,
            stock=True,
        ),
        Change(
            "noop_registered",
            values=(False, True),
            ops="""
            import torch
            from torch._inductor.fx_passes import post_grad
            post_grad.register_noop_decomp(torch.ops.aten.erfc)(lambda x: KKK)
            """,
            body=_ERFC,
            stock=True,
        ),
        Change(
            "py_impl_of_aten",
            ops="""
            import torch
            from torch._C import DispatchKey
            torch.ops.aten.erfc.default.py_impl(DispatchKey.AutogradCPU)(lambda x: x * KKK)
            """,
            body=_ERFC,
            stock=True,
        ),
    ],
)

# Namespaces that are words of torch's: their operators are the program's all the same.
_BACKWARD_IN_NAMESPACE = """
import torch
import helper
@torch.library.custom_op("{namespace}::hunted_op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
@op.register_fake
def _(x):
    return torch.empty_like(x)
def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
def _backward(ctx, gradient):
    return gradient * ctx.saved_tensors[0].cos() * helper.factor()
op.register_autograd(_backward, setup_context=_setup)
"""
register(
    "registry",
    [
        Change(
            f"operator_in_namespace_{namespace}",
            "def factor():\n    return KKK",
            ops=_BACKWARD_IN_NAMESPACE.format(namespace=namespace),
            body=f"return torch.ops.{namespace}.hunted_op(x) + 1",
            training=True,
        )
        for namespace in ("sparse", "profiler", "streams", "mkl")
    ],
)

register(
    "registry",
    [
        Change(
            "operator_takes_text_like_a_device",
            values=(3, 5),
            ops="""
            import torch
            @torch.library.custom_op("hunted::at", mutates_args=())
            def at(x: torch.Tensor, where: str) -> torch.Tensor:
                return x * (int(where.partition(":")[2]) + 1)
            @at.register_fake
            def _(x, where):
                return torch.empty_like(x)
            """,
            body="return torch.ops.hunted.at(x, 'cuda:KKK') + 1",
        )
    ],
)
