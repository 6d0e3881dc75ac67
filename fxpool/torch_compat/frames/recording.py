"""Collects what Dynamo makes of a frame while it traces it: byte code, guards, and the code of inlined functions.

Dynamo tells a ``CompilePackage`` these, if there is one. `Recorder` takes its place; torch writes nothing down.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib.metadata
import importlib.util
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo import config, convert_frame
from torch._dynamo import guards as torchs
from torch._dynamo.variables import builtin, dicts, functions, misc, nn_module

from fxpool.torch_compat.dynamo.frames import rests_inside
from fxpool.torch_compat.frames.guard_calls import Listener
from fxpool.torch_compat.frames.guards import Guards, NoGuardsError, read, remembering
from fxpool.torch_compat.patching import patched

__all__ = ["Recorder", "recording"]


class Recorder:
    """Receives what Dynamo makes of one frame. Names are of globals of the frame's module.

    `code` is the frame's new byte code, None if Dynamo made none. `inlined` is the code of all functions that were
    traced; `imports` the module behind each name that Dynamo gave to one; `graphs` the callable in the place of each
    graph; `resumed` code and module of functions for the rest after a graph break; `installed` all names that Dynamo
    defined. `before` are the names that the frame's module had before it was traced.
    `listener` has heard most of the guards, `guards` are the others, and
    `functions` those that Dynamo wrote for some of them (`guards.remembering`).
    `results` are (function, arguments, named ones, result) of calls that Dynamo made and takes for constants.
    `attributes` are (module, name) of lookups of a module's attributes, and `keys` the texts that were looked up in
    dictionaries: code may compute these names. `listed` are modules and classes whose names code listed with ``dir()``.
    `refusal` says why the frame can't be kept, as a reason and a text.
    """

    def __init__(self) -> None:
        self.code: types.CodeType | None = None
        self.guards: Guards | None = None
        self.listener: Listener | None = None
        self.functions: dict[str, str] = {}
        self.inlined: list[types.CodeType] = []
        self.imports: dict[str, str] = {}
        self.graphs: dict[str, Callable[..., Any]] = {}
        self.resumed: dict[str, tuple[types.CodeType, str]] = {}
        self.installed: frozenset[str] = frozenset()
        self.before: frozenset[str] = frozenset()
        self.results: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        self.attributes: list[tuple[types.ModuleType, str]] = []
        self.keys: set[str] = set()
        self.listed: list[types.ModuleType | type] = []
        self.refusal: tuple[str, str] | None = None

    def calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and remembers the result."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.results.append((function, args, kwargs, result))
            return result

        return call

    def globals(self) -> set[str]:
        """Return the globals that guards begin at."""
        found = self.guards.globals() if self.guards is not None else set()
        return found | (self.listener.globals() if self.listener is not None else set())

    def rests(self) -> list[types.CodeType]:
        """Return the code of all functions for the rest after a graph break."""
        return [
            *(code for code, _ in self.resumed.values()),
            *(rests_inside(self.code) if self.code is not None else ()),
        ]

    # ------------------------------------------------------------ called by Dynamo

    @contextlib.contextmanager
    def code_context(self, code: types.CodeType) -> Iterator[None]:
        yield

    def add_guarded_code(self, guards: bytes, code: types.CodeType) -> None:
        self.code = code

    def add_inlined_source(self, codes: Sequence[types.CodeType]) -> None:
        self.inlined += codes

    def update_device_type(self, graph: Any) -> None: ...

    def add_import_source(self, alias: str, module: str) -> None:
        self.imports[alias] = module

    def add_backend_id(self, name: str, function: Callable[..., Any]) -> None:
        self.graphs[name] = function

    def add_resume_function(self, code: types.CodeType, module: str, name: str | None) -> None:
        if name is not None:  # one with variables of a closure is among the constants of `code`
            self.resumed[name] = (code, module)

    def bypass_current_entry(self) -> None:
        self.refusal = self.refusal or ("torch", "torch's own packages keep no such frame either")

    bypass_current_compile = bypass_current_entry  # its name since 2.15


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have the guards that Dynamo builds in this block read into the recorder. Dynamo's lock must be held."""

    class Reading(torchs.CheckFunctionManager):
        def build_guards(self, guards: Sequence[Any], *arguments: Any, **named: Any) -> Any:
            if not config.guard_nn_modules:
                return super().build_guards(guards, *arguments, **named)
            builder, manager = super().build_guards([], *arguments, **named)
            recorder.listener = Listener(builder, manager.root)
            recorder.listener.make(guards)
            return builder, manager

        def serialize_guards(self, builder: Any, guards: Sequence[Any], graph: Any) -> bytes:
            heard = recorder.listener.heard if recorder.listener is not None else ()
            try:
                others = [guard for guard in guards if id(guard) not in heard]
                recorder.guards = read(self.shape_code_parts, builder, others, graph)
                recorder.installed = frozenset(graph.installed_globals)
            except NoGuardsError as error:
                recorder.refusal = recorder.refusal or ("guard", str(error))
            return b"read"

    def call_for_constant(tx: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        return original(tx, recorder.calling(function), *arguments)

    original = functions.invoke_and_store_as_constant
    with (
        patched(convert_frame, "CheckFunctionManager", Reading),
        patched(functions, "invoke_and_store_as_constant", call_for_constant),
        patched(nn_module, "invoke_and_store_as_constant", call_for_constant),
        remembering(recorder.functions),
        _lookups_heard(recorder),
    ):
        yield


# Methods that look up an attribute of a module; releases have some of them.
_OF_MODULES = ("call_obj_hasattr", "var_getattr", "tp_getattro_impl")
# Python's functions that Dynamo calls on a program's objects.
_READERS = (dir, str, repr, format)
# Functions whose results Dynamo takes for constants, though they depend on installed packages.
_ABOUT_PACKAGES = (importlib.util.find_spec, importlib.metadata.version)


@contextlib.contextmanager
def _lookups_heard(recorder: Recorder) -> Iterator[None]:
    """Tell a recorder what Dynamo reads in this block without a guard: names looked up in vain, names listed, texts."""

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
