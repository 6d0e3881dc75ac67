"""Pieces of what Dynamo traces or puts into the graph as it is: functions, modules, hooks, higher-order operators."""

# ruff: noqa: E501

from __future__ import annotations

from .piece import HEAD, Piece

__all__ = ["IN_GRAPH"]

IN_GRAPH = [
    Piece("traced", HEAD + "def piece(x):\n    return x.sin() * VALUE\n", plain=True),
    Piece("autograd_function", HEAD + """
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
    Piece("autograd_function_setup", HEAD + """
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
    Piece("allow_in_graph", HEAD + "@torch.compiler.allow_in_graph\ndef piece(x):\n    return x.sin() * VALUE\n"),
    Piece("allow_in_graph_lambda", HEAD + "piece = torch.compiler.allow_in_graph(lambda x: x.sin() * VALUE)\n"),
    Piece("allow_in_graph_function", HEAD + """
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
    Piece("nonstrict_trace", HEAD + """
@torch._dynamo.nonstrict_trace
def piece(x):
    return x.sin() * VALUE
"""),
    Piece("substitute_in_graph", HEAD + """
def original():
    return 1.0
@torch.compiler.substitute_in_graph(original)
def _substitute():
    return VALUE
def piece(x):
    return x.sin() * original()
""", plain=True, stock=True),
    Piece("assume_constant_result", HEAD + """
@torch._dynamo.assume_constant_result
def constant():
    return VALUE
def piece(x):
    return x.sin() * constant()
"""),
    Piece("fx_wrap", HEAD + "@torch.fx.wrap\ndef wrapped(x):\n    return x.sin() * VALUE\ndef piece(x):\n"
          "    return wrapped(x)\n", plain=True),
    Piece("disabled_function", HEAD + "@torch.compiler.disable\ndef inner(x):\n    return x * VALUE\ndef piece(x):\n"
          "    return inner(x.sin()).cos()\n"),
    Piece("module_attribute", HEAD + """
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
    Piece("module_buffer", HEAD + """
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
    Piece("module_parameter", HEAD + """
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
    Piece("module_list", HEAD + """
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
    Piece("forward_hook", HEAD + """
MODULE = torch.nn.Tanh()
MODULE.register_forward_hook(lambda module, args, output: output * VALUE)
def piece(x):
    return MODULE(x)
""", plain=True),
    Piece("forward_pre_hook", HEAD + """
MODULE = torch.nn.Tanh()
MODULE.register_forward_pre_hook(lambda module, args: (args[0] * VALUE,))
def piece(x):
    return MODULE(x)
""", plain=True),
    Piece("tensor_hook", HEAD + """
def _hook(grad):
    return grad * VALUE
def piece(x):
    y = x.sin()
    y.register_hook(_hook)
    return y
""", training=True, plain=True),
    Piece("global_tensor", HEAD + "K = torch.tensor([VALUE])\ndef piece(x):\n    return x.sin() * K\n"),
    Piece("tensor_constant", HEAD + "def piece(x):\n    return x.sin() * torch.tensor([VALUE])\n", plain=True),
    Piece("cond", HEAD + """
def piece(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() * VALUE, lambda x: x.cos() + VALUE, (x,))
""", plain=True, training=False),
    Piece("while_loop", HEAD + """
from torch._higher_order_ops import while_loop
def piece(x):
    def going(i, x):
        return i < 3
    def body(i, x):
        return i + 1, x.sin() * VALUE
    return while_loop(going, body, (torch.tensor(0), x))[1]
""", plain=True, training=False),
    Piece("map", HEAD + """
from torch._higher_order_ops import map
def piece(x):
    return map(lambda row: row.sin() * VALUE, x)
""", plain=True, training=False),
    Piece("checkpoint", HEAD + """
from torch.utils.checkpoint import checkpoint
def inner(x):
    return x.sin() * VALUE
def piece(x):
    return checkpoint(inner, x, use_reentrant=False)
""", plain=True, training=True),
    Piece("flex_attention", HEAD + """
from torch.nn.attention.flex_attention import flex_attention
def score(score, b, h, q, k):
    return score * VALUE
def piece(x):
    q = x.reshape(1, 1, *x.shape)
    return flex_attention(q, q, q, score_mod=score)[0, 0]
""", plain=True, training=False, tolerance=10.0, call="piece(x.repeat(8, 2))"),
    Piece("torch_function_mode", HEAD + """
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
    Piece("context_manager", HEAD + """
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
    Piece("vmap_function", HEAD + "def row(x):\n    return x.sin() * VALUE\ndef piece(x):\n    return torch.vmap(row)(x)\n",
          plain=True),
    Piece("grad_transform", HEAD + "def row(x):\n    return (x.sin() * VALUE).sum()\ndef piece(x):\n"
          "    return torch.func.grad(row)(x)\n", plain=True, training=False),
    Piece("invoke_subgraph", HEAD + """
@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * VALUE
def piece(x):
    return region(x) + region(x.cos())
""", plain=True),
    Piece("scan", HEAD + """
from torch._higher_order_ops.scan import scan
def piece(x):
    def step(carry, row):
        return carry + row.sin() * VALUE, carry.clone()
    return scan(step, torch.zeros_like(x[0]), x)[1]
""", plain=True, training=False),
    Piece("associative_scan", HEAD + """
from torch._higher_order_ops.associative_scan import associative_scan
def piece(x):
    return associative_scan(lambda a, b: (a + b) * VALUE, x, 0, combine_mode='generic')
""", plain=True, training=False, tolerance=10.0),
    Piece("library_function", HEAD + "import tinylib\ndef piece(x):\n    return tinylib.scaled(x)\n",
          others={"tinylib/__init__.py": "__version__ = '1.0'\nfrom .core import scaled\n",
                  "tinylib/core.py": "IMPORTS\ndef scaled(x):\n    return x.sin() * VALUE\n"}, plain=True),
    Piece("library_in_graph", HEAD + "import tinylib\npiece = torch.compiler.allow_in_graph(tinylib.scaled)\n",
          others={"tinylib/__init__.py": "__version__ = '1.0'\nfrom .core import scaled\n",
                  "tinylib/core.py": "IMPORTS\ndef scaled(x):\n    return x.sin() * VALUE\n"}),
]  # fmt: skip
