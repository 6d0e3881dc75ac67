"""Digest the code of objects with a ``uuid()``: passes, choices, estimators.

With the uuid, the program vouches for what its object does. Programs forget to change it when they change the code, so
the code counts as well: all of it if it is proven, else what can be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

from fxpool.codecache.code.proof import code_text, digest_of
from fxpool.codecache.code.unproven import UnprovenError
from fxpool.torch_compat.operators import own_code

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
                    text = repr(list(_references(function, set())))
                whole.update(f"{name} {text}".encode())
    return whole.hexdigest()


def _references(function: types.FunctionType, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of a function's code and of the plain data and functions that it refers to by name."""
    if id(function) in seen:
        return
    seen.add(id(function))
    yield "code", code_text(function.__code__)
    values: dict[str, Any] = {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}
    values |= function.__kwdefaults__ or {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            values[name] = cell.cell_contents
    names = list(_names(function.__code__))
    values |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, value in sorted(values.items()):
        yield from _reference(name, value, names, seen)


def _reference(name: str, value: Any, names: Sequence[str], seen: set[int]) -> Iterator[tuple[str, str]]:
    if type(value) in (bool, int, float, complex, str, bytes, type(None)):
        yield name, repr(value)
    elif type(value) in (tuple, list):
        for i, item in enumerate(value):
            yield from _reference(f"{name}[{i}]", item, (), seen)
    elif type(value) is types.FunctionType and not own_code.is_own(value):
        yield from _references(value, seen)
    elif isinstance(value, type) and not own_code.is_own(value) and id(value) not in seen:
        seen.add(id(value))
        for attribute, inner in sorted(vars(value).items()):
            function = getattr(inner, "__func__", getattr(inner, "fget", inner))
            if not attribute.startswith("__") or isinstance(function, types.FunctionType):
                yield from _reference(f"{name}.{attribute}", function, names, seen)
    elif type(value) is types.ModuleType and not own_code.is_own_module(value) and id(value) not in seen:
        seen.add(id(value))
        for attribute in sorted(set(names) & vars(value).keys()):
            yield from _reference(f"{name}.{attribute}", vars(value)[attribute], names, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
