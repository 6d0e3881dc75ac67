"""Dynamo's variables, which stand for a program's objects, and replacements for their methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["LITERALS", "Patch", "attributes_of", "methods", "realized", "value_of"]

#: Types of values that guards and descriptions have, and of which Python may have one object for all.
LITERALS = frozenset((type(None), bool, int, float, complex, str, bytes))
#: Owner, name and replacement of a function of Dynamo's.
Patch = tuple[Any, str, Any]


def methods(
    classes: Iterable[Any], names: Iterable[str], around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[Patch]:
    """Yield replacements for methods that classes define themselves."""
    for cls in classes:
        for name in names:
            if (original := vars(cls).get(name)) is not None:
                yield cls, name, around(original)


def realized(variable: Any) -> Any:
    """Return a variable of Dynamo's as it is once its object is read; None if it can't be read."""
    try:
        return variable.realize()
    except Exception:  # Dynamo meets it again where it needs the variable
        return None


def attributes_of(variable: Any) -> dict[str, Any]:
    """Return the attributes of a variable of Dynamo's."""
    return getattr(realized(variable), "__dict__", {})


def value_of(variable: Any) -> Any:
    """Return the object that a variable of Dynamo's stands for, if it has one."""
    attributes = attributes_of(variable)
    return attributes.get("value", attributes.get("fn"))
