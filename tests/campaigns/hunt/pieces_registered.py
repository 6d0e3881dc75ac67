"""Pieces that are registered with the dispatcher: operators and their rules, through every interface of `torch.library`."""

# ruff: noqa: E501

from __future__ import annotations

from .piece import HEAD, Piece

__all__ = ["REGISTERED"]

_CUSTOM = (
    HEAD
    + """
@torch.library.custom_op("hunted::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return {body}
@op.register_fake
def _(x):
    return torch.empty_like(x)
def piece(x):
    return op(x)
"""
)
_LOW = (
    HEAD
    + """
LIB = torch.library.Library("hunted", "DEF")
LIB.define("op(Tensor x) -> Tensor")
def piece(x):
    return torch.ops.hunted.op(x)
"""
)
_LOW_CPU = (
    _LOW
    + """
@torch.library.impl(LIB, "op", "CPU")
def _cpu(x):
    return x.sin()
@torch.library.register_fake("hunted::op", lib=LIB)
def _fake(x):
    return torch.empty_like(x)
"""
)
_BACKWARD = """
def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos() * VALUE
"""
_RULE = """
def _rule(info, in_dims, x):
    return {op}(x) * VALUE, in_dims[0]
"""

REGISTERED = [
    Piece("operator_body", _CUSTOM.format(body="x.sin() * VALUE")),
    Piece("operator_backward", _CUSTOM.format(body="x.sin()") + _BACKWARD
          + "op.register_autograd(_backward, setup_context=_setup)\n", training=True),
    Piece("operator_setup_context", _CUSTOM.format(body="x.sin()") + """
def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.k = VALUE
def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos() * ctx.k
op.register_autograd(_backward, setup_context=_setup)
""", training=True),
    Piece("operator_fake", HEAD + """
@torch.library.custom_op("hunted::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.sin()] * int(VALUE))
@op.register_fake
def _(x):
    return x.new_empty((int(VALUE), *x.shape))
def piece(x):
    return op(x).sum() * torch.ones_like(op(x)).mean() * op(x).shape[0] + x
""", values=(2.0, 3.0, 4.0, 5.0), training=False),
    Piece("operator_vmap", _CUSTOM.format(body="x.sin()") + _RULE.format(op="op") + "op.register_vmap(_rule)\n",
          call="torch.vmap(piece)(x)", training=False),
    Piece("operator_autocast", _CUSTOM.format(body="x.sin()") + """
op.register_autocast("cpu", torch.bfloat16 if VALUE > 2.5 else torch.float16)
""", main="def around():\n    return torch.autocast('cpu', dtype=torch.bfloat16)\n", values=(2.0, 3.0),
          training=False, tolerance=8.0),
    Piece("operator_mutating", HEAD + """
@torch.library.custom_op("hunted::op", mutates_args={"x"})
def op(x: torch.Tensor) -> None:
    x.mul_(VALUE)
@op.register_fake
def _(x):
    return None
def piece(x):
    y = x.cos()
    op(y)
    return y
""", training=False),
    Piece("operator_kernel", _CUSTOM.format(body="x.sin()")
          + "@op.register_kernel('cpu')\ndef _kernel(x):\n    return x.sin() * VALUE\n", training=False),
    Piece("low_implicit", _LOW + """
@torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
def _formula(x):
    return x.sin() * VALUE
"""),
    Piece("low_implicit_function", HEAD + """
torch.library.define("hunted::op", "(Tensor x) -> Tensor")
@torch.library.impl("hunted::op", "CompositeImplicitAutograd")
def _formula(x):
    return x.sin() * VALUE
def piece(x):
    return torch.ops.hunted.op(x)
"""),
    Piece("low_explicit", _LOW + """
@torch.library.impl(LIB, "op", "CompositeExplicitAutograd")
def _formula(x):
    return x.sin() * VALUE
""", training=False),
    Piece("low_backward", _LOW_CPU + _BACKWARD
          + "torch.library.register_autograd('hunted::op', _backward, setup_context=_setup, lib=LIB)\n", training=True),
    Piece("low_backward_only", _LOW_CPU + "def _backward(ctx, grad):\n    return grad.sin() * VALUE\n"
          "torch.library.register_autograd('hunted::op', _backward)\n", training=True),
    Piece("low_fake", _LOW + """
@torch.library.impl(LIB, "op", "CPU")
def _cpu(x):
    return x.sin().repeat(int(VALUE), 1)
@torch.library.register_fake("hunted::op", lib=LIB)
def _fake(x):
    return x.new_empty((int(VALUE) * x.shape[0], x.shape[1]))
""", call="piece(x).mean(0, keepdim=True) * piece(x).shape[0] + x", values=(2.0, 3.0, 4.0), training=False),
    Piece("low_meta", _LOW + """
@torch.library.impl(LIB, "op", "CPU")
def _cpu(x):
    return x.sin().repeat(int(VALUE), 1)
@torch.library.impl(LIB, "op", "Meta")
def _meta(x):
    return x.new_empty((int(VALUE) * x.shape[0], x.shape[1]))
""", call="piece(x).mean(0, keepdim=True) * piece(x).shape[0] + x", values=(2.0, 3.0, 4.0), training=False),
    Piece("low_cpu", _LOW + """
@torch.library.impl(LIB, "op", "CPU")
def _cpu(x):
    return x.sin() * VALUE
@torch.library.register_fake("hunted::op", lib=LIB)
def _fake(x):
    return torch.empty_like(x)
""", training=False),
    Piece("low_register_kernel", _LOW + """
@torch.library.register_kernel("hunted::op", "cpu", lib=LIB)
def _cpu(x):
    return x.sin() * VALUE
@torch.library.register_fake("hunted::op", lib=LIB)
def _fake(x):
    return torch.empty_like(x)
""", training=False),
    Piece("low_autograd_key", _LOW_CPU + """
class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.hunted.op(x)
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * VALUE
@torch.library.impl(LIB, "op", "Autograd")
def _autograd(x):
    return _Sine.apply(x)
""", training=True),
    Piece("low_vmap", _LOW_CPU + _RULE.format(op="torch.ops.hunted.op")
          + "torch.library.register_vmap('hunted::op', _rule, lib=LIB)\n", call="torch.vmap(piece)(x)", training=False),
    Piece("low_autocast", _LOW_CPU
          + "torch.library.register_autocast('hunted::op', 'cpu', torch.bfloat16 if VALUE > 2.5 else torch.float16, "
          "lib=LIB)\n", main="def around():\n    return torch.autocast('cpu', dtype=torch.bfloat16)\n",
          values=(2.0, 3.0), training=False, tolerance=8.0),
    Piece("low_autocast_key", _LOW_CPU + """
@torch.library.impl(LIB, "op", "AutocastCPU")
def _cast(x):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return torch.ops.hunted.op(x * VALUE)
""", main="def around():\n    return torch.autocast('cpu', dtype=torch.bfloat16)\n", training=False),
    Piece("low_effect", HEAD + """
LINES = []
@torch.library.custom_op("hunted::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    LINES.append(float(x.sum()) * VALUE)
@note.register_fake
def _(x):
    return None
note.register_effect(torch.library.EffectType.ORDERED if hasattr(torch.library, 'EffectType') else
                     __import__('torch._library.effects', fromlist=['EffectType']).EffectType.ORDERED)
def piece(x):
    note(x)
    return x.sin() * VALUE
""", main="import ops\ndef state():\n    return list(ops.LINES)\n", training=False, stock=True),
    Piece("operator_torch_dispatch", _CUSTOM.format(body="x.sin()") + """
from sub import Wrapped
@op.register_torch_dispatch(Wrapped)
def _rule(mode, func, types, args=(), kwargs=None):
    return Wrapped(func(args[0].inner) * VALUE)
""", others={"sub.py": """
import torch
from torch.utils._pytree import tree_map
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=inner.stride(), dtype=inner.dtype,
                                                   device=inner.device, requires_grad=inner.requires_grad)
    def __init__(self, inner):
        self.inner = inner
    def __tensor_flatten__(self):
        return ["inner"], None
    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapped(inner["inner"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, Wrapped) else value
        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(lambda value: Wrapped(value) if isinstance(value, torch.Tensor) else value, out)
"""}, main="import sub\n_plain_inputs = None\n", call="piece(x)", training=False, families=("subclass",)),
    Piece("aten_override_implicit", HEAD + """
LIB = torch.library.Library("aten", "IMPL")
def _relu6(x):
    return torch.clamp(x, 0, VALUE)
LIB.impl("relu6", _relu6, "CompositeImplicitAutograd", allow_override=True)
def piece(x):
    return torch.ops.aten.relu6(x * 40)
""", training=False, families=("aten",)),
    Piece("aten_override_cpu", HEAD + """
LIB = torch.library.Library("aten", "IMPL")
def _exponential(x):
    return torch.sin(x) * VALUE
LIB.impl("linalg_matrix_exp", _exponential, "CPU", allow_override=True)
def piece(x):
    return x * torch.linalg.matrix_exp(x[:3, :3]).sum()
""", training=False, families=("aten",)),
]  # fmt: skip
