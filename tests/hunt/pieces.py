"""What a program does with a number: the registered pieces, each as the text of a module ``ops``.

The number is the expression ``VALUE``, the import it needs stands where ``IMPORTS`` is. Each module has ``piece(x)``,
which takes a float32 tensor and is called in the function that is compiled.
"""

from __future__ import annotations

import dataclasses

__all__ = ["EARLY", "PIECES", "Piece"]


# They read the number when their module is imported.
EARLY = frozenset(("operator_autocast", "low_autocast", "module_attribute", "module_buffer", "module_parameter",
                   "module_list", "global_tensor", "choices", "graph_lowering_hook"))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece. `training`: what it takes to see the number (None: either). `main` stands in the main module.

    `plain`: the number must be one that Dynamo can trace. `call` is how the compiled function uses it. `values` are the
    numbers to draw from, where not any will do. `eager_tells`: without a compiler the number is seen as well.
    """

    name: str
    text: str
    training: bool | None = None
    main: str = ""
    call: str = "piece(x)"
    plain: bool = False
    stock: bool = False
    values: tuple[float, ...] = ()
    tolerance: float = 1.0
    others: dict[str, str] = dataclasses.field(default_factory=dict)
    families: tuple[str, ...] = ()


_HEAD = "import torch\nIMPORTS\n"
_CUSTOM = (
    _HEAD
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
    _HEAD
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
_RULE = (
    """
def _rule(info, in_dims, x):
    return {op}(x) * VALUE, in_dims[0]
"""
)

_REGISTERED = [
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
    Piece("operator_fake", _HEAD + """
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
""", main="def around():\n    return torch.autocast('cpu', dtype=torch.bfloat16)\n", values=(2.0, 2.25, 3.0, 4.0),
          training=False, tolerance=8.0),
    Piece("operator_mutating", _HEAD + """
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
    Piece("low_implicit_function", _HEAD + """
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
          values=(2.0, 2.25, 3.0, 4.0), training=False, tolerance=8.0),
    Piece("low_autocast_key", _LOW_CPU + """
@torch.library.impl(LIB, "op", "AutocastCPU")
def _cast(x):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return torch.ops.hunted.op(x * VALUE)
""", main="def around():\n    return torch.autocast('cpu', dtype=torch.bfloat16)\n", training=False),
    Piece("low_effect", _HEAD + """
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
""", main="import ops\ndef state():\n    return list(ops.LINES)\n", training=False),
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
    Piece("aten_override_implicit", _HEAD + """
LIB = torch.library.Library("aten", "IMPL")
def _relu6(x):
    return torch.clamp(x, 0, VALUE)
LIB.impl("relu6", _relu6, "CompositeImplicitAutograd", allow_override=True)
def piece(x):
    return torch.ops.aten.relu6(x * 40)
""", training=False, families=("aten",)),
    Piece("aten_override_cpu", _HEAD + """
LIB = torch.library.Library("aten", "IMPL")
def _digamma(x):
    return torch.sin(x) * VALUE
LIB.impl("digamma", _digamma, "CPU", allow_override=True)
def piece(x):
    return torch.digamma(x)
""", training=False, families=("aten",)),
]  # fmt: skip

_IN_GRAPH = [
    Piece("traced", _HEAD + "def piece(x):\n    return x.sin() * VALUE\n", plain=True),
    Piece("autograd_function", _HEAD + """
class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * VALUE
def piece(x):
    return _Scale.apply(x)
""", training=True, plain=True),
    Piece("autograd_function_setup", _HEAD + """
class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = VALUE
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * ctx.k
def piece(x):
    return _Scale.apply(x)
""", training=True, plain=True),
    Piece("allow_in_graph", _HEAD + "@torch.compiler.allow_in_graph\ndef piece(x):\n    return x.sin() * VALUE\n"),
    Piece("allow_in_graph_lambda", _HEAD + "piece = torch.compiler.allow_in_graph(lambda x: x.sin() * VALUE)\n"),
    Piece("allow_in_graph_function", _HEAD + """
@torch.compiler.allow_in_graph
class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()
    @staticmethod
    def backward(ctx, grad):
        return grad * VALUE
def piece(x):
    return _Scale.apply(x)
""", training=True),
    Piece("nonstrict_trace", _HEAD + """
@torch._dynamo.nonstrict_trace
def piece(x):
    return x.sin() * VALUE
"""),
    Piece("substitute_in_graph", _HEAD + """
import math
@torch.compiler.substitute_in_graph(math.lgamma, skip_signature_check=True)
def _lgamma(x):
    return VALUE
def piece(x):
    return x.sin() * math.lgamma(1.5)
""", plain=True, stock=True),
    Piece("assume_constant_result", _HEAD + """
@torch._dynamo.assume_constant_result
def constant():
    return VALUE
def piece(x):
    return x.sin() * constant()
"""),
    Piece("fx_wrap", _HEAD + "@torch.fx.wrap\ndef wrapped(x):\n    return x.sin() * VALUE\ndef piece(x):\n"
          "    return wrapped(x)\n", plain=True),
    Piece("disabled_function", _HEAD + "@torch.compiler.disable\ndef inner(x):\n    return x * VALUE\ndef piece(x):\n"
          "    return inner(x.sin()).cos()\n"),
    Piece("module_attribute", _HEAD + """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.k = VALUE
    def forward(self, x):
        return x.sin() * self.k
MODULE = Scale()
def piece(x):
    return MODULE(x)
"""),
    Piece("module_buffer", _HEAD + """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.tensor([VALUE]))
    def forward(self, x):
        return x.sin() * self.k
