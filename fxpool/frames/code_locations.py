"""Where the code of a function that was traced is found in another process: by its module and qualified name.

Descriptions of the objects that guards name cover most of it. The rest was reached without a guard.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

__all__ = ["code_at", "function_at", "modules_of", "place_of"]


def place_of(code: types.CodeType) -> tuple[str, str, int] | None:
    """Return (module, qualified name, wrappers around it) of a function with this code; None if no module has it."""
    name = getattr(code, "co_qualname", code.co_name)
    for key, module in [*sys.modules.items()]:
        if code.co_filename not in (getattr(module, "__file__", None), f"<frozen {key}>"):
            continue
        function, depth = _named(module, name), 0
        while function is not None:
            if getattr(function, "__code__", None) is code:
                return key, name, depth
            function, depth = getattr(function, "__wrapped__", None), depth + 1
    return None


def modules_of(codes: Iterable[types.CodeType]) -> list[str]:
    """Return the modules in whose files code was defined, sorted."""
    files = {code.co_filename for code in codes}
    return sorted(
        key
        for key, module in [*sys.modules.items()]
        if getattr(module, "__file__", None) in files or f"<frozen {key}>" in files
    )


def code_at(module: str, name: str, depth: int) -> types.CodeType | None:
    """Return the code at a place; None if there is no such function."""
    code = getattr(function_at(module, name, depth), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def function_at(module: str, name: str, depth: int) -> Any:
    """Return the function at a place, or None."""
    function = _named(sys.modules.get(module), name)
    for _ in range(depth):
        function = getattr(function, "__wrapped__", None)
    return function


def _named(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = vars(found).get(part) if isinstance(found, (type, types.ModuleType)) else None
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        elif isinstance(found, property):
            found = found.fget
    return found
