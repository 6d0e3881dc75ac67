"""Most of a frame's guards as the calls that make them: managers, each for one object, and the checks on them.

Dynamo makes a guard from a description (a source and a kind), by several calls of torch's. `guard_calls` writes these
calls down, and `grow` repeats them on the objects of another process, in a fraction of the time. Three kinds of
argument stand for live objects, which have to be as they were: the address of an object, that of its type, a tensor.

`grow` also does what each check does. Torch's own check of all guards is not enough: it passes over what is below a
dictionary that has not changed since its manager was made.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch._dynamo import guards as torchs

from fxpool.torch_compat.frames import plain_sources

__all__ = [
    "ADDRESSES",
    "OTHER_EXAMPLES",
    "PLAIN",
    "STEPS",
    "TENSOR",
    "Check",
    "Describe",
    "Grown",
    "Manager",
    "Tree",
    "TreeDiffersError",
    "are_two",
    "attribute",
    "flips",
    "grow",
    "is_hidden",
    "repeat",
    "tensor_facts",
]

#: Describes an object whose address a guard checks.
Describe = Callable[[Any], str]
#: Called with an object that is known by its address, and a text: torch discards the guards when it goes.
KeepWatch = Callable[[Any, str], object]


class TreeDiffersError(Exception):
    """Guards do not fit this process's objects; the message says which."""


class Manager(msgspec.Struct, array_like=True):
    """The call that makes a manager: a method of the manager with the number `begin`, and its key as plain data."""

    begin: int
    method: str
    key: Any
    source: str
    kind: str


class Check(msgspec.Struct, array_like=True):
    """The call that adds a check to a manager.

    `kind` says what `data` is: arguments as plain data ("plain"), the description of the "object" or of its "type", a
    tensor's arguments and facts ("tensor"), or a name of hooks, which torch itself does not check ("hooks"). `after` is
    the number of arguments after the texts.
    """

    manager: int
    method: str
    kind: str
    data: Any
    texts: list[str] = []
    after: int = 0


class Tree(msgspec.Struct):
    """Managers and checks, in the order in which Dynamo made them. Manager 0 is the root, the first here is number 1.

    `apart` are the managers of tensors no two of which may be one tensor, with their names.
    """

    managers: list[Manager] = []
    checks: list[Check] = []
    apart: list[tuple[int, str]] = []

    def globals(self) -> list[Manager]:
        """The managers of globals of the frame's module, whose names are their keys."""
        at = {number for number, one in enumerate(self.managers, 1) if one.method == "globals_dict_manager"}
        return [one for one in self.managers if one.begin in at]

    def renamed(self, names: Mapping[str, str]) -> Tree:
        """Return it with other names for globals of the frame's module."""
        changed = {
            id(one): msgspec.structs.replace(one, key=names[one.key]) for one in self.globals() if one.key in names
        }
        return Tree([changed.get(id(one), one) for one in self.managers], self.checks, self.apart)

    def source(self, number: int) -> str:
        """The source of a manager's object."""
        return self.managers[number - 1].source if number else ""

    def is_of_module(self, number: int, values: Sequence[Any]) -> bool:
        """Return whether a manager's object is on the way from a module; `values` are the managers' objects."""
        while number and not isinstance(values[number], torch.nn.Module):
            number = self.managers[number - 1].begin
        return number > 0

    def varying(self, values: Sequence[Any]) -> set[str]:
        """The sources of tensors that are not parameters; `values` are the managers' objects."""
        numbers = {one.manager for one in self.checks if one.kind == "tensor"}
        return {self.source(one) for one in numbers if not isinstance(values[one], torch.nn.Parameter)}

    def shared(self, values: Sequence[Any], others: Mapping[str, Any]) -> list[str]:
        """Say which objects are one, and which tensors share memory. Dynamo makes no guard against that for most.

        `values` are the managers' objects, `others` those of guards that the tree does not have, by their sources.
        """
        sources = {self.source(number): value for number, value in enumerate(values)} | dict(others)
        found: dict[tuple[str, int], list[str]] = {}
        for source, value in sources.items():
            if isinstance(value, torch.Tensor):
                for kind, address in (("one tensor", id(value)), ("one memory", _memory(value))):
                    found.setdefault((kind, address), []).append(source)
        tensors = [f"{kind}: {', '.join(sorted(of))}" for (kind, _), of in found.items() if len(of) > 1]
        return [*sorted(tensors), f"objects that are the same: {_partition(sources)}"]


