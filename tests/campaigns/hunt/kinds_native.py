"""Kinds of change in operators and functions of C++: what a library registers, what it reads, what it is linked with."""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

from .changes import FORMULA, Change, register
from .libraries import Library

__all__: list[str] = []

_OPERATOR = """
#include <torch/library.h>
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <cstdlib>
{code}
TORCH_LIBRARY(hunted_native, m) {{
  {definitions}
}}
"""
_IMPLICIT = 'm.impl("op", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(op)));'
_DEFINED = 'm.def("op(Tensor x) -> Tensor"); '
_LOAD = "import os\ntorch.ops.load_library(os.path.join(os.path.dirname(__file__), '{name}'))\n"
_PIECE = "def piece(x):\n    return torch.ops.hunted_native.op(x)"
_OPS = "import torch\n" + _LOAD.format(name="op.so") + _PIECE


def _operator(
    name: str,
    expression: str,
    *,
    code: str = "",
    definitions: str = _DEFINED + _IMPLICIT,
    number: float | None = 1.0,
    setup: str = "",
    environment: dict[str, str] | None = None,
    libraries: dict[str, Library] | None = None,
    ops: str = _OPS,
    body: str = "",
    inputs: str = "torch.rand(4, 8, generator=g) + 0.1",
    training: bool = False,
    values: tuple[object, ...] = (2.0, 3.0),
) -> Change:
    """A library registers an operator: `expression` of ``x`` is its formula in C++."""
    source = _OPERATOR.format(
        code=f"{code}\nstatic at::Tensor op(const at::Tensor& x) {{ return {expression}; }}", definitions=definitions
    )
    return Change(
        name,
        values=values,
        ops=ops,
        setup=setup,
        environment=environment or {},
        libraries={"op.so": Library(source, number), **(libraries or {})},
        body=body,
        inputs=inputs,
        training=training,
    )


_ROWS = """
static at::Tensor cpu(const at::Tensor& x) { return at::sin(x).repeat({int64_t(factor()), 1}); }
static at::Tensor meta(const at::Tensor& x) { return x.new_empty({int64_t(factor()) * x.size(0), x.size(1)}); }
"""
_KERNELS = """
  m.impl("op", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(cpu)));
  m.impl("op", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(meta)));
"""
_BACKWARD = """
struct Scale : public torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return at::sin(x);
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* ctx, torch::autograd::tensor_list gradients) {
    return {gradients[0] * ctx->get_saved_variables()[0].cos() * factor()};
  }
};
static at::Tensor apply(const at::Tensor& x) { return Scale::apply(x); }
static at::Tensor cpu(const at::Tensor& x) { return at::sin(x); }
static at::Tensor meta(const at::Tensor& x) { return at::empty_like(x); }
"""
_OF_ATEN = """
#include <torch/library.h>
#include <ATen/ATen.h>
static at::Tensor mine(const at::Tensor& x) {{ return at::{function}(x) * factor(); }}
TORCH_LIBRARY_IMPL(aten, {key}, m) {{ m.impl("{operator}", TORCH_FN(mine)); }}
"""


def _of_aten(name: str, key: str, operator: str, function: str, body: str, *, stock: bool = False) -> Change:
    """A library overrides one of torch's operators for a dispatch key."""
    source = _OF_ATEN.format(key=key, operator=operator, function=function)
    return Change(
        name,
        libraries={"override.so": Library(source, 1.0)},
        ahead="import torch\n" + _LOAD.format(name="override.so"),
        body=body,
        stock=stock,
    )


_FUNCTION = r"""
#include <Python.h>
static PyObject *get(PyObject *self, PyObject *unused) { return PyFloat_FromDouble(factor()); }
static PyMethodDef methods[] = {{"factor", get, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native_function", 0, -1, methods};
PyMODINIT_FUNC PyInit_native_function(void) { return PyModule_Create(&definition); }
"""
_OVERRIDES_RELU6 = _OF_ATEN.format(key="CompositeImplicitAutograd", operator="relu6", function="sin")
_CTYPES = "import ctypes, os\nLIBRARY = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'number.so'))"

