"""Kinds in which a formula sees more of its argument, or of torch's state, than kernels do: offsets, views, modes.

The code stays, and what it looks at is another in the second process.
"""

# ruff: noqa: E501 (a table of programs' texts)

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

_MAKE = """
import torch
import ops
{setup}
def inputs():
    g = torch.Generator().manual_seed(7)
    x = torch.arange(256.0)
    return (KKK,)
def run(x):
    return ops.piece(x) + 1
"""


def _argument(
    name: str, expression: str, first: str, second: str, *, setup: str = "", training: bool = False
) -> Change:
    """The formula scales by an expression of its argument ``x``, which is made in two ways."""
    return Change(
        name,
        values=(first, second),
        result=f"x.sin() * ({expression})",
        main=_MAKE.format(setup=setup),
        sites=FORMULA,
        training=training,
        stock=True,
    )


def _state(name: str, expression: str, values: tuple[object, ...], setup: str = "", around: str = "") -> Change:
    """The formula scales by an expression of torch's state."""
    entered = f"\ndef around():\n    return {around}" if around else ""
    return Change(
        name,
        values=values,
        result=f"x.sin() * ({expression})",
        setup=setup + entered,
        sites=FORMULA,
        stock=True,
    )


_LEAF = "torch.rand(4, 8, generator=g).requires_grad_()"

register(
    "seen",
    [
        _argument("offset_of_storage", "2.0 + x.storage_offset()", "x[0:32].view(4, 8)", "x[16:48].view(4, 8)"),
        _argument("size_of_storage", "x.untyped_storage().nbytes() / 128", "x[:32].clone()", "x[:32]"),
        _argument("view", "2.0 + x._is_view()", "x[:32].clone()", "x[:32].view(32)"),
        _argument("contiguity", "2.0 + x.is_contiguous()", "x[:64].view(8, 8)", "x[:64].view(8, 8).t()"),
        _argument("stride_of_one_row", "2.0 + x.stride(0)", "x[:8].view(1, 8)", "x[:8].as_strided((1, 8), (24, 1))"),
        _argument("channels_last", "2.0 + x.is_contiguous(memory_format=torch.channels_last)", "x[:128].view(2, 4, 4, 4)",
                  "x[:128].view(2, 4, 4, 4).contiguous(memory_format=torch.channels_last)"),
        _argument("dtype", "2.0 if x.dtype is torch.float32 else 3.0", "x[:8]", "x[:8].double()"),
        _argument("leaf", "2.0 + x.is_leaf", _LEAF, f"{_LEAF} * 1.0", training=True),
        _argument("gradient_required", "2.0 + x.requires_grad", "x[:8]", "x[:8].requires_grad_()", training=True),
        _argument("gradient_held", "2.0 + (x.grad is not None)", "held(False)", "held(True)", training=True,
                  setup="def held(grad):\n    x = torch.ones(4, 8, requires_grad=True)\n    x.grad = torch.ones(4, 8) if grad else None\n    return x"),
        _argument("parameter", "2.0 + isinstance(x, torch.nn.Parameter)", _LEAF, f"torch.nn.Parameter({_LEAF}.detach())", training=True),
        _argument("conjugate", "2.0 + x.is_conj()", "torch.complex(x[:4], x[4:8])", "torch.complex(x[:4], x[4:8]).conj()"),
        _argument("attribute_of_program", "getattr(x, 'hunted', 1.0)", "tagged(2.0)", "tagged(3.0)",
                  setup="def tagged(k):\n    x = torch.ones(4, 8)\n    x.hunted = k\n    return x"),
        # Torch's state.
        _state("default_dtype", "2.0 + (torch.get_default_dtype() is torch.float32)", ("float32", "float64"), "torch.set_default_dtype(torch.KKK)"),
        _state("autocast_dtype", "2.0 + (torch.get_autocast_dtype('cpu') is torch.bfloat16)", ("bfloat16", "float16"), "torch.set_autocast_dtype('cpu', torch.KKK)"),
        _state("autocast_enabled", "2.0 + torch.is_autocast_enabled('cpu')", (False, True), around="torch.autocast('cpu', enabled=KKK)"),
        _state("debug_mode_of_determinism", "2.0 + torch.get_deterministic_debug_mode()", (0, 1), "torch.set_deterministic_debug_mode(KKK)"),
        _state("memory_filled", "2.0 + torch.utils.deterministic.fill_uninitialized_memory", (False, True), "torch.utils.deterministic.fill_uninitialized_memory = KKK"),
        _state("tensor_float", "2.0 + torch.backends.cuda.matmul.allow_tf32", (False, True), "torch.backends.cuda.matmul.allow_tf32 = KKK"),
        _state("benchmark_of_cudnn", "2.0 + torch.backends.cudnn.benchmark", (False, True), "torch.backends.cudnn.benchmark = KKK"),
        _state("quantized_engine", "float(len(torch.backends.quantized.engine))", ("onednn", "fbgemm"), "torch.backends.quantized.engine = 'KKK'"),
        _state("overwritten_parameters", "2.0 + torch.__future__.get_overwrite_module_params_on_conversion()", (False, True),
               "torch.__future__.set_overwrite_module_params_on_conversion(KKK)"),
        _state("warn_always", "2.0 + torch.is_warn_always_enabled()", (False, True), "torch.set_warn_always(KKK)"),
        _state("autograd_threads", "2.0 + torch.autograd.is_multithreading_enabled()", (False, True), around="torch.autograd.set_multithreading_enabled(KKK)"),
        _state("view_replay", "2.0 + torch._C._is_view_replay_enabled()", (False, True),
               around="torch.autograd._force_original_view_tracking(KKK)"),
        _state("checkpoint_debug", "2.0 + bool(torch.utils.checkpoint._checkpoint_debug_enabled)", (False, True), around="torch.utils.checkpoint.set_checkpoint_debug_enabled(KKK)"),
        _state("functional_config", "2.0 + torch._functorch.config.debug_assert", (False, True), "import torch._functorch.config\ntorch._functorch.config.debug_assert = KKK"),
        _state("inductor_config", "2.0 + torch._inductor.config.verbose_progress", (False, True), "import torch._inductor.config\ntorch._inductor.config.verbose_progress = KKK"),
        _state("shape_config", "2.0 + torch.fx.experimental._config.print_specializations", (False, True),
               "import torch.fx.experimental._config\ntorch.fx.experimental._config.print_specializations = KKK"),
        _state("module_backends_patched", "2.0 + torch.backends.mkldnn.is_available()", (False, True), "torch.backends.mkldnn.is_available = lambda: KKK"),
    ],
)  # fmt: skip
