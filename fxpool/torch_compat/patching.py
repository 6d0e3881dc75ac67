"""Replaces one attribute of torch's or Triton's temporarily."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["patched"]

_ABSENT = object()


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any, *, create: bool = False) -> Iterator[None]:
    """Put `value` in the place of an attribute of a module or class, and put back what was there on leaving.

    Raises AttributeError if there is none, unless it is to be created: this release has no such name.
    """
    before = vars(owner).get(name, _ABSENT)  # as it stands there: a static method stays one
    if before is _ABSENT and not create:
        getattr(owner, name)  # inherited, or AttributeError
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
