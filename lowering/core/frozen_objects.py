"""Keeps the program's objects out of full garbage collections during compiles, unless that is switched off."""

from __future__ import annotations

import contextlib

from fxpool import config
from fxpool.errors import FxpoolError
from fxpool.torch_compat.dynamo import frozen_objects

__all__ = ["begin"]


def begin() -> None:
    """Do so from now on. Idempotent."""
    frozen_objects.freeze_while_compiling(_is_on)


def _is_on() -> bool:
    with contextlib.suppress(FxpoolError):  # the graph reports it
        return config.current().freeze_objects
    return False
