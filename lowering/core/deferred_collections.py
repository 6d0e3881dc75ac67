"""Keeps the program's objects out of full garbage collections during compiles, unless that is switched off."""

from __future__ import annotations

import contextlib

from fxpool import config
from fxpool.errors import FxpoolError
from fxpool.torch_compat.dynamo import full_collections

__all__ = ["begin"]


def begin() -> None:
    """Do so from now on. Idempotent."""
    full_collections.defer(_is_on)


def _is_on() -> bool:
    with contextlib.suppress(FxpoolError):  # the graph reports it
        return config.current().defer_collections
    return False
