"""Digests of the Python code that a compiled graph depends on, where torch's own keys see only a name.

A function's digest covers its code (not where it is written), its defaults, what its closure holds, and whatever its
global names lead to: the user's functions, classes and plain objects with theirs in turn, constants and tensors by
value, modules and what belongs to torch, Triton or the standard library by name and version. Variables of the
environment that it names are covered by value.

It is the same in every process and under every hash seed. What has no value that could be hashed (an object with state
outside Python, a clock, a file) raises `UndigestableError`: the caller does without rather than serve old code.

Not seen: what is reached by `getattr` with a computed name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fxpool.codecache.digester import Digester, describe
from fxpool.codecache.source_files import digest_file, digest_module
from fxpool.codecache.undigestable import UndigestableError

__all__ = [
    "Examined",
    "UndigestableError",
    "digest_callable",
    "digest_file",
    "digest_module",
    "digest_value",
    "examine",
]


@dataclasses.dataclass(frozen=True)
class Examined:
    """The digest of a value, and the variables of the environment that its code reads (None: not set)."""

    digest: str
    environment: Mapping[str, str | None]


def digest_callable(fn: Callable[..., Any]) -> str:
    """sha256 of what a callable does, as far as its code and what that refers to say.

    Takes functions, methods, partials, built-ins, classes, operators and Triton kernels. Raises UndigestableError.
    """
    return digest_value(fn)


def digest_value(value: Any) -> str:
    """As `digest_callable`, for anything a function could refer to: constants, containers, tensors, callables."""
    return examine(value).digest


def examine(value: Any, *, runs_later: bool = False) -> Examined:
    """As `digest_value`, with what it reads of the environment.

    `runs_later`: the code is not traced but called by compiled code, in whatever process that runs; what it reads of
    that process is then its own business, and what has no digest is left out.
    """
    digester = Digester(runs_later=runs_later)
    try:
        digester.add(value)
    except RecursionError:
        raise UndigestableError(f"{describe(value)}: it refers to others too deeply") from None
    return Examined(digester.hexdigest(), digester.environment)
