"""Hears what Dynamo reads without a guard while it traces a frame: the recorder compares it, or refuses the frame.

Dynamo takes for constants what it finds out by running code of Python's, torch's or the program's: an operator's sizes,
the text of an object, a hash, the order of a set. And it leaves guards out where it takes an object for one that never
changes: globals of Python's library, C functions, classes of tensors.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import codegen, output_graph, symbolic_convert
from torch._dynamo import guards as torchs
from torch._dynamo import source as torchs_sources
from torch._dynamo.variables import (
    builder,
    constant,
    dicts,
    functions,
    misc,
    script_object,
    tensor,
)
from torch._dynamo.variables import torch as torch_functions

from fxpool.torch_compat.frames.misleading_sources import elsewhere
from fxpool.torch_compat.frames.set_orders import sets
from fxpool.torch_compat.frames.unguarded_builtins import builtins
from fxpool.torch_compat.frames.unguarded_objects import DESCRIPTORS, without_source
from fxpool.torch_compat.frames.variables import LITERALS, Patch, methods, realized, value_of
from fxpool.torch_compat.operators import code_owner
from fxpool.torch_compat.patching import patched

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["heard"]

# Sources of Dynamo's that do not lead from a frame's variables to an object that is there before it runs.
_NOT_OBJECTS = frozenset(
    ("BackwardStateSource", "CallFunctionNoArgsSource", "CallMethodItemSource", "ConstantSource", "ConvertIntSource",
     "CurrentStreamSource", "DynamicScalarSource", "EphemeralSource", "FlattenScriptObjectSource", "FloatTensorSource",
     "GlobalStateSource", "IndexedSource", "NegateSource", "NumpyTensorSource", "RandomValueSource",
     "ScriptObjectQualifiedNameSource", "ShapeEnvSource", "SkipGuardSource", "SyntheticLocalSource",
     "TempLocalSource", "TensorPropertySource", "TorchFunctionModeStackSource")
)  # fmt: skip
_ALL_ATTRIBUTES = "__dict__"
# Names are not longer.
_LONGEST = 200
# Methods that look up an attribute; releases have some of them.
_LOOKUPS = ("call_obj_hasattr", "var_getattr", "tp_getattro_impl")
# Functions whose results Dynamo takes for constants, though they depend on installed packages.
_ABOUT_PACKAGES = (importlib.util.find_spec, importlib.metadata.version)
# Functions that say something of a process group, whose results Dynamo takes for constants.
_OF_GROUPS = frozenset(
    ("_get_group_size_by_name", "_get_group_tag", "_rank_not_in_group", "_resolve_group_name_by_ranks_and_tag",
     "get_process_group_ranks", "get_rank", "get_world_size")
)  # fmt: skip
_ADDRESS = " at 0x"


@contextlib.contextmanager
def heard(recorder: Recorder) -> Iterator[None]:
    """Tell a recorder what Dynamo reads in this block without a guard, and have it make some more guards.

    Dynamo's lock must be held.
    """
    with contextlib.ExitStack() as stack:
        for listen in _LISTENERS:
            for owner, name, replacement in listen(recorder):
                stack.enter_context(patched(owner, name, replacement))
        yield


def _skipped_guards(recorder: Recorder) -> Iterator[Patch]:
    """Guards on globals of Python's library, signatures and annotations; on functions in C and classes of tensors."""
    for module in (symbolic_convert, functions, builder):
        if hasattr(module, "SkipGuardSource"):
            yield module, "SkipGuardSource", lambda base: base

    def wrap(self: Any, value: Any) -> Any:
        if _is_taken_for_constant(value) and self.source is not None:
            self.install_guards(torchs.GuardBuilder.ID_MATCH)
        elif isinstance(value, types.MethodWrapperType):
            recorder.refuse("object", f"{value.__qualname__}, which is another object each time")
        return original(self, value)

    original = builder.VariableBuilder._wrap
    yield builder.VariableBuilder, "_wrap", wrap


