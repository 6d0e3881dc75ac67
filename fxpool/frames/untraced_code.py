"""Code of programs that Dynamo runs while it traces, instead of tracing it: what that code reads has no guards.

Such code is let be if its names say that its result depends on nothing else.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from fxpool.torch_compat.frames.unguarded_facts import is_folded

__all__ = ["ANSWERING", "depending", "globals_of", "holding", "is_answering", "is_librarys", "is_librarys_name"]

#: A module with one of these names may have attributes that are not in its namespace.
ANSWERING = frozenset(("__getattr__",))
_DATA = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    frozenset,
    list,
    dict,
    set,
    torch.dtype,
    torch.device,
)
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch"))
# Special methods of metaclasses that run when a class is made, or that Dynamo traces.
_SEEN = frozenset(
    (
        "__new__", "__init__", "__prepare__", "__init_subclass__", "__call__", "__setattr__", "__delattr__",
        "__getattr__", "__doc__",
    )
)  # fmt: skip
# Names under which code reads more than it names.
_READING = frozenset(
    ("__bases__", "__builtins__", "__dict__", "__globals__", "__import__", "__mro__", "__subclasses__", "dir", "eval",
     "exec", "getattr", "globals", "hasattr", "hash", "id", "locals", "open", "vars")
)  # fmt: skip
_LOADING = frozenset(("IMPORT_NAME", "LOAD_GLOBAL", "LOAD_NAME"))
# Special methods that run when an object is made, or that Dynamo traces.
_OF_OBJECTS = _SEEN | {
    "__post_init__",
    "__reduce__",
    "__reduce_ex__",
    "__getnewargs__",
    "__set_name__",
    "__class_getitem__",
}


def is_answering(module: types.ModuleType) -> bool:
    """Return whether a module may have attributes that are not in its namespace."""
    return type(module) is not types.ModuleType or not ANSWERING.isdisjoint(vars(module))


def depending(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions that Dynamo runs for a class or its objects, and whose results depend on more."""
    has_data = not issubclass(cls, enum.Enum) or all(_is_data(member._value_) for member in cls.__members__.values())
    for function, attributes in _run(cls):
        if not _is_simple(function, attributes=attributes) or (attributes and not has_data):
            yield function


def _is_data(value: Any) -> bool:
    """Return whether a value is plain data, of which no method is the program's."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_data, value))
    return type(value) in (type(None), bool, int, float, complex, str, bytes)


def holding(cls: type) -> Iterator[types.FunctionType]:
    """Yield the special methods of a class that have an object in a closure: Dynamo makes no guard on it."""
    for name, value in () if is_librarys(cls) else vars(cls).items():
        function = getattr(value, "__func__", value)
        if name.startswith("__") and name not in _OF_OBJECTS and isinstance(function, types.FunctionType):
            for cell in function.__closure__ or ():
                try:
                    content = cell.cell_contents
                except ValueError:  # it is empty
                    continue
                if not isinstance(content, (type, types.FunctionType, types.ModuleType, *_DATA)):
                    yield function


def _run(cls: type) -> Iterator[tuple[types.FunctionType, bool]]:
    """Yield the program's functions that Dynamo runs, and does not trace, to do something with a class or its objects.

    These are special methods of its metaclass and of classes whose objects Dynamo takes for constants,
    ``__subclasshook__``, a property ``__class__``, and properties of enumerations; with each, whether it may read
    attributes.
    """
    metaclass: Any = type(cls)
    for base in metaclass.__mro__:
        if not is_librarys(base):
            for name, value in vars(base).items():
                if name.startswith("__") and name not in _SEEN and isinstance(value, types.FunctionType):
                    yield value, False
    for base in cls.__mro__:
        if not is_librarys(base):
            hook, own_class = vars(base).get("__subclasshook__"), vars(base).get("__class__")
            for value in (getattr(hook, "__func__", hook), getattr(own_class, "fget", None)):
                if isinstance(value, types.FunctionType) and not is_librarys(value):
                    yield value, False
    if is_folded(cls):
        for base in cls.__mro__:
            if not is_librarys(base):
                for name, value in vars(base).items():
                    function = getattr(value, "__func__", value)
                    is_run = name == "_missing_" or (name.startswith("__") and name not in _OF_OBJECTS)
                    is_run = is_run or (issubclass(cls, enum.Enum) and _has_special(base))  # special methods call it
                    if is_run and isinstance(function, types.FunctionType) and not is_librarys(function):
                        yield function, issubclass(cls, enum.Enum)
    if issubclass(cls, enum.Enum):
        for value in vars(cls).values():
            getter = getattr(value, "fget", None)
            if isinstance(getter, types.FunctionType) and not is_librarys(getter):
                yield getter, True


def _is_simple(function: types.FunctionType, *, attributes: bool) -> bool:
    """Return whether a function's result depends on its code and arguments alone, as far as names tell.

    With `attributes` it may read those of any name.
    """
    code = function.__code__
    if not {*code.co_freevars} <= {"__class__"} or function.__defaults__ or function.__kwdefaults__:
        return False
    nested = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    if nested or not _READING.isdisjoint(code.co_names):
        return False
    names = globals_of(code) if attributes else {*code.co_names}
    special = {name for name in names if name.startswith("__") and name.endswith("__")}
    return not any(name in function.__globals__ or not hasattr(builtins, name) for name in names - special)


@functools.lru_cache(maxsize=4096)
def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of globals and builtins that code reads."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in _LOADING)


def _has_special(cls: type) -> bool:
    """Return whether a class has special methods that Dynamo runs."""
    functions = ((name, getattr(value, "__func__", value)) for name, value in vars(cls).items())
    return any(
        (name == "_missing_" or (name.startswith("__") and name not in _OF_OBJECTS))
        and isinstance(function, types.FunctionType)
        and not is_librarys(function)
        for name, function in functions
    )


def is_librarys(value: Any) -> bool:
    """Return whether a class or function is of torch or Python's library."""
    return is_librarys_name(str(value.__module__))


def is_librarys_name(module: str) -> bool:
    """Return whether a module is torch's or of Python's library."""
    return module.partition(".")[0] in _LIBRARIES
