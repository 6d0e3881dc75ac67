"""Describes the objects that tracing met, so that another process can tell whether its own are the same.

Guards say what Dynamo found: types, identities, values. Two things are left. An identity is an address, which another
process can't compare: in its place stands a description of the function, class or module, with all code that is in it.
And Dynamo guards on few of the names that it looked for and did not find: a description of each object that tracing
passed has the names that are there.

A frame with an object that can't be described is refused.
"""

from __future__ import annotations

import _abc
import abc
import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterable, Set
from typing import Any

import torch

from fxpool.frames import unheard_code
from fxpool.frames.code_digests import code_digest, digests_of, globals_of
from fxpool.torch_compat.frames import unguarded_facts

__all__ = ["Describer", "NoDescriptionError"]

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)))
_NUMBERS = (bool, int, float, complex)
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_CONTAINERS = (list, dict, set, types.MappingProxyType)
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
_SAID = (*_OF_TORCH, types.CodeType)
# Classes in C whose objects say nothing by their text, or whose content guards have.
_WITHOUT_TEXT = (
    *_CONTAINERS,
    tuple,
    frozenset,
    collections.deque,
    types.ModuleType,
    object,
    property,
    functools.partial,
)
_SIZED: tuple[Any, ...] = (dict, list, tuple, set, frozenset, collections.deque)
# Attributes of classes that no traced code depends on, or that differ between processes.
_PASSED_OVER = frozenset(
    (
        "__annotate__", "__annotate_func__", "__annotations__", "__dict__", "__firstlineno__", "__module__",
        "__orig_bases__", "__parameters__", "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl",
    )
)  # fmt: skip
# Attributes that Python gives to a member of an enumeration.
_OF_ENUMS = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_"))
_DEEPEST = 12
# The depth down to which objects are described, and the number of attributes of a small one.
_SHALLOW, _SMALL = 6, 32
# A class that is made by a class statement, and may be changed.
_HEAP_TYPE = 1 << 9
# A class in C that is made in the same way, and may not.
_IMMUTABLE = 1 << 8


class NoDescriptionError(Exception):
    """No other process can tell whether it has the same object; the message names it."""


