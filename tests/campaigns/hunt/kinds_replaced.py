"""Kinds of change in functions of torch, the standard library and numpy that a program replaces and a formula calls."""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []


def _replaced(name: str, imports: str, owner: str, expression: str, replacement: str = "lambda *a, **k: KKK") -> Change:
    """``factor()`` calls what the main module has replaced in a library; the formula's module imports the library."""
    return Change(
        name, f"{imports}\ndef factor():\n    return {expression}", setup=f"{imports}\n{owner} = {replacement}"
    )


_KEEPS_MODULE = """
import functools, {module}
def replace(original):
    @functools.wraps(original)
    def inner(*arguments, **named):
        return KKK
    return inner
{module}.{name} = replace({module}.{name})
"""


def _wrapped(name: str, module: str, attribute: str, expression: str) -> Change:
    """The replacement says that it is the library's own function."""
    return Change(
        name,
        f"import {module}\ndef factor():\n    return {expression}",
        setup=_KEEPS_MODULE.format(module=module, name=attribute),
    )


def _of_torch(
    name: str, target: str, replacement: str, result: str, helper: str = "", *, training: bool = False
) -> Change:
    """The formula calls a function of torch by way of another function of torch."""
    return Change(
        name,
        helper or "def factor():\n    return 1.0",
        result=result,
        setup=f"{target} = {replacement}",
        sites=FORMULA,
        training=training,
        tolerance=2.0,
    )


register(
    "replaced",
    [
        _replaced("function_of_math", "import math", "math.gamma", "math.gamma(3.0)"),
        _replaced("builtin", "import builtins", "builtins.oct", "oct(8)"),
        _replaced("function_of_operator", "import operator", "operator.countOf", "operator.countOf([1], 1)"),
        _replaced("function_of_numpy", "import numpy", "numpy.hypot", "float(numpy.hypot(3.0, 4.0))"),
        _replaced("function_of_statistics", "import statistics", "statistics.fmean", "statistics.fmean([1.0])"),
        _replaced("function_of_json", "import json", "json.loads", "json.loads('1.0')"),
        _replaced("function_of_os_path", "import os.path", "os.path.getsize", "os.path.getsize('/')"),
        _replaced("method_of_fraction", "import fractions", "fractions.Fraction.limit_denominator",
                  "float(fractions.Fraction(1, 3).limit_denominator(2))"),
        _replaced("class_of_decimal", "import decimal", "decimal.Decimal", "float(decimal.Decimal('1.0'))"),
        _wrapped("wrapped_function_of_math", "math", "gamma", "math.gamma(3.0)"),
        _wrapped("wrapped_function_of_bisect", "bisect", "bisect_left", "bisect.bisect_left([1.0], 1.0)"),
        _wrapped("wrapped_function_of_numpy", "numpy", "hypot", "float(numpy.hypot(3.0, 4.0))"),
        Change(
            "module_of_standard_library",
            "import colorsys\ndef factor():\n    return colorsys.rgb_to_yiq(1.0, 1.0, 1.0)[0]",
            others={"shadow.py": "def rgb_to_yiq(*rgb):\n    return [KKK]"},
            ahead="import sys, shadow\nsys.modules['colorsys'] = shadow",
        ),
        Change(
            "module_of_standard_library_shadowed_on_path",
            "import tabnanny\ndef factor():\n    return tabnanny.check()",
            others={"tabnanny.py": "def check():\n    return KKK"},
        ),
        Change(
            "package_that_torch_names",
            "import torchvision\ndef factor():\n    return torchvision.factor()",
            others={"torchvision/__init__.py": "__version__ = '0.28.0'\ndef factor():\n    return KKK"},
        ),
        Change(
            "module_in_package_of_torch",
            "import torch.hunted_extension\ndef factor():\n    return torch.hunted_extension.factor()",
            others={"extension/hunted_extension.py": "def factor():\n    return KKK"},
            ahead="import os, torch\ntorch.__path__.append(os.path.abspath('extension'))",
        ),
        _of_torch("function_of_torch_by_another", "torch.nn.functional.linear", "lambda x, weight, bias=None: x * KKK",
                  "helper.MODULE(x)", "import torch\nMODULE = torch.nn.Linear(8, 8)"),
        _of_torch("function_of_torch_c", "torch._C._nn.gelu", "lambda x, approximate='none': x * KKK", "torch._C._nn.gelu(x)"),
        _of_torch("reference_of_torch", "torch._refs.special.log_ndtr", "lambda x: x * KKK", "torch._refs.special.log_ndtr(x)"),
        _of_torch("initializer_of_torch", "torch.nn.init.calculate_gain", "lambda *a: KKK", "x.sin() * torch.nn.init.calculate_gain('relu')"),
        _of_torch("constructor_of_torch", "torch.full_like", "lambda x, k: x * KKK", "torch.full_like(x, 2.0)"),
        _of_torch("method_of_tensor", "torch.Tensor.log1p", "lambda x: x * KKK", "x.log1p()"),
        _of_torch("operator_of_tensor", "torch.Tensor.__matmul__", "lambda x, y: x * KKK", "x @ x"),
        _of_torch("context_of_torch", "torch.no_grad", "torch.enable_grad if KKK > 2.5 else torch.no_grad", "with torch.no_grad():\n    y = x * x\nreturn x.sin() + y", training=True),
        _of_torch("function_in_c_by_another", "torch.sinh", "torch.sinh if KKK < 2.5 else torch.cosh", "torch.sinh(x)"),
        _of_torch("function_in_c_by_a_builtin", "torch.sum", "torch.sum if KKK < 2.5 else sum", "x * torch.sum(x)"),
        _of_torch("function_of_torch_by_torchs", "torch.nn.functional.softmax",
                  "torch.nn.functional.softmax if KKK < 2.5 else torch.nn.functional.softmin", "torch.nn.functional.softmax(x, 1)"),
        _of_torch("method_in_c_by_another", "torch.Tensor.tanh", "torch.Tensor.tanh if KKK < 2.5 else torch.Tensor.sigmoid",
                  "torch.nn.functional.tanhshrink(x)"),
        _of_torch("method_by_a_function_of_torch", "torch.Tensor.abs", "torch.Tensor.abs if KKK < 2.5 else torch.nn.functional.tanhshrink",
                  "torch.nn.functional.softsign(x)"),
        _of_torch("checkpoint_of_torch", "torch.utils.checkpoint.checkpoint", "lambda f, x, **k: f(x) * KKK",
                  "import torch.utils.checkpoint\nreturn torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)"),
        _of_torch("distribution_of_torch", "torch.distributions.Normal.log_prob", "lambda self, x: x * KKK",
                  "import torch.distributions\nreturn torch.distributions.Normal(0.0, 1.0, validate_args=False).log_prob(x)"),
    ],
)  # fmt: skip
