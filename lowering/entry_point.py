"""What torch finds under the name "fxpool" among its backends.

Imported when a program asks for the backend by that name and by nothing else, so that asking is what starts a pool.
"""

from __future__ import annotations

from fxpool.lowering.backend import fxpool_backend
from fxpool.torch_compat import versions

__all__ = ["fxpool_backend"]

if versions.current_refusal() is None:
    from fxpool.lowering import service

    service.start_ahead()
