"""The operators of `scaled_ops`, in a module that takes four seconds to import."""

from __future__ import annotations

import time

from scaled_ops import OPERATORS

__all__ = ["OPERATORS"]

time.sleep(4.0)
