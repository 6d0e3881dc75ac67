"""Kinds of change in registrations and their authors: added, removed, moved, registered again, rebuilt."""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

from .drawing import Drawn, case_of, kind, numbers_of, program_of
from .libraries import Library
from .program import Case, Step

__all__: list[str] = []

# (piece, what a second module registers for the same operator with another number)
_AGAIN = {
    "operator_backward": "ops.op.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].cos() * {k}, "
    "setup_context=ops._setup)",
    "low_implicit": "LIB = torch.library.Library('hunted', 'IMPL')\n"
    "LIB.impl('op', lambda x: x.sin() * {k}, 'CompositeImplicitAutograd', allow_override=True)",
    "low_cpu": "LIB = torch.library.Library('hunted', 'IMPL')\n"
    "LIB.impl('op', lambda x: x.sin() * {k}, 'CPU', allow_override=True)",
    "low_autograd_key": "LIB = torch.library.Library('hunted', 'IMPL')\n"
    "class _Other(torch.autograd.Function):\n"
    "    @staticmethod\n    def forward(ctx, x):\n        ctx.save_for_backward(x)\n"
    "        with torch._C._AutoDispatchBelowAutograd():\n            return torch.ops.hunted.op(x)\n"
    "    @staticmethod\n    def backward(ctx, g):\n        return g * {k}\n"
    "LIB.impl('op', lambda x: _Other.apply(x), 'Autograd', allow_override=True)",
    "operator_kernel": "ops.op.register_kernel('cpu')(lambda x: x.sin() * {k})",
    "operator_vmap": "ops.op.register_vmap(lambda info, in_dims, x: (ops.op(x) * {k}, in_dims[0]))",
    "low_vmap": "torch.library.register_vmap('hunted::op', lambda info, in_dims, x: "
    "(torch.ops.hunted.op(x) * {k}, in_dims[0]))",
    "decomposition_table": "from torch._inductor import decomposition\n"
    "decomposition.decompositions[torch.ops.aten.digamma.default] = lambda x: x.sin() * {k}",
    "lowering_of_aten": "from torch._inductor.lowering import register_lowering, lowerings\n"
    "@register_lowering(torch.ops.aten.erfinv.default)\n"
    "def _other(x):\n    return lowerings[torch.ops.aten.mul.Tensor](lowerings[torch.ops.aten.sin.default](x), {k})",
    "low_backward": "torch.library.register_autograd('hunted::op', lambda ctx, g: g * {k}, setup_context=ops._setup)",
}


@kind("registered_again_by_another_module")
def _again(drawn: Drawn, name: str) -> Case:
    piece = drawn.choose("piece", _AGAIN)
    program = program_of(drawn, reading=drawn.choose("reading", ["constant", "code"]), piece=piece)
    one, other = numbers_of(drawn, program)
    where = drawn.choose("where", ["in the main module", "in a module", "in a module two hops away"])
    text = "import torch\nimport ops\n" + _AGAIN[piece].format(k=repr(other)) + "\n"
    steps = [program.step("before", one), program.step("again", one), program.step("back", one, expect_hit=True)]
    main = str(steps[1].files["hunted.py"])
    if where == "in the main module":
        added = text
    elif where == "in a module":
        steps[1].files["later.py"], added = text, "import later\n"
    else:
        steps[1].files["later.py"], added = "import latest\n", "import later\n"
        steps[1].files["latest.py"] = text
    steps[1].files["hunted.py"] = main + added
    third = program.step("again, another number", one)
    third.files = {**steps[1].files}
    changed = text.replace(repr(other), "1.25")
    for file in ("later.py", "latest.py", "hunted.py"):
        if file in third.files:
            third.files[file] = str(third.files[file]).replace(text, changed)
    return case_of(drawn, name, program, [*steps[:2], third, steps[2]])


