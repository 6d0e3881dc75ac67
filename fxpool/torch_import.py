"""Entry point in the group ``torch.backends``, which torch calls at the end of its import.

torch refuses a file of `torch.compiler.save_cache_artifacts()` that has artifacts of an unknown type, and a program may
load one before torch has looked up the backend "fxpool". So fxpool's type is registered when torch is imported. That
imports four small modules: the code that saves and restores artifacts is imported on first use.

An exception here would break ``import torch`` in every program, with or without fxpool. So exceptions (a damaged
installation, metadata without its package) are only logged: the backend reports them to programs that use it.

torch calls no entry point of this group if TORCH_DEVICE_BACKEND_AUTOLOAD is 0. The type is then registered when the
backend is looked up, as ``torch.compile(..., backend="fxpool")`` does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["PROGRAM_RUN", "on_torch_import", "register"]

#: The variable with which ``fxpool run`` starts a program; workers do not get it. Without the underscore, it would be
#: a setting.
PROGRAM_RUN = "_FXPOOL_RUN"
_LOWERING = os.path.join(os.path.dirname(__file__), "lowering")


def on_torch_import() -> None:
    """Register fxpool's cache artifacts with torch, and install fxpool in a program of ``fxpool run``. Never raises."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        try:
            register()
            if PROGRAM_RUN in os.environ:
                from fxpool.lowering.inductor import program_run  # as said above

                program_run.begin()
        except Exception as error:
            from fxpool import notices  # as said above

            notices.logger(__name__).info(
                "could not register fxpool's cache artifacts with torch: %s: %s", type(error).__name__, error
            )


def register() -> None:
    """Register fxpool's type of artifact with torch. Idempotent. Raises ImportError if the installation is damaged."""
    if not os.path.exists(_LOWERING):
        raise ImportError(f"{_LOWERING} does not exist")
    from fxpool.torch_compat.inductor import cache_artifacts  # as said above

    cache_artifacts.register(_read, _restore)


def _read(reference: Any) -> bytes:
    from fxpool.lowering.artifact import saved  # as said above

    return saved.read(reference)


def _restore(key: str, data: bytes) -> None:
    from fxpool import torch_release  # as said above

    if torch_release.current_refusal() is None:
        from fxpool.lowering.artifact import saved  # as said above

        saved.restore(key, data)
