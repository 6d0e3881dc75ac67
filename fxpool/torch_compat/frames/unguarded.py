"""Hears what Dynamo reads while it traces, and makes no guard on: names looked up in vain, names listed, texts."""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import importlib.util
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._dynamo.variables import builtin, dicts, functions, misc

from fxpool.torch_compat.patching import patched

__all__ = ["Heard", "heard"]

# Methods that look up an attribute of a module; releases have some of them.
_OF_MODULES = ("call_obj_hasattr", "var_getattr", "tp_getattro_impl")
# Python's functions that Dynamo calls on a program's objects.
_READERS = (dir, str, repr, format)
# Functions whose results Dynamo takes for constants, though they depend on installed packages.
_ABOUT_PACKAGES = (importlib.util.find_spec, importlib.metadata.version)


class Heard(Protocol):
    """Receives what is heard: see `recording.Recorder`."""

    results: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]]
    attributes: list[tuple[types.ModuleType, str]]
    keys: set[str]
    listed: list[types.ModuleType | type]
    refusal: tuple[str, str] | None


@contextlib.contextmanager
def heard(recorder: Heard) -> Iterator[None]:
    """Tell a recorder what Dynamo looks up in this block. Dynamo's lock must be held."""

    def of_module(original: Callable[..., Any]) -> Callable[..., Any]:
        def look_up(variable: Any, tx: Any, name: str, *arguments: Any) -> Any:
            recorder.attributes.append((variable.value, name))
            return original(variable, tx, name, *arguments)

        return look_up

    def item(variable: Any, tx: Any, key: Any) -> Any:
        if type(text := _value(key)) is str:
            recorder.keys.add(text)
        return get(variable, tx, key)

    def call(variable: Any, tx: Any, arguments: Sequence[Any], named: Any) -> Any:
        if arguments and any(variable.fn is one for one in _READERS):
            value = _value(arguments[0])
            if variable.fn is dir and isinstance(value, (types.ModuleType, type)):
                recorder.listed.append(value)
            elif variable.fn is not dir and _has_own_text(value):
                name = type(value).__qualname__
                recorder.refusal = ("object", f"the text of {name}, which Dynamo takes for a constant")
        return call_builtin(variable, tx, arguments, named)

    def skip(variable: Any, tx: Any, arguments: Sequence[Any], named: Any) -> Any:
        answer = call_skipped(variable, tx, arguments, named)
        if any(variable.value is one for one in _ABOUT_PACKAGES):
            constants = tuple(argument.as_python_constant() for argument in arguments)
            recorder.results.append((variable.value, constants, {}, variable.value(*constants)))
        return answer

    call_builtin = builtin.BuiltinVariable.call_function
    call_skipped = functions.SkipFunctionVariable.call_function
    get = dicts.ConstDictVariable.getitem_const_raise_exception_if_absent
    with contextlib.ExitStack() as stack:
        for name in _OF_MODULES:
            if (original := getattr(misc.PythonModuleVariable, name, None)) is not None:
                stack.enter_context(patched(misc.PythonModuleVariable, name, of_module(original)))
        stack.enter_context(patched(dicts.ConstDictVariable, get.__name__, item))
        stack.enter_context(patched(builtin.BuiltinVariable, call_builtin.__name__, call))
        stack.enter_context(patched(functions.SkipFunctionVariable, call_skipped.__name__, skip))
        yield


def _value(variable: Any) -> Any:
    """The object that a variable of Dynamo's stands for, if it has one."""
    attributes = vars(variable.realize())
    return attributes.get("value", attributes.get("fn"))


def _has_own_text(value: Any) -> bool:
    """Return whether Dynamo calls ``__repr__`` for an object, where it would trace a ``__str__``: without guards."""
    if isinstance(value, types.FunctionType):
        return True
    cls: Any = type(value)
    texts = (cls.__repr__, cls.__str__)
    if isinstance(value, (type, enum.Enum)):
        return any(isinstance(one, types.FunctionType) and one.__module__ != "enum" for one in texts)
    is_code = isinstance(cls.__repr__, types.FunctionType) or cls.__repr__ is object.__repr__
    return is_code and cls.__str__ is object.__str__ and not isinstance(value, torch.Tensor)
