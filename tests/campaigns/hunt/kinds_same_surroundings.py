"""Kinds in which something beside the graph's code changes: other registrations, other functions, another directory."""

# ruff: noqa: E501 (a table of programs' texts)

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

_TWO = "def factor():\n    return 2.0"
_MOVED = {
    f"{directory}/{name}": text
    for directory in ("one", "two")
    for name, text in (
        ("far.py", _TWO),
        (
            "operators.py",
            """
            import torch
            import far
            LIB = torch.library.Library("hunted", "DEF")
            LIB.define("op(Tensor x) -> Tensor")
            @torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
            def _op(x):
                return x.sin() * far.factor()
            """,
        ),
    )
}


def _beside(name: str, text: str) -> Change:
    """The same operator's formula, in a program that also does something else."""
    return Change(name, _TWO, values=("pass", text), setup="import helper\nKKK")


register(
    "same",
    [
        Change(
            "program_in_another_directory",
            values=("one", "two"),
            others=_MOVED,
            path="KKK:",
            ahead="import operators",
            body="return torch.ops.hunted.op(x) + 1",
        ),
        _beside("other_tree_registered", "from torch.utils import _pytree\nclass N:\n    pass\n"
                "_pytree.register_pytree_node(N, lambda n: ([], None), lambda leaves, context: N())"),
        _beside("other_pattern_registered", "from torch._inductor import pattern_matcher as pm\n"
                "from torch._inductor.fx_passes import post_grad\n"
                "pm.register_graph_pattern(pm.CallFunction(torch.ops.aten.erfinv.default, pm.Arg()), "
                "pass_dict=post_grad.pass_patterns[1])(lambda match, x: None)"),
        _beside("other_decomposition_registered", "from torch._inductor import decomposition\n"
                "decomposition.decompositions[torch.ops.aten.erfinv.default] = lambda x: x.sin()"),
        _beside("other_effect_registered", "torch.fx.node.has_side_effect(torch.ops.aten.erfinv.default)"),
        _beside("other_operator_registered", "torch.library.define('unrelated::op', '(Tensor x) -> Tensor')"),
        _beside("other_fragment_registered", "LIB = torch.library.Library('hunted', 'FRAGMENT')\n"
                "LIB.define('unrelated(Tensor x) -> Tensor')"),
        _beside("other_attribute_of_tensor", "torch.Tensor.unrelated = lambda x: x"),
        _beside("other_function_let_into_graphs", "torch.compiler.allow_in_graph(lambda x: x)"),
        _beside("other_module_hooked", "torch.nn.Tanh().register_forward_hook(lambda m, a, o: o)"),
        _beside("other_graph_compiled_first", "torch.compile(lambda x: x.cos(), backend='inductor')(torch.ones(3))"),
        _beside("other_global_of_helper", "helper.unrelated = 3.0"),
        _beside("helper_called_before", "helper.factor()"),
        _beside("printed", "print('hunted', file=__import__('sys').stderr)"),
        _beside("collected", "import gc\ngc.collect()"),
        Change("other_constant_of_helper", "UNRELATED = KKK\n" + _TWO),
        Change("annotations_of_helper", "def factor() -> KKK:\n    return 2.0", values=("float", "'float'")),
        Change("definitions_reordered", "KKK\ndef factor():\n    return first() * second()", values=(
            "def first():\n    return 2.0\ndef second():\n    return 1.0", "def second():\n    return 1.0\ndef first():\n    return 2.0")),
        Change("default_written_out", "def factor(k=2.0):\n    return k", values=("", "2.0"), result="x.sin() * helper.factor(KKK)"),
    ],
    hit=True,
)  # fmt: skip