_LATER = {
    "backward": ("operator_backward", "op.register_autograd(_backward, setup_context=_setup)\n"),
    "vmap rule": ("operator_vmap", "op.register_vmap(_rule)\n"),
    "kernel": ("operator_kernel", "@op.register_kernel('cpu')\ndef _kernel(x):\n    return x.sin() * VALUE\n"),
    "autocast rule": ("operator_autocast", "op.register_autocast(\"cpu\", torch.bfloat16 if VALUE > 2.5 else torch.float16)\n"),
    "implicit formula": ("low_implicit", None),
    "effect": ("low_effect", None),
    "decomposition": ("decomposition_table", None),
    "lowering": ("lowering", None),
    "pattern": ("pattern", None),
    "joint pattern": ("joint_pattern", None),
    "replacement": ("replacement", None),
    "pass": ("post_grad_pass", None),
    "pass function": ("pass_function", None),
    "pre-grad pass": ("pre_grad_pass", None),
    "device pass": ("device_pass", None),
    "override of aten": ("aten_override_implicit", None),
    "override of aten's kernel": ("aten_override_cpu", None),
}  # fmt: skip
_WITHOUT = {
    "implicit formula": ("@torch.library.impl(LIB, \"op\", \"CompositeImplicitAutograd\")", "@torch.library.impl(LIB, 'op', 'CPU')"),
    "decomposition": ("decomposition.decompositions[torch.ops.aten.digamma.default] = _decomposed", ""),
    "lowering": ("@register_lowering(torch.ops.hunted.op.default)", ""),
    "pass": ("torch._inductor.config.HOOK = Pass()", ""),
    "pass function": ("torch._inductor.config.HOOK = _pass", ""),
    "pre-grad pass": ("torch._inductor.config.pre_grad_custom_pass = Pass()", ""),
    "device pass": ("    device_custom_pass=Pass())", ")"),
    "replacement": ("pm.register_replacement(", "list(("),
    "override of aten": ("LIB.impl(", "list(("),
    "override of aten's kernel": ("LIB.impl(", "list(("),
}  # fmt: skip


def _taken_away(text: str, what: str) -> str:
    """The operators' module without the registration."""
    _, line = _LATER[what]
    if line is not None:
        return text.replace(line, "")
    if what == "effect":
        head, _, tail = text.partition("note.register_effect(")
        return head + "def piece(x):" + tail.partition("def piece(x):")[2]
    if what in ("pattern", "joint pattern"):
        head, _, tail = text.partition("@pm.register_graph_pattern(")
        return head + "def _matched(match, x):" + tail.partition("def _matched(match, x):")[2]
    old, new = _WITHOUT[what]
    found = text.replace(old, new)
    if new.startswith("list(("):
        lines = [line if not line.startswith("list((") else line + ")" for line in found.splitlines()]
        # Keyword arguments don't go into a tuple.
        found = "\n".join(line.replace(", allow_override=True", "") for line in lines) + "\n"
    return found


def _added_or_removed(drawn: Drawn, name: str) -> Case:
    what = name.split("_", 1)[1].replace("_", " ").replace("pre grad", "pre-grad").replace("atens", "aten's")
    piece, _ = _LATER[what]
    program = program_of(
        drawn, reading=drawn.choose("reading", ["constant", "code", "two_hops", "closure"]), piece=piece
    )
    one, _other = numbers_of(drawn, program)
    with_it, without = program.step("with", one), program.step("without", one)
    without.files["ops.py"] = program.operators(_taken_away(program.piece.text, what))
    first, second = (
        (with_it, without) if drawn.choose("order", ["removed", "added"]) == "removed" else (without, with_it)
    )
    back = Step("back", dict(first.files), environment=dict(first.environment), expect_hit=True)
    return case_of(drawn, name, program, [first, second, back][: 3 if drawn.chance(0.4) else 2])


for _what in _LATER:
    kind("added_" + _what.replace("'", "").replace(" ", "_").replace("-", "_"))(_added_or_removed)


@kind("rule_added_by_another_module")
def _by_another(drawn: Drawn, name: str) -> Case:
    """The rule is registered by a module that is imported later, or isn't: its text alone changes."""
    what = drawn.choose("what", ["backward", "vmap rule", "kernel", "autocast rule"])
    piece, line = _LATER[what]
    assert line is not None
    program = program_of(drawn, reading=drawn.choose("reading", ["constant", "code", "two_hops"]), piece=piece)
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("after", other), program.step("without", one)]
    alone = program.operators(program.piece.text.replace(line, ""))
    rule = program.operators("import torch\nIMPORTS\nfrom ops import *\nfrom ops import op\n" + (
        "from ops import _backward, _setup\n" if what == "backward" else "from ops import _rule\n" if what == "vmap rule" else ""
    ) + line)  # fmt: skip
    for step in steps:
        step.files["ops.py"], step.files["rules.py"] = alone, rule
        if step.name != "without":
            step.files["hunted.py"] = str(step.files["hunted.py"]).replace(
                "from ops import piece", "from ops import piece\nimport rules"
            )
    return case_of(drawn, name, program, steps)