register(
    "native",
    [
        _operator("formula", "at::sin(x) * factor()"),
        _operator(
            "formula_reads_variable",
            'at::sin(x) * std::atof(std::getenv("HUNTED_K"))',
            environment={"HUNTED_K": "KKK"},
        ),
        _operator(
            "formula_reads_state",
            "at::sin(x) * state",
            code="static double state = 1.0;\nstatic void set_state(double k) { state = k; }",
            definitions=_DEFINED + 'm.def("set_state(float k) -> ()", TORCH_FN(set_state)); ' + _IMPLICIT,
            setup="torch.ops.hunted_native.set_state(KKK)",
        ),
        _operator(
            "formula_reads_grad_mode",
            "at::sin(x) * (at::GradMode::is_enabled() ? 2.0 : 3.0)",
            setup="no_grad = KKK",
            values=(True, False),
        ),
        _operator(
            "formula_reads_offset",
            "at::sin(x) * (2.0 + x.storage_offset())",
            inputs="torch.arange(64.0)[KKK].view(4, 8)",
            values=(":32", "16:48"),
        ),
        _operator(
            "formula_reads_threads",
            "at::sin(x) * double(at::get_num_threads())",
            setup="torch.set_num_threads(KKK)",
            values=(1, 2),
        ),
        _operator(
            "library_linked_with_another",
            "at::sin(x) * factor()",
            number=None,
            libraries={"number.cpp.so": Library("void unused() {}", 1.0)},
            ops="import ctypes\n" + _OPS.replace("torch.ops", "ctypes.CDLL(__file__.replace('ops.py', 'number.cpp.so'), "
                "mode=ctypes.RTLD_GLOBAL)\ntorch.ops", 1),
        ),
        _operator("rule_of_meta", "x", code=_ROWS, definitions=_DEFINED + _KERNELS,
                  body="y = ops.piece(x)\nreturn y.mean(0, keepdim=True) * y.shape[0] + x"),
        _operator(
            "backward",
            "x",
            code=_BACKWARD,
            definitions=_DEFINED + _KERNELS + 'm.impl("op", torch::dispatch(c10::DispatchKey::Autograd, TORCH_FN(apply)));',
            training=True,
        ),
        _of_aten("implicit_of_aten", "CompositeImplicitAutograd", "relu6", "sin", "return torch.ops.aten.relu6(x) + 1"),
        _of_aten("autograd_of_aten", "AutogradCPU", "erfc", "sin", "return torch.erfc(x) + 1", stock=True),
        _of_aten("kernel_of_aten", "CPU", "linalg_matrix_exp", "sin", "return torch.linalg.matrix_exp(x[:, :4]) + 1"),
        _of_aten("functorch_of_aten", "FuncTorchBatched", "erfc", "sin", "return torch.vmap(torch.erfc)(x) + 1", stock=True),
        Change(
            "overrides_in_another_order",
            values=("first, second", "second, first"),
            libraries={
                "first.so": Library(_OVERRIDES_RELU6.replace("factor()", "2.0"), None),
                "second.so": Library(_OVERRIDES_RELU6.replace("factor()", "3.0"), None),
            },
            ahead="""
            import torch, os
            first, second = 'first.so', 'second.so'
            for name in (KKK):
                torch.ops.load_library(os.path.join(os.path.dirname(__file__), name))
            """,
            body="return torch.ops.aten.relu6(x) + 1",
        ),
        Change(
            "function_of_extension_module",
            "from native_function import factor",
            libraries={"native_function.so": Library(_FUNCTION, 1.0, of_torch=False)},
        ),
        Change(
            "function_by_ctypes",
            _CTYPES + "\nLIBRARY.factor.restype = ctypes.c_double\ndef factor():\n    return LIBRARY.factor()",
            libraries={"number.so": Library("", 1.0, of_torch=False)},
        ),
        Change(
            "variable_by_ctypes",
            _CTYPES + "\nK = ctypes.c_double.in_dll(LIBRARY, 'k')\ndef factor():\n    return K.value",
            libraries={"number.so": Library("double k = 1.0;", 1.0, of_torch=False)},
            setup="import helper\nhelper.K.value = KKK",
        ),
        Change(
            "memory_by_ctypes",
            """
            import ctypes
            K = ctypes.c_double(KKK)
            P = ctypes.pointer(K)
            del K
            def factor():
                return P.contents.value
            """,
            sites=FORMULA,
        ),
        Change(
            "callback_by_ctypes",
            """
            import ctypes
            factor = ctypes.CFUNCTYPE(ctypes.c_double)(lambda: KKK)
            """,
        ),
    ],
)  # fmt: skip
