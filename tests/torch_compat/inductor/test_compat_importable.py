"""`import_paths` finds ways to a wrapper's objects that import no compiler: a hit loads without it."""

from __future__ import annotations

import ast
import importlib
import json
import operator
import os
import subprocess
from typing import Any

import pytest
import torch

from fxpool.torch_compat.inductor import import_paths

aten = torch.ops.aten
LIMIT = 3


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, 2)


def plain(x: torch.Tensor, n: int = 1) -> Any:
    if n > LIMIT:
        return doubled(x)
    return aten.add.Tensor(x, torch.sin(x)) * len([n])


def imports(x: Any) -> Any:
    import os

    return os.path.join(x)


def refers_to_a_module(x: Any) -> Any:
    return json.dumps(x)


def test_modules_that_bring_no_compiler_are_light() -> None:
    assert import_paths.is_light("torch") and import_paths.is_light("torch._inductor.config")
    assert import_paths.is_light("math") and import_paths.is_light("torch._inductor_of_another_name")
    assert not import_paths.is_light("torch._inductor.codecache") and not import_paths.is_light("triton.language")


LIGHT = """
import json, sys
import torch._dynamo
from fxpool.torch_compat.inductor.import_paths import LIGHT
import torch._inductor.utils, torch._inductor.metrics, torch._inductor.cudagraph_utils
print(json.dumps([sorted(LIGHT - sys.modules.keys()), "torch._inductor.lowering" in sys.modules,
                  "torch._inductor.select_algorithm" in sys.modules]))
"""


def test_light_modules_leave_the_compiler_unimported(python: str) -> None:
    done = subprocess.run(
        [python, "-c", LIGHT], env={**os.environ}, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    missing, lowering, templates = json.loads(done.stdout)
    assert missing in ([], ["torch._inductor.hooks"]) and not lowering and not templates


@pytest.mark.parametrize("module", sorted(import_paths.LIGHT))
def test_a_light_module_is_there(module: str) -> None:
    assert importlib.import_module(module).__name__ == module


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (aten.add, "torch.ops.aten.add"),
        (torch.mm, "torch.mm"),
        (torch._C._nn.gelu, "torch._C._nn.gelu"),
        (torch.nn.functional.softmax, "torch.nn.functional.softmax"),
        (torch._C._linalg.linalg_inv, "torch._C._linalg.linalg_inv"),
        (torch._C._fft.fft_fft, "torch._C._fft.fft_fft"),
        (operator.add, None),
        (3, None),
        (doubled, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),  # the text of a function holds an address
)
def test_a_path_leads_to_the_very_object(value: Any, path: str | None) -> None:
    assert import_paths.path_of(value) == path
    if path is not None:
        module, _, name = path.rpartition(".")
        resolved: Any = torch
        for part in module.split(".")[1:]:
            resolved = getattr(resolved, part)
        assert import_paths.resolve("torch", path.split(".")[1]) is not None
        assert getattr(resolved, name) is value


def test_kernels_of_inductor_s_namespace_are_functions_of_torch() -> None:
    assert import_paths.extern_kernel("mm") is torch.mm
    assert import_paths.path_of(import_paths.extern_kernel("addmm")) == "torch.addmm"
    assert import_paths.extern_kernel("compat_unknown") is None


def test_operators_in_code_are_found() -> None:
    tree = ast.parse("torch.ops.mkldnn._linear.default(x)\ntorch.ops.aten.add(x)\ntorch.sin(x)\nother.ops.a.b(x)")
    assert list(import_paths.operators_in(tree)) == ["mkldnn::_linear"]


def test_operators_of_inductor_s_are_registered_by_its_lowering() -> None:
    assert import_paths.is_registered("aten::sin") and not import_paths.is_registered("compat_unknown::op")
    import_paths.register_torch_operators()
    assert import_paths.is_registered("prims::inductor_seeds")


def test_a_plain_function_becomes_text_with_what_it_needs() -> None:
    function = import_paths.plain_function(plain)
    assert function is not None
    assert function.paths == {"aten": "torch.ops.aten", "torch": "torch"} and function.values == {"LIMIT": 3}
    assert list(function.functions) == ["doubled"] and function.functions["doubled"].paths == {"torch": "torch"}
    text = ast.unparse(function.definition)
    assert text.startswith("def plain(x, n=1):")  # without annotations
    names = {"aten": torch.ops.aten, "torch": torch, "LIMIT": 3, "doubled": doubled}
    exec(text, names)
    rebuilt: Any = names["plain"]
    x = torch.ones(2)
    assert torch.equal(rebuilt(x), plain(x)) and torch.equal(rebuilt(x, 4), plain(x, 4))


@pytest.mark.parametrize("value", [imports, refers_to_a_module, torch.mm, doubled.__code__, lambda x: x, staticmethod])
def test_a_function_that_depends_on_more_is_not_plain(value: Any) -> None:
    assert import_paths.plain_function(value) is None


def test_a_closure_is_not_plain() -> None:
    offset = 3

    def shifted(x: Any) -> Any:
        return x + offset

    assert import_paths.plain_function(shifted) is None


def test_helpers_that_inductor_s_wrappers_call_can_be_taken_apart() -> None:
    """Of the module of wrappers' helpers; the others are reached by a path."""
    from torch._C._dynamo import guards

    assert import_paths.path_of(guards.assert_size_stride) is None
    assert import_paths.is_light("torch._C._dynamo.guards")