@kind("kernel_disabled")
def _disabled(drawn: Drawn, name: str) -> Case:
    program = program_of(drawn, reading="constant", piece="operator_kernel")
    one, _ = numbers_of(drawn, program)
    steps = [
        program.step("before", one),
        program.step("disabled", one, after="import ops\nops.op.set_kernel_enabled('cpu', False).__enter__()"),
        program.step("back", one, expect_hit=True),
    ]
    return case_of(drawn, name, program, steps)


@kind("pass_with_the_same_uuid")
def _same_uuid(drawn: Drawn, name: str) -> Case:
    """A pass that says it is the same and isn't: stock's caches are off, so it is wrong of its uuid, not of stock."""
    piece = drawn.choose("piece", ["post_grad_pass", "pre_grad_pass", "device_pass"])
    program = program_of(drawn, reading=drawn.choose("reading", ["code", "constant", "two_hops"]), piece=piece)
    program.uuid = "b'always the same'"
    one, other = numbers_of(drawn, program)
    return case_of(drawn, name, program, [program.step("before", one), program.step("after", other)])


@kind("pass_configured_late")
def _pass_live(drawn: Drawn, name: str) -> Case:
    """A pass is configured, or taken away, between two calls."""
    program = program_of(drawn, reading=drawn.choose("reading", ["constant", "closure"]), piece="post_grad_pass")
    one, _ = numbers_of(drawn, program)
    away = f"import torch\ntorch._inductor.config.{program.hook} = None"
    again = f"import ops, torch\ntorch._inductor.config.{program.hook} = ops.Pass()"
    steps = [program.step("between calls", one, calls=["", away, again])]
    return case_of(drawn, name, program, steps, anew=True)


@kind("pattern_registered_late")
def _pattern_live(drawn: Drawn, name: str) -> Case:
    """A pattern is registered between two calls of one process."""
    program = program_of(drawn, reading="constant", piece=drawn.choose("piece", ["pattern", "joint_pattern"]))
    one, _ = numbers_of(drawn, program)
    whole, without = program.operators(), program.operators(_taken_away(program.piece.text, "pattern"))
    step = program.step("between calls", one, calls=["", f"exec({whole!r})", ""])
    step.files["ops.py"] = without
    return case_of(drawn, name, program, [step], anew=True)


@kind("fallback_made")
def _fallback(drawn: Drawn, name: str) -> Case:
    """`make_fallback` on an operator that has a lowering: the values are the same, and no process may fail."""
    program = program_of(drawn, reading="constant", piece="traced")
    one, _ = numbers_of(drawn, program)
    add = (
        "import torch\nfrom torch._inductor import lowering\n"
        "for overload in ('default',):\n"
        "    lowering.lowerings.pop(getattr(torch.ops.aten.sin, overload), None)\n"
        "    lowering.make_fallback(getattr(torch.ops.aten.sin, overload), warn=False, override_decomp=True)\n"
    )
    steps = [program.step("before", one), program.step("fallback", one, before=add), program.step("back", one)]
    return case_of(drawn, name, program, steps, stock=True)


@kind("decomposition_deleted")
def _deleted(drawn: Drawn, name: str) -> Case:
    program = program_of(drawn, reading="constant", piece="decomposition_table")
    one, _ = numbers_of(drawn, program)
    delete = (
        "from torch._inductor import decomposition\nimport torch\n"
        "del decomposition.decompositions[torch.ops.aten.digamma.default]"
    )
    steps = [program.step("before", one), program.step("deleted", one, after=delete), program.step("back", one)]
    return case_of(drawn, name, program, steps, anew=True)


