"""Kinds of change in what a compiled function is called with: sizes, strides, types, aliases, scalars, and their like.

The function stays, its arguments differ between two processes, or between the calls of one.
"""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

import dataclasses

from .drawing import Drawn, kind
from .program import Case, Step

__all__: list[str] = []


@dataclasses.dataclass(frozen=True)
class Row:
    """`inputs` are expressions of the arguments' tuple, with a generator ``g``; `bodies` functions to draw from.

    `module` stands in the program; `training`: whether gradients are asked for (None: either).
    """

    name: str
    inputs: tuple[str, ...]
    bodies: tuple[str, ...]
    module: str = ""
    training: bool | None = None
    stock: bool = False
    tolerance: float = 1.0
    dynamic: tuple[bool | None, ...] = (None, None, True)
    state: str = ""


_X = "torch.rand({0}, generator=g) + 0.1"
_ELEMENTWISE = ("return x.sin() * 2 + 1", "return (x * 1.5).tanh().sum(0)", "return x.softmax(-1) * x.mean()")

ROWS = [
    Row("sizes", tuple(f"({_X.format(size)},)" for size in ("4, 8", "5, 8", "16, 3", "1, 8", "4, 1", "0, 8")),
        (*_ELEMENTWISE, "return x * x.shape[0] + x.shape[1]", "return x.reshape(-1).cumsum(0)")),
    Row("sizes_branch", tuple(f"({_X.format(size)},)" for size in ("4, 8", "9, 8", "64, 8")),
        ("return x * 2 if x.shape[0] > 8 else x * 3", "return x.sum() * (x.shape[0] // 3)",
         "return torch.cat([x, x[: x.shape[0] // 2]])")),
    Row("strides", ("(torch.rand(4, 8, generator=g),)", "(torch.rand(8, 4, generator=g).t(),)",
        "(torch.rand(4, 16, generator=g)[:, ::2],)", "(torch.rand(1, 8, generator=g).expand(4, 8),)",
        "(torch.rand(4, 1, generator=g).expand(4, 8),)", "(torch.rand(64, generator=g).as_strided((4, 8), (9, 1), 3),)"),
        (*_ELEMENTWISE, "return x.view(-1) if x.is_contiguous() else x.reshape(-1) * 2", "return x.t().contiguous() + 1"),
        training=False),
    Row("storage_offset", ("(torch.rand(64, generator=g)[:32].view(4, 8),)", "(torch.rand(64, generator=g)[1:33].view(4, 8),)",
        "(torch.rand(64, generator=g)[3:35].view(4, 8),)"), _ELEMENTWISE, training=False),
    Row("overlap", ("(B[0:8], B[8:16])", "(B[0:8], B[4:12])", "(B[0:8], B[0:8])", "(B[0:8], B[0:8].view(8))", "(B[::2][:8], B[1::2][:8])"),
        ("a.add_(1)\n    return a * b", "b.mul_(2)\n    return a + b", "a.copy_(b + 1)\n    return a.sum() + b"), training=False,
        module="B = None\n"),
    Row("alias_of_argument", ("(X, X)", "(X, X.clone())", "(X, X.t().t())", "(X, X[:])"),
        ("a.mul_(3)\n    return a + b", "return a + b, a.add_(b)"), training=False, module="X = None\n"),
    Row("requires_grad", ("(torch.rand(4, 8, generator=g),)", "(torch.rand(4, 8, generator=g).requires_grad_(),)"),
        (*_ELEMENTWISE, "return (x * 2).detach() + x if x.requires_grad else x * 3"), training=True),
    Row("partial_grad", ("(P.requires_grad_(), Q)", "(P, Q.requires_grad_())", "(P.requires_grad_(), Q.clone().requires_grad_())"),
        ("return (a * b).sin() + a", "return (a @ b.t()).tanh()"), training=True, module="P = Q = None\n"),
    Row("leaf", ("(torch.rand(4, 8, generator=g).requires_grad_(),)", "(torch.rand(4, 8, generator=g).requires_grad_() * 2,)",
        "(torch.nn.Parameter(torch.rand(4, 8, generator=g)),)"), (*_ELEMENTWISE, "return x.sin() * (2 if x.is_leaf else 3)"), training=True),
    Row("dtype", tuple(f"((torch.rand(4, 8, generator=g) * 9).to(torch.{name}),)" for name in
        ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")),
        ("return x * 2", "return x + x", "return (x * 3).sum(0)"), training=False, tolerance=2.0),
    Row("zero_dimensional", ("(torch.rand(8, generator=g), torch.tensor(2.5))", "(torch.rand(8, generator=g), torch.tensor([2.5]))",
        "(torch.rand(8, generator=g), torch.tensor(2.5, dtype=torch.float64))", "(torch.rand(8, generator=g), torch.tensor(2))",
        "(torch.rand(8, generator=g), 2.5)"), ("return a * b", "return (a + b).sin()", "return torch.where(a > 0.5, a, b)"),
        training=False),
    Row("memory_format", ("(torch.rand(2, 4, 6, 8, generator=g),)",
        "(torch.rand(2, 4, 6, 8, generator=g).contiguous(memory_format=torch.channels_last),)",
        "(torch.rand(2, 1, 6, 8, generator=g),)"), ("return x.sin().flatten(1)", "return torch.nn.functional.avg_pool2d(x, 2) * 2",
        "return x * 2 if x.is_contiguous(memory_format=torch.channels_last) else x * 3"), training=False),
    Row("scalar_zero", ("(X, 0.0)", "(X, -0.0)", "(X, 0)", "(X, False)"), ("return a * b + torch.copysign(torch.ones(()), torch.tensor(b * 1.0))",
        "return torch.copysign(a, torch.full((), b * 1.0)) + 1"), training=False, module="X = None\n", stock=True),
    Row("scalar_type", ("(X, 2)", "(X, 2.0)", "(X, True)", "(X, 1)"), ("return a * b", "return a.to(torch.int32) * b", "return torch.full((3,), b)"),
        training=False, module="X = None\n"),
    Row("scalar_special", ("(X, float('nan'))", "(X, float('inf'))", "(X, -float('inf'))", "(X, 1e300)", "(X, 5e-324)"),
        ("return a * b", "return torch.clamp(a, max=b)", "return torch.where(a > 0.5, a, b)"), training=False, module="X = None\n", stock=True),
    Row("scalar_value", ("(X, 3)", "(X, 4)", "(X, 17)", "(X, -3)", "(X, 2**40)"), ("return a * b + b % 5", "return a.repeat(abs(b) % 5 + 1, 1)",
        "return a + (b // 2)"), training=False, module="X = None\n"),
    Row("float_value", ("(X, 0.1)", "(X, 0.25)", "(X, 1.75)"), ("return a * b", "return torch.nn.functional.dropout(a, b, training=False) * b",
        "return a ** b", "return torch.nn.functional.leaky_relu(a - 0.5, b)"), training=None, module="X = None\n"),
    Row("string", ("(X, 'sum')", "(X, 'mean')", "(X, 'max')"), ("return getattr(a, b)() * a", "return a.amax(0) if b == 'max' else a.sum(0)"),
        training=False, module="X = None\n"),
    Row("structure", ("({'a': X, 'b': X + 1},)", "({'b': X + 1, 'a': X},)", "({'b': X, 'a': X + 1},)", "({'a': X, 'b': X + 1, 'c': X},)"),
        ("return sum(v * (i + 1) for i, v in enumerate(x.values()))", "return x['a'] - 2 * x['b']"), training=False, module="X = None\n"),
    Row("list_length", ("([X],)", "([X, X + 1],)", "((X, X + 1),)", "([X + 1, X],)"), ("return sum(v * (i + 1) for i, v in enumerate(x))",
        "return torch.stack(list(x)).sum(0)"), training=False, module="X = None\n"),
    Row("none", ("(X, None)", "(X, X + 1)"), ("return a if b is None else a + b", "return a.sin() * (1 if b is None else b)"), training=False, module="X = None\n"),
    Row("order", ("(X, X + 1)", "(X + 1, X)"), ("return a - b * 2", "return a / b"), training=False, module="X = None\n"),
    Row("complex_conjugate", ("(torch.view_as_complex(torch.rand(4, 2, generator=g)),)", "(torch.view_as_complex(torch.rand(4, 2, generator=g)).conj(),)",
        "(torch.view_as_complex(torch.rand(4, 2, generator=g)).conj().imag,)"), ("return x * 2", "return x + x.real"), training=False),
    Row("negative_view", ("(torch.view_as_complex(torch.rand(4, 2, generator=g)).imag,)", "(torch.view_as_complex(torch.rand(4, 2, generator=g)).conj().imag,)"),
        ("return x * 2", "return x.sin() + 1"), training=False),
    Row("special_values", ("(torch.tensor([1.0, float('nan'), -0.0, 0.0]),)", "(torch.tensor([float('inf'), -float('inf'), 1e-45, 0.0]),)"),
        ("return x * 2, torch.signbit(x)", "return x.sign(), 1 / x", "return x.relu(), x.max()"), training=False, stock=True),
    Row("sparse", ("(torch.eye(4),)", "(torch.eye(4).to_sparse().to_dense(),)", "(torch.eye(4) * 2,)"), ("return x @ x + 1",), training=False),
    Row("integer_tensor_as_index", ("(X, torch.tensor([0, 1]))", "(X, torch.tensor([1, 0]))", "(X, torch.tensor([True, False, True, False]))"),
        ("return a[b]", "return a[b].sum(0)"), training=False, module="X = None\n"),
    Row("module_eval", ("(X,)", "(M.eval() and X,)", "(M.train() and X,)"), ("return M(x)",), training=False,
        module="X = None\ntorch.manual_seed(3)\nM = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))\n", tolerance=2.0,
        state="[M[1].running_mean.clone(), M[1].num_batches_tracked.clone()]"),
    Row("module_frozen", ("(M.requires_grad_(True) and X,)", "(M.requires_grad_(False) and X,)", "(M[0].weight.requires_grad_(True) is not None and X,)"),
        ("return M(x)",), training=True, module="X = None\ntorch.manual_seed(3)\nM = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())\n",
        state="[p.grad for p in M.parameters()]", tolerance=2.0),
    Row("module_attribute_value", ("(setattr(M, 'k', 2) or X,)", "(setattr(M, 'k', 2.0) or X,)", "(setattr(M, 'k', 3.5) or X,)",
        "(setattr(M, 'k', True) or X,)", "(setattr(M, 'k', 7) or X,)"), ("return M(x.to(torch.float64))", "return M(x * 9)"), training=False,
        module="X = None\nclass Mod(torch.nn.Module):\n    k = 1\n    def forward(self, x):\n        return x.floor().to(torch.int32) * self.k\nM = Mod()\n"),
    Row("module_list_value", ("(M.ks.__setitem__(0, 2.0) or X,)", "(M.ks.__setitem__(0, 3.0) or X,)", "(M.ks.append(1.5) or X,)"), ("return M(x)",),
        training=False, module="X = None\nclass Mod(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.ks = [1.0]\n"
        "    def forward(self, x):\n        return x.sin() * sum(self.ks)\nM = Mod()\n"),
    Row("global_tensor_in_place", ("(X,)", "(K.add_(1) is not None and X,)", "(K.mul_(-2) is not None and X,)"), ("return x * K", "return (x + K[0]).sin()"),
        training=False, module="X = None\nK = torch.tensor([1.5])\n"),
    Row("implicit_constant_in_place", ("(X,)", "(K.add_(1) is not None and X,)"), ("return torch.ops.hunted.op(x)",), training=None,
        module="X = None\nK = torch.tensor([1.5])\nLIB = torch.library.Library('hunted', 'DEF')\nLIB.define('op(Tensor x) -> Tensor')\n"
        "@torch.library.impl(LIB, 'op', 'CompositeImplicitAutograd')\ndef _op(x):\n    return x.sin() * K\n"),
    Row("numpy_argument", ("(numpy.arange(8.0),)", "(numpy.arange(8),)", "(numpy.arange(8.0, dtype='float32'),)", "(torch.arange(8.0).numpy() + 1,)"),
        ("return torch.as_tensor(x) * 2", "return torch.from_numpy(x).sin()"), training=False, module="import numpy\n"),
    Row("buffer_mutated", ("(X,)", "(M.seen.fill_(3) is not None and X,)"), ("return M(x)",), training=None,
        module="X = None\nclass Mod(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.register_buffer('seen', torch.zeros(8))\n"
        "    def forward(self, x):\n        self.seen.add_(x.detach().sum(0))\n        return x.sin() * self.seen\nM = Mod()\n", state="[M.seen.clone()]"),
    Row("device_argument", ("(X, torch.device('cpu'))", "(X, 'cpu')", "(X, torch.device('meta'))"), ("return a * (2 if str(b) == 'cpu' else 3)",),
        training=False, module="X = None\n"),
    Row("subclass_attribute", ("(Scaled(torch.rand(4, 8, generator=g), 2.0),)", "(Scaled(torch.rand(4, 8, generator=g), 3.0),)"),
        ("return x.sin()", "return (x * 2).cos()"), training=False, dynamic=(None,), module="""
from torch.utils._pytree import tree_map
class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, k):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=inner.stride(), dtype=inner.dtype)
    def __init__(self, inner, k):
        self.inner, self.k = inner, k
    def __tensor_flatten__(self):
        return ["inner"], self.k
    @staticmethod
    def __tensor_unflatten__(inner, k, size, stride):
        return Scaled(inner["inner"], k)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        k = next(a.k for a in args if isinstance(a, Scaled))
        out = func(*tree_map(lambda a: a.inner if isinstance(a, Scaled) else a, args), **(kwargs or {}))
        scale = k if func is torch.ops.aten.sin.default or func is torch.ops.aten.cos.default else 1.0
        return tree_map(lambda a: Scaled(a * scale, k) if isinstance(a, torch.Tensor) else a, out)
"""),
]  # fmt: skip
_BY_NAME = {row.name: row for row in ROWS}


def _text(row: Row, inputs: str, body: str, training: bool) -> str:
    arguments = "a, b" if "(a" in body or " a" in body or ("a." in body and " b" in body) else "x"
    return "\n".join(
        [
            "import torch",
            row.module,
            "def make(g):",
            f"    return {inputs}",
            "def inputs():",
            "    g = torch.Generator().manual_seed(7)",
            "    global X, B, P, Q",
            "    X = torch.rand(4, 8, generator=g) + 0.1",
            "    B = torch.rand(32, generator=g)",
            "    P, Q = torch.rand(4, 8, generator=g), torch.rand(4, 8, generator=g)",
            "    return make(g)",
            f"def run({arguments}):",
            f"    {body}",
            f"def state():\n    return {row.state}" if row.state else "",
        ]
    )


def _case(drawn: Drawn, name: str, live: bool) -> Case:
    row = _BY_NAME[name.partition("_")[2]]
    body = drawn.choose("body", row.bodies)
    training = row.training if row.training is not None else drawn.choose("training", [False, True])
    variants = drawn.random.sample(list(row.inputs), min(len(row.inputs), 3))
    drawn.note["inputs"] = variants
    if live:
        text = _text(row, variants[0], body, training)
        changes = [f"def make(g):\n    return {variant}" for variant in [*variants[1:], variants[0]]]
        steps = [
            Step("between calls", {"hunted.py": text}, calls=["", *changes]),
            Step("the same again", {"hunted.py": text}, calls=["", *changes], expect_hit=True),
        ]
    else:
        steps = [
            Step(f"inputs {number}", {"hunted.py": _text(row, variant, body, training)})
            for number, variant in enumerate(variants)
        ]
        steps.append(Step("back", dict(steps[0].files), expect_hit=True))
    return Case(
        name,
        drawn.number,
        steps,
        stock=row.stock,
        training=training,
        dynamic=drawn.choose("dynamic", row.dynamic),
        tolerance=row.tolerance,
        note=drawn.note,
    )


def _between_processes(drawn: Drawn, name: str) -> Case:
    return _case(drawn, name, live=False)


def _between_calls(drawn: Drawn, name: str) -> Case:
    return _case(drawn, name, live=True)


for _row in ROWS:
    kind(f"input_{_row.name}")(_between_processes)
    kind(f"next_{_row.name}")(_between_calls)