def _partition(sources: Mapping[str, Any]) -> str:
    """Return a digest of which sources lead to one object."""
    names: list[tuple[str, Any]] = []
    classes = {id(value) for value in sources.values() if isinstance(value, type)}
    for source, value in sources.items():
        source = _OURS.sub("", source)
        if type(value) not in _WITHOUT_IDENTITY:
            names.append((source, value))
        if id(type(value)) in classes:
            names.append((f"type({source})", type(value)))
        if isinstance(value, dict) and not all(type(key) is str for key in dict.keys(value)):
            keys = enumerate(key for key in dict.keys(value) if type(key) not in _WITHOUT_IDENTITY)
            names += [(f"key {at} of {source}", key) for at, key in keys]
    first: dict[int, str] = {}
    pairs = [(name, first.setdefault(id(value), name)) for name, value in sorted(names, key=operator.itemgetter(0))]
    same = [pair for pair in pairs if pair[0] != pair[1]]
    return hashlib.blake2b(repr(same).encode(), digest_size=8).hexdigest()


# A part of names of globals that is another in each process.
_OURS = re.compile(r"__fxpool_\d+_")
# Objects of these may be shared or not, by accident.
_VALUES = (type(None), bool, int, complex, str, bytes)
_WITHOUT_IDENTITY = frozenset(
    (*_VALUES, float, tuple, frozenset, torch.Size, torch.dtype, torch.device,
     types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, types.MappingProxyType)
)  # fmt: skip


def are_two(value: Any, other: Any) -> bool:
    """Return whether two values of one type differ, or are two functions or classes.

    Other objects may be new ones each time that they are asked for.
    """
    if type(value) is not type(other):
        return False
    if type(value) in _VALUES:
        return bool(value != other)
    return isinstance(value, (type, types.FunctionType)) and value is not other


def is_hidden(owner: Any, source: str) -> bool:
    """Return whether a source ends with a class's attribute that a property of the metaclass hides."""
    name = source.rpartition(".")[2]
    if not isinstance(owner, type) or type(owner) is type or all(name not in vars(base) for base in owner.__mro__):
        return False
    hiding = inspect.getattr_static(type(owner), name, None)
    return hasattr(type(hiding), "__set__") and hiding is not vars(type).get(name)


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except Exception:  # tensors without storage
        return -id(tensor)


class Grown(NamedTuple):
    """Managers on live objects, and these objects, by the managers' numbers."""

    managers: list[Any]
    values: list[Any]


def _key_at(value: Any, index: int) -> Any:
    return next(itertools.islice(value.keys(), index, None))


def _item(value: Any, key: Any) -> Any:
    if not isinstance(value, dict):
        return value[key]
    if not dict.__contains__(value, key):  # else a defaultdict would make it
        raise KeyError(key)
    return dict.__getitem__(value, key)


def attribute(value: Any, name: str) -> Any:
    """Return an attribute; raise AttributeError for annotations that a class lacks, as Python would make them."""
    if name == "__annotations__" and isinstance(value, type) and name not in vars(value):
        raise AttributeError(f"{value.__qualname__} has no annotations")
    return getattr(value, name)


def _has(value: Any, key: Any) -> bool:
    return dict.__contains__(value, key) if isinstance(value, dict) else key in value


def _text(value: Any) -> str:
    return repr(plain_sources.Writer().write(value))


