"""Hears calls of the program's code that Dynamo runs while it traces a frame, instead of tracing it.

Dynamo makes no guards on the reads of such code, so the frame is refused. Python tells of each call
(``sys.monitoring`` since 3.12, ``sys.setprofile`` before), so this depends on no list of the ways in which Dynamo comes
to run code: special methods, properties of enumerations, hooks of metaclasses.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import linecache
import logging
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo import convert_frame, output_graph, utils
from torch._dynamo import guards as torchs
from torch._dynamo.variables import misc

from fxpool.torch_compat.operators import code_owner

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["heard"]


def _code(function: Any) -> types.CodeType:
    code: types.CodeType = inspect.unwrap(function).__code__
    return code


_TRACING = _code(convert_frame._compile)
# Steps of Dynamo's that may run the program's code, or code without a file that torch made. The backend is not tracing,
# this package compares guards itself, guards that fail are only reported, and `unguarded_reads` hears which operators
# run on tensors without data.
_STEPS = frozenset(
    (
        _code(output_graph.OutputGraph.call_user_compiler),
        _code(torchs.CheckFunctionManager.__init__),
        _code(torchs.get_guard_fail_reason_helper),
        _code(utils.run_node),
    )
)
# Reads attributes, and has guards made on the answers (in torch 2.11 and 2.12).
_READS = frozenset((_code(misc.SuperVariable.call_method),))
# Files of Python's that run hooks of others, which change nothing that is traced: finders of modules and of source
# text, handlers of messages.
_HOOKED = frozenset(
    (
        "<frozen importlib._bootstrap>",
        linecache.getlines.__code__.co_filename,
        logging.Logger.handle.__code__.co_filename,
        warnings.formatwarning.__code__.co_filename,
    )
)
# torch.fx makes code under this name.
_OF_FX = "<eval_with_key>"
# The garbage collector runs these.
_FINALIZERS = frozenset(("__del__",))
# torch looks up names that only torch uses, such as ``_is_fsdp_managed_module``.
_LOOKUPS = frozenset(("__getattr__", "__getattribute__"))
# Records have these attributes of objects that are not classes (`fxpool.frames.identity`).
_DESCRIBED = frozenset(("__class__", "__dict__"))
# Dynamo looks these up to find data classes, and enumerations of pybind11.
_PROBED = frozenset(("__dataclass_fields__", "__members__"))
_TOOL = "fxpool"
_TOOLS = 6  # ids of tools that programs may use, from 0


class _CannotHearError(Exception):
    """Another tool has what Python has for hearing calls."""


@contextlib.contextmanager
def heard(recorder: Recorder) -> Iterator[None]:
    """Refuse a recorder's frame if this thread runs code of the program's in this block, which traces it.

    Dynamo's lock must be held.
    """
    thread = threading.get_ident()

    def meet(code: types.CodeType, frame: types.FrameType) -> bool:
        """Take note of a call; return whether calls of this code are of no interest."""
        if recorder.refusal is not None or _is_librarys(code, frame):
            return True
        if threading.get_ident() != thread or code in recorder.called or _is_collectors(code):
            return False
        name = _looked_up_in(frame)
        if not is_accounted_for(name) and not is_passed_over(frame.f_back):
            text = f"tracing ran {code.co_name} ({code.co_filename}:{code.co_firstlineno}) without guards on it"
            if name is None or (name.startswith("__") and name not in _PROBED):  # Python looks them up for the program
                recorder.refuse("object", text)
            else:
                recorder.probes[name] = text
        return False

    def is_accounted_for(name: str | None) -> bool:
        return name in _DESCRIBED or name in recorder.probes

    def is_passed_over(calling: types.FrameType | None) -> bool:
        """Return whether a call comes from a step that is not tracing, a hook or a probe."""
        is_by_library = False
        while calling is not None and calling.f_code is not _TRACING:
            code = calling.f_code
            if code in _STEPS or code in recorder.called or code.co_filename in _HOOKED or _is_collectors(code):
                return True
            if is_accounted_for(_looked_up_in(calling)):
                return True
            if not is_by_library:
                is_by_library = _is_librarys(code, calling)
                if code in _READS:
                    return True
            calling = calling.f_back
        return False

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_listening(meet) if sys.version_info >= (3, 12) else _profiling(meet))
        except _CannotHearError as error:
            recorder.refuse("profiler", f"calls can't be heard while the frame is traced: {error}")
        yield


def _is_collectors(code: types.CodeType) -> bool:
    """Return whether the garbage collector runs code, which it may at any time."""
    if code.co_name in _FINALIZERS:
        return True
    return any(getattr(one, "__code__", getattr(type(one).__call__, "__code__", None)) is code for one in gc.callbacks)


def _is_librarys(code: types.CodeType, frame: types.FrameType) -> bool:
    path = code.co_filename
    if path.startswith("<"):
        is_run_at_once = code.co_name == "<module>"  # a text that a library runs; functions in it are heard themselves
        return is_run_at_once or path.startswith(_OF_FX) or code_owner.is_known_file(path, frame.f_globals)
    return _is_file_of_library(path)


@functools.lru_cache(maxsize=4096)
def _is_file_of_library(path: str) -> bool:
    return code_owner.is_known_file(path, {})


def _looked_up_in(frame: types.FrameType) -> str | None:
    """Return the name of the attribute that a call of a program's ``__getattr__`` looks up; None for other calls."""
    code = frame.f_code
    if code.co_name not in _LOOKUPS or code.co_argcount != 2 or _is_librarys(code, frame):
        return None
    value, name = map(frame.f_locals.get, code.co_varnames[:2])
    if type(name) is not str or (name in _DESCRIBED and issubclass(type(value), type)):
        return None
    return name


_Meet = Callable[[types.CodeType, types.FrameType], bool]


@contextlib.contextmanager
def _profiling(meet: _Meet) -> Iterator[None]:
    passed_over: dict[int, types.CodeType] = {}  # by id, as a hash of code takes longer than all of this

    def hear(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call" and id(frame.f_code) not in passed_over and meet(frame.f_code, frame):
            passed_over[id(frame.f_code)] = frame.f_code

    if sys.getprofile() is not None:
        raise _CannotHearError("a profiler runs")
    sys.setprofile(hear)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def _listening(meet: _Meet) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool = next((number for number in range(_TOOLS - 1, -1, -1) if monitoring.get_tool(number) is None), None)
    if tool is None:
        raise _CannotHearError("all tools of sys.monitoring are in use")

    def hear(code: types.CodeType, offset: int) -> Any:
        return monitoring.DISABLE if meet(code, sys._getframe(1)) else None

    starts = (monitoring.events.PY_START, monitoring.events.PY_RESUME)
    try:
        monitoring.use_tool_id(tool, _TOOL)
    except ValueError as error:  # another thread was faster
        raise _CannotHearError(str(error)) from error
    try:
        for event in starts:
            monitoring.register_callback(tool, event, hear)
        monitoring.set_events(tool, starts[0] | starts[1])
        yield
    finally:
        monitoring.set_events(tool, 0)
        for event in starts:
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
