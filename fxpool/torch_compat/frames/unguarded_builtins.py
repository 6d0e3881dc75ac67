"""Hears which of Python's functions Dynamo calls on a program's objects, and takes the results for constants."""

from __future__ import annotations

import abc
import contextlib
import enum
import operator
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.variables import base, builtin, constant, functions, misc

from fxpool.torch_compat.frames import unguarded_facts
from fxpool.torch_compat.frames.set_orders import is_torchs_code, refuse_order
from fxpool.torch_compat.frames.unguarded_objects import DESCRIPTORS, FACTORY, NEW
from fxpool.torch_compat.frames.variables import LITERALS, Patch, attributes_of, methods, realized, value_of
from fxpool.torch_compat.operators import code_owner

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["builtins"]

# Python's functions that Dynamo calls on a program's objects.
_TEXTS = (str, repr, format, ascii)
# Python's functions whose results do not depend on the order of a set.
_WITHOUT_ORDER = (
    all, any, bool, id, isinstance, issubclass, len, operator.contains, operator.eq, operator.ge, operator.gt,
    operator.le, operator.lt, operator.ne, operator.not_, operator.truth, sorted, type,
)  # fmt: skip
# Dynamo's classes for Python's functions end with this.
_OF_BUILTINS = "BuiltinVariable"
# Comparisons of identities, by their text in byte code.
_IDENTITY = {"is": operator.is_, "is not": operator.is_not}
# Types of values that may be equal and not one.
_COPIED = (int, float, complex, str, bytes, torch.device)
# Numbers of which Python has one object each.
_SMALL = range(-5, 257)
# Types of values that are compared by themselves, and of objects of which a description says which are one.
_SINGLE = frozenset(
    (*LITERALS, object, torch.dtype, torch.layout, torch.memory_format, type(Ellipsis), type(NotImplemented), FACTORY)
)
_NUMBERED = (type, types.FunctionType, types.ModuleType, enum.Enum, torch.Tensor, *DESCRIPTORS)
# The answer of Dynamo's variables that stand for no live object.
_NO_OBJECT = getattr(base, "NO_SUCH_SUBOBJ", None)
# Numbers that are their own hash.
_NUMBERS = (int, float, bool)


