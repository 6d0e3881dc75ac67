"""Hash a program's values as tokens, for the digests of `sources`.

Plain data is hashed by value, functions by their code and everything it refers to, classes and plain objects by their
attributes. `torch_objects` handles tensors, operators and kernels.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import logging
import os
import re
import struct
import sys
import types
from typing import Any

from fxpool.codecache.code import coverage, process_state, torch_objects
from fxpool.codecache.code.code_references import (
    MISSING,
    NAMED_BY_VERSION,
    Named,
    Variable,
    globals_read,
    is_named_by_version,
    is_of_torch,
    top_level,
    version_of,
)
from fxpool.codecache.code.source_files import digest_module, digest_package
from fxpool.codecache.code.undigestable import UndigestableError

__all__ = ["Digester", "describe"]

# Attributes of a class that do not come from the code and values of its body. `_autograd_function_id` is a counter of
# definitions, and `__slotnames__` appears when an instance is pickled.
_SKIPPED_CLASS_ATTRIBUTES = frozenset(
    (
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__",
        "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__firstlineno__",
        "__static_attributes__", "__parameters__", "__orig_bases__", "__dataclass_fields__", "__dataclass_params__",
        "__type_params__", "__classcell__", "_autograd_function_id", "__slotnames__",
    )
)  # fmt: skip
# Libraries whose calls Dynamo leaves in graphs. Their functions refer to tables of objects without a digest, but
# compute from their arguments only, so they are identified by all sources of the package.
_BY_PACKAGE = frozenset(("einops",))
# Attributes of a module that its source does not define.
_SKIPPED_MODULE_ATTRIBUTES = frozenset(
    ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__path__", "__file__", "__cached__",
     "__builtins__", "__annotations__", "__warningregistry__", "__annotate__", "__conditional_annotations__")
)  # fmt: skip


class Digester:
    """Writes values as tokens, each with its length, into a hash.

    Functions, classes and mutable containers are numbered when first written, in an order that depends on the code
    alone. A second occurrence is written as its number, so cycles end.
    """

    def __init__(self, *, runs_later: bool = False, covered: dict[str, str] | None = None) -> None:
        self._hash = hashlib.sha256()
        # id -> (number, object). The reference prevents reuse of the id.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._way: tuple[str, ...] = ()
        self.runs_later = runs_later
        self.environment: dict[str, str | None] = {}
        self.covered = covered

    def child(self) -> Digester:
        """Return a digester with a new hash that has numbered the same values."""
        other = Digester(runs_later=self.runs_later, covered=self.covered)
        other._seen, other._way, other.environment = dict(self._seen), self._way, self.environment
        return other

    def digest(self) -> bytes:
        return self._hash.digest()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def token(self, tag: str, data: str | bytes = b"") -> None:
        """Write a token: a tag, the length of the data, and the data."""
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self._hash.update(f"{tag}:{len(raw)}:".encode() + raw)

    def add(self, value: Any, name: str = "") -> None:
        """Write a value. Raises UndigestableError unless `runs_later`.

        `name` describes the reference that led to the value, for the error.
        """
        if name:
            self._way += (name,)
        depth = len(self._way)
        try:
            if not self._add_plain(value):
                self._add_object(value)
        except UndigestableError:
            if not self.runs_later:
                raise
            self._way = self._way[:depth]
            self.token("left out", describe(value))
        if name:
            self._way = self._way[:-1]

    def refuse(self, what: str) -> UndigestableError:
        """Return the error for a value without a digest, with the references that led to it."""
        way = " of ".join(reversed(self._way))
        return UndigestableError(f"{way}: {what}" if way else what)

    def _aside(self, value: Any) -> bytes:
        """Return the digest of one element of a set, for sorting."""
        child = self.child()
        child.add(value)
        return child.digest()

    def met(self, value: Any) -> bool:
        """Return whether a value was numbered before. Write its number if so, else number it."""
        if earlier := self._seen.get(id(value)):
            self.token("again", str(earlier[0]))
            return True
        self._seen[id(value)] = (len(self._seen), value)
        return False

    def _add_plain(self, value: Any) -> bool:
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented:
            self.token("singleton", repr(value))
        elif kind is bool or kind is int:
            self.token(kind.__name__, hex(value))
        elif kind is float:
            self.token("float", value.hex())
        elif kind is complex:
            self.token("complex", f"{value.real.hex()} {value.imag.hex()}")
        elif kind is str:
            self.token("str", value)
        elif kind is bytes or kind is bytearray:
            self.token(kind.__name__, bytes(value))
        elif kind is tuple or kind is list:
            if kind is list and self.met(value):
                return True
            self.token(kind.__name__, str(len(value)))
            for item in value:
                self.add(item)
        elif kind in (dict, set) and len(value) > 100 and (table := torch_objects.table_name(value)):
            self.token("table", f"{table} {version_of('torch')}")
        elif kind is frozenset or kind is set:
            self.token(kind.__name__, b"".join(sorted(self._aside(item) for item in value)))
        elif kind in (dict, collections.OrderedDict, types.MappingProxyType):
            if self.met(value):
                return True
            self.token("dict", str(len(value)))
            for key, item in value.items():
                self.add(key)
                self.add(item, f"[{key!r:.40}]")
        elif kind is Named:
            self.token("named", value.name)
        elif kind is Variable:
            self.environment[value.name] = os.environ.get(value.name)
            if self.covered is not None:
                self.covered |= coverage.of_variables({value.name: self.environment[value.name]})
            self.token("variable", value.name)
            self.add(self.environment[value.name])
        elif kind is slice or kind is range:
            self.token(kind.__name__)
            for part in (value.start, value.stop, value.step):
                self.add(part)
        elif kind is types.CodeType:
            self.add_code(value)
        else:
            return False
        return True

    def _add_object(self, value: Any) -> None:
        if not self.runs_later and callable(value) and (what := process_state.reads(value)):
            raise self.refuse(f"{what}, which reads the state of the process")
        if isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.MethodType):
            self.token("method")
            self.add(value.__func__)
            self.add(value.__self__, "its instance")
        elif isinstance(value, functools.partial):
            self.token("partial")
            for part in (value.func, value.args, value.keywords):
                self.add(part)
        elif isinstance(value, types.ModuleType):
            self._add_module(value)
        elif isinstance(value, (staticmethod, classmethod)):
            self.token(type(value).__name__)
            self.add(value.__func__)
        elif isinstance(value, (property, functools.cached_property)):
            self.token("property")
            for name in ("fget", "fset", "fdel", "func"):
                self.add(getattr(value, name, None))
        elif isinstance(value, types.BuiltinFunctionType):
            self._add_builtin(value)
        elif isinstance(
            value,
            (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
             types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodWrapperType),
        ):  # fmt: skip
            owner = getattr(value, "__objclass__", type(getattr(value, "__self__", None)))
            self.token("descriptor", f"{owner.__module__}.{owner.__qualname__}.{value.__name__}")
        elif isinstance(value, enum.Enum):
            self.token("enum", value.name)
            self.add(type(value))
        elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
            self.token("namedtuple", str(len(value)))
            self.add(type(value))
            for item in value:
                self.add(item)
        elif isinstance(value, logging.Logger):
            self.token("logger", value.name)
        elif isinstance(value, re.Pattern):
            self.token("pattern", str(value.flags))
            self.add(value.pattern)
        elif type(value).__module__ == "typing" or isinstance(value, (types.GenericAlias, types.UnionType)):
            self.token("annotation", repr(value))
        elif _is_wrapper(value):
            self.token("cached")
            self.add(value.__wrapped__)
        elif torch_objects.add(self, value) or self._add_instance(value):
            pass
        else:
            raise self.refuse(describe(value))

    # ------------------------------------------------------------ code

    def add_code(self, code: types.CodeType) -> None:
        """Write a code object without its source location (file name, line tables)."""
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.token("code", repr(counts))
        self.token("name", code.co_name)
        # co_code is the original bytecode, even after the interpreter has specialised it.
        self.token("bytecode", code.co_code)
        self.token("exceptions", getattr(code, "co_exceptiontable", b""))
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.add(tuple(names))
        self.add(code.co_consts)

    def _add_function(self, function: types.FunctionType) -> None:
        if self.met(function):
            return
        if is_named_by_version(function):
            self._add_by_name(function)
            return
        if is_of_torch(function):
            torch_objects.add_wrapper(self, function)
            return
        package = sys.modules.get(top_level(function.__module__ or ""))
        if package is not None and package.__name__ in _BY_PACKAGE and hasattr(package, "__path__"):
            self.token("of a package", f"{function.__module__}.{function.__qualname__} {digest_package(package)}")
            self.add_code(function.__code__)
            return
        self.token("function")
        name = f"{function.__module__}.{function.__qualname__}"
        self._way += (name,)
        self.add_code(function.__code__)
        if self.covered is not None:
            self._cover(function)
        self.add(function.__defaults__, "a default")
        self.add(function.__kwdefaults__, "a default")
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                self.token("empty cell")
                continue
            self.add(content, f"the closure variable {variable}")
        for key, attribute in sorted(function.__dict__.items()):
            if isinstance(attribute, (bool, int, float, str)):
                self.token("attribute", key)
                self.add(attribute)
        for path, value in globals_read(function, self.refuse):
            self.token("global", path)
            if value is MISSING:
                self.token("missing")
            else:
                self.add(value, f"the global {path}")
        self._way = self._way[:-1]

    def _cover(self, function: types.FunctionType) -> None:
        """Add a function's own code and the values it refers to by name to `covered`."""
        assert self.covered is not None
        code = Digester()
        code.add_code(function.__code__)
        name = coverage.name_of(function)
        coverage.note(self.covered, name, f"code {code.hexdigest()[:12]}")
        for what, value in coverage.values_of(function, self.refuse):
            shown = coverage.shown(value)
            if shown is None:
                other = self.child()
                other.covered = None
                try:
                    other.add(value)
                except (UndigestableError, RecursionError):
                    continue  # `add` with `runs_later` leaves it out, too
                shown = f"digest {other.hexdigest()[:12]}"
            coverage.note(self.covered, f"{name}: {what}", shown)

    def _add_class(self, cls: type) -> None:
        if self.met(cls):
            return
        if is_named_by_version(cls):
            self._add_by_name(cls)
            return
        self.token("class", f"{cls.__module__}.{cls.__qualname__}")
        if type(cls) is not type:
            self.add(type(cls), "the metaclass")
        for base in cls.__bases__:
            self.add(base, f"the base of {cls.__qualname__}")
        if issubclass(cls, enum.Enum):
            for name, member in cls.__members__.items():
                self.token("member", name)
                self.add(member.value, f"{cls.__qualname__}.{name}")
        for name, attribute in sorted(vars(cls).items()):
            if name in _SKIPPED_CLASS_ATTRIBUTES or (issubclass(cls, enum.Enum) and not _is_code(attribute)):
                continue
            self.token("attribute", name)
            self.add(attribute, f"{cls.__qualname__}.{name}")

    def _add_builtin(self, function: types.BuiltinFunctionType) -> None:
        owner = function.__self__
        name = getattr(function, "__qualname__", function.__name__)
        # pybind11 binds its functions to an internal record, which does not identify them.
        bound_to_record = type(owner).__module__ == "pybind11_builtins" or type(owner).__name__ == "PyCapsule"
        if owner is None or bound_to_record or isinstance(owner, (types.ModuleType, type)):
            module = function.__module__ or getattr(owner, "__module__", None) or getattr(owner, "__name__", "")
            self.token("builtin", f"{module}.{name} {version_of(str(module))}")
            if top_level(str(module)) not in NAMED_BY_VERSION and str(module) in sys.modules:
                self._add_module(sys.modules[str(module)])
        else:
            self.token("builtin method", name)
            self.add(owner, "its instance")

    def _add_module(self, module: types.ModuleType) -> None:
        """Write a module: by version if its package is in `NAMED_BY_VERSION`, else by source and current attributes."""
        if top_level(module.__name__) in NAMED_BY_VERSION:
            self.token("module", f"{module.__name__} {version_of(module.__name__)}")
            return
        if self.met(module):
            return
        self.token("module", digest_module(module))
        for name, value in sorted(vars(module).items()):
            if name not in _SKIPPED_MODULE_ATTRIBUTES:
                self.token("attribute", name)
                self.add(value, f"{module.__name__}.{name}")

    def _add_instance(self, value: Any) -> bool:
        """Write an instance of a Python class by class and attributes; return False if it may have other state."""
        cls = type(value)
        if not _is_plain_class(cls):
            return False
        if self.met(value):
            return True
        self.token("object")
        self.add(cls, "its class")
        for name, attribute in sorted(_attributes(value)):
            self.token("attribute", name)
            self.add(attribute, f"its attribute {name}")
        return True

    def _add_by_name(self, value: Any) -> None:
        self.token("named", f"{value.__module__}.{value.__qualname__} {version_of(value.__module__)}")


