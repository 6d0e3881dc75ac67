"""Kinds of change under a mode: in layers that share code (`regions`), behind a swap, between calls of a process."""

from __future__ import annotations

from .changes import ANYWHERE, FORMULA, Change, register

__all__: list[str] = []

_LAYERS = """
import torch
torch.manual_seed(5)
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.n = torch.nn.LayerNorm(8)
        self.register_buffer('seen', torch.zeros(8))
        self.k = 1.5
    def forward(self, x):
        y = self.a(self.n(x)).relu()
        y = (y * self.k).sin() + self.b(y).tanh()
        y = y.exp().clamp(max=3.0) * 0.5
        y = y + y.mean(-1, keepdim=True)
        STATEMENT
        return x + y.cos() * 0.25
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(6)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
NET = Net()
L = NET.layers
KKK
def inputs():
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(7))
    return (x.requires_grad_(TRAINING),)
def build():
    return NET
def state():
    return [layer.seen.clone() for layer in L]
"""


def _regions(
    name: str, state: str, statement: str = "pass", *, training: bool = False, sites: tuple[str, ...] = ANYWHERE
) -> Change:
    """Six equal layers; then one of them, or what they share, is another."""
    return Change(
        name,
        values=("pass", state),
        main=_LAYERS.replace("STATEMENT", statement).replace("TRAINING", str(training)),
        environment={"FXPOOL_REGIONS": "1"},
        training=training,
        sites=sites,
        tolerance=5.0,
        dynamic=False,
    )


register(
    "regions",
    [
        _regions("constant_of_one_layer", "L[3].k = 1.75"),
        _regions("eps_of_one_layer", "L[2].n.eps = 0.5", training=True),
        _regions(
            "shared_buffer_written",
            "L[1].seen = L[0].seen\nL[3].seen = L[0].seen",
            "self.seen.add_(y.detach().sum(0)); y = y * self.seen",
            sites=FORMULA,  # not trained: stock Inductor's gradients differ from eager's
        ),
        _regions("weight_strides", "L[2].a.weight.data = L[2].a.weight.data.t().contiguous().t() * 1.5"),
        _regions("written_input", "L[4].k = 1.25", "x.mul_(1.5)"),
        _regions("hook_on_one_layer", "L[2].register_forward_hook(lambda m, a, output: output * 1.5)"),
        _regions(
            "weights_overlap",
            """
W = torch.rand(20, 8)
L[0].a.weight = torch.nn.Parameter(W[0:8])
L[1].a.weight = torch.nn.Parameter(W[4:12])
""",
        ),
    ],
)

_SWAPPED = """
import torch
torch.manual_seed(5)
NET = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
B = torch.arange(64.0) / 64
MAKE = lambda: torch.rand(4, 8, generator=torch.Generator().manual_seed(7))
def inputs():
    x = MAKE()
    return x if isinstance(x, tuple) else (x,)
"""
_NET = _SWAPPED + "def build():\n    return NET\ndef state():\n    return [buffer.clone() for buffer in NET.buffers()]"
_APART = "MAKE = lambda: (B.clone()[0:8], B.clone()[8:16])"
_OVERLAPPING = "def MAKE():\n    b = B.clone()\n    return b[0:8], b[KKK]"
_WAIT = "__import__('fxpool').wait(120)"


def _swapped(name: str, main: str, *calls: str, mode: str = "async+subprocess") -> Change:
    """Calls before and after compiled code takes the place of eager execution; the second process has all hits."""
    return Change(name, values=("", ""), main=main, calls=calls, mode=mode, tolerance=5.0, dynamic=False, anew=False)


register(
    "background",
    [
        _swapped(
            "weights_replaced",
            _NET,
            "",
            "NET[0].weight = torch.nn.Parameter(NET[0].weight.detach() * 2)",
            _WAIT,
            "NET[0].weight.data = NET[0].weight.data.t().contiguous().t()",
            _WAIT,
            "",
        ),
        _swapped("training_flag", _NET, "", "NET.eval()", _WAIT, "NET.train()", _WAIT, "NET.eval()"),
        _swapped(
            "aliases_after_swap",
            _SWAPPED + "def run(a, b):\n    a.add_(1)\n    return a * b",
            _APART,
            _WAIT,
            _OVERLAPPING.replace("KKK", "4:12"),
            _WAIT,
            _OVERLAPPING.replace("KKK", "0:8"),
            _APART,
        ),
        _swapped(
            "strides_after_swap",
            _SWAPPED + "def run(a):\n    return a.view(-1).sin() if a.is_contiguous() else a.t().sin() * 2",
            "",
            _WAIT,
            "MAKE = lambda: torch.rand(8, 4, generator=torch.Generator().manual_seed(7)).t()",
            _WAIT,
            "MAKE = lambda: torch.ones(4, 1).expand(4, 8)",
            "",
            mode="progressive+subprocess",
        ),
    ],
)

register(
    "live",
    [
        Change(
            "function_attribute_list",
            """
            def factor():
                return factor.k[0]
            factor.k = [2.0]
            """,
            values=("",),
            setup="import helper",
            calls=("", "helper.factor.k[0] = 3.0", ""),
        ),
        Change(
            "logger_level",
            """
            import logging
            log = logging.getLogger('hunted')
            def factor():
                return 3.0 if log.isEnabledFor(10) else 2.0
            """,
            values=("",),
            setup="import helper",
            calls=("", "helper.log.setLevel(10)", "helper.log.setLevel(40)"),
        ),
        Change(
            "tensor_strides",
            """
            import torch
            T = torch.arange(16.0).reshape(4, 4)
            def factor():
                return float(T.stride(0))
            """,
            values=("",),
            setup="import helper",
            calls=("", "helper.T = helper.T.t().contiguous().t()"),
        ),
    ],
)
