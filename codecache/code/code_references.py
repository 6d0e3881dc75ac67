"""Find the code and the plain data that a function refers to, through its globals, defaults and closures.

For code that the program vouches for, or the package that it belongs to: other values that it refers to don't count.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxpool.torch_compat.operators import code_owner

__all__ = ["code_text", "references"]


def references(function: types.FunctionType) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of a function's code, and of the plain data and functions that it refers to by name."""
    return _of_function(function, set())


def code_text(code: types.CodeType) -> str:
    """Return a code object as text that differs if its instructions, names or constants do."""
    return repr((code.co_code, code.co_names, list(map(_constant_text, code.co_consts))))


def _constant_text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return code_text(value)
    # The order of a set depends on the process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _of_function(function: types.FunctionType, seen: set[int]) -> Iterator[tuple[str, str]]:
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
    elif type(value) is dict:
        for key, item in value.items():
            yield name, _plain_text(key)
            yield from _reference(f"{name}[{_plain_text(key)}]", item, (), seen)
    elif type(value) in (set, frozenset):
        yield name, repr(sorted(map(_plain_text, value)))
    elif _is_of_torch(value):
        yield name, _plain_text(value)
    elif type(value) is types.FunctionType and not code_owner.is_own(value):
        yield from _of_function(value, seen)
    elif isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType) and not code_owner.is_own(inner):
        yield from _of_function(inner, seen)
    elif isinstance(value, type) and not code_owner.is_own(value) and id(value) not in seen:
        seen.add(id(value))
        for attribute, inner in sorted(vars(value).items()):
            function = getattr(inner, "__func__", getattr(inner, "fget", inner))
            if not attribute.startswith("__") or isinstance(function, types.FunctionType):
                yield from _reference(f"{name}.{attribute}", function, names, seen)
    elif type(value) is types.ModuleType and not code_owner.is_own_module(value) and id(value) not in seen:
        seen.add(id(value))
        for attribute in sorted(set(names) & vars(value).keys()):
            yield from _reference(f"{name}.{attribute}", vars(value)[attribute], names, seen)


def _plain_text(value: Any) -> str:
    """Return plain data, an operator or a dtype as text; anything else by its type."""
    if type(value) in (bool, int, float, complex, str, bytes, type(None)):
        return repr(value)
    if type(value) is tuple:
        return repr(tuple(map(_plain_text, value)))
    return f"{value}" if _is_of_torch(value) else f"{type(value).__module__}.{type(value).__qualname__}"


def _is_of_torch(value: Any) -> bool:
    """Return whether a value is an operator, a dtype or the like, whose text is its name."""
    return type(value).__module__ == "torch._ops" or type(value) in (torch.dtype, torch.layout, torch.memory_format)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
