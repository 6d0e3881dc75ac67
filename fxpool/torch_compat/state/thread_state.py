"""Detects thread state that cannot be re-entered elsewhere: modes, levels and hooks that belong to this process."""

from __future__ import annotations

import contextlib
import sys

import torch
import torch._dynamo  # first, see torch_compat
import torch._inductor.config


def _mask(*names: str) -> int:
    """Return the bits of the named dispatch keys, without keys that this release lacks."""
    bits = 0
    for name in names:
        with contextlib.suppress(RuntimeError):  # this release has no such key
            bits |= torch._C.DispatchKeySet(torch._C._dispatch_key_parse(name)).raw_repr()
    return bits


# Keys that follow from state captured or refused by another name: autocast, modes, functorch. Also the key of tensors
# with named dimensions, which Dynamo does not trace; until 2.12 a backward excludes it.
_EXPLAINED = _mask(
    "AutocastCPU", "AutocastMTIA", "AutocastMAIA", "AutocastXPU", "AutocastIPU", "AutocastHPU", "AutocastXLA",
    "AutocastMPS", "AutocastCUDA", "AutocastPrivateUse1", "Python", "PythonTLSSnapshot", "PythonDispatcher",
    "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "Named",
)  # fmt: skip
# Keys that a thread includes and excludes, and those under inference mode, which is captured as a switch.
_EVERYWHERE = _mask("BackendSelect", "ADInplaceOrView"), 0
_IN_INFERENCE = _mask("BackendSelect"), _mask("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")
# The bits of a set that say for which backends its keys are. A set without keys may have some: until 2.12, leaving
# `_ExcludeDispatchKeyGuard` removes the key only.
_BACKENDS = _mask("CPU", "CUDA", "XPU", "MPS", "HPU", "MTIA", "PrivateUse1") & _mask(
    "AutogradCPU", "AutogradCUDA", "AutogradXPU", "AutogradMPS", "AutogradHPU", "AutogradMTIA", "AutogradPrivateUse1"
)


def tied_to_thread(*, before_autograd: bool = True) -> tuple[str, str] | None:
    """Return (reason, detail) of the first active state that another process cannot enter, else None.

    `before_autograd`: AOTAutograd has not run yet. It sets dispatch keys itself, and the graphs it makes do not depend
    on them, so keys do not matter after it.
    """
    if (tool := _tool_at_work()) is not None:
        return tool
    if dispatch_modes_active():
        return "dispatch_mode", "a TorchDispatchMode is active"
    core = torch._C
    if core._functorch.peek_interpreter_stack() is not None:
        return "functorch_level", "a transform of torch.func is being run"
    if core._len_torch_function_stack() and any(not _is_device(mode) for mode in _function_modes()):
        return "torch_function_mode", "a TorchFunctionMode is active"
    included = core._dispatch_tls_local_include_set().raw_repr() & ~(_EXPLAINED | _BACKENDS)
    excluded = core._dispatch_tls_local_exclude_set().raw_repr() & ~(_EXPLAINED | _BACKENDS)
    usual = _IN_INFERENCE if torch.is_inference_mode_enabled() else _EVERYWHERE
    if before_autograd and (included, excluded) != usual:
        return "dispatch_keys", f"included {included ^ usual[0]:#x}, excluded {excluded ^ usual[1]:#x}"
    device = core._get_default_device()
    if device != "cpu":
        return "default_tensor_type", f"the default tensor type is one of {device}"
    inductor = sys.modules.get("torch._inductor.utils")
    if getattr(getattr(inductor, "_unstable_customized_partition_wrapper", None), "wrapper", None) is not None:
        return "partition_wrapper", "a wrapper for partitions of graphs is registered"
    return None


def _tool_at_work() -> tuple[str, str] | None:
    """Return (reason, detail) of a tool of torch's that watches Inductor in this process; hits would blind it, too."""
    bisector = sys.modules.get("torch._inductor.compiler_bisector")
    if bisector is not None and bisector.CompilerBisector.bisection_enabled:
        return "compiler_bisector", "torch's CompilerBisector is enabled"
    if torch._inductor.config.save_args:
        return "save_args", "Inductor's save_args writes the arguments of each inner compile"
    output_code = sys.modules.get("torch._inductor.output_code")
    made = output_code.CompiledFxGraph.__init__ if output_code is not None else None
    if made is not None and made.__qualname__ != "CompiledFxGraph.__init__":
        return "graph_lowering_watched", "CompiledFxGraph.__init__ is replaced (run_and_get_graph_lowering)"
    return None


def _function_modes() -> list[object]:
    from torch.overrides import _get_current_function_mode_stack

    return list(_get_current_function_mode_stack())


def _is_device(mode: object) -> bool:
    """Return whether a mode was entered by `torch.set_default_device`, which is captured as a switch."""
    from torch.utils._device import DeviceContext

    return type(mode) is DeviceContext


def saved_tensor_hooks_compiled() -> bool:
    """Return whether default hooks for saved tensors are installed that AOTAutograd compiles into the graph.

    Such hooks are graphs themselves. Other hooks (a checkpoint's, `save_on_cpu`) run around compiled code as around
    eager code.
    """
    from torch._functorch._aot_autograd import utils

    return bool(utils.saved_tensors_hooks_are_inlineable(utils.top_saved_tensors_hooks()))


def dispatch_modes_active() -> bool:
    """Return whether a user's TorchDispatchMode is active: its effect on a graph is unknown to another process.

    Modes that tracing itself enters (fake tensors, functionalization) do not count.
    """
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return any(not type(mode).is_infra_mode() for mode in _get_current_dispatch_mode_stack())
