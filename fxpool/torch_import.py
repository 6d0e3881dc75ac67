"""Entry point in the group ``torch.backends``, which torch calls at the end of its import.

An exception here would break ``import torch`` in every program, with or without fxpool. So only small modules are
imported, in the call, and exceptions (a damaged installation, metadata without its package) are only logged: the
backend reports them to programs that use it. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from calling it.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["BACKEND", "on_torch_import"]

#: The backend's entry point, by which torch finds it with TORCH_DEVICE_BACKEND_AUTOLOAD=0, too.
BACKEND = "fxpool.lowering.entry_point:fxpool_backend"


def on_torch_import() -> None:
    """Register fxpool's backend and cache artifacts with torch, and install fxpool in a program of ``fxpool run``.

    Never raises.
    """
    with contextlib.suppress(Exception):
        try:
            from fxpool.child_python import PROGRAM_RUN  # as said above
            from fxpool.lowering import autoload  # as said above
            from fxpool.torch_compat.dynamo import backend_table  # as said above

            autoload.register()
            backend_table.announce("fxpool", BACKEND)
            if PROGRAM_RUN in os.environ:
                from fxpool.lowering.inductor import program_run  # as said above

                program_run.begin()
        except Exception as error:
            from fxpool import notices  # as said above

            notices.logger(__name__).info(
                "could not register fxpool's cache artifacts with torch: %s: %s", type(error).__name__, error
            )
