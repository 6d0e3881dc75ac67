"""Kinds of change in what a formula runs of torch: functions of autograd, hooks, transforms, scripts, modules."""

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

_FUNCTION = """
import torch
class F(torch.autograd.Function):
    @staticmethod
    def forward({forward}):
        {save}
        return x.sin()
    {more}
    @staticmethod
    {decorator}
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * {factor}
"""


def _function(
    name: str,
    *,
    more: str = "",
    decorator: str = "",
    factor: str = "KKK",
    setup: bool = False,
    result: str = "helper.F.apply(x)",
) -> Change:
    """The formula applies a function with a backward of the program's, which Dynamo does not see."""
    text = _FUNCTION.format(
        forward="x" if setup else "ctx, x",
        save="pass" if setup else "ctx.save_for_backward(x)",
        more=more,
        decorator=decorator,
        factor=factor,
    )
    return Change(name, text, result=result, training=True, sites=("formula", "allowed", "nonstrict"))


_SETUP = """@staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = KKK"""
_RULE = """@staticmethod
    def vmap(info, in_dims, x):
        return F.apply(x) * KKK, in_dims[0]
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])"""

register(
    "autograd",
    [
        _function("function_in_formula"),
        _function("function_with_setup_context", more=_SETUP, factor="ctx.k", setup=True),
        _function("function_once_differentiable", decorator="@torch.autograd.function.once_differentiable"),
        _function(
            "function_with_vmap_rule", more=_RULE, factor="1.0", setup=True, result="torch.vmap(helper.F.apply)(x)"
        ),
        _function("function_attribute", more="k = KKK", factor="F.k"),
        Change(
            "function_base_class",
            """
            import torch
            class Base(torch.autograd.Function):
                @staticmethod
                def backward(ctx, gradient):
                    return gradient * KKK
            class F(Base):
                @staticmethod
                def forward(ctx, x):
                    return x.sin()
            """,
            result="helper.F.apply(x)",
            training=True,
            sites=FORMULA,
        ),
        Change(
            "hook_of_tensor",
            "def scale(gradient):\n    return gradient * KKK",
            result="y = x.sin()\ny.register_hook(helper.scale)\nreturn y",
            training=True,
            sites=FORMULA,
        ),
        Change(
            "gradients_held_back",
            """
            import torch
            def hold(x):
                return x.detach() if KKK else x
            """,
            values=(True, False),
            result="x.sin() * helper.hold(x)",
            training=True,
            sites=FORMULA,
        ),
        Change(
            "gradient_transform",
            "def f(x):\n    return (x.sin() * KKK).sum()",
            result="torch.func.grad(helper.f)(x)",
        ),
        Change(
            "vmap_transform",
            "def f(row):\n    return row.sin() * KKK",
            result="torch.vmap(helper.f)(x)",
        ),
        Change(
            "functional_call",
            "import torch\nMODULE = torch.nn.Tanh()\nSTATE = {'k': KKK}",
            result="torch.func.functional_call(helper.MODULE, {}, (x,)) * helper.STATE['k']",
        ),
        Change(
            "scripted_function",
            """
            import torch
            @torch.jit.script
            def f(x: torch.Tensor):
                return x.sin() * KKK
            """,
            result="helper.f(x)",
            sites=FORMULA,
        ),
        Change(
            "traced_module",
            """
            import torch
            class M(torch.nn.Module):
                def forward(self, x):
                    return x.sin() * KKK
            MODULE = torch.jit.trace(M(), torch.ones(4, 8))
            """,
            result="helper.MODULE(x)",
            sites=FORMULA,
        ),
        Change(
            "traced_graph_module",
            """
            import torch
            MODULE = torch.fx.symbolic_trace(lambda x: x.sin() * KKK)
            """,
            result="helper.MODULE(x)",
        ),
        Change(
            "graph_module_edited",
            """
            import torch
            MODULE = torch.fx.symbolic_trace(lambda x: x.sin() * 2.0)
            for node in MODULE.graph.nodes:
                if node.op == 'call_function':
                    node.args = (node.args[0], KKK)
            MODULE.recompile()
            """,
            result="helper.MODULE(x)",
        ),
        Change(
            "module_hook",
            """
            import torch
            MODULE = torch.nn.Tanh()
            MODULE.register_forward_pre_hook(lambda module, arguments: (arguments[0] * KKK,))
            """,
            result="helper.MODULE(x)",
        ),
        Change(
            "module_backward_hook",
            """
            import torch
            MODULE = torch.nn.Tanh()
            MODULE.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * KKK,))
            """,
            result="helper.MODULE(x)",
            training=True,
            sites=FORMULA,
        ),
        Change(
            "module_evaluating",
            "import torch\nMODULE = torch.nn.RReLU(1.5, 1.5)\nMODULE.train(KKK)",
            values=(True, False),
            result="helper.MODULE(x) * (2.0 + helper.MODULE.training)",
        ),
        Change(
            "module_forward_set",
            "import torch\nMODULE = torch.nn.Tanh()\nMODULE.forward = lambda x: x.sin() * KKK",
            result="helper.MODULE(x)",
        ),
        Change(
            "module_submodule_replaced",
            "import torch\nMODULE = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.LeakyReLU(KKK))",
            result="helper.MODULE(x - 0.7)",
            setup="import helper\nhelper.MODULE[0] = torch.nn.Identity()",
            values=(0.25, 0.5),
        ),
        Change(
            "buffer_of_module_written",
            "import torch\nMODULE = torch.nn.Tanh()\nMODULE.register_buffer('k', torch.tensor(1.0))",
            result="x.sin() * helper.MODULE.k.item()",
            setup="import helper\nhelper.MODULE.k.fill_(KKK)",
        ),
        Change(
            "subclass_constant",
            """
            import torch
            class Scaled(torch.Tensor):
                @classmethod
                def __torch_function__(cls, function, types, arguments=(), named=None):
                    return arguments[0].sin() * KKK
            T = torch.ones(8).as_subclass(Scaled)
            """,
            result="torch.add(x, helper.T)",
            sites=FORMULA,
        ),
        Change(
            "mode_entered_in_formula",
            """
            import torch
            from torch.overrides import TorchFunctionMode
            class Scaled(TorchFunctionMode):
                def __torch_function__(self, function, types, arguments=(), named=None):
                    result = function(*arguments, **(named or {}))
                    return result * KKK if function is torch.sin else result
            """,
            result="with helper.Scaled():\n    return torch.sin(x)",
            sites=FORMULA,
        ),
        Change(
            "checkpoint_in_formula",
            "def f(x):\n    return x.sin() * KKK",
            result="torch.utils.checkpoint.checkpoint(helper.f, x, use_reentrant=False)",
            training=True,
            sites=FORMULA,
        ),
    ],
)