def _unguarded(recorder: Recorder) -> Iterator[Patch]:
    """Objects that Dynamo wraps without any guard, or meets again under another source."""

    def call(self: Any, value: Any) -> Any:
        variable = original(self, value)
        source = self.source
        if source is not None:
            recorder.met[source.name] = value
        if type(value) in LITERALS or source is None or not _is_plain_way(source):
            return variable
        if source.name not in names_in(self.tx.output.guards):
            torchs.install_guard(source.make_guard(torchs.GuardBuilder.TYPE_MATCH))
        return variable

    def add(guards: Any, guard: Any, **named: Any) -> Any:
        if (source := guard.originating_source) is not None:
            names_in(guards).add(source.name)
        return added(guards, guard, **named)

    def names_in(guards: Any) -> set[str]:
        return guarded.setdefault(id(guards), (set(), guards))[0]

    # By the id of a set of guards: Dynamo makes another where it starts over. They are held, so that no id comes twice.
    guarded: dict[int, tuple[set[str], Any]] = {}
    original, added = builder.VariableBuilder.__call__, torch._guards.GuardsSet.add
    yield torch._guards.GuardsSet, added.__name__, add
    yield builder.VariableBuilder, original.__name__, call


def _is_plain_way(source: Any) -> bool:
    """Return whether a source leads to an object, so that a guard can be made."""
    while source is not None:
        if type(source).__name__ in _NOT_OBJECTS or type(source).__module__ != torchs_sources.__name__:
            return False
        source = getattr(source, "base", None)
    return True


def _is_taken_for_constant(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, torch.Tensor) and value is not torch.Tensor and not code_owner.is_own(value)
    return type(value) in DESCRIPTORS


def _lookups(recorder: Recorder) -> Iterator[Patch]:
    """Names of attributes of modules and tensors, which code may compute."""

    def of_module(original: Callable[..., Any]) -> Callable[..., Any]:
        def look_up(variable: Any, tx: Any, name: str, *arguments: Any, **named: Any) -> Any:
            recorder.attributes.append((variable.value, name))
            answering = vars(variable.value).get("__getattr__", getattr(type(variable.value), "__getattr__", None))
            if (code := getattr(answering, "__code__", None)) is not None:
                recorder.called.add(code)  # the answer is compared
            return original(variable, tx, name, *arguments, **named)

        return look_up

    def of_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
        def look_up(variable: Any, tx: Any, name: str, *arguments: Any, **named: Any) -> Any:
            recorder.keys.add(name)
            return original(variable, tx, name, *arguments, **named)

        return look_up

    yield from methods([misc.PythonModuleVariable], _LOOKUPS, of_module)
    yield from methods([tensor.TensorVariable], _LOOKUPS, of_tensor)


def _keys(recorder: Recorder) -> Iterator[Patch]:
    """Texts that are looked up in dictionaries, which may be in vain."""

    def item(variable: Any, tx: Any, key: Any) -> Any:
        text = value_of(key)
        if type(text) is str:
            recorder.keys.add(text)
        elif type(text) is bytes:
            recorder.keys.add(text.decode(errors="surrogateescape"))  # an environment variable
        return get(variable, tx, key)

    def initialize(tracker: Any, variable: Any, *arguments: Any, **named: Any) -> None:
        key_made(tracker, realized(variable) or variable, *arguments, **named)  # which makes its guards

    get = dicts.ConstDictVariable.getitem_const_raise_exception_if_absent
    yield dicts.ConstDictVariable, get.__name__, item
    tracker = getattr(dicts, "HashableTracker", None) or dicts.ConstDictVariable._HashableTracker
    key_made = tracker.__init__
    yield tracker, key_made.__name__, initialize


