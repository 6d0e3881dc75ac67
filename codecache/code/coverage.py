"""List the items that a digest of the program's code covers: functions, values they refer to, environment variables.

Collected only to explain a miss: two digests show that something differs, these items show where.
"""

from __future__ import annotations

import hashlib
import os
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fxpool.codecache.code.code_references import MISSING, Named, Variable, globals_read

__all__ = ["name_of", "note", "of_variables", "shown", "values_of"]


def name_of(function: types.FunctionType) -> str:
    """Return a function's name with its file name, without the directory."""
    place = os.path.basename(function.__code__.co_filename)
    return f"function {function.__module__}.{function.__qualname__} ({place})"


def note(covered: dict[str, str], name: str, value: str) -> None:
    """Add a value under `name`. Values of functions with the same name (created in a loop) are joined."""
    if name in covered and covered[name] != value:
        value = f"{covered[name]}, {value}"
    covered[name] = value


def shown(value: Any) -> str | None:
    """Return a value as text if it may be shown, else None: strings may be secrets, so only their digests are shown."""
    return repr(value) if value is None or isinstance(value, (bool, int, float, complex)) else None


def of_variables(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return environment variables by name, with digests instead of their values."""
    return {
        f"environment variable {name}": "not set" if value is None else f"a value of digest {_short_digest(value)}"
        for name, value in variables.items()
    }


def values_of(function: types.FunctionType, refuse: Callable[[str], Exception]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the data that a function refers to; code is recorded separately."""
    if function.__defaults__:
        yield "defaults", function.__defaults__
    if function.__kwdefaults__:
        yield "defaults by keyword", function.__kwdefaults__
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if not _is_code(content):
            yield f"closure variable {variable}", content
    for path, value in globals_read(function, refuse):
        if value is not MISSING and not isinstance(value, (Named, Variable)) and not _is_code(value):
            yield f"global {path}", value


def _short_digest(value: str) -> str:
    """Return the digest of a text, to compare values that may not be shown."""
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _is_code(value: Any) -> bool:
    return isinstance(value, types.ModuleType) or callable(value)