#: For each method that makes a manager: the name of its argument, and how it comes to its object from another's.
STEPS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "framelocals_manager": ("key", lambda variables, key: variables[key[0]]),
    "globals_dict_manager": ("", lambda names, _: names),
    "getattr_manager": ("attr", attribute),
    "generic_getattr_manager": ("attr", object.__getattribute__),
    "get_generic_dict_manager": ("", lambda value, _: value.__dict__),
    "dict_getitem_manager": ("key", _item),
    "getitem_manager": ("key", _item),
    "list_getitem_manager": ("key", operator.getitem),
    "tuple_getitem_manager": ("key", operator.getitem),
    "func_defaults_manager": ("", lambda value, _: value.__defaults__),
    "func_kwdefaults_manager": ("", lambda value, _: value.__kwdefaults__),
    "code_manager": ("", lambda value, _: value.__code__),
    "closure_manager": ("", lambda value, _: value.__closure__),
    "type_manager": ("", lambda value, _: type(value)),
    "type_dict_manager": ("", lambda value, _: value.__dict__),
    "type_mro_manager": ("", lambda value, _: value.__mro__),
    "get_key_manager": ("index", _key_at),
    "get_value_manager": ("index", lambda value, index: dict.__getitem__(value, _key_at(value, index))),
}
#: Of these, torch's example is another object than the one that is checked.
OTHER_EXAMPLES = frozenset(("get_generic_dict_manager", "type_dict_manager", "get_key_manager"))
# Checks of a tensor's marks, which are among its facts.
_MARKS = ("add_dimension_marking_guard", "add_dynamic_indices_guard")
# Dynamo marks parameters and the tensors of modules with this while it traces.
_MARKED_BY_DYNAMO = ["_dynamo_static_input_type", repr("unguarded")]
#: Checks whose arguments before the texts are plain data, and whether a value passes.
PLAIN: dict[str, Callable[..., bool]] = {
    # Torch's takes 0.0 for -0.0, and 1 for True in a tuple.
    "add_equals_match_guard": lambda value, other: _text(value) == _text(other),
    "add_none_match_guard": lambda value: value is None,
    "add_true_match_guard": lambda value: value is True,
    "add_false_match_guard": lambda value: value is False,
    "add_not_none_guard": lambda value: value is not None,
    "add_dict_contains_guard": lambda value, has, key: has == _has(value, key),
    "add_set_contains_guard": lambda value, has, key: has == (key in value),
    "add_length_check_guard": lambda value, length: len(value) == length,
    "add_dict_length_check_guard": lambda value, length: len(value) == length,
    "add_no_hasattr_guard": lambda value, name: not hasattr(value, name),
    "add_float_is_nan_guard": lambda value: type(value) is float and value != value,
    "add_complex_is_nan_guard": lambda value: type(value) is complex and value != value,
    **dict.fromkeys(_MARKS, lambda *_: True),
}
# Checks that pass where another does not.
_OPPOSITES = {
    "add_none_match_guard": "add_not_none_guard",
    "add_not_none_guard": "add_none_match_guard",
    "add_true_match_guard": "add_false_match_guard",
    "add_false_match_guard": "add_true_match_guard",
    "add_float_is_nan_guard": "add_none_match_guard",
    "add_complex_is_nan_guard": "add_none_match_guard",
}
#: Checks of an address, and whose it is.
ADDRESSES = {"add_id_match_guard": "object", "add_type_match_guard": "type"}
TENSOR = "add_tensor_match_guard"
_read = plain_sources.Reader([]).read


def tensor_facts(tensor: Any, describe: Describe, *, of_module: bool) -> list[Any]:
    """Return all that tracing and guards read of a tensor besides its shape."""
    marks = [[name, repr(mark)] for name, mark in sorted(tensor.__dict__.items()) if name.startswith("_dynamo_")]
    if of_module or isinstance(tensor, torch.nn.Parameter):
        marks = [mark for mark in marks if mark != _MARKED_BY_DYNAMO]
    return [
        describe(type(tensor)),
        repr(torch._C._dispatch_keys(tensor)),
        str(tensor.dtype),
        str(tensor.device),
        tensor.requires_grad,
        marks,
    ]


def _has_shape(tensor: Any, sizes: Sequence[int | None], strides: Sequence[int | None] | None) -> bool:
    """Return whether a tensor has these sizes and strides, of which None stands for any."""
    now = [(tensor.size(), sizes)]
    if strides and tensor.layout is torch.strided:
        now.append((tensor.stride(), strides))
    return all(
        len(live) == len(then) and all(size is None or size == one for one, size in zip(live, then, strict=True))
        for live, then in now
    )


def grow(
    tree: Tree,
    root: Any,
    variables: Mapping[str, Any],
    names: Mapping[str, Any],
    describe: Describe,
    keep_watch: KeepWatch,
) -> Grown:
    """Repeat a tree's calls on the root manager of another frame.

    Raises TreeDiffersError: an object is not there, or not as it was.
    """
    managers, values = [root], [None]
    kinds = {kind.name: kind for kind in torchs.GuardManagerType}
    source = ""
    try:
        for one in tree.managers:
            source, key = one.source, _read(one.key)
            argument, step = STEPS[one.method]
            named: dict[str, Any] = {argument: key} if argument else {}
            base: Any = values[one.begin]
            if one.method == "framelocals_manager":
                base = variables
            elif one.method == "globals_dict_manager":
                base = named["f_globals"] = names
            value = step(base, key)
            make = getattr(managers[one.begin], one.method)
            managers.append(make(source=source, example_value=value, guard_manager_enum=kinds[one.kind], **named))
            values.append(value)
    except Exception as error:  # looking an object up in other objects may raise anything
        raise TreeDiffersError(f"{source}: {type(error).__name__}: {error}") from error
    for check in tree.checks:
        of_module = check.kind == "tensor" and tree.is_of_module(check.manager, values)
        repeat(check, managers[check.manager], values[check.manager], describe, keep_watch, of_module=of_module)
    return Grown(managers, values)


