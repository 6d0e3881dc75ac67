"""Hears where code reads the elements of a set in their order, which is another in each process."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch._dynamo.variables import constant, dicts, lists

from fxpool.torch_compat.frames.variables import Patch, attributes_of, methods, realized
from fxpool.torch_compat.operators import code_owner

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["is_torchs_code", "refuse_order", "sets"]

# Methods that read the elements of a set in their order; releases have some of them.
_IN_ORDER = ("unpack_var_sequence", "tp_iter_impl", "repr_impl")
# Methods of sets that do not read in order.
_METHODS_WITHOUT_ORDER = frozenset(
    ("__contains__", "__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__len__", "__lt__", "__ne__", "add", "clear",
     "discard", "isdisjoint", "issubset", "issuperset", "remove")
)  # fmt: skip
_DYNAMO = f"{os.sep}_dynamo{os.sep}"


def sets(recorder: Recorder) -> Iterator[Patch]:
    """The order of sets that the program has. Sets that traced code makes have the order in which it adds elements."""

    def in_order(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(variable: Any, *arguments: Any, **named: Any) -> Any:
            if not (arguments and is_torchs_code(arguments[0])):
                refuse_order(recorder, variable)
            return original(variable, *arguments, **named)

        return read

    def combining(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(variable: Any, tx: Any, name: str, arguments: Sequence[Any], *others: Any, **named: Any) -> Any:
            if name not in _METHODS_WITHOUT_ORDER and not is_torchs_code(tx):
                for one in (variable, *arguments):
                    refuse_order(recorder, one)
            return original(variable, tx, name, arguments, *others, **named)

        return method

    def extending(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(variable: Any, tx: Any, name: str, arguments: Sequence[Any], *others: Any, **named: Any) -> Any:
            if name in ("extend", "extendleft", "__iadd__") and not is_torchs_code(tx):
                for one in arguments:
                    refuse_order(recorder, one)
            return original(variable, tx, name, arguments, *others, **named)

        return method

    def create(value: Any, **named: Any) -> Any:
        variable = made(value, **named)
        if isinstance(value, (set, frozenset)):
            recorder.literals[id(variable)] = variable
        return variable

    classes = _unordered()
    made = constant.ConstantVariable.create
    yield constant.ConstantVariable, "create", staticmethod(create)
    yield from methods([*classes, constant.ConstantVariable], _IN_ORDER, in_order)
    yield from methods(classes, ("call_method",), combining)
    yield from methods([getattr(lists, "CommonListMethodsVariable", lists.ListVariable)], ("call_method",), extending)


@functools.cache
def _unordered() -> tuple[Any, ...]:
    """Dynamo's classes for sets and frozen sets; in 2.11 they are in another module."""
    module: Any = sys.modules.get("torch._dynamo.variables.sets", dicts)
    names = ("BaseSetVariable", "SetVariable", "FrozensetVariable")
    return tuple(cls for name in names if (cls := getattr(module, name, None)) is not None)


def refuse_order(recorder: Recorder, variable: Any) -> None:
    """Refuse the frame if the elements of a set that the program has are read in their order."""
    variable = realized(variable)
    is_ordered = type(variable).__name__.startswith(("OrderedSet", "DictKey"))
    if is_ordered or not isinstance(variable, (constant.ConstantVariable, *_unordered())):
        return
    attributes = attributes_of(variable)
    elements = attributes.get("items")  # of a literal, there is a value
    elements = elements if isinstance(elements, dict) else attributes.get("value")
    is_programs = attributes.get("source") is not None or id(variable) in recorder.literals
    if is_programs and isinstance(elements, (dict, set, frozenset)) and len(elements) > 1:
        recorder.refuse("object", "the order of a set, which Dynamo takes for a constant")


def is_torchs_code(translator: Any) -> bool:
    """Return whether code of torch's is traced, which reads sets in no order that counts.

    Dynamo's own code, which stands for Python's functions, counts as the code that calls it.
    """
    while _DYNAMO in (path := _file_of(translator)) and translator.parent is not None:
        translator = translator.parent
    return code_owner.is_file_of_torch(path) and _DYNAMO not in path


def _file_of(translator: Any) -> str:
    return str(getattr(getattr(translator, "f_code", None), "co_filename", ""))
