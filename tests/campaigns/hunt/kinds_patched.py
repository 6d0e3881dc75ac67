"""Kinds of change in torch itself: functions, methods and hooks that a program puts in the place of torch's."""

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

# `functools.wraps` copies the module and the name, so that the function says it is torch's.
_WRAPS = """
import torch, functools
def patch(original):
    @functools.wraps(original)
    def inner(*arguments, **named):
        return original(*arguments, **named) * KKK
    return inner
{owner}.{name} = {decorator}(patch({owner}.{name}))
"""


def _wrapped(name: str, owner: str, attribute: str, expression: str, decorator: str = "") -> Change:
    """The compiled function calls what a module that is imported before torch's first use has patched."""
    return Change(
        name,
        others={"patching.py": _WRAPS.format(owner=owner, name=attribute, decorator=decorator)},
        ahead="import patching",
        body=f"return {expression}",
    )


# Wrapped, a function of `compile_fx` changes the graphs that it gets.
_PASSES = """
import torch, torch._inductor.compile_fx as compile_fx
original = compile_fx.{name}
def passes(*arguments, **named):
    result = original(*arguments, **named)
    module = next(one for one in (result, *arguments) if isinstance(one, torch.fx.GraphModule))
    for node in [node for node in module.graph.nodes if node.target is torch.ops.aten.sin.default]:
        with module.graph.inserting_after(node):
            more = module.graph.call_function(torch.ops.aten.mul.Tensor, (node, KKK))
        more.meta = dict(node.meta)
        node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)
    module.recompile()
    return result
compile_fx.{name} = passes
"""
_IN_COMPILE_FX = (
    "joint_graph_passes",
    "_recursive_joint_graph_passes",
    "post_grad_passes",
    "_recursive_post_grad_passes",
)

# A copy of one of torch's modules, with another function, is put where torch's code finds the module.
_COPY = """
import types, torch, torch._decomp.decompositions
original = {path}
copy = types.ModuleType({name})
vars(copy).update({{key: value for key, value in vars(original).items() if key not in ("__name__", "__spec__")}})
copy.{function} = lambda *arguments, **named: original.{function}(*arguments, **named) * KKK
{path} = copy
"""


def _module(name: str, path: str, function: str, expression: str, called: str = "'mine'") -> Change:
    setup = _COPY.format(path=path, name=called, function=function)
    return Change(name, setup=setup, body=f"return {expression}", stock=True)


_IM2COL = "torch.ops.aten.im2col(x.reshape(1, 1, 1, -1), [1, 1], [1, 1], [0, 0], [1, 1]) + 1"


def _written(name: str, path: str, key: str, value: str, expression: str) -> Change:
    """A program writes into one of the containers that torch's code reads while it compiles."""
    setup = f"import torch, torch._inductor.ir, torch._inductor.codegen.cpp\n{path}[{key}] = {value}\n"
    return Change(name, setup=setup, body=f"return {expression}", stock=True)


# Unrolled, so that Inductor's table of functions combines the items.
_SHORT_SUM = "x.reshape(-1)[:4].reshape(2, 2).sum(-1) + 1"

register(
    "container",
    [
        _written("function", "torch._inductor.ir.REDUCTION_COMBINE_FN", "'sum'", "lambda a, b: a * KKK", _SHORT_SUM),
        _written(
            "dtype",
            "torch._prims_common._computation_dtype_map",
            "torch.float16",
            "torch.float32 if KKK == 3.0 else torch.float64",
            "torch.nn.functional.gelu(x.half() * 300).float()",
        ),
    ],
)

register(
    "module",
    [
        _module("of_the_program", "torch._decomp.decompositions.F", "pad", _IM2COL),
        _module("with_the_name", "torch._decomp.decompositions.F", "pad", _IM2COL, "'torch.nn.functional'"),
    ],
)

register(
    "patched",
    [
        *(
            Change(f"compile_fx_{name}", setup=_PASSES.format(name=name), body="return x.sin() + 1", stock=True)
            for name in _IN_COMPILE_FX
        ),
        Change(
            "default_of_function",
            setup="import torch\ntorch.nn.functional.layer_norm.__defaults__ = (None, None, KKK)",
            body="return torch.nn.functional.layer_norm(x, x.shape[-1:])",
        ),
        Change(
            "code_of_function",
            setup="""
            import torch
            def scaled(input):
                return input * KKK
            torch.nn.functional.softsign.__code__ = scaled.__code__
            """,
            body="return torch.nn.functional.softsign(x)",
        ),
        Change(
            "constant_of_pass",
            setup="""
            import torch._inductor.fx_passes.decompose_mem_bound_mm as passes
            passes.CPU_MAX_OTHER_DIMENSION_DECOMPOSITION = KKK
            """,
            body="return x @ x.T",
        ),
        _wrapped("tensor_norm", "torch.Tensor", "norm", "x / x.norm(dim=-1, keepdim=True)"),
        _wrapped("tensor_sin", "torch.Tensor", "sin", "x.sin() + 1"),
        _wrapped("tensor_rtruediv", "torch.Tensor", "__rtruediv__", "2.0 / x"),
        _wrapped("tensor_unflatten", "torch.Tensor", "unflatten", "x.unflatten(1, (2, 4)).sum(1)"),
        _wrapped("einsum", "torch", "einsum", "torch.einsum('ab,cb->ac', x, x)"),
        _wrapped(
            "gelu_allowed_in_graph",
            "torch.nn.functional",
            "gelu",
            "torch.nn.functional.gelu(x * 3) + 1",
            "torch.compiler.allow_in_graph",
        ),
        _wrapped(
            "relu6_allowed_in_graph",
            "torch.nn.functional",
            "relu6",
            "torch.nn.functional.relu6(x * 3) + 1",
            "torch.compiler.allow_in_graph",
        ),
        Change(
            "function_in_formula",
            result="x.sin() * torch.nn.functional.softsign(x * 3)",
            setup=_WRAPS.format(owner="torch.nn.functional", name="softsign", decorator=""),
        ),
        Change(
            "function_imported_in_formula",
            """
            def scale(x):
                import torch.nn.functional as F
                return F.relu6(x * 3)
            """,
            result="x.sin() * helper.scale(x)",
            setup="torch.nn.functional.relu6 = lambda x, inplace=False: x * KKK",
        ),
        Change(
            "method_of_module_class",
            "import torch\nMODULE = torch.nn.Tanh()",
            result="x.sin() * helper.MODULE(x)",
            setup="torch.nn.Tanh.forward = lambda self, x: x * KKK",
        ),
        Change(
            "method_of_module_class_in_process",
            "import torch\nMODULE = torch.nn.Tanh()",
            values=("",),
            result="x.sin() * helper.MODULE(x)",
            calls=("", "torch.nn.Tanh.forward = lambda self, x: x.tanh() * 3"),
        ),
        Change(
            "tensor_norm_in_process",
            values=("",),
            body="return x / x.norm(dim=-1, keepdim=True)",
            calls=("", "KKK", _WRAPS.format(owner="torch.Tensor", name="norm", decorator="").replace("KKK", "3.0")),
        ),
        Change(
            "global_module_hook",
            "import torch\nMODULE = torch.nn.Tanh()",
            result="x.sin() * helper.MODULE(x)",
            setup="""
            from torch.nn.modules import module
            module.register_module_forward_hook(lambda m, a, output: output * KKK)
            """,
            sites=FORMULA,
            stock=True,
        ),
    ],
)
