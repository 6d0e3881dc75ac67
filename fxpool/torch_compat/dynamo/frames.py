"""Describes for people the program's function that Dynamo is tracing, and a graph's inputs.

Nothing here goes into a key, and no error here may fail a compile.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Frame", "current_frame", "frame_of", "rests_inside", "shown_inputs"]

# Dynamo's name for the rest of a function after a graph break.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
# The file of the frame that Dynamo puts around code it may not trace by itself (a module of torch's).
_WRAPPERS = os.path.join("torch", "_dynamo", "external_utils.py")
_SHOWN = 8


class Frame(NamedTuple):
    """A function that is traced. `model` is the class of the module it is a method of, or empty.

    `file` is relative to the directory of `sys.path` it was imported from, so that it is the same on another host;
    `line` is where it begins, or where it continues after a graph break (`resumed`).
    """

    model: str
    function: str
    file: str
    line: int
    resumed: bool

    @property
    def name(self) -> str:
        """``GPT2LMHeadModel.forward``, ``train_step``."""
        return f"{self.model}.{self.function.rpartition('.')[2]}" if self.model else self.function


def current_frame() -> Frame | None:
    """Return the outermost frame that is traced in this thread; None if it cannot be determined."""
    convert = sys.modules.get("torch._dynamo.symbolic_convert")
    if convert is None:
        return None
    try:
        translator = convert.InstructionTranslator.current_tx()
        return frame_of(translator.f_code, translator.f_locals)
    except Exception:  # a thread that does not trace, another Dynamo, a program's own __getattr__
        return None


def frame_of(code: types.CodeType, variables: dict[str, Any]) -> Frame:
    """Return the function that code belongs to; the class of `self` counts. Raises what the program's objects raise."""
    owner: Any = variables.get("self")
    if code.co_filename.endswith(_WRAPPERS):
        target = variables.get("fn")
        while isinstance(target, functools.partial):
            target = target.func
        owner = getattr(target, "__self__", target)
        code = _code_of(getattr(target, "forward", target)) or code
    elif owner is None and code.co_argcount:
        owner = variables.get(code.co_varnames[0])
    model = ""
    if isinstance(owner, torch.nn.Module):
        model = type(owner).__name__
        code = _behind_decorators(code, getattr(type(owner), "forward", None))
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    line = code.co_firstlineno
    resumed = _RESUMED.search(name)
    if resumed is not None:
        name, line = name[: resumed.start()] + resumed[1] + name[resumed.end() :], int(resumed[2])
    return Frame(model, name, _relative(code.co_filename), line, resumed is not None)


def rests_inside(code: types.CodeType) -> list[types.CodeType]:
    """Return the rests after graph breaks that code has among its constants, in their order."""
    found: list[types.CodeType] = []
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            found += [value] if _RESUMED.search(value.co_name) else rests_inside(value)
    return found


def _code_of(function: Any) -> types.CodeType | None:
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _behind_decorators(code: types.CodeType, function: Any) -> types.CodeType:
    """Return the code of the decorated function if `code` is that of a decorator's wrapper, else `code`."""
    at = function
    while at is not None:
        if getattr(at, "__code__", None) is code:
            return _code_of(function) or code
        at = getattr(at, "__wrapped__", None)
    return code


def _relative(path: str) -> str:
    if not os.path.isabs(path):
        return path  # <stdin>, a cell of a notebook
    roots = [os.path.abspath(root) for root in sys.path if root] + [os.getcwd()]
    above = [root for root in roots if path.startswith(root.rstrip("/") + "/") and root != "/"]
    return os.path.relpath(path, max(above, key=len)) if above else os.path.basename(path)


def shown_inputs(values: Sequence[Any], sources: Sequence[Any | None]) -> tuple[list[str], int]:
    """Return (dtype and sizes of tensor inputs, the first few; number of parameters and buffers)."""
    shown: list[str] = []
    kept = 0
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            continue
        if isinstance(value, torch.nn.Parameter) or _of_a_module(sources[number] if number < len(sources) else None):
            kept += 1
            continue
        where = "" if value.device.type == "cpu" else f" {value.device}"
        sizes = ", ".join(map(str, value.shape))
        shown.append(f"{str(value.dtype).removeprefix('torch.')}[{sizes}]{where}")
    more = len(shown) - _SHOWN
    return (shown if more <= 0 else [*shown[:_SHOWN], f"{more} more"]), kept


def _of_a_module(source: Any | None) -> bool:
    """Return whether a source is an attribute of a module that is traced."""
    guard_source = getattr(source, "guard_source", None)
    guard_source = guard_source() if callable(guard_source) else guard_source  # a property since 2.12
    of_module = (
        getattr(guard_source, name, None) for name in ("is_unspecialized_nn_module", "is_specialized_nn_module")
    )
    return any(is_it() for is_it in of_module if is_it is not None)
