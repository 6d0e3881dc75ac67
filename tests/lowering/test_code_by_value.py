"""Operators and registrations that no import makes, of a main script or a function: workers get them by value."""

from __future__ import annotations

import pytest
from programs import Programs
from tiers import first_tier

IN_A_WORKER = {"worker": 1, "in_process": 0}
#: AOTAutograd runs in the program's process; forward and backward go to workers.
AFTER_AUTOGRAD = {"worker": 2, "in_process": 0}
IN_PROCESS = {"worker": 0, "in_process": 1}

OPERATOR = """
import torch
import helper
class Scaling:
    def __init__(self, by):
        self.by = by
    def __call__(self, x):
        return x * self.by
SCALED = Scaling({factor})
def defined():
    @torch.library.custom_op("by_value::op", mutates_args=())
    def op(x: torch.Tensor, times: int = 2) -> torch.Tensor:
        return x * times
    op.register_fake(lambda x, times=2: torch.empty_like(x))
    op.register_autograd(lambda context, gradient: (SCALED(helper.same(gradient)), None))
    return op
op = defined()
inputs = [torch.linspace(-1, 1, 8, requires_grad=True)]
function = lambda x: op(x.sin(), 3) + 1
class Expected(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.sin() * 3 + 1
    @staticmethod
    def backward(context, gradient):
        return gradient * {factor} * context.saved_tensors[0].cos()
expected = Expected.apply
"""
HELPER = "def same(x):\n    return x\n"


@pytest.mark.slow
def test_an_operator_of_the_main_script(programs: Programs) -> None:
    """With a backward that reads a global object of the script, which is not proven, and calls a module's function."""
    programs.write({"helper": HELPER})
    first = programs.run(OPERATOR.replace("{factor}", "5.0"))
    assert first["stats"]["compiles"] == AFTER_AUTOGRAD
    assert first["lowerings"] == 0
    again = programs.run(OPERATOR.replace("{factor}", "5.0"))
    assert again["stats"]["hits"] and not again["stats"]["compiles"]["worker"]
    other = programs.run(OPERATOR.replace("{factor}", "7.0"))
    assert (other["stats"]["compiles"], other["stats"]["hits"]) == (IN_A_WORKER, 1), "only the backward is another"


MUTATING = """
import torch
@torch.library.custom_op("by_value::add", mutates_args={"x"})
def add(x: torch.Tensor, y: float) -> None:
    x.add_(y)
inputs = [torch.linspace(-1, 1, 8)]
def function(x):
    made = x.cos()
    add(made, 2.0)
    return made * 2
"""
TAGGED = """
import torch
@torch.library.custom_op("by_value::tagged", mutates_args=(), device_types="cpu", tags=[torch.Tag.needs_exact_strides])
def tagged(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
tagged.register_fake(torch.empty_like)
inputs = [torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).t()]
function = lambda x: tagged(x.sin()) * 2
"""
AUTOCAST = """
import torch
@torch.library.custom_op("by_value::cast", mutates_args=())
def cast(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
cast.register_fake(torch.empty_like)
cast.register_autocast("cpu", torch.bfloat16)
inputs = [torch.linspace(0, 1, 8)]
def function(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return cast(x * 1.001).float()
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [MUTATING, TAGGED, AUTOCAST], ids=["mutating", "of one device, tagged", "autocast"])
def test_operators_of_every_kind(text: str, programs: Programs) -> None:
    stats = programs.run(text)["stats"]
    assert stats["compiles"] == IN_A_WORKER, (stats["fallbacks"], [graph["details"] for graph in stats["graphs"]])
    assert programs.run(text)["stats"]["hits"] == 1


HELD = """
import threading, torch
lock = threading.Lock()
@torch.library.custom_op("by_value::held", mutates_args=())
def held(x: torch.Tensor) -> torch.Tensor:
    with lock:
        return x * 2
held.register_fake(torch.empty_like)
inputs = [torch.linspace(-1, 1, 8)]
function = lambda x: held(x.sin()) + 1
"""
WITH_LIBRARY = """
import torch
library = torch.library.Library("by_value_library", "DEF")
library.define("op(Tensor x) -> Tensor")
library.impl("op", lambda x: x * 2, "CompositeExplicitAutograd")
torch.library.register_fake("by_value_library::op", torch.empty_like, lib=library)
inputs = [torch.linspace(-1, 1, 8)]
function = lambda x: torch.ops.by_value_library.op(x.sin()) + 1
"""


STAYING = {"a lock": (HELD, "operator_in_main"), "a library": (WITH_LIBRARY, "operator_of_unknown_source")}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "reason"), STAYING.values(), ids=STAYING)
def test_what_can_not_travel_is_named_and_compiled_here(text: str, reason: str, programs: Programs) -> None:
    stats = programs.run(text)["stats"]
    assert stats["compiles"] == IN_PROCESS and stats["fallbacks"] == {reason: 1}
    assert programs.run(text)["stats"]["hits"] == 1, "kept by the process that compiled it"


REGISTERED = """
import torch
from torch._inductor import decomposition, lowering
def registered(by):
    {registration}
registered(3.0)
inputs = [torch.linspace(-1, 1, 8)]
function = lambda x: torch.sin(x) * 2
expected = lambda x: x.cos() * 6
"""
REGISTRATIONS = {
    "lowering": """
    @lowering.register_lowering(torch.ops.aten.sin.default, type_promotion_kind=None)
    def lowered(x):
        cosine = lowering.lowerings[torch.ops.aten.cos.default](x)
        return lowering.lowerings[torch.ops.aten.mul.Tensor](cosine, by)
""",
    "decomposition": """
    decomposition.decompositions[torch.ops.aten.sin.default] = lambda x: x.cos() * by
""",
}
PLAIN = """
import torch
inputs = [torch.linspace(-1, 1, 8)]
function = lambda x: torch.sin(x) * 2 + {number}
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", first_tier(REGISTRATIONS, "lowering"))
def test_registrations_made_in_a_function(name: str, programs: Programs) -> None:
    """They are in force for their own program's graphs only, in the same workers."""
    text = REGISTERED.replace("{registration}", REGISTRATIONS[name].strip())
    assert programs.run(PLAIN.replace("{number}", "1"))["stats"]["compiles"] == IN_A_WORKER
    assert programs.run(text)["stats"]["compiles"] == IN_A_WORKER
    assert programs.run(PLAIN.replace("{number}", "2"))["stats"]["compiles"] == IN_A_WORKER
    assert programs.run(text)["stats"]["hits"] == 1
    other = text.replace("registered(3.0)", "registered(4.0)").replace("* 6", "* 8")
    assert programs.run(other)["stats"]["compiles"] == IN_A_WORKER, "what a closure holds counts"


TEXTS = """
import torch
import texts
inputs = [torch.linspace(-1, 1, 8)]
function = lambda x: torch.ops.own_texts.at(x.sin(), "cuda:{number}") + 1
"""
TAKING_TEXT = """
import torch
@torch.library.custom_op("own_texts::at", mutates_args=())
def at(x: torch.Tensor, where: str) -> torch.Tensor:
    return x * (int(where.partition(":")[2]) + 1)
at.register_fake(lambda x, where: torch.empty_like(x))
"""


@pytest.mark.slow
def test_a_text_that_looks_like_a_device_is_a_text(programs: Programs) -> None:
    programs.write({"texts": TAKING_TEXT})
    for number in (3, 5):
        assert programs.run(TEXTS.replace("{number}", str(number)))["stats"]["compiles"] == IN_A_WORKER
    assert programs.run(TEXTS.replace("{number}", "3"))["stats"]["hits"] == 1
