"""Hears what Dynamo reads without a guard while it traces a frame: the recorder compares it, or refuses the frame.

Dynamo takes for constants what it finds out by running code of Python's, torch's or the program's: an operator's sizes,
the text of an object, a hash, the order of a set. And it leaves guards out where it takes an object for one that never
changes: globals of Python's library, C functions, classes of tensors.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import importlib.metadata
import importlib.util
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import codegen, output_graph, symbolic_convert
from torch._dynamo import guards as torchs
from torch._dynamo import source as torchs_sources
from torch._dynamo.variables import (
    builder,
    builtin,
    constant,
    dicts,
    functions,
    lists,
    misc,
    script_object,
    tensor,
)
from torch._dynamo.variables import torch as torch_functions

from fxpool.torch_compat.frames import unguarded_facts
from fxpool.torch_compat.frames.misleading_sources import elsewhere
from fxpool.torch_compat.frames.unguarded_objects import DESCRIPTORS, without_source
from fxpool.torch_compat.operators import code_owner
from fxpool.torch_compat.patching import patched

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["heard"]

_Patch = tuple[Any, str, Any]

_LITERALS = (type(None), bool, int, float, complex, str, bytes)
# Sources of Dynamo's that do not lead from a frame's variables to an object that is there before it runs.
_NOT_OBJECTS = frozenset(
    ("BackwardStateSource", "CallFunctionNoArgsSource", "CallMethodItemSource", "ConstantSource", "ConvertIntSource",
     "CurrentStreamSource", "DynamicScalarSource", "EphemeralSource", "FlattenScriptObjectSource", "FloatTensorSource",
     "GlobalStateSource", "IndexedSource", "NegateSource", "NumpyTensorSource", "RandomValueSource",
     "ScriptObjectQualifiedNameSource", "ShapeEnvSource", "SkipGuardSource", "SyntheticLocalSource",
     "TempLocalSource", "TensorPropertySource", "TorchFunctionModeStackSource")
)  # fmt: skip
# Methods that look up an attribute; releases have some of them.
_LOOKUPS = ("call_obj_hasattr", "var_getattr", "tp_getattro_impl")
# Methods that read the elements of a set in their order; releases have some of them.
_IN_ORDER = ("unpack_var_sequence", "tp_iter_impl", "repr_impl")
# Python's functions that Dynamo calls on a program's objects.
_TEXTS = (str, repr, format, ascii)
# Functions whose results Dynamo takes for constants, though they depend on installed packages.
_ABOUT_PACKAGES = (importlib.util.find_spec, importlib.metadata.version)
# Functions that say something of a process group, whose results Dynamo takes for constants.
_OF_GROUPS = frozenset(
    ("_get_group_size_by_name", "_get_group_tag", "_rank_not_in_group", "_resolve_group_name_by_ranks_and_tag",
     "get_process_group_ranks", "get_rank", "get_world_size")
)  # fmt: skip
# Python's functions whose results do not depend on the order of a set.
_WITHOUT_ORDER = (
    all, any, bool, id, isinstance, issubclass, len, operator.contains, operator.eq, operator.ge, operator.gt,
    operator.le, operator.lt, operator.ne, operator.not_, operator.truth, sorted, type,
)  # fmt: skip
# Methods of sets that do not read in order.
_METHODS_WITHOUT_ORDER = frozenset(
    ("__contains__", "__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__len__", "__lt__", "__ne__", "add", "clear",
     "discard", "isdisjoint", "issubset", "issuperset", "remove")
)  # fmt: skip
# Dynamo's classes for Python's functions end with this.
_OF_BUILTINS = "BuiltinVariable"
# Comparisons of identities, by their text in byte code.
_IDENTITY = {"is": operator.is_, "is not": operator.is_not}
# Types of values that may be equal and not one.
_COPIED = (int, float, complex, str, bytes, torch.device)
# Numbers of which Python has one object each.
_SMALL = range(-5, 257)
# Numbers that are their own hash.
_NUMBERS = (int, float, bool)
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


def _skipped_guards(recorder: Recorder) -> Iterator[_Patch]:
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


def _unguarded(recorder: Recorder) -> Iterator[_Patch]:
    """Objects that Dynamo wraps without any guard, or meets again under another source."""

    def call(self: Any, value: Any) -> Any:
        variable = original(self, value)
        source = self.source
        if source is not None:
            recorder.met[source.name] = value
        if type(value) in _LITERALS or source is None or not _is_plain_way(source):
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


def _lookups(recorder: Recorder) -> Iterator[_Patch]:
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

    yield from _methods([misc.PythonModuleVariable], _LOOKUPS, of_module)
    yield from _methods([tensor.TensorVariable], _LOOKUPS, of_tensor)


def _methods(
    classes: Iterable[Any], names: Iterable[str], around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[_Patch]:
    """Yield replacements for methods that classes define themselves."""
    for cls in classes:
        for name in names:
            if (original := vars(cls).get(name)) is not None:
                yield cls, name, around(original)


def _keys(recorder: Recorder) -> Iterator[_Patch]:
    """Texts that are looked up in dictionaries, which may be in vain."""

    def item(variable: Any, tx: Any, key: Any) -> Any:
        text = _value(key)
        if type(text) is str:
            recorder.keys.add(text)
        elif type(text) is bytes:
            recorder.keys.add(text.decode(errors="surrogateescape"))  # an environment variable
        return get(variable, tx, key)

    def initialize(tracker: Any, variable: Any, *arguments: Any, **named: Any) -> None:
        key_made(tracker, _realized(variable) or variable, *arguments, **named)  # which makes its guards

    get = dicts.ConstDictVariable.getitem_const_raise_exception_if_absent
    yield dicts.ConstDictVariable, get.__name__, item
    tracker = getattr(dicts, "HashableTracker", None) or dicts.ConstDictVariable._HashableTracker
    key_made = tracker.__init__
    yield tracker, key_made.__name__, initialize


def _builtins(recorder: Recorder) -> Iterator[_Patch]:
    """Calls of Python's functions that Dynamo makes on a program's objects."""

    def listening(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(variable: Any, tx: Any, arguments: Sequence[Any], named: Any) -> Any:
            function = getattr(variable, "fn", None)
            if arguments:
                _hear_builtin(recorder, function, [_value(one) for one in arguments[:2]], tx)
            if named or not any(function is one for one in _WITHOUT_ORDER):
                for one in arguments:
                    _refuse_order(recorder, one)
            return original(variable, tx, arguments, named)

        return call

    def comparing(function: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tx: Any, arguments: Sequence[Any], named: Any) -> Any:
            if not any(isinstance(one, constant.ConstantVariable) and one.value is None for one in arguments):
                _hear_builtin(recorder, function, [*map(_value, arguments)], tx)
            if all(isinstance(_realized(one), functions.UserMethodVariable) for one in arguments):
                recorder.refuse("object", "whether two methods are one, which no guard says")
            return original(tx, arguments, named)

        return call

    handlers = symbolic_convert.compare_op_handlers  # which torch made of the methods below when it was imported
    heard_too = {name: comparing(function, handlers[name]) for name, function in _IDENTITY.items()}
    yield symbolic_convert, "compare_op_handlers", {**handlers, **heard_too}
    classes = [one for one in vars(builtin).values() if isinstance(one, type) and one.__name__.endswith(_OF_BUILTINS)]
    yield from _methods(dict.fromkeys(classes), ("call_function",), listening)


def _hear_builtin(recorder: Recorder, function: Any, values: list[Any], tx: Any) -> None:
    value = values[0]
    name = type(value).__qualname__
    if function is dir:
        if isinstance(value, (types.ModuleType, type)):
            recorder.listed.append(value)
        else:
            recorder.refuse("object", f"the names of {name}")
    elif function is id and code_owner.is_file_of_library(tx.f_code.co_filename):
        pass  # Python's library has ids as keys of what it has met
    elif function in (hash, id) and not (function is hash and _is_hash_traced(value)):
        recorder.refuse("object", f"{function.__name__}() of {name}, which is another number in each process")
    elif function in _IDENTITY.values() and len(values) == 2 and _may_be_one(*values):
        if code_owner.is_file_of_library(tx.f_code.co_filename):
            return  # copy and dataclasses ask so whether an element is another one now
        recorder.refuse("object", f"whether two equal objects of {name} are one, which no guard says")
    elif any(function is one for one in _TEXTS) and _has_own_text(value):
        recorder.refuse("object", f"the text of {name}, which Dynamo takes for a constant")
    elif function in (isinstance, issubclass) and any(map(_is_protocol, _classes_in(values[-1]))):
        recorder.refuse("object", "a protocol, which looks at attributes without guards")


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


def _classes_in(value: Any) -> list[Any]:
    return [one for part in value for one in _classes_in(part)] if isinstance(value, tuple) else [value]


def _is_protocol(cls: Any) -> bool:
    return isinstance(cls, type) and bool(getattr(cls, "_is_protocol", False))


def _calls(recorder: Recorder) -> Iterator[_Patch]:
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
    return isinstance(_realized(variable), kinds)


def _constants(recorder: Recorder) -> Iterator[_Patch]:
    """Texts with addresses."""

    def initialize(variable: Any, *arguments: Any, **named: Any) -> None:
        value = arguments[0] if arguments else named.get("value")  # a subclass has no value
        if type(value) is str and _ADDRESS in value:
            recorder.refuse("object", "a text with an address")
        original(variable, *arguments, **named)

    original = constant.ConstantVariable.__init__
    yield constant.ConstantVariable, original.__name__, initialize


def _operators(recorder: Recorder) -> Iterator[_Patch]:
    """Operators and functions that run on tensors without data: sizes of results become constants."""

    def create(tracer: Any, kind: str, target: Any, *arguments: Any, **named: Any) -> Any:
        if kind == "call_function":
            recorder.targets[id(target)] = target
        elif kind == "call_method" and not code_owner.is_own(getattr(torch.Tensor, target, None)):
            recorder.refuse("object", f"Tensor.{target}, which runs in the graph")
        return original(tracer, kind, target, *arguments, **named)

    original = output_graph.SubgraphTracer.create_proxy
    yield output_graph.SubgraphTracer, original.__name__, create


def _defined(recorder: Recorder) -> Iterator[_Patch]:
    """Names of globals that Dynamo defines once for all frames of a module."""

    def define(generator: Any, name: str, value: Any) -> Any:
        loading = original(generator, name, value)
        recorder.shared.update(one.argval for one in loading)  # torch changes some names
        return loading

    original = codegen.PyCodegen.setup_globally_cached
    yield codegen.PyCodegen, original.__name__, define


def _sets(recorder: Recorder) -> Iterator[_Patch]:
    """The order of sets that the program has. Sets that traced code makes have the order in which it adds elements."""

    def in_order(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(variable: Any, *arguments: Any, **named: Any) -> Any:
            _refuse_order(recorder, variable)
            return original(variable, *arguments, **named)

        return read

    def combining(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(variable: Any, tx: Any, name: str, arguments: Sequence[Any], *others: Any, **named: Any) -> Any:
            if name not in _METHODS_WITHOUT_ORDER:
                for one in (variable, *arguments):
                    _refuse_order(recorder, one)
            return original(variable, tx, name, arguments, *others, **named)

        return method

    def extending(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(variable: Any, tx: Any, name: str, arguments: Sequence[Any], *others: Any, **named: Any) -> Any:
            if name in ("extend", "extendleft", "__iadd__"):
                for one in arguments:
                    _refuse_order(recorder, one)
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
    yield from _methods([*classes, constant.ConstantVariable], _IN_ORDER, in_order)
    yield from _methods(classes, ("call_method",), combining)
    yield from _methods([getattr(lists, "CommonListMethodsVariable", lists.ListVariable)], ("call_method",), extending)


@functools.cache
def _unordered() -> tuple[Any, ...]:
    """Dynamo's classes for sets and frozen sets; in 2.11 they are in another module."""
    module: Any = sys.modules.get("torch._dynamo.variables.sets", dicts)
    names = ("BaseSetVariable", "SetVariable", "FrozensetVariable")
    return tuple(cls for name in names if (cls := getattr(module, name, None)) is not None)


