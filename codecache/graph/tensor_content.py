"""Digests of real tensors, by which graphs and programs contain them."""

from __future__ import annotations

import functools
import hashlib

import torch

from fxpool.torch_compat.dynamo import tensors

__all__ = ["dtype_name", "tensor_digest"]


def tensor_digest(tensor: torch.Tensor, *, content: bool = True) -> str:
    """Return the digest of a real tensor's metadata and, with `content`, of its elements (copied to the CPU)."""
    strides = tensor.stride() if tensor.layout is torch.strided else str(tensor.layout)
    meta = repr(
        (dtype_name(tensor.dtype), tuple(tensor.shape), strides, tensor.device.type, tensor.is_conj(),
         tensor.is_neg())
    )  # fmt: skip
    digest = hashlib.sha256(meta.encode())
    if content:
        digest.update(_tensor_bytes(tensor))
    return digest.hexdigest()


def _tensor_bytes(tensor: torch.Tensor) -> memoryview | bytes:
    """Return the elements of a real tensor in row-major order."""
    with tensors.modes_disabled():
        dense = tensor.to_dense() if tensor.is_mkldnn else tensor
        flat = dense.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
        if flat.numel() == 0:
            return b""
        return memoryview(flat.view(torch.uint8).numpy())


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")
