"""What a program tells Inductor to do otherwise is done, and is never served to who did not."""

from __future__ import annotations

import inspect

import pytest
from programs import Programs
from tiers import first_tier
from torch._inductor.kernel import custom_op

PLAIN = """
import torch
function = lambda x: torch.sin(x) * 2
inputs = [torch.linspace(-1, 1, 8)]
"""
LOWERING = """
import torch
from torch._inductor.lowering import lowerings, register_lowering
import helper
@register_lowering(torch.ops.aten.sin.default, type_promotion_kind=None)
def lowered(x):
    return lowerings[torch.ops.aten.mul.Tensor](lowerings[torch.ops.aten.cos.default](x), helper.FACTOR)
"""
DECOMPOSITION = """
import torch
from torch._inductor.decomposition import decompositions
import helper
decompositions[torch.ops.aten.sin.default] = lambda x: x.cos() * helper.FACTOR
"""
CORE_DECOMPOSITION = """
import torch
from torch._decomp import decomposition_table
import helper
def decomposed(x):
    return x.cos() * helper.FACTOR
decomposition_table[torch.ops.aten.sin.default] = decomposed
from torch._inductor.decomposition import decompositions
decompositions[torch.ops.aten.sin.default] = decomposed
"""
PATTERN = """
import torch
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern
import helper
@register_graph_pattern(
    CallFunction(torch.ops.aten.sin.default, KeywordArg("x")), pass_dict=post_grad.pass_patterns[0]
)
def replace(match, x):
    factor = helper.FACTOR
    match.replace_by_example(lambda x: torch.ops.aten.mul.Tensor(torch.ops.aten.cos.default(x), factor), [x])
"""
REPLACEMENT = """
import torch
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import fwd_only, register_replacement
import helper
def search(x):
    return torch.sin(x) * 2
def replacement(x):
    return torch.cos(x) * 2 * helper.FACTOR
register_replacement(search, replacement, [torch.ones(8)], fwd_only, joint_graph.patterns)
"""
DEVICE_PASS = """
import torch
from torch._inductor.codegen import common
from torch._inductor.custom_graph_pass import CustomGraphModulePass
import helper
class Cosines(CustomGraphModulePass):
    def __call__(self, gm):
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default
                with gm.graph.inserting_after(node):
                    scaled = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node, helper.FACTOR))
                scaled.meta.update(node.meta)
                node.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
        gm.recompile()
    def uuid(self):
        return {uuid}
common.init_backend_registration()
common.register_backend_for_device(
    "cpu",
    common.get_scheduling_for_device("cpu"),
    common.get_wrapper_codegen_for_device("cpu"),
    device_custom_pass=Cosines(),
)
"""
# Which of the two is taken is measured, so they are equal.
AUTOTUNED = """
import torch
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
import helper
def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 0 * helper.FACTOR
register_custom_op_autotuning(torch.ops.aten.sin.default, configs=[CustomOpConfig(chosen)])
"""
HELPER = "FACTOR = {factor}\n"
REGISTERING = {
    "lowering": LOWERING,
    "decomposition": DECOMPOSITION,
    "core decomposition": CORE_DECOMPOSITION,
    "pattern": PATTERN,
    "replacement": REPLACEMENT,
    "device pass": DEVICE_PASS.replace("{uuid}", "f'cosines {helper.FACTOR}'"),
    "device pass without a version": DEVICE_PASS.replace("{uuid}", "None"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_tier(REGISTERING, "lowering", "decomposition", "pattern", "device pass"))
def test_what_is_registered_counts_with_what_it_refers_to(name: str, programs: Programs) -> None:
    programs.write({"registering": REGISTERING[name]})
    for _ in range(2):  # the first process on a host with Inductor imported does not know torch's tables
        programs.run(PLAIN)
    with_it = PLAIN + "import registering, helper\nexpected = lambda x: torch.cos(x) * 2 * helper.FACTOR\n"
    for factor in (2.0, 4.0, 2.0):
        programs.write({"helper": HELPER.format(factor=factor)})
        stats = programs.run(with_it)["stats"]
        assert stats["hits"] or stats["compiles"]["worker"] or stats["fallbacks"]
    plain = programs.run(PLAIN)
    assert plain["stats"]["hits"] == 1


@pytest.mark.slow
@pytest.mark.skipif(
    "OpOverload" not in inspect.getsource(custom_op.register_custom_op_autotuning),
    reason="this torch takes choices for a program's own operators only",
)
def test_choices_of_a_program_s_for_an_operator_count_with_what_they_refer_to(programs: Programs) -> None:
    programs.write({"registering": AUTOTUNED})
    programs.run(PLAIN)
    for factor in (2.0, 4.0, 2.0):
        programs.write({"helper": HELPER.format(factor=factor)})
        stats = programs.run(PLAIN + "import registering\n")["stats"]
        assert (stats["hits"], stats["compiles"]) == (0, {"worker": 0, "in_process": 1}), "held by objects: unproven"
    assert programs.run(PLAIN)["stats"]["hits"] == 1


TAKEN_AWAY = {
    "a fallback": "from torch._inductor import lowering\nlowering.make_fallback(torch.ops.aten.sin.default)\n",
    "a decomposition less": "from torch._inductor.decomposition import decompositions\n"
    "del decompositions[torch.ops.aten.silu.default]\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN_AWAY)
@pytest.mark.parametrize("when", first_tier(["before the first compile", "after one"], "after one"))
def test_what_leaves_no_function_counts(name: str, when: str, programs: Programs) -> None:
    """Results are the same to the last digits; whether it was compiled anew shows in who compiled it."""
    plain = PLAIN.replace("torch.sin(x)", "torch.nn.functional.silu(torch.sin(x))")
    first = programs.run(plain)
    assert first["stats"]["compiles"] == {"worker": 1, "in_process": 0}
    early = "torch.compile(lambda x: x + 7, backend='fxpool', options={'mode': 'normal'})(torch.ones(3))\n"
    begun = "import torch\n" + (early if when == "after one" else "") + TAKEN_AWAY[name]
    changed = programs.run(begun + plain)
    assert changed["stats"]["hits"] == 0 and changed["stats"]["fallbacks"] == {"code_differs": 1}
    assert programs.run(begun + plain)["stats"]["fallbacks"] == {}, "kept by the process that compiled it"
    assert programs.run(plain)["stats"]["hits"] == 1


@pytest.mark.slow
def test_a_graph_compiled_in_process_is_kept_unless_caches_are_off(programs: Programs) -> None:
    program = "import torch\nfrom torch._inductor import lowering\n"
    program += "lowering.make_fallback(torch.ops.aten.sin.default)\n"
    off = "import torch._inductor.config\ntorch._inductor.config.fx_graph_cache = False\n"
    for begun, hits in ((off, 0), ("", 0), (off, 0), ("", 1)):
        stats = programs.run(begun + program + PLAIN)["stats"]
        assert (stats["hits"], stats["compiles"]["in_process"]) == (hits, 1 - hits)


WITHOUT_SIN = PLAIN.replace("torch.sin(x)", "torch.tanh(x)")
NOT_CONCERNED = {
    **dict.fromkeys(("lowering", "decomposition"), "import registering\n"),
    **TAKEN_AWAY,
    "a layout": "import torch\nfrom torch._inductor import lowering\n"
    "lowering._maybe_layout_constraints[torch.ops.aten.sin.default] = lambda *args, **kwargs: (args, kwargs)\n",
    "an operator of the program": "import torch\nfrom torch._inductor import lowering\n"
    "@torch.library.custom_op('mine::own', mutates_args=())\n"
    "def own(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
    "lowering.register_lowering(own._opoverload)(lambda x: x)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_tier(NOT_CONCERNED, "lowering", "a decomposition less", "a layout"))
def test_a_graph_without_the_operator_is_a_worker_s_all_the_same(name: str, programs: Programs) -> None:
    programs.write({"registering": REGISTERING.get(name, ""), "helper": HELPER.format(factor=2.0)})
    for hits in (0, 1):
        stats = programs.run("import torch\n" + NOT_CONCERNED[name] + WITHOUT_SIN)["stats"]
        assert (stats["hits"], stats["fallbacks"], stats["compiles"]["in_process"]) == (hits, {}, 0)
    # Any graph may reach one of torch's operators, so its entries change the key. Only one case registers none.
    expected_hits = 1 if name == "an operator of the program" else 0
    assert programs.run(WITHOUT_SIN)["stats"]["hits"] == expected_hits


# Registered in a function, and larger than what is sent: workers have to do without it.
STAYING = """
import torch
from torch._inductor.lowering import lowerings, register_lowering
import helper
def register(text):
    @register_lowering(torch.ops.aten.sin.default, type_promotion_kind=None)
    def lowered(x):
        cosine = lowerings[torch.ops.aten.cos.default](x)
        return lowerings[torch.ops.aten.mul.Tensor](cosine, helper.FACTOR + 0.0 * len(text))
register("x" * 17_000_000)
"""
STAYING_EXP = STAYING.replace("aten.sin.", "aten.exp.")
OF_EXP = LOWERING.replace("aten.sin.", "aten.exp.")
# Inductor makes x / (1 + exp(-x)) of it.
EXP_FOUND_ON_THE_WAY = """
import torch, registering, helper
inputs = [torch.linspace(-1, 1, 8)]
function = lambda x: torch.nn.functional.silu(x)
expected = lambda x: x / (1 + torch.cos(-x) * helper.FACTOR)
"""
# The backward of cos is made of sin, which is registered to be computed otherwise.
SIN_IN_THE_BACKWARD = """
import torch, registering, helper
inputs = [torch.linspace(-1, 1, 8, requires_grad=True)]
function = lambda x: torch.cos(x) * 2
class Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos() * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -grad * 2 * x.cos() * helper.FACTOR
expected = Cosine.apply
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("registering", "program", "stays"),
    [
        (OF_EXP, EXP_FOUND_ON_THE_WAY, False),
        (LOWERING, SIN_IN_THE_BACKWARD, False),
        (STAYING_EXP, EXP_FOUND_ON_THE_WAY, True),
        (STAYING, SIN_IN_THE_BACKWARD, True),
    ],
)
def test_an_operator_that_others_come_to_counts(
    registering: str, program: str, stays: bool, programs: Programs
) -> None:
    """It is in no graph that Dynamo made: a decomposition leads to it, or autograd."""
    programs.write({"registering": registering, "helper": HELPER.format(factor=2.0)})
    stats = programs.run(program)["stats"]
    assert stats["fallbacks"] == ({"code_differs": 1} if stays else {})
    assert stats["compiles"] == {"worker": int(not stays), "in_process": int(stays)}
    assert programs.run(program)["stats"]["hits"] == 1


@pytest.mark.slow
def test_one_graph_s_refusal_is_none_of_the_next(programs: Programs) -> None:
    programs.write({"registering": STAYING, "helper": HELPER.format(factor=2.0)})
    both = "import registering, helper\nfirst = torch.compile(lambda x: torch.sin(x) + 1, backend='fxpool')\n"
    both += "assert torch.allclose(first(torch.ones(3)), torch.ones(3).cos() * 2 + 1)\n"
    stats = programs.run("import torch\n" + both + WITHOUT_SIN)["stats"]
    assert stats["fallbacks"] == {"code_differs": 1} and stats["compiles"] == {"worker": 1, "in_process": 1}


@pytest.mark.slow
def test_a_process_that_has_only_loaded_inductor_shares_its_entries(programs: Programs) -> None:
    programs.run(PLAIN)
    # Of one size: 2.11's Dynamo takes such functions for one frame, in which another size becomes a symbol.
    loading = "import fxpool, torch\ntorch.compile(lambda x: x + 7, backend='inductor')(torch.ones(8))\n"
    started = "torch.compile(lambda x: x * 3, backend='fxpool')(torch.ones(8))\n"
    report = programs.run("import torch\n" + started + loading + PLAIN)
    assert report["stats"]["hits"] == 1 and report["stats"]["fallbacks"] == {}


def test_a_function_is_the_program_s_whatever_module_it_names() -> None:
    from torch._inductor.decomposition import decompositions

    from fxpool.torch_compat.operators import inductor_tables

    def decomposed(x: object) -> object:
        return x

    def names() -> set[str]:
        return {entry.name for entry in inductor_tables.entries()}

    operator, before = "an operator of this test", names()
    for module in ("torch._inductor.decomposition", "torch_extensions.lowerings", "mathematics", "operator"):
        decomposed.__module__ = module
        decompositions[operator] = decomposed
        try:
            found = names()
        finally:
            del decompositions[operator]
        assert found - before == {f"decompositions[{operator}]"}, module