def builtins(recorder: Recorder) -> Iterator[Patch]:
    """Calls of Python's functions that Dynamo makes on a program's objects."""

    def listening(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(variable: Any, tx: Any, arguments: Sequence[Any], named: Any) -> Any:
            function = getattr(variable, "fn", None)
            if arguments:
                _hear_builtin(recorder, function, [value_of(one) for one in arguments[:2]], tx)
            if function in (isinstance, issubclass) and len(arguments) == 2:
                _hear_question(recorder, function, *arguments)
            is_in_order = bool(named) or not any(function is one for one in _WITHOUT_ORDER)
            if is_in_order and not is_torchs_code(tx):
                for one in arguments:
                    refuse_order(recorder, one)
            return original(variable, tx, arguments, named)

        return call

    def comparing(function: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tx: Any, arguments: Sequence[Any], named: Any) -> Any:
            if any(isinstance(one, constant.ConstantVariable) and one.value is None for one in arguments):
                return original(tx, arguments, named)
            _hear_builtin(recorder, function, [_constant_of(one) or value_of(one) for one in arguments], tx)
            classes = [*filter(None, map(_without_number, arguments))]
            if classes and not code_owner.is_file_of_library(tx.f_code.co_filename):
                name = classes[0].__qualname__
                recorder.refuse("object", f"whether an object of {name} is another, which no guard says")
            if all(isinstance(realized(one), functions.UserMethodVariable) for one in arguments):
                recorder.refuse("object", "whether two methods are one, which no guard says")
            return original(tx, arguments, named)

        return call

    handlers = symbolic_convert.compare_op_handlers  # which torch made of the methods below when it was imported
    heard_too = {name: comparing(function, handlers[name]) for name, function in _IDENTITY.items()}
    yield symbolic_convert, "compare_op_handlers", {**handlers, **heard_too}
    classes = [one for one in vars(builtin).values() if isinstance(one, type) and one.__name__.endswith(_OF_BUILTINS)]
    yield from methods(dict.fromkeys(classes), ("call_function",), listening)


def _hear_builtin(recorder: Recorder, function: Any, values: list[Any], tx: Any) -> None:
    value = values[0]
    name = type(value).__qualname__
    if function is vars:
        recorder.keys.add("__dict__")
        recorder.computes_all_attributes = True
    elif function is dir:
        if isinstance(value, (types.ModuleType, type)):
            recorder.listed.append(value)
        else:
            recorder.refuse("object", f"the names of {name}")
    elif function in (hash, id) and code_owner.is_file_of_library(tx.f_code.co_filename):
        pass  # keys of what Python's library has met, and hashes of members of enumerations
    elif function in (hash, id) and not (function is hash and _is_hash_traced(value)):
        recorder.refuse("object", f"{function.__name__}() of {name}, which is another number in each process")
    elif function in _IDENTITY.values() and len(values) == 2 and _may_be_one(*values):
        if code_owner.is_file_of_library(tx.f_code.co_filename):
            return  # copy and dataclasses ask so whether an element is another one now
        recorder.refuse("object", f"whether two equal objects of {name} are one, which no guard says")
    elif any(function is one for one in _TEXTS) and _has_own_text(value):
        recorder.refuse("object", f"the text of {name}, which Dynamo takes for a constant")


def _without_number(variable: Any) -> type | None:
    """Return the class of a live object that Dynamo compares without a guard, and that no description numbers."""
    known = realized(variable)
    if known is None or isinstance(getattr(known, "mutation_type", None), NEW):
        return None
    if known.source is not None and not isinstance(known, misc.GetAttrVariable):  # these have no guards yet
        return None
    value = _value_of(known)
    if value is None or value is _NO_OBJECT or type(value) in _SINGLE or isinstance(value, _NUMBERED):
        return None
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
        return None
    return None if isinstance(value, base.VariableTracker) else type(value)


def _value_of(variable: Any) -> Any:
    read = getattr(variable, "get_real_python_backed_value", None)  # since 2.12
    value = value_of(variable) if read is None else read()
    return _constant_of(variable) if value is None or value is _NO_OBJECT else value


def _constant_of(variable: Any) -> Any:
    """Return the value of an attribute that Dynamo takes for a constant; None for other variables."""
    known = realized(variable)
    if isinstance(known, misc.GetAttrVariable):
        with contextlib.suppress(Exception):  # Dynamo knows no value then
            return known.as_python_constant()
    return None


def _may_be_one(value: Any, other: Any) -> bool:
    """Return whether two values are equal numbers or texts that Python does not make one of."""
    if type(value) is not type(other) or type(value) not in _COPIED or value != other:
        return False
    return value not in _SMALL if isinstance(value, int) else not isinstance(value, (str, bytes)) or len(value) > 1


def _is_hash_traced(value: Any) -> bool:
    """Return whether a hash is the number itself, or of a method that Dynamo traces."""
    code = getattr(type(value).__hash__, "__code__", None)
    is_written = code is not None and not code.co_filename.startswith("<")  # not by dataclasses, which Dynamo calls
    return type(value) in _NUMBERS or (is_written and not unguarded_facts.is_folded(type(value)))


def _hear_question(recorder: Recorder, function: Any, subject: Any, classes: Any) -> None:
    """Take note of a question whether a class is a subclass of an abstract one: anything may change the answer."""
    for cls in _classes_in(classes):
        if getattr(cls, "_is_protocol", False):
            recorder.refuse("object", "a protocol, which looks at attributes without guards")
        elif isinstance(cls, abc.ABCMeta):
            asked = value_of(subject) if function is issubclass else _type_of(subject)
            if isinstance(asked, type):
                recorder.questions[asked, cls] = None


def _type_of(variable: Any) -> Any:
    try:
        return realized(variable).python_type()
    except Exception:  # Dynamo asks nothing then
        return None


def _classes_in(variable: Any) -> list[Any]:
    """Return the classes in the second argument of ``isinstance()``."""
    items = attributes_of(variable).get("items")
    left = [*items] if isinstance(items, (list, tuple)) else [value_of(variable)]
    found: list[Any] = []
    while left:
        value = left.pop()
        if hasattr(value, "realize"):
            left += [*_classes_in(value)]
        elif isinstance(value, (tuple, types.UnionType)):
            left += value if isinstance(value, tuple) else value.__args__
        else:
            found.append(typing.get_origin(value) or value)
    return found


def _has_own_text(value: Any) -> bool:
    """Return whether Dynamo calls ``__repr__`` for an object, where it would trace a ``__str__``: without guards."""
    if isinstance(value, (types.FunctionType, types.CodeType)):
        return True
    cls: Any = type(value)
    texts = (cls.__repr__, cls.__str__)
    if isinstance(value, (type, enum.Enum)):
        return any(isinstance(one, types.FunctionType) and one.__module__ != "enum" for one in texts)
    is_code = isinstance(cls.__repr__, types.FunctionType) or cls.__repr__ is object.__repr__
    return is_code and cls.__str__ is object.__str__ and not isinstance(value, torch.Tensor)
