"""Kinds of change in rules that a program gives torch beside `torch.library`: tables, overloads, tags, trees."""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

# The number of rows that come out is the number, and the graph is specialized on it.
_ROWS = """
import torch
LIB = torch.library.Library("hunted", "DEF")
LIB.define("op(Tensor x) -> Tensor"{tags})
@torch.library.impl(LIB, "op", "CPU")
def _cpu(x):
    return x.sin().repeat(KKK, 1)
def rows(x):
    return x.new_empty((KKK * x.shape[0], x.shape[1]))
{rule}
"""
_USES_ROWS = "y = torch.ops.hunted.op(x)\nreturn y.mean(0, keepdim=True) * y.shape[0] + x"


def _rows(name: str, rule: str) -> Change:
    """An operator whose rule for fake tensors is `rule`, which no function of `torch.library` registers."""
    return Change(name, values=(2, 3), ops=_ROWS.format(rule=rule, tags=""), body=_USES_ROWS)


# Inductor passes an operator its argument with the strides that a rule asks for, and the operator can see them.
_STRIDES = """
import torch
LIB = torch.library.Library("hunted", "DEF")
LIB.define("op(Tensor x) -> Tensor", tags=({tags}))
@torch.library.impl(LIB, "op", "CPU")
def _cpu(x):
    return torch.full((4,), float(x.stride(0)))
@torch.library.register_fake("hunted::op", lib=LIB)
def _fake(x):
    return x.new_empty((4,))
{rule}
"""
_USES_STRIDES = "return torch.ops.hunted.op((x.t() + 1).contiguous().t()) + 1, torch.ops.hunted.op(x.t() * 2)"

# A higher-order operator that becomes a product where the graph is traced.
_HIGHER = """
import torch
from torch._ops import HigherOrderOperator
from torch._C import DispatchKey
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch._subclasses.fake_tensor import FakeTensorMode
class Scale(HigherOrderOperator):
    def __init__(self):
        super().__init__("hunted_scale", cacheable=True)
    def __call__(self, x):
        return super().__call__(x)
scale = Scale()
@scale.py_impl(DispatchKey.CompositeExplicitAutograd)
def _dense(x):
    return x * {dense}
@scale.py_impl(DispatchKey.Autograd)
def _autograd(x):
    with torch._C._AutoDispatchBelowAutograd():
        return scale(x)
@scale.py_functionalize_impl
def _functional(ctx, x):
    return ctx.wrap_tensors(scale(ctx.unwrap_tensors(x)))
@scale.py_impl(FakeTensorMode)
def _fake(mode, x):
    with mode:
        return x * 1
@scale.py_impl(ProxyTorchDispatchMode)
def _proxy(mode, x):
    with mode:
        return x * {proxy}
"""
_OVERLOADS = """
import torch
LIB = torch.library.Library("hunted", "FRAGMENT")
{more}
LIB.define("op(Tensor x, float k) -> Tensor")
@torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
def _op(x, k):
    return x * k
"""
_INTEGERS = """
LIB.define("op.integer(Tensor x, int k) -> Tensor")
@torch.library.impl(LIB, "op.integer", "CompositeImplicitAutograd")
def _integer(x, k):
    return x.sin() * k
"""

