"""Byte code as plain data: `marshal`'s form, with the constants that it does not know beside it.

Dynamo puts objects such as devices among the constants of the code that it makes, and the globals of functions that the
code defines.
"""

from __future__ import annotations

import marshal
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from fxpool.torch_compat.frames import plain_sources

__all__ = ["dump", "load", "renamed"]

_PLACE = "__fxpool_constant__"
_GLOBALS = "globals"


def dump(code: types.CodeType) -> list[Any]:
    """Return (bytes, constants) of code. Raises plain.NotPlainError: a constant has no form as plain data."""
    others: list[Any] = []
    arguments = {"return", *_variables(code)}

    def put_aside(value: Any) -> Any:
        if type(value) is dict:
            module = _module_of(value)
            # Others are the annotations of a function that the code defines.
            if module is None and not value.keys() <= arguments:
                raise plain_sources.NotPlainError("globals of no module")
            others.append(plain_sources.Writer().write(value) if module is None else [_GLOBALS, module])
            return (_PLACE, len(others) - 1)
        try:
            marshal.dumps(value)
        except ValueError:
            others.append(plain_sources.Writer().write(value))
            return (_PLACE, len(others) - 1)
        return value

    return [marshal.dumps(_mapped(code, put_aside)), others]


def load(data: list[Any], globals_of: Callable[[str], Any] = "globals of {}".format) -> types.CodeType:
    """Return the code that `dump` wrote, with the globals of modules that `globals_of` returns for their names.

    Without it a text is in their place: the code can be read and compared, and not run. Raises plain.NotPlainError.
    """
    content, others = data
    values = [
        globals_of(one[1]) if type(one) is list and one[0] == _GLOBALS else plain_sources.Reader([]).read(one)
        for one in others
    ]

    def put_back(value: Any) -> Any:
        return values[value[1]] if isinstance(value, tuple) and value[:1] == (_PLACE,) else value

    return _mapped(marshal.loads(content), put_back)


def _variables(code: types.CodeType) -> set[str]:
    """Return the names of variables of code and of all code that is nested in it."""
    nested = (name for one in code.co_consts if isinstance(one, types.CodeType) for name in _variables(one))
    return {*code.co_varnames, *nested}


def _module_of(value: dict[str, Any]) -> str | None:
    """Return the name of the module whose globals these are, or None."""
    name = value.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return name if isinstance(module, types.ModuleType) and vars(module) is value else None


def renamed(code: types.CodeType, names: Mapping[str, str]) -> types.CodeType:
    """Return the code with other names for globals, also in the code that is nested in it."""
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(renamed(one, names) if isinstance(one, types.CodeType) else one for one in code.co_consts),
    )


def _mapped(code: types.CodeType, change: Callable[[Any], Any]) -> types.CodeType:
    return code.replace(
        co_consts=tuple(
            _mapped(one, change) if isinstance(one, types.CodeType) else change(one) for one in code.co_consts
        )
    )
