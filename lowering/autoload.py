"""Makes fxpool's artifacts known to torch, as soon as torch has been imported (`fxpool.torch_import`).

A program may call `torch.compiler.load_cache_artifacts()` before anything makes torch look for the backend "fxpool",
and torch refuses a file with artifacts of a type that it does not know. So the type is made known at once, in 2 ms
(importing torch takes a second); what is done with artifacts is imported when there are some.

torch calls no entry point of this group where TORCH_DEVICE_BACKEND_AUTOLOAD is 0. Then the type is known once the
backend was looked up, as ``torch.compile(..., backend="fxpool")`` does.
"""

from __future__ import annotations

from typing import Any

from fxpool.torch_compat.inductor import cache_artifacts

__all__ = ["register"]


def register() -> None:
    """Make fxpool's artifacts known to torch. May be called again."""
    cache_artifacts.register(_read, _restore)


def _read(reference: Any) -> bytes:
    from fxpool.lowering.artifact import saved  # as said above

    return saved.read(reference)


def _restore(key: str, data: bytes) -> None:
    from fxpool import torch_release  # as said above

    if torch_release.current_refusal() is None:
        from fxpool.lowering.artifact import saved  # as said above

        saved.restore(key, data)