def _refuse_order(recorder: Recorder, variable: Any) -> None:
    """Refuse the frame if the elements of a set that the program has are read in their order."""
    variable = _realized(variable)
    is_ordered = type(variable).__name__.startswith(("OrderedSet", "DictKey"))
    if is_ordered or not isinstance(variable, (constant.ConstantVariable, *_unordered())):
        return
    attributes = _attributes(variable)
    elements = attributes.get("items")  # of a literal, there is a value
    elements = elements if isinstance(elements, dict) else attributes.get("value")
    is_programs = attributes.get("source") is not None or id(variable) in recorder.literals
    if is_programs and isinstance(elements, (dict, set, frozenset)) and len(elements) > 1:
        recorder.refuse("object", "the order of a set, which Dynamo takes for a constant")


def _opaque(recorder: Recorder) -> Iterator[_Patch]:
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
    yield from _methods(classes, ("call_function", "call_method", "richcompare_impl"), running)


_LISTENERS = (
    _skipped_guards, _unguarded, _lookups, _keys, _builtins, _calls, _constants, _operators, _sets, _opaque, _defined,
    without_source, elsewhere,
)  # fmt: skip


def _realized(variable: Any) -> Any:
    try:
        return variable.realize()
    except Exception:  # Dynamo meets it again where it needs the variable
        return None


def _attributes(variable: Any) -> dict[str, Any]:
    return getattr(_realized(variable), "__dict__", {})


def _value(variable: Any) -> Any:
    """The object that a variable of Dynamo's stands for, if it has one."""
    attributes = _attributes(variable)
    return attributes.get("value", attributes.get("fn"))


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