register(
    "rule",
    [
        # Rules for fake tensors.
        _rows("fake_op_implementation", """
from torch._subclasses.fake_impls import register_op_impl
@register_op_impl(torch.ops.hunted.op.default)
def _fake(mode, function, x):
    with mode:
        return rows(x)
"""),
        _rows("fake_op_implementation_by_check", """
from torch._subclasses.fake_impls import register_op_impl
@register_op_impl(lambda op: op is torch.ops.hunted.op.default)
def _fake(mode, function, x):
    with mode:
        return rows(x)
"""),
        _rows("py_impl_of_meta", "torch.ops.hunted.op.default.py_impl(torch._C.DispatchKey.Meta)(rows)"),
        _rows("register_meta", """
from torch._meta_registrations import register_meta
register_meta(torch.ops.hunted.op.default)(rows)
torch.ops.hunted.op.default.py_impl(torch._C.DispatchKey.Meta)(rows)
"""),
        _rows("decomposition_as_fake_rule", """
from torch._decomp import register_decomposition
@register_decomposition(torch.ops.hunted.op.default)
def _decomposed(x):
    return x.cos().repeat(KKK, 1)
"""),
        _rows("fake_rule_of_profile", """
from torch._library.fake_profile import OpProfile, TensorMetadata, unsafe_generate_fake_kernels
def meta(rank):
    return TensorMetadata(rank=rank, dtype=torch.float32, device=torch.device('cpu'), layout=torch.strided)
unsafe_generate_fake_kernels({'hunted.op.default': {OpProfile((meta(2),), meta(2))}}).__enter__()
"""),
        # Tables that are not Inductor's.
        Change(
            "py_impl_of_mode",
            ops="""
            import torch
            from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
            @torch.ops.aten.erfc.default.py_impl(ProxyTorchDispatchMode)
            def _proxy(mode, x):
                with mode:
                    return torch.ops.aten.mul.Tensor(x, KKK)
            """,
            body="return torch.erfc(x) + 1",
            stock=True,
        ),
        Change(
            "user_lowering",
            ops="""
            import torch
            from torch._inductor import lowering
            aten = torch.ops.aten
            @lowering.register_lowering(aten.erfc.default, lowering_dict=lowering.user_lowerings)
            def _lowered(x):
                return lowering.lowerings[aten.mul.Tensor](x, KKK)
            """,
            body="return torch.erfc(x) + 1",
            stock=True,
        ),
        Change(
            "higher_order_operator",
            ops=_HIGHER.format(dense="KKK", proxy="KKK") + "\n@torch.compiler.allow_in_graph\ndef piece(x):\n    return scale(x)",
        ),
        Change(
            "higher_order_operator_traced_as_another",
            ops=_HIGHER.format(dense="2.0", proxy="KKK") + "\n@torch.compiler.allow_in_graph\ndef piece(x):\n    return scale(x)",
            stock=True,
        ),
        Change(
            "higher_order_operator_in_formula",
            helper=_HIGHER.format(dense="KKK", proxy="KKK"),
            result="helper.scale(x)",
            sites=FORMULA,
        ),
        # Overloads, tags, constraints.
        Change(
            "overload_added",
            values=("", _INTEGERS),
            ops=_OVERLOADS.format(more="KKK"),
            body="return torch.ops.hunted.op(x, 2) + 1",
        ),
        Change(
            "overload_added_by_another_module",
            values=("ops", "plug"),
            ops=_OVERLOADS.format(more=""),
            others={"plug.py": "import torch\nLIB = torch.library.Library('hunted', 'FRAGMENT')" + _INTEGERS},
            ahead="import KKK",
            body="return torch.ops.hunted.op(x, 2) + 1",
        ),
        Change(
            "tags_of_operator",
            values=("torch.Tag.needs_exact_strides", "torch.Tag.needs_contiguous_strides"),
            ops=_STRIDES.format(tags="KKK", rule=""),
            body=_USES_STRIDES,
            stock=True,
        ),
        Change(
            "layout_constraint",
            values=("constrain_to_fx_strides", "require_contiguous"),
            ops=_STRIDES.format(
                tags="",
                rule="""
from torch._inductor import lowering
lowering.make_fallback(torch.ops.hunted.op.default, layout_constraint=lowering.KKK)
""",
            ),
            body=_USES_STRIDES,
            stock=True,
        ),
        Change(
            "default_layout_constraint",
            values=("needs_exact_strides", "flexible_layout"),
            ops=_STRIDES.format(
                tags="",
                rule="import torch._functorch.config\ntorch._functorch.config.custom_op_default_layout_constraint = 'KKK'",
            ),
            body=_USES_STRIDES,
            stock=True,
        ),
        Change(
            "alias_annotation",
            values=("Tensor(a!) x", "Tensor x"),
            ops="""
            import torch
            LIB = torch.library.Library("hunted", "DEF")
            LIB.define("op(KKK) -> ()")
            @torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
            def _op(x):
                x.mul_(2) if 'a!' in str(torch.ops.hunted.op.default._schema) else x.mul(2)
            """,
            body="y = x.sin()\ntorch.ops.hunted.op(y)\nreturn y",
        ),
        Change(
            "schema_read_by_formula",
            values=(2, 3),
            ops="""
            import torch
            LIB = torch.library.Library("hunted", "DEF")
            LIB.define("op(Tensor x, int k=KKK) -> Tensor")
            @torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
            def _op(x, k=0):
                return x * torch.ops.hunted.op.default._schema.arguments[1].default_value
            """,
            body="return torch.ops.hunted.op(x) + 1",
        ),
        # Names that the program assigns.
        Change(
            "namespace_of_operators_shadowed",
            result="x.sin() * torch.ops.scales.factor()",
            setup="import types\ntorch.ops.scales = types.SimpleNamespace(factor=lambda: KKK)",
        ),
        Change(
            "attribute_of_operator",
            result="x.sin() * torch.ops.aten.sin.default.hunted",
            setup="torch.ops.aten.sin.default.hunted = KKK",
        ),
        Change(
            "attribute_of_tensor_class", result="x.sin() * x.hunted", setup="torch.Tensor.hunted = KKK"
        ),
        Change(
            "property_of_tensor_class",
            result="x.sin() * x.hunted",
            setup="torch.Tensor.hunted = property(lambda self: KKK)",
        ),
        Change(
            "attribute_of_module_class",
            "import torch\nMODULE = torch.nn.Tanh()",
            result="x.sin() * helper.MODULE.hunted",
            setup="torch.nn.Module.hunted = KKK",
        ),
        # Trees.
        Change(
            "tree_of_dataclass",
            """
            import dataclasses, torch
            from torch.utils import _pytree as pytree
            @dataclasses.dataclass
            class Pair:
                a: object
                b: object
            pytree.register_dataclass(Pair, field_names=KKK)
            def factor():
                return pytree.tree_leaves(Pair(2.0, 3.0))[0]
            """,
            values=(["a", "b"], ["b", "a"]),
        ),
        Change(
            "tree_constant",
            """
            import torch
            from torch.utils import _pytree as pytree
            class Fixed:
                def __eq__(self, other):
                    return True
                def __hash__(self):
                    return 1
                k = 2.0
            FIXED = Fixed()
            KKK
            def factor():
                return 2.0 + len(pytree.tree_leaves((FIXED, 1.0)))
            """,
            values=("pass", "pytree.register_constant(Fixed)"),
        ),
        Change(
            "leaves_of_tree_reordered",
            """
            from torch.utils import _pytree as pytree
            def factor():
                return pytree.tree_leaves({'a': 2.0, 'b': 3.0})[0]
            """,
            values=("pass", "node = pytree.SUPPORTED_NODES[dict]\npytree.SUPPORTED_NODES[dict] = node._replace("
                    "flatten_fn=lambda d: (list(d.values())[::-1], list(d)[::-1]))"),
            setup="from torch.utils import _pytree as pytree\nKKK",
            sites=FORMULA,
        ),
    ],
)  # fmt: skip