MODULE = Scale()
def piece(x):
    return MODULE(x)
"""),
    Piece("module_parameter", _HEAD + """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.k = torch.nn.Parameter(torch.full((8,), float(VALUE)), requires_grad=False)
    def forward(self, x):
        return x.sin() * self.k
MODULE = Scale()
def piece(x):
    return MODULE(x)
"""),
    Piece("module_list", _HEAD + """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ks = [VALUE, 1]
        self.table = {"k": VALUE}
    def forward(self, x):
        return x.sin() * self.ks[0] + self.table["k"]
MODULE = Scale()
def piece(x):
    return MODULE(x)
"""),
    Piece("forward_hook", _HEAD + """
MODULE = torch.nn.Tanh()
MODULE.register_forward_hook(lambda module, args, output: output * VALUE)
def piece(x):
    return MODULE(x)
""", plain=True),
    Piece("forward_pre_hook", _HEAD + """
MODULE = torch.nn.Tanh()
MODULE.register_forward_pre_hook(lambda module, args: (args[0] * VALUE,))
def piece(x):
    return MODULE(x)
""", plain=True),
    Piece("tensor_hook", _HEAD + """
def _hook(grad):
    return grad * VALUE
def piece(x):
    y = x.sin()
    y.register_hook(_hook)
    return y
""", training=True, plain=True),
    Piece("global_tensor", _HEAD + "K = torch.tensor([VALUE])\ndef piece(x):\n    return x.sin() * K\n"),
    Piece("tensor_constant", _HEAD + "def piece(x):\n    return x.sin() * torch.tensor([VALUE])\n", plain=True),
    Piece("cond", _HEAD + """
def piece(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() * VALUE, lambda x: x.cos() + VALUE, (x,))
""", plain=True, training=False),
    Piece("while_loop", _HEAD + """
from torch._higher_order_ops import while_loop
def piece(x):
    def going(i, x):
        return i < 3
    def body(i, x):
        return i + 1, x.sin() * VALUE
    return while_loop(going, body, (torch.tensor(0), x))[1]
""", plain=True, training=False),
    Piece("map", _HEAD + """
from torch._higher_order_ops import map
def piece(x):
    return map(lambda row: row.sin() * VALUE, x)
""", plain=True, training=False),
    Piece("checkpoint", _HEAD + """
from torch.utils.checkpoint import checkpoint
def inner(x):
    return x.sin() * VALUE
def piece(x):
    return checkpoint(inner, x, use_reentrant=False)
""", plain=True, training=True),
    Piece("flex_attention", _HEAD + """
from torch.nn.attention.flex_attention import flex_attention
def score(score, b, h, q, k):
    return score * VALUE
def piece(x):
    q = x.reshape(1, 1, *x.shape)
    return flex_attention(q, q, q, score_mod=score)[0, 0]
""", plain=True, training=False, tolerance=10.0, call="piece(x.repeat(8, 2))"),
    Piece("torch_function_mode", _HEAD + """
