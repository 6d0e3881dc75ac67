"""Tells frozen dataclasses without methods, whose objects are only their fields."""

from __future__ import annotations

import dataclasses
import reprlib
import types
from typing import Any

__all__ = ["is_record"]


def is_record(cls: type) -> bool:
    """Return whether a class is a frozen dataclass without any methods: its objects are their fields."""
    parameters = vars(cls).get("__dataclass_params__")
    if type(cls) is not type or cls.__mro__ != (cls, object) or not getattr(parameters, "frozen", False):
        return False
    fields = vars(cls).get("__dataclass_fields__", {})
    return all(
        name in fields or (name in _OF_A_DATACLASS and _is_generated(value)) for name, value in vars(cls).items()
    )


# Names that a class statement and `dataclasses` put into a class. Methods have to be generated (`_is_generated`).
_OF_A_DATACLASS = frozenset(
    ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__",
     "__annotate__", "__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__",
     "__match_args__", "__dataclass_fields__", "__dataclass_params__", "__init__", "__repr__", "__eq__", "__hash__",
     "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__replace__", "__lt__", "__le__", "__gt__",
     "__ge__")
)  # fmt: skip


def _is_generated(value: Any) -> bool:
    if type(value) is not types.FunctionType:
        return True
    code = value.__code__
    if code.co_filename == "<string>":
        # Not the code of `python -c`. Python 3.10 has no such names, and only there each method is a text by itself.
        of = getattr(code, "co_qualname", "" if code.co_firstlineno != 2 else _MAKER)
        return of.startswith(_MAKER)
    if code.co_filename == reprlib.__file__:  # Python 3.13 wraps the generated `__repr__` with it
        return all(_is_generated(cell.cell_contents) for cell in value.__closure__ or ())
    return code.co_filename == dataclasses.__file__


# `dataclasses` writes a function around a class's methods, and runs it.
_MAKER = "__create_fn__.<locals>."
