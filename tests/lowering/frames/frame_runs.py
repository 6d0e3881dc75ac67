"""A program whose frames are kept, and served in the next process; it compares all results with eager's.

Beside fxpool's counters it reports how many graphs Dynamo captured (`captured`) and Inductor lowered (`lowered`) in it.
"""

from __future__ import annotations

import json
from typing import Any

from processes import run_python

__all__ = ["arguments", "run"]

PROGRAM = """
import json, os, sys
import torch
if os.environ["FXPOOL_FRAMES"] != "off":
    from fxpool.frames import serving
    serving._DOUBTED = 0.0  # one in a thousand would be traced

MODEL, TRAIN, CHANGE, END = sys.argv[1], sys.argv[2] == "train", *sys.argv[3:]
TOLERANCE = {}
import torch._inductor.graph
from fxpool.bench.witness import counting
lowered = counting()

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer, self.rate = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), 0.5
    def forward(self, x):
        return x + self.layer(self.norm(x)).relu() * self.rate

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

class Broken(Net):
    def forward(self, x):
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        return self.blocks[1](x) * 3

class Closing(Net):
    def __init__(self):
        super().__init__()
        def inner(x):
            x = self.blocks[1](x)
            torch._dynamo.graph_break()
            return x * rate
        rate = 0.5
        self.inner = inner
    def forward(self, x):
        scale = x.shape[0]
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        def outer(x):
            return x / scale
        return self.inner(outer(x))

class Changing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))
    def forward(self, x):
        self.seen.add_(x.sum(0))
        return self.layer(x) + self.seen

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rate):
        ctx.save_for_backward(x)
        ctx.rate = rate
        return x.sin() * rate
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * ctx.rate * 3, None

class WithOwn(Net):
    def forward(self, x):
        return self.blocks[1](Own.apply(self.blocks[0](x), 2.5))

torch.manual_seed(0)
MODELS = {"net": Net, "broken": Broken, "closing": Closing, "changing": Changing, "own": WithOwn}
models = [MODELS[MODEL]() for _ in range(2)]
models[1].load_state_dict(models[0].state_dict())
exec(CHANGE)
compiled = torch.compile(models[0], backend=os.environ.get("BACKEND", "fxpool"))
x = torch.randn(4, 8)
with torch.set_grad_enabled(TRAIN):
    for _ in range(2):
        got, want = compiled(x), models[1](x)
        torch.testing.assert_close(got, want, **TOLERANCE)
    if TRAIN:
        got.square().sum().backward()
        want.square().sum().backward()
        for one, other in zip(models[0].parameters(), models[1].parameters()):
            torch.testing.assert_close(one.grad, other.grad, **TOLERANCE)
exec(END)
import fxpool
stats = fxpool.stats()
report = {name: stats[name] for name in ("frames", "hits", "misses", "fallbacks", "remote", "eager_calls")}
report["remote"] = {name: count for name, count in report["remote"].items() if count}
report["captured"] = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
report["lowered"] = lowered.count
report["modules"] = sorted(name for name in sys.modules if name.startswith("fxpool.frames"))
print(json.dumps(report))
"""


def arguments(model: str, *, train: bool = False, change: str = "", end: str = "") -> list[str]:
    """The arguments of Python for a program: `change` runs before the compile, `end` after the last call."""
    return ["-c", PROGRAM, model, "train" if train else "infer", change, end]


def run(
    model: str, *, train: bool = False, change: str = "", end: str = "", frames: str = "on", **environment: Any
) -> dict[str, Any]:
    """Run a program in a process, and return what became of its frames and graphs."""
    given = arguments(model, train=train, change=change, end=end)
    report: dict[str, Any] = json.loads(run_python(given, FXPOOL_FRAMES=frames, **environment).splitlines()[-1])
    return report
