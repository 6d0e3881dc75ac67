"""Describes the objects that tracing met, so that another process can tell whether its own are the same.

Guards say what Dynamo found: types, identities, values. Two things are left. An identity is an address, which another
process can't compare: in its place stands a description of the function, class or module, with all code that is in it.
And Dynamo guards on few of the names that it looked for and did not find: a description of each object that tracing
passed has the names that are there.

A frame with an object that can't be described is refused.
"""

from __future__ import annotations

import abc
import builtins
import contextlib
import dataclasses
import enum
import functools
import hashlib
import re
import sys
import types
import typing
from collections.abc import Iterable, Set
from typing import Any

import torch

from fxpool.frames import class_facts, object_texts, shared_parts, unheard_code
from fxpool.frames.code_digests import code_digest, digests_of, globals_of
from fxpool.frames.object_texts import CONTAINERS, HEAP_TYPE, OF_TORCH, PLAIN, NoDescriptionError
from fxpool.torch_compat.frames import frame_conversion, unguarded_facts

__all__ = ["Describer"]

_IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
# Guards say all of these that counts.
_SAID = (*OF_TORCH, types.CodeType)
# Attributes of classes that no traced code depends on, or that differ between processes.
_PASSED_OVER = frozenset(
    (
        "__annotate__", "__annotate_func__", "__annotations__", "__dict__", "__firstlineno__", "__module__",
        "__orig_bases__", "__parameters__", "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl",
    )
)  # fmt: skip
# How the names of what pydantic compiles for a class begin. Its texts have addresses.
_OF_PYDANTIC = "__pydantic_"
# Names under which code gets all attributes of an object, in their order.
_IN_ORDER = frozenset(("__dict__", "__kwdefaults__", "vars"))
# How the sources of these end; the second in torch 2.11.
_ATTRIBUTES = (".__dict__", ", '__dict__')")
# Names under which code gets annotations.
_ANNOTATIONS = frozenset(
    ("__annotate__", "__annotations__", "annotation", "annotations", "get_annotations", "get_type_hints", "signature")
)
# Methods of patterns that call a function, which Dynamo leaves to Python.
_CALLING = frozenset(("sub", "subn"))
# Descriptors, and the attributes that have their functions.
_DESCRIPTORS = (classmethod, staticmethod, property, functools.cached_property)
_PARTS = ("__func__", "fget", "fset", "fdel", "func")
# Functions behind `functools.cache` and `functools.lru_cache`.
_CACHED = functools._lru_cache_wrapper
# Classes in C whose objects their text describes.
_BY_TEXT = (re.Match, torch.finfo, torch.iinfo)
_DEEPEST = 12
# The depth down to which objects are described, and the number of attributes of a small one.
_SHALLOW, _SMALL = 6, 32


