"""Called by torch when it has been imported: the entry point in the group ``torch.backends``.

What it raised would end ``import torch`` in every program, whether it uses fxpool or not. So nothing is imported here
before the call, and whatever a damaged installation, or metadata without a package beside it, raises is only logged:
the backend says it again, to those who ask for it.
"""

from __future__ import annotations

import contextlib

__all__ = ["on_torch_import"]


def on_torch_import() -> None:
    """Make fxpool's artifacts known to torch (`fxpool.lowering.autoload`). Never raises."""
    with contextlib.suppress(Exception):
        try:
            from fxpool.lowering import autoload  # as said above

            autoload.register()
        except Exception as error:
            from fxpool import notices  # as said above

            notices.logger(__name__).info(
                "could not register fxpool's cache artifacts with torch: %s: %s", type(error).__name__, error
            )
