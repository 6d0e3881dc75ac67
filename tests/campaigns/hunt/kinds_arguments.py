"""Kinds of change in arguments, constants and aliases that guards tell apart rather than sizes or types."""

from __future__ import annotations

from .changes import Change, block, register

__all__: list[str] = []

_TENSOR = "return (torch.rand(4, 8, generator=g),)"
_MAIN = """
import torch
{module}
def make(g):
{make}
def inputs():
    return make(torch.Generator().manual_seed(7))
def run({arguments}):
{body}
"""


def _program(
    name: str,
    make: str = _TENSOR,
    body: str = "",
    values: tuple[object, ...] = (),
    *,
    arguments: str = "x",
    module: str = "",
    training: bool = False,
    tolerance: float = 1.0,
) -> Change:
    """A main module alone: statements that make the arguments, and those of the compiled function."""
    text = _MAIN.format(module=block(module), make=block(make, "    "), arguments=arguments, body=block(body, "    "))
    return Change(name, values=values, main=text, training=training, tolerance=tolerance, dynamic=False)


_SCALES = "return x * k if not isinstance(k, int) or abs(k) < 2**60 else x * float(k)"


def _scalar(name: str, first: str, second: str, body: str = _SCALES) -> Change:
    make = "return (torch.rand(4, 8, generator=g), KKK)"
    return _program(f"scalar_{name}", make, body, (first, second), arguments="x, k")


_BACK = """
class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return KKK
"""
_FROZEN = """
import torch._inductor.config
torch._inductor.config.freezing = True
torch.manual_seed(3)
NET = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).eval()
NET[2].weight = KKK
if NET[2].weight is not NET[0].weight:
    NET[2].weight.data.add_(1)
"""

register(
    "argument",
    [
        # Sizes that only a guard of Dynamo's tells apart.
        _program(
            "guard_of_dynamo_only",
            """
            x = torch.rand(SIZE, 8, generator=g)
            torch._dynamo.mark_dynamic(x, 0)
            return (x,)
            """,
            """
            if x.shape[0] % DIVISOR == 0:
                return x.sum(0) * x.shape[0]
            return x.sum(0)
            """,
            ("SIZE, DIVISOR = 16, 8", "SIZE, DIVISOR = 21, 7"),
            module="KKK",
        ),
        _program(
            "mark_dynamic_ranges",
            """
            x = torch.rand(ROWS, 8, generator=g)
            torch._dynamo.mark_dynamic(x, 0, min=3, max=HIGH)
            return (x,)
            """,
            "return x * (x.shape[0] // 60 + 1)",
            ("ROWS, HIGH = 40, 50", "ROWS, HIGH = 80, 100"),
            module="KKK",
        ),
        _program(
            "mark_unbacked",
            """
            x = torch.rand(KKK, 8, generator=g)
            torch._dynamo.decorators.mark_unbacked(x, 0)
            return (x,)
            """,
            "return x.sum(0) * x.shape[0]",
            (6, 1),
        ),
        _program(
            "unbacked_checks",
            "return (torch.tensor([3.0, 4.0, NUMBER, 6.0]),)",
            """
            n = x[2].long().item()
            torch._check(n >= 2)
            torch._check(n < BELOW)
            return torch.arange(n).float() + x.sum()
            """,
            ("NUMBER, BELOW = 5.0, 8", "NUMBER, BELOW = 50.0, 80"),
            module="torch._dynamo.config.capture_scalar_outputs = True\nKKK",
        ),
        _program(
            "jagged_sizes",
            """
            parts = [torch.rand(n, 4, generator=g) for n in KKK]
            return (torch.nested.nested_tensor(parts, layout=torch.jagged),)
            """,
            "return (x.sin() * 2).values()",
            ((2, 3, 4), (5, 1, 3)),
        ),
        _program(
            "zero_size",
            "return (torch.rand(KKK, generator=g),)",
            "return x.sum(0) + 1, x.amax(1) if x.numel() else x",
            ("0, 8", "4, 0"),
        ),
        # Aliases.
        _program("output_alias", body="a = x.sin()\nreturn a, a.view(-1)KKK", values=("", ".clone()")),
        _program("written_view_is_output", body="y = x[0]KKK\ny.add_(1)\nreturn y, x", values=("", ".clone()")),
        _program(
            "three_inputs_overlap",
            "b = torch.arange(40.0)\nreturn b[0:8], b[8:16], b[KKK]",
            "a.add_(1)\nreturn a * b, c.sum()",
            ("0:16", "20:36"),
            arguments="a, b, c",
        ),
        _program(
            "frozen_weights_tied",
            body="return NET(x)",
            module=_FROZEN,
            tolerance=4.0,
            values=("NET[0].weight", "torch.nn.Parameter(NET[0].weight.detach().clone())"),
        ),
        # Scalars and constants.
        _scalar("big_integer", "2**62", "2**63"),
        _scalar("true_or_one", "True", "1", "return x, torch.full((3,), k)"),
        _scalar("complex", "1+2j", "1-2j"),
        _scalar(
            "negative_zero_complex",
            "complex(0.0, 0.0)",
            "complex(-0.0, -0.0)",
            "return torch.signbit(torch.view_as_real(x * k)).float()",
        ),
        _scalar(
            "numpy",
            "__import__('numpy').float32(1.1)",
            "__import__('numpy').float64(1.1)",
            "return torch.as_tensor(k).double() * x.double()",
        ),
        _scalar(
            "enum_of_integers", "__import__('enum').IntEnum('E', 'A B').A", "__import__('enum').IntEnum('E', 'A B').B"
        ),
        _program(
            "constant_negative_zero",
            body="c = torch.tensor(KKK)\nreturn x * c, torch.signbit(c * 1.0).float() + x",
            values=("[0.0, -0.0] * 4", "[-0.0, 0.0] * 4"),
        ),
        _program(
            "constant_integer_or_float",
            body="c = torch.tensor(KKK)\nreturn x * c, c + c",
            values=("[1, 2] * 4", "[1.0, 2.0] * 4"),
        ),
        # Gradients.
        _program(
            "dtype_of_gradient",
            """
            x = torch.rand(4, 8, generator=g).requires_grad_()
            if hasattr(x, 'grad_dtype'):
                x.grad_dtype = KKK
            return (x,)
            """,
            "return x.to(torch.bfloat16).float().sin()",
            ("torch.float32", "torch.float64"),
            training=True,
        ),
        _program(
            "strides_of_tangent",
            "return (torch.rand(4, 8, generator=g).requires_grad_(),)",
            "return Back.apply(x.sin().t()) * torch.arange(8.0)[:, None]",
            ("gradient.t().contiguous().t() * 2", "gradient[:1].expand(gradient.shape) * 2"),
            module=_BACK,
            training=True,
        ),
    ],
)
