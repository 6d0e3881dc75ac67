"""What a zygote imports of torch before it forks workers: everything a compile needs, and no thread."""

from __future__ import annotations

import functools
import importlib
import sys

_CACHED = type(functools.cache(lambda: None))

_MODULES = (
    "torch._dynamo",
    "torch._dynamo.backends.common",
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._functorch._aot_autograd.aot_autograd_result",
    "torch._functorch.partitioners",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad",
    "torch._inductor.fx_passes.pre_grad",
    "torch._inductor.select_algorithm",
    "torch._inductor.scheduler",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_cpu",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.wrapper",
    "torch._inductor.codecache",
    "torch._inductor.cpp_builder",
    "torch._inductor.mkldnn_lowerings",
    "torch._inductor.quantized_lowerings",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._higher_order_ops",
    "torch._dynamo.symbolic_convert",
    "torch._dynamo.repro.after_aot",
)


def import_compiler() -> None:
    """Import AOTAutograd, Inductor and their back ends. A module that this release lacks is skipped.

    What was found out about devices meanwhile is forgotten: they are hidden from a zygote, and not
    from its workers.
    """
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("torch"):
                raise
    _forget_devices()


def _forget_devices() -> None:
    for name, module in list(sys.modules.items()):
        if not name.startswith(("torch._inductor", "torch.utils._triton", "torch._dynamo.device_interface")):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, _CACHED) and value.__module__ == name:
                value.cache_clear()
