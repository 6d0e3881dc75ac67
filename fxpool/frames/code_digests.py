"""Digests of byte code, and the names in it."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any

__all__ = ["code_digest", "digests_of", "globals_of", "names_of"]

_LOADING = frozenset(("IMPORT_NAME", "LOAD_GLOBAL", "LOAD_NAME"))


@functools.lru_cache(maxsize=16384)
def code_digest(code: types.CodeType) -> str:
    """Return a digest of byte code with its names and constants, a docstring included. Files and lines do not count."""
    return hashlib.blake2b(repr(_code_facts(code)).encode(), digest_size=16).hexdigest()


def _code_facts(code: types.CodeType) -> tuple[Any, ...]:
    return (
        code.co_name,
        code.co_code,
        tuple(map(_constant, code.co_consts)),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        getattr(code, "co_exceptiontable", b""),
    )


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code_facts(value)
    if isinstance(value, types.FunctionType):  # one of Dynamo's
        return ("function", _code_facts(value.__code__))
    if isinstance(value, tuple):
        return ("tuple", *map(_constant, value))
    if isinstance(value, frozenset):
        return ("frozenset", *sorted(repr(_constant(one)) for one in value))
    return (type(value).__name__, repr(value))


def digests_of(code: types.CodeType) -> set[str]:
    """Return the digests of code and of all code that is nested in it."""
    found = {code_digest(code)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= digests_of(constant)
    return found


def names_of(codes: Iterable[types.CodeType]) -> frozenset[str]:
    """Return all names and constant texts of code: what it may look up by name is among them."""
    found: set[str] = set()
    left = list(codes)
    while left:
        code = left.pop()
        found.update(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                left.append(constant)
            elif isinstance(constant, str):
                found.add(constant)
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of globals and builtins that code reads."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in _LOADING)