class Describer:
    """Describes objects for one comparison.

    `codes` has the digests of all code that descriptions cover so far, `classes` the names of all classes with their
    bases. `virtual` are the classes that are registered as subclasses of an abstract class, by its name. `called` are
    functions whose results are compared elsewhere. `looked_up` are the names that code looks up. Those `added` to
    `scope`, the namespace of the frame's module, are Dynamo's and are passed over.
    """

    def __init__(
        self,
        called: Iterable[Any] = (),
        looked_up: frozenset[str] = frozenset(),
        scope: dict[str, Any] | None = None,
        added: frozenset[str] = frozenset(),
    ) -> None:
        self._called = [*called]
        self._looked_up = looked_up
        self._scope = scope
        self._added = added
        self.codes: set[str] = set()
        self.classes: set[str] = set()
        self.virtual: dict[str, list[str]] = {}
        self._abstract: dict[str, type] = {}
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no address is used twice
        self._open: list[Any] = []

    def identity(self, value: Any) -> str:
        """Return what stands for the identity of an object. Raises NoDescriptionError."""
        text = self._known.get(id(value))
        if text is None:
            for depth, one in enumerate(self._open):
                if one is value:
                    return f"<itself, {depth}>"
            if len(self._open) > _DEEPEST:
                raise NoDescriptionError(f"{_name(value)}, {_DEEPEST} references deep")
            self._open.append(value)
            try:
                facts = self._facts(value)
            finally:
                self._open.pop()
            text = hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
            text = self._known[id(value)] = f"<{facts[0]} {text}>"
            self._kept.append(value)
        return text

    def names(self, value: Any) -> str:
        """Return which names an object that tracing passed has, and what it is; empty if guards say it all.

        Of a module, those that code looks up count, as others come and go with imports.
        """
        looked_up = self._looked_up
        if isinstance(value, torch.Tensor):
            return unguarded_facts.of_tensor(value, looked_up)
        if type(value) in _PLAIN or isinstance(value, _SAID):
            return ""
        if isinstance(value, types.ModuleType):
            names = {*looked_up, *unheard_code.ANSWERING} & self._keys_of(vars(value))
            if isinstance(value, unguarded_facts.OPERATOR_NAMESPACE):
                names = {name for name in names if not isinstance(vars(value)[name], unguarded_facts.OPERATORS)}
            kinds = [] if _is_pythons(type(value)) else [self.identity(type(value))]
            kinds += [self.identity(vars(value)[name]) for name in sorted(names & unheard_code.ANSWERING)]
            return " ".join([*kinds, *sorted(names)])
        if isinstance(value, (type, types.FunctionType, *_IN_C)):
            return self.identity(value)
        if isinstance(value, types.MethodType):
            owner = self.identity(value.__self__) if isinstance(value.__self__, type) else ""
            return f"{self.identity(value.__func__)} {owner}"
        if isinstance(value, types.CellType):
            return str(self._cell(value))
        found = [self.identity(type(value))] if not _is_pythons(type(value)) else [type(value).__qualname__]
        if _is_empty(value):
            found.append("(empty)")  # Dynamo reads this of dictionaries of hooks, and makes no guard
        if isinstance(value, dict):  # Dynamo makes no guard on a key that it looked for in vain
            found.append(_keys(value, self._keys_of(value), looked_up))
        if isinstance(value, (set, frozenset)):
            found.append(_elements(value))
        found += self._attribute_names(value)
        found += _text_in_c(value)
        found += _claimed_class(value)
        return " ".join(found)

    def _keys_of(self, value: dict[Any, Any]) -> Set[Any]:
        keys = dict.keys(value)
        return keys - self._added if value is self._scope else keys

    @staticmethod
    def _attribute_names(value: Any) -> list[str]:
        slots = _slots_of(value)
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return slots
        if isinstance(value, unguarded_facts.OPERATORS):  # an operator has its overloads once they were looked up
            attributes = {name: of for name, of in attributes.items() if not isinstance(of, unguarded_facts.OPERATORS)}
        found = slots + sorted(unguarded_facts.stable_name(str(name)) for name in attributes)
        if isinstance(value, torch.nn.Module):
            for table in unguarded_facts.MODULE_TABLES:
                found += [table, *sorted(attributes.get(table) or ())]
        return found

    def _facts(self, value: Any) -> tuple[Any, ...]:
        if type(value) in _PLAIN:
            return ("value", type(value).__name__, repr(value))
        if isinstance(value, _OF_TORCH):
            return ("value", type(value).__qualname__, repr(value))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return ("code", self._code(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            read = [] if unheard_code.is_librarys_name(value.__name__) else sorted(self._looked_up & vars(value).keys())
            return ("module", value.__name__, [(name, _plain(vars(value)[name])) for name in read])
        if isinstance(value, types.MethodType):
            return ("method", self.identity(value.__func__), self._value(value.__self__))
        if isinstance(value, _IN_C):
            bound = getattr(value, "__self__", None)
            owner = getattr(value, "__objclass__", None) or type(bound)
            of = self._value(bound) if type(bound) in _PLAIN else type(bound).__qualname__
            return ("builtin", getattr(value, "__module__", None), value.__qualname__, owner.__qualname__, of)
        if isinstance(value, enum.Enum):
            attributes = sorted(
                (name, self._content(one)) for name, one in vars(value).items() if name not in _OF_ENUMS
            )
            return ("member", self.identity(type(value)), value.name, self._content(value.value), attributes)
        if isinstance(value, unguarded_facts.OPERATORS):
            return ("operator", str(value), unguarded_facts.schemas_of(value))
        if isinstance(value, functools.partial):
            return ("partial", *map(self._value, (value.func, value.args, value.keywords)))
        if (wrapped := getattr(value, "__wrapped__", None)) is not None and _is_pythons(type(value)):
            return ("wrapper", type(value).__qualname__, self.identity(wrapped))  # functools.lru_cache
        raise NoDescriptionError(_name(value))

    def _function(self, function: types.FunctionType) -> tuple[Any, ...]:
        if unguarded_facts.CONSTANT_RESULT in function.__dict__ and not any(one is function for one in self._called):
            raise NoDescriptionError(f"the result of {_name(function)}, which Dynamo takes for a constant")
        defaults = (function.__defaults__ or (), sorted((function.__kwdefaults__ or {}).items()))
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
            [self._content(value) for value in defaults[0]],
            [(name, self._content(value)) for name, value in defaults[1]],
            [(name, _annotation(value)) for name, value in annotations.items()],
            [
                (name, self._content(value))
                for name, value in sorted(function.__dict__.items())
                if name != unguarded_facts.WRAPPER_ADDRESS
            ],
        )

    def _cell(self, cell: types.CellType) -> Any:
        try:
            return self._content(cell.cell_contents)
        except ValueError:
            return "empty"

    def _globals(self, function: types.FunctionType) -> Any:
        """Return whose namespace a function reads; what it reads there, if it is not a module's."""
        names = function.__globals__
        if any(dict.get(vars(builtins), name) is not value for name, value in _builtins_of(function).items()):
            raise NoDescriptionError(f"{_name(function)}, which has other builtins")
        name = dict.get(names, "__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and vars(module) is names:
            return name
        read = sorted(globals_of(function.__code__) & names.keys())
        return (name, [(one, self._content(names[one])) for one in read])

    def _class(self, cls: type) -> tuple[Any, ...]:
        rows: list[Any] = []
        self.classes |= {_class_name(base) for base in cls.__mro__}
        for base in cls.__mro__:
            if _is_pythons(base):
                rows.append((base.__module__, base.__qualname__, _code_in(base)))
                continue
            own = sorted((name, value) for name, value in vars(base).items() if name not in _PASSED_OVER)
            # Some releases make no guards on containers that are attributes of a class.
            texts = [(name, self._attribute(name, one)) for name, one in own]
            rows.append((base.__module__, base.__qualname__, base.__name__, texts))
        if not _is_pythons(type(cls)):
            rows.append(self.identity(type(cls)))
        for name, value in unheard_code.remembered(cls):
            raise NoDescriptionError(f"{_name(value)}, of which Python remembers the answers ({name} of {_name(cls)})")
        if isinstance(cls, abc.ABCMeta):
            name = _class_name(cls)
            if self._abstract.setdefault(name, cls) is not cls:
                raise NoDescriptionError(f"two abstract classes {name}")
            self.virtual[name] = _registered(cls)
        return ("class", rows)

    def _attribute(self, name: str, value: Any) -> Any:
        """An attribute of a class, with what a container holds as far as that can be described."""
        if not isinstance(value, (*_CONTAINERS, tuple, frozenset)) or name in self._looked_up:
            return self._content(value)
        try:
            return self._content(value)
        except NoDescriptionError:
            return type(value).__name__

    def _value(self, value: Any) -> Any:
        """A default, the content of a cell, an attribute: constants and code in full, others by their class."""
        if isinstance(value, tuple) and type(value) is tuple:
            return ("tuple", *map(self._value, value))
        if isinstance(value, frozenset):
            return ("frozenset", *sorted(repr(self._value(one)) for one in value))
        if isinstance(value, _CONTAINERS):
            return type(value).__name__  # Dynamo guards on what it reads of it
        if isinstance(value, (classmethod, staticmethod)):
            return (type(value).__name__, self._value(value.__func__))
        if isinstance(value, property):
            return ("property", *map(self._value, (value.fget, value.fset, value.fdel)))
        if isinstance(value, functools.cached_property):
            return ("cached_property", self._value(value.func))
        try:
            return self.identity(value)
        except NoDescriptionError:
            if isinstance(value, (type, types.FunctionType, types.MethodType)):
                raise
            return ("object", type(value).__module__, type(value).__qualname__, *self._inside(value))

    def _inside(self, value: Any) -> list[Any]:
        """Return what a small object holds, as Dynamo may read it without guards; nothing of others."""
        if len(self._open) > _SHALLOW or isinstance(value, (torch.Tensor, torch.nn.Module)):
            return []
        if isinstance(value, tuple):  # a named one
            return [self._content(one) for one in tuple.__iter__(value)]
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or len(attributes) > _SMALL or unheard_code.is_librarys(type(value)):
            return _text_in_c(value)
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
        if any(one is value for one in self._open) or len(self._open) > _DEEPEST:
            return type(value).__name__  # Dynamo guards on what it reads of it
        self._open.append(value)
        try:
            if isinstance(value, (dict, types.MappingProxyType)):
                return ("dict", [(self._content(key), self._content(one)) for key, one in value.items()])
            items = [self._content(one) for one in value]
            return (type(value).__name__, *(items if isinstance(value, (list, tuple)) else sorted(map(repr, items))))
        finally:
            self._open.pop()

    def _code(self, code: types.CodeType) -> str:
        digest = code_digest(code)
        if digest not in self.codes:
            self.codes |= digests_of(code)
        return digest


def _builtins_of(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = function.__builtins__
    return found


def _claimed_class(value: Any) -> list[str]:
    """Return the class that an object with a ``__getattribute__`` of the program's claims, which Dynamo asks for."""
    if not isinstance(type(value).__getattribute__, types.FunctionType):
        return []
    if getattr(value, "__dict__", None) is not _own_attributes(value):
        raise NoDescriptionError(f"{_name(value)}, whose attributes are computed")
    return [_class_name(value.__class__)]


def _own_attributes(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return None


def _code_in(cls: type) -> list[tuple[str, str]]:
    """Return the digests of methods of a class, which a program may have replaced; none of one in C."""
    if not cls.__flags__ & _HEAP_TYPE:
        return []
    methods = ((name, getattr(value, "__func__", value)) for name, value in sorted(vars(cls).items()))
    return [(name, code_digest(one.__code__)) for name, one in methods if isinstance(one, types.FunctionType)]


def _slots_of(value: Any) -> list[str]:
    """Return the names of slots that an object has a value in, without running code of its class."""
    found = []
    for base in type(value).__mro__:
        if base.__flags__ & _HEAP_TYPE and "__slots__" in vars(base):
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):
                        member.__get__(value)
                        found.append(name)
    return sorted(found)


def _text_in_c(value: Any) -> list[str]:
    """Return a digest of the text of an object of a class in C: Dynamo compares such objects without guards."""
    base: Any = next(one for one in type(value).__mro__ if _is_in_c(one) or one is dataclasses.Field)
    if base in _WITHOUT_TEXT:
        return []
    if hasattr(base, "__next__"):
        raise NoDescriptionError(f"how far an object of {base.__qualname__} has come")
    text = base.__repr__(value) if base is not memoryview else repr(value.tobytes())
    return [hashlib.blake2b(unguarded_facts.without_addresses(text).encode(), digest_size=8).hexdigest()]


def _is_in_c(cls: type) -> bool:
    return not cls.__flags__ & _HEAP_TYPE or bool(cls.__flags__ & _IMMUTABLE)


def _is_empty(value: Any) -> bool:
    """Return whether a value is an empty container, without running code of its class."""
    return any(isinstance(value, cls) and not cls.__len__(value) for cls in _SIZED)


def _keys(value: dict[Any, Any], keys: Set[Any], looked_up: frozenset[str]) -> str:
    """Return a digest of keys of a dictionary. Of the names in a module, and of modules, those of `looked_up` count."""
    name = dict.get(value, "__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_of_module = module is not None and getattr(module, "__dict__", None) is value
    if is_of_module or value is sys.modules:
        texts = [key for key in keys if isinstance(key, str) and key in looked_up]
    elif value is vars(os.environ).get("_data"):
        texts = []  # `record.environment` has those that are looked up, and Dynamo guards on a list of all
    else:
        texts = [*map(_key, keys)]
    return hashlib.blake2b(repr(sorted(texts)).encode(), digest_size=8).hexdigest()


def _elements(value: Any) -> str:
    """Return the elements of a set: numbers in their order, others sorted, whose order is another in each process."""
    texts = [*map(_key, value)]
    return repr(texts if all(type(one) in _NUMBERS for one in value) else sorted(texts))


def _plain(value: Any) -> str:
    return repr(value) if type(value) in _PLAIN else type(value).__qualname__


def _name_of_item(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _key(key: Any) -> str:
    """Return what stands for a key of a dictionary: its value, or the name of a class, function or module."""
    if type(key) is str:
        return unguarded_facts.stable_name(key)
    kind = type(key).__qualname__
    if type(key) in _PLAIN or isinstance(key, _OF_TORCH):
        return f"{kind} {key!r}"
    if type(key) in (tuple, frozenset):
        return f"{kind} {[*map(_key, key)] if type(key) is tuple else sorted(map(_key, key))}"
    if isinstance(key, type):
        return f"{kind} {_class_name(key)}"
    if isinstance(key, types.FunctionType):
        return f"{kind} {key.__module__} {key.__qualname__} {code_digest(key.__code__)}"
    if isinstance(key, types.ModuleType):
        return f"{kind} {key.__name__}"
    if isinstance(key, enum.Enum):
        return f"{kind} {key.name}"
    return kind


def _class_name(cls: Any) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _registered(cls: abc.ABCMeta) -> list[str]:
    """The names of classes registered as virtual subclasses of an abstract class, or of one of its subclasses."""
    found: set[str] = set()
    left: list[Any] = [cls]
    seen: set[Any] = set()
    while left:
        one = left.pop()
        if one in seen or not isinstance(one, abc.ABCMeta):
            continue
        seen.add(one)
        registry = [reference() for reference in _abc._get_dump(one)[0]]
        found |= {_class_name(other) for other in registry if other is not None}
        subclasses: list[Any] = type.__subclasses__(one)
        left += [*subclasses, *(other for other in registry if other is not None)]
    return sorted(found)


def _annotation(value: Any) -> str:
    if isinstance(value, type) and not isinstance(value, types.GenericAlias):
        return _class_name(value)
    return unguarded_facts.without_addresses(repr(value))


def _is_pythons(cls: type) -> bool:
    """Return whether a class is written in C, and so the same in each process with this Python and these libraries."""
    return not cls.__flags__ & _HEAP_TYPE or cls.__module__ in ("abc", "typing", "collections.abc", "enum")


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if isinstance(name, str) else f"an object of {type(value).__qualname__}"
