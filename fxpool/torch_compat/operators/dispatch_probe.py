"""Finds the Python code that the dispatcher would run for an operator.

The dispatcher holds a kernel that a program registers with ``torch.library.Library.impl`` in C++, and no function of
torch returns it. So it is probed: the operator is sent to the kernel with stand-in arguments, and a profiling function
stops the call at the kernel's first frame, before any of its code has run. Only kernels registered from Python are
probed. The dispatcher's table shows the place of registration: a Python source file for these, and the C++ source for
kernels of C++.

A `types.FrameType` has all parts of the kernel: code, globals, the values of its closure and of its defaults.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch._ops import OpOverload

from fxpool.torch_compat.dynamo import tensors

__all__ = ["NotFoundError", "defined_at", "foreign_sources", "python_kernels", "python_places", "registered"]

# A row of the dispatcher's table: a key, the file and line of its kernel's registration, and the kind of entry.
_ROW = re.compile(r"^(\w+): (fallthrough )?registered at (.+):(\d+) \[(.+)\]$", re.MULTILINE)
# A registration as it was made, for a key or for an alias of keys.
_REGISTERED = re.compile(r"^(\w+)(?:\[alias\])?: (fallthrough )?registered at (.+):\d+ ", re.MULTILINE)
_FALLBACK = "backend fallback"  # the same for all operators
# Kernels of these kinds serve many keys, each with a separate row.
_OF_MANY_KEYS = frozenset(("math kernel", "autograd kernel", "default backend kernel", "composite kernel"))


class NotFoundError(Exception):
    """A kernel was registered from Python, but its code cannot be found; the text names the kernel."""


class _ReachedError(BaseException):
    """Stops the call; a BaseException, so that no code in between catches it."""


def python_kernels(op: OpOverload) -> Iterator[tuple[str, str, types.FunctionType, dict[str, Any]]]:
    """Yield (dispatch key, kind, function, additional arguments) of each kernel registered from Python.

    The kind is the dispatcher's: ``kernel`` is registered for this key, ``math kernel`` for many. The function is
    rebuilt from the kernel's code, globals and closure, for inspection. For a callable object it is ``__call__``,
    and the object is among the arguments.

    Raises NotFoundError: a kernel has no Python code, or does not take the operator's arguments.
    """
    asked: set[tuple[str, str, str]] = set()
    for key, path, line, kind in _rows(op):
        if not _is_python(path):
            continue
        if kind in _OF_MANY_KEYS:
            if (path, line, kind) in asked:
                continue
            asked.add((path, line, kind))
        yield key, kind, *_first_frame(op, key)


def foreign_sources(op: OpOverload) -> dict[str, str]:
    """Return the C++ files that kernels were registered in, as named when they were compiled, by key or alias."""
    return {key: path for key, path in registered(op.name()) if not _is_python(path)}


def registered(name: str) -> Iterator[tuple[str, str]]:
    """Yield (key or alias, file) of each registration for an operator, besides those that fall through."""
    for key, fallthrough, path in _REGISTERED.findall(torch._C._dispatch_dump(name)):
        if not fallthrough and key not in ("debug", "name", "schema"):
            yield key, path


def python_places(op: OpOverload, key: str) -> set[str]:
    """Return the Python files whose libraries registered a kernel of an operator for a dispatch key or an alias."""
    rows = list(_rows(op))
    named = [row for row in rows if row[0] == key] or [row for row in rows if row[3] in _OF_MANY_KEYS]
    return {path for _, path, _, _ in named if _is_python(path)}


def defined_at(op: OpOverload) -> str:
    """Return the Python file in which an operator was defined; "" if C++ defines it."""
    match = re.search(r"^debug: registered at (.+):\d+$", torch._C._dispatch_dump(op.name()), re.MULTILINE)
    return match.group(1) if match and _is_python(match.group(1)) else ""


def _rows(op: OpOverload) -> Iterator[tuple[str, str, str, str]]:
    for key, fallthrough, path, line, kind in _ROW.findall(torch._C._dispatch_dump_table(op.name())):
        if not fallthrough and kind != _FALLBACK:
            yield key, path, line, kind


def _is_python(path: str) -> bool:
    return path.endswith((".py", ".pyc")) or path.startswith("<")


def _first_frame(op: OpOverload, key: str) -> tuple[types.FunctionType, dict[str, Any]]:
    arguments, keywords = _stand_ins(op)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    call = functools.partial(op._handle.redispatch_boxed, keys, *arguments, **keywords)
    if sys.getprofile() is None:
        reached = _stopped(call)
    else:  # the program has a profiler, possibly one that only C can restore: probe in a thread without a profiler
        with ThreadPoolExecutor(1, thread_name_prefix="fxpool-probe") as thread:
            reached = thread.submit(_stopped, call).result()
    if isinstance(reached, Exception):
        raise NotFoundError(f"the kernel of {op.name()} for {key}: {reached}")
    if reached is None:
        raise NotFoundError(f"the kernel of {op.name()} for {key}, which is not Python code")
    return _function_of(reached)


def _stopped(call: Callable[[], object]) -> types.FrameType | Exception | None:
    """Run a call up to its first Python frame, and return that frame, an exception raised before it, or None."""
    reached: list[types.FrameType] = []

    def stop(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            reached.append(frame)
            raise _ReachedError

    collecting = gc.isenabled()
    gc.disable()  # a finalizer could be the first frame
    sys.setprofile(stop)
    try:
        call()
    except _ReachedError:
        pass
    except Exception as error:
        return error
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return reached[0] if reached else None


def _function_of(frame: types.FrameType) -> tuple[types.FunctionType, dict[str, Any]]:
    code, values = frame.f_code, dict(frame.f_locals)
    closure = tuple(
        types.CellType(values.pop(name)) if name in values else types.CellType() for name in code.co_freevars
    )
    function = types.FunctionType(code, frame.f_globals, code.co_name, None, closure)
    # Values gathered by *args and **kwargs are the operator's arguments, as are tensors and key sets.
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    other_names = [name for name in named if name in values and not isinstance(values[name], _STAND_IN_TYPES)]
    others = {name: values[name] for name in other_names}
    return function, others


def _stand_ins(op: OpOverload) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments that an operator's schema accepts. Raises NotFoundError."""
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in op._schema.arguments:
        value = _stand_in(argument.type, op)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            arguments.append(value)
    return arguments, keywords


def _stand_in(kind: Any, op: OpOverload) -> Any:
    name = kind.kind()
    if name == "TensorType":
        with tensors.modes_disabled():
            return torch.empty(0)
    if name == "DeviceObjType":
        return torch.device("cpu")
    if name in _STAND_INS:
        value = _STAND_INS[name]
        return list(value) if isinstance(value, list) else value
    raise NotFoundError(f"the kernels of {op.name()}, which takes a {kind}")


_STAND_IN_TYPES = (torch.Tensor, torch._C.DispatchKeySet)
_STAND_INS: dict[str, Any] = {
    "OptionalType": None,
    "ListType": [],
    "IntType": 0,
    "SymIntType": 0,
    "FloatType": 0.0,
    "SymFloatType": 0.0,
    "BoolType": False,
    "SymBoolType": False,
    "NumberType": 0,
    "ComplexType": 0j,
    "StringType": "",
    "LayoutType": 0,
    "ScalarTypeType": 0,
    "MemoryFormatType": 0,
    "NoneType": None,
    "AnyType": None,
    "DictType": {},
}
