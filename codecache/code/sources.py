"""Digest the Python code that a compiled graph depends on, where torch's own keys include only a name.

A function's digest covers its code (not its location), its defaults, the contents of its closure, and the values of its
global names: the user's functions, classes and plain objects recursively, constants and tensors by value, modules and
objects of torch, Triton or the standard library by name and version. Environment variables that it names are covered by
value.

A digest is the same in every process and under every hash seed. A value that can't be hashed (an object with state
outside Python, a clock, a file) raises `UndigestableError`: the caller bypasses the cache rather than serve stale code.

Not covered: anything reached by `getattr` with a computed name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fxpool.codecache.code.digester import Digester, describe
from fxpool.codecache.code.source_files import digest_file, digest_module
from fxpool.codecache.code.undigestable import UndigestableError

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
    """The digest of a value, and the environment variables that its code reads (None if not set)."""

    digest: str
    environment: Mapping[str, str | None]


def digest_callable(fn: Callable[..., Any]) -> str:
    """Return the sha256 of a callable's code and of everything it refers to.

    Accepts functions, methods, partials, built-ins, classes, operators and Triton kernels. Raises UndigestableError.
    """
    return digest_value(fn)


def digest_value(value: Any) -> str:
    """Return the sha256 of any value that a function could refer to: constants, containers, tensors, callables.

    Raises UndigestableError.
    """
    return examine(value).digest


def examine(value: Any, *, runs_later: bool = False, covered: dict[str, str] | None = None) -> Examined:
    """Return a value's digest and the environment variables it reads. Raises UndigestableError.

    `runs_later`: the code is not traced but called by compiled code, in the process that runs the compiled code. It may
    read that process's state, and parts without a digest are left out. `covered` is filled, by name, with digests of
    the functions in `value` and of the values they refer to.
    """
    digester = Digester(runs_later=runs_later, covered=covered)
    try:
        digester.add(value)
    except RecursionError:
        raise UndigestableError(f"{describe(value)}: its references are nested too deeply") from None
    return Examined(digester.hexdigest(), digester.environment)
