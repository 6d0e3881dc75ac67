"""Registers fxpool's type of cache artifact with torch, as soon as torch has been imported (`fxpool.torch_import`).

A program may call `torch.compiler.load_cache_artifacts()` before torch has looked up the backend "fxpool", and torch
refuses a file with artifacts of an unknown type. So the type is registered at import, which takes 2 ms (importing torch
takes a second); the code that saves and restores artifacts is imported on first use.

torch calls no entry point of this group if TORCH_DEVICE_BACKEND_AUTOLOAD is 0. The type is then registered when the
backend is looked up, as ``torch.compile(..., backend="fxpool")`` does.
"""

from __future__ import annotations

from typing import Any

from fxpool.torch_compat.inductor import cache_artifacts

__all__ = ["register"]


def register() -> None:
    """Register fxpool's type of artifact with torch. Idempotent."""
    cache_artifacts.register(_read, _restore)


def _read(reference: Any) -> bytes:
    from fxpool.lowering.artifact import torch_artifacts  # as said above

    return torch_artifacts.read(reference)


def _restore(key: str, data: bytes) -> None:
    from fxpool.lowering import torch_release  # as said above

    if torch_release.current_refusal() is None:
        from fxpool.lowering.artifact import torch_artifacts  # as said above

        torch_artifacts.restore(key, data)
