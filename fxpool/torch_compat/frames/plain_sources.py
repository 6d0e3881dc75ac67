"""Dynamo's sources, and what it keeps for guards on sizes, as plain data: lists, text, numbers and bytes.

A source says how to reach an object from a frame's locals and globals: by way of another source, its base. Sources are
frozen dataclasses. Those of ``torch._dynamo.source`` are written as the class's name and its fields, each once, and
made again from these. Everything else is refused, so that nothing that was written down is lost.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import marshal
import sys
import types
from typing import Any

import sympy
import torch
from torch._dynamo import codegen

__all__ = ["NotPlainError", "Reader", "Writer"]

_EXACT = frozenset((type(None), bool, int, str, bytes))
#: Values that torch names, by the attribute of ``torch`` that has them.
_NAMED = (torch.dtype, torch.layout, torch.memory_format)
#: Modules of Python whose classes, where they are written in C, are the same in all processes.
_WITH_CLASSES = ("builtins", "collections")
_HEAP_TYPE = 1 << 9
_TENSOR = torch.Tensor


class NotPlainError(ValueError):
    """A value has no form as plain data, or data is not of this form."""


@functools.cache
def _classes() -> dict[str, type]:
    """The dataclasses and enumerations that may be written, by name."""
    from torch._dynamo import guards, source
    from torch.fx.experimental import symbolic_shapes

    found = {
        name: value
        for name, value in vars(source).items()
        if isinstance(value, type) and issubclass(value, torch._guards.Source) and dataclasses.is_dataclass(value)
    }
    others = (
        source.TensorProperty,
        guards.ShapeCodeParts,
        symbolic_shapes._ShapeGuardsHelper,
        symbolic_shapes._CppShapeGuardsHelper,
        torch._guards.DuplicateInputs,
        torch._guards.StorageOverlap,
    )
    return found | {cls.__name__: cls for cls in others}


@functools.cache
def _fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


class Writer:
    """Writes values as plain data. `table` has each source once, bases first; values refer to it by number."""

    def __init__(self) -> None:
        self.table: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def write(self, value: Any) -> Any:
        """Return plain data from which a `Reader` makes an equal value. Raises NotPlainError."""
        cls = type(value)
        if cls in _EXACT:
            return value
        if isinstance(value, torch._guards.Source):
            return ["source", self._number(value)]
        if cls is float:
            return ["float", value.hex()]
        if cls is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if cls in (tuple, list, torch.Size):
            return [cls.__name__, *map(self.write, value)]
        if cls in (set, frozenset):
            return [cls.__name__, *sorted(map(self.write, value), key=repr)]
        if isinstance(value, set) and cls.__name__ == "OrderedSet":
            return ["set", *map(self.write, value)]
        if cls is dict:
            return ["dict", *([self.write(name), self.write(of)] for name, of in value.items())]
        if cls is slice:
            return ["slice", self.write(value.start), self.write(value.stop), self.write(value.step)]
        if cls in _NAMED:
            return ["torch", str(value).removeprefix("torch.")]
        if cls is torch.device:
            return ["device", str(value)]
        if value is _TENSOR:
            return ["class of tensors"]
        if cls is type and _is_pythons(value):
            return ["class", value.__module__, value.__qualname__]
        if cls is types.FunctionType and _is_dynamos(value):
            return ["helper", marshal.dumps(value.__code__)]
        if cls is sympy.Symbol:
            return ["symbol", value.name, self.write(dict(value._assumptions_orig))]
        if _classes().get(cls.__name__) is cls:
            if isinstance(value, enum.Enum):
                return ["member", cls.__name__, value.name]
            return self._object(value)
        raise NotPlainError(f"{cls.__module__}.{cls.__qualname__}")

    def _number(self, source: Any) -> int:
        number = self._numbers.get(source)
        if number is None:
            if _classes().get(type(source).__name__) is not type(source):
                raise NotPlainError(f"a source {type(source).__qualname__}")
            entry = self._object(source)  # its bases come first
            number = self._numbers[source] = len(self.table)
            self.table.append(entry)
        return number

    def _object(self, value: Any) -> list[Any]:
        cls = type(value)
        return ["object", cls.__name__, *([name, self.write(getattr(value, name))] for name in _fields(cls))]  # type: ignore[arg-type]


def _is_pythons(cls: type) -> bool:
    """Return whether a class of Python's is written in C: one that a program wrote may be another under its name."""
    return (
        not cls.__flags__ & _HEAP_TYPE
        and cls.__module__ in _WITH_CLASSES
        and getattr(sys.modules[cls.__module__], cls.__qualname__, None) is cls
    )


def _is_dynamos(function: types.FunctionType) -> bool:
    """Return whether Dynamo made a helper for the code that it writes, as the one that takes a null off the stack."""
    free = not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)
    return free and function.__globals__ is vars(codegen)


def _class(module: str, name: str) -> type:
    found = getattr(sys.modules[module], name)
    if not isinstance(found, type) or not _is_pythons(found):
        raise NotPlainError(f"{module}.{name} is not Python's")
    return found


class Reader:
    """Makes values from what a `Writer` wrote. Raises NotPlainError: other data, or of another release of torch."""

    def __init__(self, table: list[Any]) -> None:
        self._sources: list[Any] = []
        # A source that is an import adds a guard to the current trace. The frame's guards have it already.
        with torch._guards.tracing(torch._guards.TracingContext(None)):
            for entry in table:
                self._sources.append(self.read(entry))

    def read(self, data: Any) -> Any:
        """Return the value. Raises NotPlainError."""
        if type(data) in _EXACT:
            return data
        try:
            kind, *parts = data
            if kind == "source":
                return self._sources[parts[0]]
            if kind == "object":
                name, *fields = parts
                return _classes()[name](**{field: self.read(value) for field, value in fields})
            if kind == "dict":
                return {self.read(name): self.read(value) for name, value in parts}
            if kind == "member":
                return getattr(_classes()[parts[0]], parts[1])
            return _MAKERS[kind](*map(self.read, parts))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise NotPlainError(f"{type(error).__name__}: {error}") from error


_MAKERS: dict[str, Any] = {
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "Size": lambda *parts: torch.Size(parts),
    "tuple": lambda *parts: parts,
    "list": lambda *parts: list(parts),
    "set": lambda *parts: set(parts),
    "frozenset": lambda *parts: frozenset(parts),
    "slice": slice,
    "torch": lambda name: getattr(torch, name),
    "device": torch.device,
    "class": _class,
    "class of tensors": lambda: _TENSOR,
    "helper": lambda code: types.FunctionType(marshal.loads(code), vars(codegen)),
    "symbol": lambda name, assumptions: sympy.Symbol(name, **assumptions),
}