@kind("schema_changed")
def _schema(drawn: Drawn, name: str) -> Case:
    """The same name, another schema: a default argument that the dispatcher fills in."""
    program = program_of(drawn, reading="constant", piece="low_implicit")
    one, other = numbers_of(drawn, program)
    steps = [program.step("before", one), program.step("after", one), program.step("back", one, expect_hit=True)]
    key = drawn.choose("key", ["CompositeImplicitAutograd", "CompositeExplicitAutograd", "CPU"])
    for step, scale in zip(steps, (one, other, one), strict=True):
        text = str(step.files["ops.py"]).replace("op(Tensor x) -> Tensor", f"op(Tensor x, float k={scale}) -> Tensor")
        text = text.replace("def _formula(x):", "def _formula(x, k=1.0):").replace("x.sin() *", "x.sin() * k *")
        if key != "CompositeImplicitAutograd":
            text = text.replace("CompositeImplicitAutograd", key)
            text += (
                "\n@torch.library.register_fake('hunted::op')\ndef _fake(x, k=1.0):\n    return torch.empty_like(x)\n"
            )
            program.training = False
        step.files["ops.py"] = text
    if not program.training:
        for step, number in zip(steps, (one, one, one), strict=True):
            step.files["hunted.py"] = program.main(number)
    return case_of(drawn, name, program, steps)


# ------------------------------------------------------------ compiled extensions

_EXTENSION = """
#include <torch/library.h>
#include <ATen/ATen.h>
static at::Tensor op_cpu(const at::Tensor& x) { return at::sin(x) * factor(); }
static at::Tensor op_meta(const at::Tensor& x) { return at::empty_like(x); }
TORCH_LIBRARY(hunted_ext, m) {
  m.def("op(Tensor x) -> Tensor");
  IMPLEMENTATIONS
}
"""
_IMPLICIT = 'm.impl("op", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(op_cpu)));'
_KERNELS = """
  m.impl("op", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(op_cpu)));
  m.impl("op", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(op_meta)));
"""


@kind("extension_rebuilt")
def _extension_rebuilt(drawn: Drawn, name: str) -> Case:
    """A library that registers an operator in C++ is built again with another number."""
    program = program_of(drawn, reading="constant", piece="traced")
    one, other = 2.0, 3.0
    implicit = drawn.choose("implicit", [True, False])
    load = drawn.choose("load", ["load_library", "ctypes"])
    line = "torch.ops.load_library(PLACE)" if load == "load_library" else "ctypes.CDLL(PLACE)"
    program.training, program.surrounding = implicit and drawn.chance(0.5), "y + x"
    steps = [program.step("before", one), program.step("after", one), program.step("back", one, expect_hit=True)]
    for step, number in zip(steps, (one, other, one), strict=True):
        source = _EXTENSION.replace("IMPLEMENTATIONS", _IMPLICIT if implicit else _KERNELS)
        step.files["hunted_extension.so"] = Library(source, number)
        step.files["ops.py"] = (
            "import ctypes, os, torch\nPLACE = os.path.join(os.path.dirname(__file__), 'hunted_extension.so')\n"
            f"{line}\ndef piece(x):\n    return torch.ops.hunted_ext.op(x)\n"
        )
    return case_of(drawn, name, program, steps)


# ------------------------------------------------------------ the compiler

_WRAPPER = """#!/bin/sh
for name in "$@"; do
  case "$name" in *.cpp|*.cc|*.cxx) sed -i 's/static_cast<float>(1.25)/static_cast<float>({number})/' "$name" ;; esac
done
exec g++ "$@"
"""


@kind("compiler_wrapper", slow=True)
def _wrapper(drawn: Drawn, name: str) -> Case:
    """CXX is a script: what it does with a source changes what comes out, and says nothing of it."""
    program = program_of(drawn, reading="constant", piece="traced")
    drawn.note["numbers"] = 1.25
    steps = []
    for label, number in (("before", "1.25"), ("after", drawn.choose("number", ["7.5", "3.0"])), ("back", "1.25")):
        step = program.step(label, 1.25)
        step.environment["CXX"] = "{directory}/wrapper.sh"
        step.files["wrapper.sh"] = _WRAPPER.format(number=number)
        steps.append(step)
    return case_of(drawn, name, program, steps, stock=True, shared_stock=False, fresh=True)
