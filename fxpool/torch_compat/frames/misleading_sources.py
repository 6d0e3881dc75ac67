"""Hears where a source of Dynamo's leads to another object than the one that it read: the guards are on that then.

Dynamo reads an attribute through the class that has it, or through a descriptor, and writes down a shorter way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo.variables import functions, user_defined
from torch._dynamo.variables import torch as torch_functions

from fxpool.torch_compat.frames.variables import LITERALS, Patch

if TYPE_CHECKING:
    from fxpool.torch_compat.frames.recording import Recorder

__all__ = ["elsewhere"]


def elsewhere(recorder: Recorder) -> Iterator[Patch]:
    """Have Dynamo find an object in each class that has it; refuse the frame if a descriptor's name leads elsewhere.

    Yield (owner, name, replacement) of methods of Dynamo's. Releases have some of them.
    """
    for cls in (user_defined.UserDefinedClassVariable, user_defined.UserDefinedObjectVariable):
        if (walk := vars(cls).get("get_source_by_walking_mro")) is not None:
            yield cls, walk.__name__, _from_each_class(walk)
    yield torch_functions, "has_torch_function", _of_real_variables(torch_functions.has_torch_function)
    regions: Any = sys.modules.get("torch._dynamo.variables.invoke_subgraph")
    if hasattr(regions, "has_reuse_entries"):  # Dynamo compares what the second region reads, without guards
        yield regions, "has_reuse_entries", lambda *_: False
    for name in ("MemberDescriptorVariable", "GetSetDescriptorVariable"):
        variable: Any = getattr(functions, name, None)
        get = getattr(variable, "__dict__", {}).get("tp_descr_get_impl")
        if get is not None:
            yield variable, get.__name__, _by_descriptor(get, recorder)


def _from_each_class(walk: Callable[..., Any]) -> Callable[..., Any]:
    """An object gets the source that Dynamo had for it in another class, where there may be another one tomorrow."""

    def source_of(variable: Any, *arguments: Any) -> Any:  # a translator, since 2.13, and a name
        name = str(arguments[-1])
        sources = getattr(getattr(arguments[0], "output", None), "mro_source_cache", None)
        if sources is not None:
            value = variable.value
            cls = value if isinstance(variable, user_defined.UserDefinedClassVariable) else type(value)
            owner = next((base for base in cls.__mro__ if name in vars(base)), None)
            if owner is not None and type(vars(owner)[name]) not in LITERALS:
                at = (id(vars(owner)[name]), name)
                if owners.setdefault(at, owner) is not owner:
                    sources.pop(at, None)
                    owners[at] = owner
        return walk(variable, *arguments)

    owners: dict[tuple[int, str], type] = {}
    return source_of


def _of_real_variables(has_function: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Have a variable made, which makes its guards: Dynamo only looks whether its object has a method."""

    def has(variable: Any) -> bool:
        variable.realize()
        return has_function(variable)

    return has


def _by_descriptor(get: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Dynamo names the source of an attribute after its descriptor, whose name may be another attribute's."""

    def value_of(variable: Any, tx: Any, owner: Any, *arguments: Any, **named: Any) -> Any:
        value, descriptor = getattr(owner, "value", None), variable.descriptor
        name = descriptor.__name__
        if value is not None and owner.source is not None:
            met = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), descriptor)
            if met is not descriptor:
                recorder.refuse("object", f"{descriptor.__qualname__}, which another attribute of that name hides")
        return get(variable, tx, owner, *arguments, **named)

    return value_of
