"""`added_kernels` finds kernels that a program put into torch's operators."""

from __future__ import annotations

import torch

from fxpool.torch_compat.changes import added_kernels


def test_a_kernel_for_an_operator_of_torch_is_found() -> None:
    operator = torch.ops.aten.erfc.default
    kernel = lambda x: x  # noqa: E731
    operator.py_impl(torch._C.DispatchKey.AutogradCPU)(kernel)
    try:
        assert added_kernels.foreign() == [("aten.erfc.default for AutogradCPU", kernel)]
    finally:
        del operator.py_kernels[torch._C.DispatchKey.AutogradCPU]
        operator._dispatch_cache.clear()
    assert added_kernels.foreign() == []


def test_a_kernel_for_a_mode_is_found() -> None:
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

    operator = torch.ops.aten.erfc.default
    kernel = lambda mode, x: x  # noqa: E731
    assert added_kernels.foreign() == []
    operator.py_impl(ProxyTorchDispatchMode)(kernel)
    try:
        assert added_kernels.foreign() == [("aten.erfc.default for ProxyTorchDispatchMode", kernel)]
    finally:
        del operator.python_key_table[ProxyTorchDispatchMode]
        operator._dispatch_cache.clear()
    assert added_kernels.foreign() == []


def test_a_kernel_in_the_place_of_another_is_found() -> None:
    operator, key = torch.ops.aten.erfc.default, torch._C.DispatchKey.AutogradCPU
    first, second = (lambda x: x), (lambda x: x + 1)
    operator.py_kernels[key] = first
    try:
        assert added_kernels.foreign() == [("aten.erfc.default for AutogradCPU", first)]
        operator.py_kernels[key] = second
        assert added_kernels.foreign() == [("aten.erfc.default for AutogradCPU", second)]
    finally:
        del operator.py_kernels[key]
        operator._dispatch_cache.clear()
    assert added_kernels.foreign() == []