from torch.overrides import TorchFunctionMode
class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            return torch.cos(*args) * VALUE
        return func(*args, **(kwargs or {}))
def piece(x):
    with Mode():
        return torch.sin(x)
""", plain=True),
    Piece("context_manager", _HEAD + """
import contextlib
STATE = [1.0]
@contextlib.contextmanager
def scaled():
    before = STATE[0]
    STATE[0] = VALUE
    try:
        yield
    finally:
        STATE[0] = before
def piece(x):
    with scaled():
        return x.sin() * STATE[0]
""", plain=True),
    Piece("vmap_function", _HEAD + "def row(x):\n    return x.sin() * VALUE\ndef piece(x):\n    return torch.vmap(row)(x)\n",
          plain=True),
    Piece("grad_transform", _HEAD + "def row(x):\n    return (x.sin() * VALUE).sum()\ndef piece(x):\n"
          "    return torch.func.grad(row)(x)\n", plain=True, training=False),
    Piece("invoke_subgraph", _HEAD + """
@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * VALUE
def piece(x):
    return region(x) + region(x.cos())
""", plain=True),
    Piece("scan", _HEAD + """
from torch._higher_order_ops.scan import scan
def piece(x):
    def step(carry, row):
        return carry + row.sin() * VALUE, carry.clone()
    return scan(step, torch.zeros_like(x[0]), x)[1]
""", plain=True, training=False),
    Piece("associative_scan", _HEAD + """
from torch._higher_order_ops.associative_scan import associative_scan
def piece(x):
    return associative_scan(lambda a, b: (a + b) * VALUE, x, 0, combine_mode='generic')
""", plain=True, training=False, tolerance=10.0),
    Piece("library_function", _HEAD + "import tinylib\ndef piece(x):\n    return tinylib.scaled(x)\n",
          others={"tinylib/__init__.py": "__version__ = '1.0'\nfrom .core import scaled\n",
                  "tinylib/core.py": "IMPORTS\ndef scaled(x):\n    return x.sin() * VALUE\n"}, plain=True),
    Piece("library_in_graph", _HEAD + "import tinylib\npiece = torch.compiler.allow_in_graph(tinylib.scaled)\n",
          others={"tinylib/__init__.py": "__version__ = '1.0'\nfrom .core import scaled\n",
                  "tinylib/core.py": "IMPORTS\ndef scaled(x):\n    return x.sin() * VALUE\n"}),
]  # fmt: skip

_INDUCTORS = [
    Piece("lowering", _HEAD + """
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
    Piece("lowering_of_aten", _HEAD + """
from torch._inductor.lowering import register_lowering, lowerings
@register_lowering(torch.ops.aten.erfinv.default)
def _lowered(x):
    return lowerings[torch.ops.aten.mul.Tensor](lowerings[torch.ops.aten.sin.default](x), VALUE)
def piece(x):
    return torch.erfinv(x)
""", training=False, stock=True, families=("inductor",)),
    Piece("decomposition", _HEAD + """
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
    Piece("decomposition_table", _HEAD + """
from torch._inductor import decomposition
def _decomposed(x):
    return x.sin() * VALUE
decomposition.decompositions[torch.ops.aten.digamma.default] = _decomposed
def piece(x):
    return torch.digamma(x)
""", training=False, stock=True, families=("inductor",)),
    Piece("post_grad_pass", _HEAD + """
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
    Piece("pre_grad_pass", _HEAD + """
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
    Piece("pass_function", _HEAD + """
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
    Piece("pattern", _HEAD + """
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
    Piece("joint_pattern", _HEAD + """
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
    Piece("replacement", _HEAD + """
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
    Piece("device_pass", _HEAD + """
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
    Piece("choices", _HEAD + """
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
    Piece("graph_lowering_hook", _HEAD + """
import torch._inductor.config
from torch._inductor import ir
torch._inductor.config.max_fusion_size = int(VALUE * 4)
def piece(x):
    return x.sin().cos() * VALUE
""", plain=True, training=False, stock=True, families=("inductor",)),
]  # fmt: skip

PIECES: dict[str, Piece] = {piece.name: piece for piece in [*_REGISTERED, *_IN_GRAPH, *_INDUCTORS]}