def _calls(recorder: Recorder) -> Iterator[Patch]:
    """Calls of functions that Dynamo does not trace, and whose results it takes for constants."""

    def skip(variable: Any, tx: Any, arguments: Sequence[Any], named: Any) -> Any:
        answer = call_skipped(variable, tx, arguments, named)
        if any(variable.value is one for one in _ABOUT_PACKAGES):
            constants = tuple(argument.as_python_constant() for argument in arguments)
            recorder.results.append((variable.value, constants, {}, variable.value(*constants)))
        elif any(map(_is_function, (*arguments, *named.values()))):
            name = getattr(variable.value, "__qualname__", type(variable.value).__qualname__)
            recorder.refuse("object", f"the result of {name}, which calls a function")
        return answer

    def call_for_constant(tx: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        return call_marked(tx, recorder.calling(function), *arguments)

    def call_in_graph(variable: Any, tx: Any, arguments: Sequence[Any], named: Any) -> Any:
        answer = called(variable, tx, arguments, named)
        function = variable.value
        if getattr(function, "__name__", "") in _OF_GROUPS and isinstance(answer, constant.ConstantVariable):
            constants = tuple(argument.as_python_constant() for argument in arguments)
            others = {name: argument.as_python_constant() for name, argument in named.items()}
            recorder.results.append((function, constants, others, answer.value))
        return answer

    called = torch_functions.TorchInGraphFunctionVariable.call_function
    yield torch_functions.TorchInGraphFunctionVariable, called.__name__, call_in_graph
    call_skipped = functions.SkipFunctionVariable.call_function
    call_marked = functions.invoke_and_store_as_constant
    yield functions.SkipFunctionVariable, call_skipped.__name__, skip
    for module in (functions, importlib.import_module("torch._dynamo.variables.nn_module")):
        yield module, call_marked.__name__, call_for_constant


def _is_function(variable: Any) -> bool:
    kinds = (functions.BaseUserFunctionVariable, functions.FunctoolsPartialVariable)
    return isinstance(realized(variable), kinds)


def _constants(recorder: Recorder) -> Iterator[Patch]:
    """Texts: those with addresses, and those that code may look up as names, which it may have computed."""

    def initialize(variable: Any, *arguments: Any, **named: Any) -> None:
        value = arguments[0] if arguments else named.get("value")  # a subclass has no value
        if type(value) is str:
            if _ADDRESS in value:
                recorder.refuse("object", "a text with an address")
            if len(value) <= _LONGEST:
                recorder.keys.update(filter(str.isidentifier, value.split(".")))
            # A constant of code has no source, and there is one such object.
            if value == _ALL_ATTRIBUTES and (named.get("source") is not None or value is not _ALL_ATTRIBUTES):
                recorder.computes_all_attributes = True
        original(variable, *arguments, **named)

    original = constant.ConstantVariable.__init__
    yield constant.ConstantVariable, original.__name__, initialize


def _operators(recorder: Recorder) -> Iterator[Patch]:
    """Operators and functions that run on tensors without data: sizes of results become constants."""

    def create(tracer: Any, kind: str, target: Any, *arguments: Any, **named: Any) -> Any:
        if kind == "call_function":
            recorder.targets[id(target)] = target
        elif kind == "call_method" and not code_owner.is_own(getattr(torch.Tensor, target, None)):
            recorder.refuse("object", f"Tensor.{target}, which runs in the graph")
        return original(tracer, kind, target, *arguments, **named)

    original = output_graph.SubgraphTracer.create_proxy
    yield output_graph.SubgraphTracer, original.__name__, create


def _defined(recorder: Recorder) -> Iterator[Patch]:
    """Names of globals that Dynamo defines once for all frames of a module."""

    def define(generator: Any, name: str, value: Any) -> Any:
        loading = original(generator, name, value)
        recorder.shared.update(one.argval for one in loading)  # torch changes some names
        return loading

    original = codegen.PyCodegen.setup_globally_cached
    yield codegen.PyCodegen, original.__name__, define


def _opaque(recorder: Recorder) -> Iterator[Patch]:
    """Code of the program's opaque objects, which Dynamo runs."""

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(variable: Any, *arguments: Any, **named: Any) -> Any:
            value = getattr(variable, "value", None)
            cls = value if isinstance(value, type) else type(value)
            if not code_owner.is_own(cls):
                recorder.refuse("object", f"code of {cls.__qualname__}, an opaque type")
            return original(variable, *arguments, **named)

        return run

    names = ("OpaqueObjectClassVariable", "TorchScriptObjectVariable")
    classes = [cls for name in names if (cls := getattr(script_object, name, None)) is not None]
    yield from methods(classes, ("call_function", "call_method", "richcompare_impl"), running)


_LISTENERS = (
    _skipped_guards, _unguarded, _lookups, _keys, builtins, _calls, _constants, _operators, sets, _opaque, _defined,
    without_source, elsewhere,
)  # fmt: skip