def _is_code(attribute: Any) -> bool:
    return isinstance(attribute, (types.FunctionType, staticmethod, classmethod, property))


def _is_wrapper(value: Any) -> bool:
    return type(value).__module__ == "functools" and hasattr(value, "__wrapped__")


def _is_plain_class(cls: type) -> bool:
    """Return whether a class and its bases are in Python, so that attributes are the only state of instances."""
    if cls is types.SimpleNamespace:
        return True
    if cls is object or not all(
        base is object or (base.__flags__ & _HEAP_TYPE and top_level(base.__module__) not in _WITH_STATE_OF_THEIR_OWN)
        for base in cls.__mro__
    ):
        return False
    # Space for the instance dictionary, weak references and slots. A base written in C needs more for its own state.
    slots = sum(len(_slots(base)) for base in cls.__mro__)
    return cls.__basicsize__ <= object.__basicsize__ + _POINTER * (2 + slots)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_POINTER = struct.calcsize("P")
_WITH_STATE_OF_THEIR_OWN = NAMED_BY_VERSION - {
    "dataclasses", "abc", "enum", "typing", "argparse", "types", "contextlib", "torch",
}  # fmt: skip


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    attributes = list(getattr(value, "__dict__", {}).items())
    for base in type(value).__mro__:
        for name in _slots(base):
            mangled = (
                f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            )
            if name not in ("__dict__", "__weakref__") and hasattr(value, mangled):
                attributes.append((mangled, getattr(value, mangled)))
    return attributes


def describe(value: Any) -> str:
    """Describe a value by its class, for errors."""
    kind = type(value)
    return f"an object of {kind.__module__}.{kind.__qualname__}"
