"""Digests of byte code, and the names in it."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any

__all__ = ["code_digest", "digests_of", "globals_of", "lists_attributes", "names_of"]

_ALL_ATTRIBUTES = "__dict__"
_CALLS = frozenset(("CALL", "CALL_METHOD", "PRECALL"))
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
    left: list[Any] = list(codes)
    while left:
        one = left.pop()
        if isinstance(one, types.CodeType):
            found.update(one.co_names)
            left += one.co_consts
        elif isinstance(one, (tuple, frozenset)):
            left += one
        elif isinstance(one, str):
            found.add(one)
    return frozenset(found)


def lists_attributes(codes: Iterable[types.CodeType]) -> bool:
    """Return whether code does more with a ``__dict__`` than to look names up: the order of attributes may count."""
    left = list(codes)
    while left:
        code = left.pop()
        is_among_others = any(_ALL_ATTRIBUTES in one for one in code.co_consts if isinstance(one, (tuple, frozenset)))
        is_named = _ALL_ATTRIBUTES in code.co_names or _ALL_ATTRIBUTES in code.co_consts
        if is_among_others or (is_named and not _only_looks_up(code)):
            return True
        left += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return False


def _only_looks_up(code: types.CodeType) -> bool:
    steps = [one for one in dis.get_instructions(code) if one.opname not in _CALLS]
    for before, one, after in zip([None, *steps], steps, [*steps[1:], None], strict=False):
        if one.argval != _ALL_ATTRIBUTES:
            continue
        if one.opname == "LOAD_CONST" and getattr(before, "argval", None) != "__getattribute__":
            return False
        if after is None or (after.opname != "CONTAINS_OP" and after.argval != "get"):
            return False
    return True


@functools.lru_cache(maxsize=4096)
def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of globals and builtins that code reads."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in _LOADING)
