"""Replaces one attribute of torch's or Triton's temporarily."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["patched"]

_ABSENT = object()


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any, *, create: bool = False) -> Iterator[None]:
    """Replace an attribute of a module or class by `value`, and restore the original on leaving.

    Raises AttributeError if there is no such attribute, unless `create`, for names that a release may lack.
    """
    before = vars(owner).get(name, _ABSENT)  # the raw attribute, so that a static method stays static
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