class Describer:
    """Describes objects for one comparison.

    `codes` has the digests of all code that descriptions cover so far, `classes` the names of all classes with their
    bases. `called` are functions whose results are compared elsewhere. `looked_up` are the names that code looks up.
    """

    def __init__(
        self,
        called: Iterable[Any] = (),
        looked_up: frozenset[str] = frozenset(),
    ) -> None:
        self._called = [*called]
        self._looked_up = looked_up
        self._reads_order = not _IN_ORDER.isdisjoint(looked_up)
        self.codes: set[str] = set()
        self.classes: set[str] = set()
        self._registered: dict[str, list[type]] = {}
        self._abstract: dict[str, type] = {}
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no address is used twice
        self._open: list[Any] = []
        # Of parts of functions and classes, of methods and their owners, in the order in which `names` meets them.
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._of_parts: dict[int, str] = {}

    @property
    def virtual(self) -> dict[str, list[str]]:
        """The classes that are registered as subclasses of an abstract class, by its name: names, with numbers."""
        return {
            name: sorted(f"{object_texts.class_name(cls)}#{self._numbers.get(id(cls), ('',))[0]}" for cls in classes)
            for name, classes in self._registered.items()
        }

    def identity(self, value: Any) -> str:
        """Return what stands for the identity of an object. Raises NoDescriptionError."""
        text = self._known.get(id(value))
        if text is None:
            for depth, one in enumerate(self._open):
                if one is value:
                    return f"<itself, {depth}>"
            if type(value) not in PLAIN and not isinstance(value, OF_TORCH):
                self._check_depth(value)
            self._open.append(value)
            try:
                facts = self._facts(value)
            finally:
                self._open.pop()
            text = hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
            text = self._known[id(value)] = f"<{facts[0]} {text}>"
            self._kept.append(value)
        return text

    def _check_depth(self, value: Any) -> None:
        if len(self._open) > _DEEPEST:
            raise NoDescriptionError(f"{object_texts.name_of(value)}, {_DEEPEST} references deep")

    def names(self, value: Any, source: str = "") -> str:
        """Return which names an object that tracing passed has, and what it is; empty if guards say it all.

        `source` is how the frame comes to it. Of a module, those that code looks up count, as others come and go with
        imports.
        """
        looked_up = self._looked_up
        if isinstance(value, torch.Tensor):
            return f"{unguarded_facts.of_tensor(value, looked_up)} {self._shared(type(value))}"
        if type(value) in PLAIN or isinstance(value, _SAID):
            return ""
        if isinstance(value, types.ModuleType):
            names = {*looked_up, *unheard_code.ANSWERING} & _keys_of(vars(value))
            if isinstance(value, unguarded_facts.OPERATOR_NAMESPACE):
                names = {name for name in names if not isinstance(vars(value)[name], unguarded_facts.OPERATORS)}
            kinds = [] if class_facts.is_pythons(type(value)) else [self.identity(type(value))]
            kinds += [self.identity(vars(value)[name]) for name in sorted(names & unheard_code.ANSWERING)]
            return " ".join([*kinds, *sorted(names)])
        if isinstance(value, (type, types.FunctionType)):
            of_metaclass = "" if unheard_code.is_librarys(type(value)) else self._shared(type(value))
            return f"{self.identity(value)} {self._shared(value)} {of_metaclass}"
        if isinstance(value, _IN_C):
            of = getattr(value, "__objclass__", None)
            is_programs = isinstance(of, type) and not class_facts.is_pythons(of)
            return f"{self.identity(value)} {self.identity(of) if is_programs else ''}"
        if isinstance(value, types.MethodType):
            owner = self.identity(value.__self__) if isinstance(value.__self__, type) else ""
            numbers = f"{self._number_of(value)} {self._number_of(value.__self__)}"
            return f"{self.identity(value.__func__)} {owner} {numbers} {self._shared(value.__func__)}"
        if isinstance(value, types.CellType):
            return f"{self._cell(value)} {self._number_of(value)}"
        cls = type(value)
        found = [cls.__qualname__] if class_facts.is_pythons(cls) else [self.identity(cls), self._shared(cls)]
        if isinstance(value, (enum.Enum, types.UnionType, types.GenericAlias)) or cls is object:
            found.append(self._shared(value))
        if isinstance(value, _CACHED):
            found.append(f"{self.identity(value)} {self._shared(value)}")
        if object_texts.is_empty(value):
            found.append("(empty)")  # Dynamo reads this of dictionaries of hooks, and makes no guard
        if isinstance(value, dict):  # Dynamo makes no guard on a key that it looked for in vain
            in_order = self._reads_order or not source.endswith(_ATTRIBUTES)
            found.append(object_texts.keys_text(value, _keys_of(value), looked_up, in_order))
        if isinstance(value, (set, frozenset)):
            found.append(object_texts.elements_text(value))
        found += self._attribute_names(value)
        if isinstance(value, contextlib.nullcontext):
            found.append(str(self._content(value.enter_result)))
        found += object_texts.text_in_c(value)
        found += object_texts.context_texts(value)
        if (claimed := object_texts.claimed_class(value)) is not None:
            found.append(self.identity(claimed))
        return " ".join(found)

    def _shared(self, value: Any) -> str:
        """Return the numbers of the parts of a value, which tell whether others share them."""
        if (numbers := self._of_parts.get(id(value))) is None:
            parts = shared_parts.parts_of(value)
            numbers = self._of_parts[id(value)] = ",".join([str(self._number_of(part)) for part in parts])
            self._kept.append(value)
        return numbers

    def _number_of(self, shared: Any) -> int:
        return self._numbers.setdefault(id(shared), (len(self._numbers), shared))[0]

    def _attribute_names(self, value: Any) -> list[str]:
        slots = object_texts.slots_of(value)
        attributes = object_texts.own_attributes(value)
        if not isinstance(attributes, dict):
            return slots
        if isinstance(value, unguarded_facts.OPERATORS):  # an operator has its overloads once they were looked up
            slots = slots + self._read_of_operator(value)
            attributes = {name: of for name, of in attributes.items() if not isinstance(of, unguarded_facts.OPERATORS)}
        names = [unguarded_facts.stable_name(str(name)) for name in attributes]
        found = slots + (names if self._reads_order else sorted(names))
        if isinstance(value, torch.nn.Module):
            for table in unguarded_facts.MODULE_TABLES:
                found += [table, *sorted(attributes.get(table) or ())]
        return found

    def _read_of_operator(self, value: Any) -> list[str]:
        """Return what code reads of an operator: Dynamo takes it for a constant."""
        tables = [vars(value), *map(vars, type(value).__mro__)]
        found: list[str] = []
        for name, one in ((name, one) for table in tables for name, one in table.items() if name in self._looked_up):
            if isinstance(one, unguarded_facts.OVERLOAD):
                found += self._read_of_operator(one)
            elif not isinstance(one, unguarded_facts.OPERATORS):
                found.append(f"{name}={self._content(one)}")
        return found

    def _facts(self, value: Any) -> tuple[Any, ...]:
        if type(value) in PLAIN:
            return ("value", type(value).__name__, repr(value))
        if isinstance(value, OF_TORCH):
            return ("value", type(value).__qualname__, repr(value))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return ("code", self._code(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            read = [(name, vars(value)[name]) for name in sorted(self._looked_up & vars(value).keys())]
            if unheard_code.is_librarys_name(value.__name__):  # other values come with imports
                read = [(name, one) for name, one in read if type(one) in PLAIN]
            return ("module", value.__name__, [(name, _plain(one)) for name, one in read])
        if isinstance(value, types.MethodType):
            return ("method", self.identity(value.__func__), self._value(value.__self__))
        if isinstance(value, _IN_C):
            bound = getattr(value, "__self__", None)
            owner = getattr(value, "__objclass__", None) or type(bound)
            of = type(bound).__qualname__ if isinstance(bound, (type, types.ModuleType)) else self._content(bound)
            polyfill = unguarded_facts.polyfill_of(value)
            if polyfill is not None and unguarded_facts.folds(polyfill):
                raise NoDescriptionError(f"the result of {value.__qualname__}, which Dynamo takes for a constant")
            facts = (getattr(value, "__module__", None), value.__qualname__, owner.__qualname__, of)
            return ("builtin", *facts, self._value(polyfill))
        if isinstance(value, enum.Enum):
            attributes = sorted(
                (name, self._content(one)) for name, one in vars(value).items() if name not in class_facts.OF_ENUMS
            )
            return ("member", self.identity(type(value)), value.name, self._content(value.value), attributes)
        if isinstance(value, unguarded_facts.OPERATORS):
            return ("operator", str(value), unguarded_facts.schemas_of(value))
        if isinstance(value, re.Pattern) and _CALLING.isdisjoint(self._looked_up):
            return ("pattern", self._value(value.pattern), value.flags)
        if unguarded_facts.is_numpys(value):
            return ("function of numpy", value.__name__)
        if (origin := typing.get_origin(value)) is not None:
            kind = (type(value).__qualname__, getattr(value, "__unpacked__", False))
            return ("generic", kind, self._content(origin), [self._content(one) for one in typing.get_args(value)])
        if isinstance(value, functools.partial):
            return ("partial", *map(self._value, (value.func, value.args, value.keywords)))
        if isinstance(value, _CACHED):
            attributes = self._items({name: one for name, one in vars(value).items() if name != "__wrapped__"})
            return ("wrapper", self.identity(value.__wrapped__), attributes)
        if isinstance(value, _BY_TEXT):
            return ("text", object_texts.class_name(type(value)), object_texts.text_in_c(value))
        if type(value).__module__ == "torch.return_types":
            return ("results", type(value).__qualname__, [self._content(one) for one in tuple.__iter__(value)])
        if isinstance(value, dataclasses.Field):
            return (
                "field",
                [(name, self._content(getattr(value, name))) for name in value.__slots__ if name != "_field_type"],
            )
        raise NoDescriptionError(object_texts.name_of(value))

    def _function(self, function: types.FunctionType) -> tuple[Any, ...]:
        if unguarded_facts.CONSTANT_RESULT in function.__dict__ and not any(one is function for one in self._called):
            raise NoDescriptionError(
                f"the result of {object_texts.name_of(function)}, which Dynamo takes for a constant"
            )
        annotations = function.__annotations__ if isinstance(function.__annotations__, dict) else {}
        return (
            "function",
            function.__module__,
            function.__qualname__,
            function.__name__,
            self._value(function.__doc__),
            self._code(function.__code__),
            tuple(map(self._cell, function.__closure__ or ())),
            self._globals(function),
            unguarded_facts.marks_of(function),
            self._value(unguarded_facts.polyfill_of(function)),
            [self._content(value) for value in function.__defaults__ or ()],
            self._items(function.__kwdefaults__ or {}),
            [(name, self._annotation(value)) for name, value in annotations.items()],
            self._items(
                {name: one for name, one in function.__dict__.items() if name != unguarded_facts.WRAPPER_ADDRESS}
            ),
        )

    def _annotation(self, value: Any) -> Any:
        """Return an annotation by its name, which is all that most code could tell; by its content if code reads it."""
        if not _ANNOTATIONS.isdisjoint(self._looked_up):
            return self._content(value)
        if isinstance(value, type) and not isinstance(value, types.GenericAlias):
            return object_texts.class_name(value)
        return unguarded_facts.without_addresses(repr(value))

    def _items(self, values: dict[str, Any]) -> list[Any]:
        """Return the content of attributes or keyword defaults, in their order if code may list them."""
        return [
            (name, self._content(one))
            for name, one in (values.items() if self._reads_order else sorted(values.items()))
        ]

    def _cell(self, cell: types.CellType) -> Any:
        try:
            return self._content(cell.cell_contents)
        except ValueError:
            return "empty"

    def _globals(self, function: types.FunctionType) -> Any:
        """Return whose namespace a function reads; what it reads there, if it is not a module's."""
        names = function.__globals__
        others = _builtins_of(function)
        if others is not vars(builtins) and any(vars(builtins).get(name) is not one for name, one in others.items()):
            raise NoDescriptionError(f"{object_texts.name_of(function)}, which has other builtins")
        name = dict.get(names, "__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and vars(module) is names:
            return name
        read = sorted(globals_of(function.__code__) & names.keys())
        return (name, [(one, self._content(names[one])) for one in read])

    def _class(self, cls: type) -> tuple[Any, ...]:
        rows: list[Any] = []
        self.classes |= {object_texts.class_name(base) for base in cls.__mro__}
        for base in cls.__mro__:
            if class_facts.is_pythons(base):
                rows.append(self._of_pythons(base))
                continue
            passed_over = _PASSED_OVER.union(name for name in vars(base) if name.startswith(_OF_PYDANTIC))
            own = [(name, vars(base)[name]) for name in sorted(vars(base).keys() - (passed_over - self._looked_up))]
            # Some releases make no guards on containers that are attributes of a class.
            texts = [(name, self._attribute(name, class_facts.without_unions(name, one))) for name, one in own]
            rows.append((base.__module__, base.__qualname__, base.__name__, texts))
        rows.append([*map(self._value, unguarded_facts.tree_functions(cls))])
        kind: Any = type(cls)
        is_pythons = class_facts.is_pythons(kind)
        rows.append([self._of_pythons(base) for base in kind.__mro__] if is_pythons else self.identity(kind))
        for name in unheard_code.remembered(cls):
            raise NoDescriptionError(f"{object_texts.name_of(cls)}, as Python remembers the answers of its {name}")
        if isinstance(cls, abc.ABCMeta):
            name = object_texts.class_name(cls)
            if self._abstract.setdefault(name, cls) is not cls:
                raise NoDescriptionError(f"two abstract classes {name}")
            self._registered[name] = class_facts.registered(cls)
        return ("class", rows)

    def _of_pythons(self, cls: type) -> tuple[Any, ...]:
        """Return what stands for a class of Python's: its code, and what a program may have added."""
        if not cls.__flags__ & HEAP_TYPE:
            return (cls.__module__, cls.__qualname__)
        values = sorted((name, one) for name, one in vars(cls).items() if class_facts.is_added(cls, name, one))
        added = [(name, self._content(one)) for name, one in values]
        return (cls.__module__, cls.__qualname__, class_facts.code_in(cls), added)

    def _attribute(self, name: str, value: Any) -> Any:
        """An attribute of a class, with what a container holds as far as that can be described."""
        if not isinstance(value, (*CONTAINERS, tuple, frozenset)) or name in self._looked_up:
            return self._content(value)
        try:
            return self._content(value)
        except NoDescriptionError:
            return type(value).__name__

    def _value(self, value: Any) -> Any:
        """A default, the content of a cell, an attribute: constants and code in full, others by their class."""
        if isinstance(value, tuple) and type(value) is tuple:
            return ("tuple", *map(self._value, value))
        if type(value) is frozenset:
            return ("frozenset", *sorted(repr(self._value(one)) for one in value))
        if isinstance(value, CONTAINERS):
            return self._kind(type(value))  # Dynamo guards on what it reads of it
        if isinstance(value, _DESCRIPTORS):
            parts = [self._value(getattr(value, name)) for name in _PARTS if hasattr(value, name)]
            more = {} if unheard_code.is_librarys(type(value)) else object_texts.own_attributes(value) or {}
            return (self._kind(type(value)), parts, self._items(more))
        try:
            return self.identity(value)
        except NoDescriptionError:
            if isinstance(value, (type, types.FunctionType, types.MethodType)):
                raise
            return ("object", self._kind(type(value)), *self._inside(value))

    def _kind(self, cls: type) -> str:
        """Return what stands for the class of an object that is described no further."""
        return object_texts.class_name(cls) if unheard_code.is_librarys(cls) else self.identity(cls)

    def _inside(self, value: Any) -> list[Any]:
        """Return what a small object holds, as Dynamo may read it without guards; nothing of others."""
        if len(self._open) > _SHALLOW or isinstance(value, (torch.Tensor, torch.nn.Module)):
            return []
        if isinstance(value, tuple):  # a named one
            return [self._content(one) for one in tuple.__iter__(value)]
        attributes = object_texts.own_attributes(value)
        if not isinstance(attributes, dict) or len(attributes) > _SMALL:
            return object_texts.text_in_c(value)
        if unheard_code.is_librarys(type(value)):
            return [*object_texts.text_in_c(value), *object_texts.context_texts(value)]
        self._open.append(value)
        try:
            return [(str(name), self._content(one)) for name, one in sorted(attributes.items(), key=_name_of_item)]
        except NoDescriptionError:
            return []
        finally:
            self._open.pop()

    def _content(self, value: Any) -> Any:
        """As `_value`, with what plain containers hold."""
        if type(value) not in (list, tuple, set, frozenset) and not isinstance(value, (dict, types.MappingProxyType)):
            return self._value(value)
        if any(one is value for one in self._open):
            return type(value).__name__
        self._check_depth(value)
        self._open.append(value)
        try:
            if isinstance(value, (dict, types.MappingProxyType)):
                of_keys = dict.items(value) if isinstance(value, dict) else value.items()
                more = [*(object_texts.own_attributes(value) or {}).items(), getattr(value, "default_factory", None)]
                return (
                    self._kind(type(value)),
                    [(self._content(key), self._content(one)) for key, one in of_keys],
                    *(self._content(one) for one in more),
                )
            items = [self._content(one) for one in value]
            return (type(value).__name__, *(items if isinstance(value, (list, tuple)) else sorted(map(repr, items))))
        finally:
            self._open.pop()

    def _code(self, code: types.CodeType) -> str:
        digest = code_digest(code)
        if digest not in self.codes:
            self.codes |= digests_of(code)
        return digest


def _keys_of(value: dict[Any, Any]) -> Set[Any]:
    return dict.keys(value) - frame_conversion.added_to(value)


def _builtins_of(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = function.__builtins__
    return found


def _plain(value: Any) -> str:
    return repr(value) if type(value) in PLAIN else type(value).__qualname__


def _name_of_item(item: tuple[Any, Any]) -> str:
    return str(item[0])
