"""Digest the code of objects with a ``uuid()``: passes, choices, estimators.

With the uuid, the program vouches for what its object does. Programs forget to change it when they change the code, so
the code counts as well: all of it if it is proven, else what can be found.
"""

from __future__ import annotations

import hashlib
import types
from typing import Any

from fxpool.codecache.code.proof import digest_of
from fxpool.codecache.code.references import references
from fxpool.codecache.code.unproven import UnprovenError

__all__ = ["code_of"]


def code_of(value: Any) -> str:
    """Return the digest of the methods of an object's class and its bases, with what they refer to.

    The uuid vouches for what is not proven. Of such methods, the code and the plain data that it refers to are
    digested, through the program's functions, classes and modules.
    """
    whole = hashlib.sha256()
    for cls in type(value).__mro__:
        for name, attribute in sorted(vars(cls).items()):
            function = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
            if isinstance(function, types.FunctionType):
                try:
                    text = digest_of(function, of_inductor=True)
                except UnprovenError:
                    text = repr(list(references(function)))
                whole.update(f"{name} {text}".encode())
    return whole.hexdigest()
