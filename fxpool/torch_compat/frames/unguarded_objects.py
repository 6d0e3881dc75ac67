"""Hears which objects Dynamo reads by itself, and makes no guards on: they have no source.

Dynamo comes to them by objects that traced code makes: the defaults and closures of their methods, attributes of their
classes. `fxpool.frames.identity` describes what those hold as far as data and code go; a frame with others is refused.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import base, builder, misc, user_defined

from fxpool.torch_compat.frames.variables import methods
from fxpool.torch_compat.operators import code_owner

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["DESCRIPTORS", "FACTORY", "NEW", "without_source"]

#: Objects in C that Dynamo takes for constants. A class has the same ones each time that they are looked up.
DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
#: The class of the object that stands for a default that a factory makes.
FACTORY: Any = vars(dataclasses)["_HAS_DEFAULT_FACTORY_CLASS"]
# Classes whose objects hold nothing, or are described by their values.
_WHOLE = (type(None), bool, int, float, complex, str, bytes, object, FACTORY)
#: How Dynamo marks objects that traced code makes.
NEW = (base.AttributeMutationNew, base.ValueMutationNew)
# Containers that are described with what they hold, down to so many of them.
_DATA = (tuple, list, set, frozenset, dict, collections.OrderedDict, collections.defaultdict)
_DEEPEST = 3
# Objects besides that a description says all of.
_DESCRIBED = (
    base.VariableTracker,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    *DESCRIPTORS,
    types.MethodWrapperType,
    types.CodeType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    torch.finfo,
    torch.iinfo,
    dataclasses.Field,
    re.Match,
    type(Ellipsis),
    type(NotImplemented),
)
# Modules of classes in C whose objects are compared by their texts, and which Dynamo compares.
_COMPARED = frozenset(("datetime", "decimal", "re"))
# Module of the classes of operators' results, which traced code gets.
_OF_RESULTS = "torch.return_types"


def without_source(recorder: Recorder) -> Iterator[tuple[Any, str, Any]]:
    """Refuse the frame if Dynamo reads an object of which no description says all. Those of traced code are new to it.

    Yield (owner, name, replacement) of methods of Dynamo's.
    """

    def initialize(variable: Any, value: Any, **named: Any) -> None:
        original(variable, value, **named)
        if variable.source is None and not isinstance(variable.mutation_type, NEW):
            hear(value)

    def create(tx: Any, value: Any) -> Any:
        hear(value)
        return made(tx, value)

    def initialize_graph(graph: Any, *arguments: Any, **named: Any) -> None:
        graphs[id(graph)] = graph
        initialize_module(graph, *arguments, **named)

    def hear(value: Any) -> None:
        if id(value) not in graphs and not _is_described(value, recorder.modules):
            recorder.refuse("object", f"an object of {type(value).__qualname__}, on which there are no guards")

    def compare_in_c(variable: Any, *arguments: Any, **named: Any) -> Any:
        base = getattr(variable, "_base_vt", getattr(variable, "_base_methods", None))  # the latter since 2.15
        if isinstance(variable.value, _DATA) and base is None:
            name = type(variable.value).__qualname__
            recorder.refuse("object", f"a comparison of {name}, which Dynamo leaves to Python")
        return compare(variable, *arguments, **named)

    def constant_of(variable: Any) -> Any:
        value = constant(variable)
        hear(value)
        return value

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(variable: Any, tx: Any, name: str, *arguments: Any, **named: Any) -> Any:
            if name == "__subclasses__" and (variable.source is None or _has_unnamed_subclasses(variable.value)):
                recorder.refuse("object", f"the subclasses of {variable.value.__qualname__}, without a guard")
            return original(variable, tx, name, *arguments, **named)

        return call_method

    graphs: dict[int, Any] = {}  # which Dynamo makes, such as for `torch.autograd.Function`
    initialize_module = torch.fx.GraphModule.__init__
    yield torch.fx.GraphModule, initialize_module.__name__, initialize_graph
    original = user_defined.UserDefinedObjectVariable.__init__
    yield user_defined.UserDefinedObjectVariable, original.__name__, initialize
    made = builder.SourcelessBuilder.create
    yield builder.SourcelessBuilder, made.__name__, staticmethod(create)
    constant = misc.GetAttrVariable.as_python_constant
    yield misc.GetAttrVariable, constant.__name__, constant_of
    yield from methods((user_defined.UserDefinedClassVariable,), ("call_method",), calling)
    attributes = vars(user_defined.UserDefinedObjectVariable)
    compare: Any = attributes.get("richcompare_impl", attributes.get("tp_richcompare_impl"))
    if compare is not None:
        yield user_defined.UserDefinedObjectVariable, compare.__name__, compare_in_c
    if (slots := getattr(user_defined, "_safe_c_slots", None)) is not None:
        yield user_defined, slots.__name__, lambda: _Slots(slots(), recorder)


class _Slots:
    """Methods in C that Dynamo may call: no description says what those read that the program added."""

    def __init__(self, slots: Any, recorder: Recorder) -> None:
        self._slots, self._recorder = slots, recorder

    def __contains__(self, slot: Any) -> bool:
        is_allowed = slot in self._slots
        owner = getattr(slot, "__objclass__", None)
        if is_allowed and getattr(owner, "__module__", None) not in _COMPARED:
            self._recorder.refuse("object", f"{slot.__qualname__}, which Dynamo may call")
        return is_allowed


def _has_unnamed_subclasses(cls: type) -> bool:
    """Return whether a class has subclasses that no module names: traced code may have made one, which counts."""
    subclasses: list[type] = type.__subclasses__(cls)
    return any(getattr(sys.modules.get(one.__module__), one.__qualname__, None) is not one for one in subclasses)


def _is_described(value: Any, modules: list[types.ModuleType], depth: int = _DEEPEST) -> bool:
    """Return whether the description of what holds a value says all of it: data, code and Dynamo's own variables.

    Libraries' modules are added to `modules`: the frame is refused if code reads data of theirs.
    """
    if isinstance(value, types.ModuleType):
        modules.append(value)
        return code_owner.is_own_module(value)
    if isinstance(value, _DESCRIBED) or type(value) in _WHOLE or type(value).__module__ == _OF_RESULTS:
        return True
    if (origin := typing.get_origin(value)) is not None:
        items: list[Any] = [origin, *typing.get_args(value)]
    elif isinstance(value, enum.Enum):
        items = [*vars(value).values()]
    elif isinstance(value, (set, frozenset)) and len(value) > 1:
        return False  # their order is another in each process
    elif type(value) in _DATA:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else [*value]
    else:
        return False
    return depth > 0 and all(_is_described(one, modules, depth - 1) for one in items)