def repeat(
    check: Check, manager: Any, value: Any, describe: Describe, keep_watch: KeepWatch, *, of_module: bool
) -> None:
    """Add one check to a manager. Raises TreeDiffersError: its value does not pass."""
    text = check.texts[0] if check.texts else check.method
    try:
        arguments, after = _arguments(check, value, describe, keep_watch, text, of_module)
        if arguments is not None:
            getattr(manager, check.method)(*arguments, check.texts, *after)
    except TreeDiffersError:
        raise
    except Exception as error:  # as above
        raise TreeDiffersError(f"{text}: {type(error).__name__}: {error}") from error


def _arguments(
    check: Check, value: Any, describe: Describe, keep_watch: KeepWatch, text: str, of_module: bool
) -> tuple[list[Any] | None, Sequence[Any]]:
    """Return the arguments before and after the texts; None if torch has no such check. Raises as `repeat`."""
    nothing = (None,) * check.after
    if check.kind == "plain":
        arguments = [*map(_read, check.data)]
        if not PLAIN[check.method](value, *arguments):
            raise TreeDiffersError(f"{text}: it is {_shown(value)}")
        return arguments, nothing
    if check.kind == "tensor":
        *shape, others, facts = check.data
        if (now := tensor_facts(value, describe, of_module=of_module)) != facts:
            raise TreeDiffersError(f"{text}: it is {now}, and was {facts}")
        shape = [*map(_read, shape)]
        if not _has_shape(value, *shape[:2]):
            raise TreeDiffersError(f"{text}: its sizes are {[*value.size()]}, or its strides differ")
        live = {"type": type(value), "keys": torch._C._dispatch_keys(value)}
        return [value, *shape], [None, *(live.get(one, one) for one in others)]
    if check.kind == "hooks":
        if len(getattr(value, check.data)):
            raise TreeDiffersError(f"a module has {check.data}")
        return None, ()
    known = value if check.kind == "object" else type(value)
    if (description := describe(known)) != check.data:
        raise TreeDiffersError(f"{text}: it is {description}, and was {check.data}")
    keep_watch(known, text)
    return [id(known)], nothing


def _shown(value: Any) -> str:
    """A value in a message: nothing of the program's runs for it."""
    is_short = value is None or type(value) in (bool, int, float, str)
    return f"{value!r:.200}" if is_short else f"an object of {type(value).__qualname__}"


def flips(check: Check) -> Iterator[Check]:
    """Yield checks that differ from one in one fact, and that no value passes which passes it."""
    change = functools.partial(msgspec.structs.replace, check)
    if check.kind in ("object", "type"):
        yield change(data=f"{check.data}'")
    elif check.kind == "tensor":
        sizes, strides, name, others, facts = check.data
        for number, fact in enumerate(facts):
            yield change(data=[sizes, strides, name, others, [*facts[:number], _flipped(fact), *facts[number + 1 :]]])
        for number, size in enumerate(_read(sizes)):
            if size is not None:
                other = [*sizes[: number + 1], size + 1, *sizes[number + 2 :]]
                yield change(data=[other, strides, name, others, facts])
    elif check.kind == "hooks":
        yield change(data="__dict__")
    elif check.method in _OPPOSITES:
        yield change(method=_OPPOSITES[check.method])
    elif check.method == "add_no_hasattr_guard":
        yield change(data=["__class__"])
    elif check.kind == "plain" and check.method not in _MARKS:
        yield change(data=[_flipped(check.data[0]), *check.data[1:]])


def _flipped(data: Any) -> Any:
    """Return other plain data."""
    if type(data) is bool:
        return not data
    if type(data) is int:
        return data + 1
    return f"{data}'" if type(data) is str else ["tuple", data]
