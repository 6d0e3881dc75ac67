"""The guards of a frame: written down as plain data, and built again on the objects of another process.

A guard names an object by its source and checks something about it: its type, its identity, its value. `Guards` holds
the sources and the kinds of checks. Where the checks are built from live objects, they say in text what they check:
two frames are the same to Dynamo if all guards say the same, word for word, and hold.

The address of an object is replaced in the text by a description, which the caller gives.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import re
import types
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch._dynamo import guards as torchs
from torch._dynamo.output_graph import OutputGraphCommon, OutputGraphGuardsState

from fxpool.torch_compat.frames import plain_sources, unguarded_facts
from fxpool.torch_compat.frames.guard_tree import Grown, Tree, TreeDiffersError, attribute, grow
from fxpool.torch_compat.patching import patched

__all__ = [
    "Built",
    "Guards",
    "GuardsDifferError",
    "Manager",
    "NoGuardsError",
    "build",
    "builtins_of",
    "read",
    "remembering",
]

#: Describes an object whose address a guard checks; raises `NoGuardsError` if it can't be told in another process.
Describe = Callable[[Any], str]

_ADDRESS = re.compile(r"\b\d{9,}\b")
# How a guard on keys of a dictionary begins.
_OF_KEYS = "list(dict.keys("
# Those that hold a count or a weak reference, and those whose text does not have all that they check.
_UNKNOWN = frozenset(
    (
        "DICT_VERSION",
        "DTENSOR_SPEC_MATCH",
        "FAKE_SCRIPT_TYPE_MATCH",
        "NN_MODULE",
        "OPAQUE_OBJ_GUARD_FN_MATCH",
        "TENSOR_SUBCLASS_METADATA_MATCH",
        "WEAKREF_ALIVE",
    )
)


class NoGuardsError(Exception):
    """These guards can't be written down; the message says which, and why."""


class GuardsDifferError(Exception):
    """The guards do not fit this process's objects; the message says which differs."""


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """A frame's guards as plain data (`plain_sources.Writer`). `rows` are (source, kind, arguments, keywords)."""

    sources: list[Any]
    rows: list[list[Any]]
    key_order: list[Any]
    sizes: Any
    dual_level: int
    current_device: Any
    global_state: str
    after_autograd: list[Any]
    builtins: str | None
    shapes: Any

    def globals(self) -> set[str]:
        """Return the globals that guards begin at."""
        found = {dict(fields)["global_name"] for _, cls, *fields in self.sources if cls == "GlobalSource"}
        return found | ({self.builtins} if self.builtins is not None else set())

    def renamed(self, names: Mapping[str, str]) -> Guards:
        """Return them with other names for globals of the frame's module."""

        def field(name: str, value: Any) -> list[Any]:
            return [name, names.get(value, value) if name == "global_name" else value]

        sources = [[kind, cls, *(field(*one) for one in fields)] for kind, cls, *fields in self.sources]
        builtins = names.get(self.builtins, self.builtins) if self.builtins is not None else None
        return msgspec.structs.replace(self, sources=sources, builtins=builtins)


# The beginning of no name.
_NO_NAME = "\0"


@contextlib.contextmanager
def remembering(functions: dict[str, str], prefix: str = _NO_NAME, plain: str = _NO_NAME) -> Iterator[None]:
    """Keep the text of each function that Dynamo writes for guards in this block, and take those that are there.

    Names of globals that begin with `prefix` are of this process; they begin with `plain` in `functions`. Writing one
    takes as long as all other guards of a deep model. Dynamo's lock must be held.
    """
    original = torchs.build_guard_function

    def write(parts: list[str], arguments: str) -> tuple[str, str]:
        facts = repr((parts, arguments)).replace(prefix, plain)
        name = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
        if name not in functions:
            functions[name] = original(parts, arguments)[1].replace(prefix, plain)
        return "", functions[name].replace(plain, prefix)  # callers use no more

    with patched(torchs, "build_guard_function", write):
        yield


class Built(NamedTuple):
    """Guards on live objects: torch's manager, and what those that no tree has say, sorted.

    `objects` are those that their sources lead to, `values` those of the tree's managers.
    """

    manager: Any
    said: list[str]
    objects: dict[str, Any]
    values: list[Any]


class Manager(torchs.CheckFunctionManager):
    """Builds guards as torch does, and keeps the objects whose addresses they check.

    Those of a tree come after the others: `add` adds them to the root manager that it is given.
    """

    def __init__(self, tree: Tree, add: Callable[[Any, Any], Grown], *args: Any, **kwargs: Any) -> None:
        self.named: dict[int, Any] = {}
        self.own: list[str] = []
        self.grown = Grown([], [])
        self._tree, self._add = tree, add
        super().__init__(*args, **kwargs)

    def build_guards(self, *args: Any, **kwargs: Any) -> Any:
        builder, manager = super().build_guards(*args, **kwargs)
        self.own = [*_leaves(manager.root)]
        self.grown = self._add(manager.root, super().id_ref)
        for number, name in self._tree.apart:
            builder.no_tensor_aliasing_names.append(name)
            builder.no_tensor_aliasing_guard_managers.append(self.grown.managers[number])
        # Those that torch checks first once a frame has been compiled several times.
        manager.diff_guard_sources.update(self._tree.varying(self.grown.values))
        return builder, manager

    def id_ref(self, obj: object, obj_str: str) -> int:
        self.named[id(obj)] = obj
        return int(super().id_ref(obj, obj_str))


def read(shapes: Any, builder: Any, guards: Sequence[Any], graph: Any) -> Guards:
    """Return the guards that Dynamo has just built for a frame; `shapes` are those on sizes. Raises NoGuardsError."""
    if graph.torch_function_mode_stack or graph.functorch_layers:
        raise NoGuardsError("a mode or a transform of functorch is in force")
    state = graph.dump_guards_state()
    writer = plain_sources.Writer()
    write = writer.write
    try:
        return Guards(
            rows=[_row(guard, builder, write) for guard in guards],
            key_order=[write(source) for source in state.guard_on_key_order],
            sizes=write(_sizes(state.input_source_to_sizes_strides)),
            dual_level=state.dual_level,
            current_device=write(state.current_device),
            global_state=state.global_state_guard.__getstate__(),
            after_autograd=[write(guard) for guard in state._aotautograd_guards],
            builtins=state.name_of_builtins_dict_key_in_fglobals,
            shapes=write(shapes),
            sources=writer.table,
        )
    except plain_sources.NotPlainError as error:
        raise NoGuardsError(f"a guard holds {error}") from error


def _row(guard: Any, builder: Any, write: Callable[[Any], Any]) -> list[Any]:
    make = guard.create_fn
    arguments, keywords = (make.args, make.keywords) if isinstance(make, functools.partial) else ((), {})
    function = guard.inner_create_fn()
    name = function.__name__
    if name in _UNKNOWN or getattr(torchs.GuardBuilder, name, None) is not function:
        raise NoGuardsError(f"no other process can make the guard {name} on {guard.name}")
    if name == "EMPTY_NN_MODULE_HOOKS_DICT" and len(builder.get(guard)):
        raise NoGuardsError(f"{guard.name} has hooks")
    if name == "TENSOR_MATCH":  # the tensor itself, which is looked up again
        arguments, keywords = (), {key: value for key, value in keywords.items() if key != "value"}
    return [write(guard.originating_source), name, write(tuple(arguments)), write(dict(keywords))]


def _sizes(sizes: Mapping[Any, Any]) -> dict[Any, Any]:
    """The sizes and strides of inputs, with numbers in the place of symbols."""
    return dict(torch.utils._pytree.tree_map(torchs.convert_int_to_concrete_values, dict(sizes)))


def build(
    guards: Guards,
    tree: Tree,
    code: types.CodeType,
    variables: dict[str, Any],
    names: dict[str, Any],
    describe: Describe,
    functions: dict[str, str],
    prefix: str,
    plain: str,
) -> Built:
    """Build a frame's guards on these locals and globals. They hold for the frame, if they say what they should.

    `names` may get the entry for Python's builtins that Dynamo's code reads. Raises GuardsDifferError: a source leads
    nowhere, or a guard does not hold whatever it says. `functions`, `prefix` and `plain` as in `remembering`.
    """
    try:
        read = plain_sources.Reader(guards.sources).read
        rows = [tuple(map(read, row)) for row in guards.rows]
        state = _state(guards, [_guard(*row) for row in rows], variables, names, read)
        shapes = read(guards.shapes)
    except (plain_sources.NotPlainError, NoGuardsError) as error:
        raise GuardsDifferError(str(error)) from error
    objects = _objects([row[0] for row in rows], variables, names)
    for source, name, *_ in rows:
        # Torch builds a guard on an empty dictionary of hooks without a look at it.
        if name == "EMPTY_NN_MODULE_HOOKS_DICT" and len(objects[source.name]):
            raise GuardsDifferError(f"{source.name} has hooks")

    def add(root: Any, keep_watch: Callable[[Any, str], object]) -> Grown:
        return grow(tree, root, variables, names, describe, keep_watch)

    # Torch's trace of a process ends with its first line if it goes nowhere. If that were the guards', they would be
    # written out for nothing.
    torch._logging.trace_structured("fxpool_frame", lambda: {"name": code.co_name})
    try:
        with _quiet(), remembering(functions, prefix, plain):
            manager = Manager(tree, add, code, OutputGraphCommon(state), shape_code_parts=shapes)
        said = _said(manager, sorted(state._guards, key=torch._guards.Guard.sort_key), describe)
        said += _orders([*map(read, guards.key_order)], variables, names, describe)
        said += tree.shared(manager.grown.values, objects)
    except TreeDiffersError as error:
        raise GuardsDifferError(str(error)) from error
    except Exception as error:  # looking up a source in other objects may raise anything
        raise GuardsDifferError(f"{type(error).__name__}: {error}") from error
    if not manager.guard_manager.check(variables):
        raise GuardsDifferError(str(manager.guard_manager.check_verbose(variables)))
    return Built(manager.guard_manager, said, objects, manager.grown.values)


def _orders(sources: Iterable[Any], variables: dict[str, Any], names: dict[str, Any], describe: Describe) -> list[str]:
    """Say which keys the dictionaries have whose order counts, sorted. Torch takes their number from live objects."""
    found = []
    for name, value in _objects(sources, variables, names).items():
        if isinstance(value, (dict, KeysView)):
            keys = [repr(key) if isinstance(key, (str, int, float)) else describe(type(key)) for key in value]
            found.append(f"{name} has the keys {', '.join(keys)}")
    return sorted(found)


def _objects(sources: Iterable[Any], variables: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Return the objects that sources lead to and pass on their way, by the sources' names."""
    scope: dict[str, Any] = {**torchs._get_closure_vars(), "L": variables, "G": names}
    known: dict[Any, Any] = {}
    found: dict[str, Any] = {}
    for source in sources:
        while source is not None and source.name and source.name not in found:
            try:
                found[source.name] = _object(source, scope, known)
            except Exception as error:  # the objects are others
                raise GuardsDifferError(f"{source.name}: {type(error).__name__}: {error}") from error
            source = getattr(source, "base", None)
    return found


def _object(source: Any, scope: dict[str, Any], objects: dict[Any, Any]) -> Any:
    """Return the object that a source leads to, without making a key of a defaultdict, or annotations of a class."""
    if (base := getattr(source, "base", None)) is not None:
        value, key = _object(base, scope, objects), getattr(source, "index", None)
        is_item = isinstance(value, dict) and type(source).__name__ in _ITEMS and type(key) in _KEYS
        if is_item and not dict.__contains__(value, key):
            raise KeyError(key)
        if getattr(source, "member", None) == "__annotations__":
            return attribute(value, source.member)
    return source.get_value(scope, {}, objects)


# Sources of items of dictionaries, and types of keys that they have as they are.
_ITEMS = frozenset(("DictGetItemSource", "DictSubclassGetItemSource", "GetItemSource"))
_KEYS = (bool, int, float, str, bytes, tuple)


def _guard(source: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    function = getattr(torchs.GuardBuilder, name, None)
    if function is None or name in _UNKNOWN:
        raise NoGuardsError(f"this torch has no guard {name}")
    return torch._guards.Guard(
        source, functools.partial(function, *arguments, **keywords) if arguments or keywords else function
    )


def _state(
    guards: Guards,
    live: Sequence[Any],
    variables: dict[str, Any],
    names: dict[str, Any],
    read: Callable[[Any], Any],
) -> OutputGraphGuardsState:
    if guards.builtins is not None:
        pythons = builtins_of(names)
        if names.setdefault(guards.builtins, pythons) is not pythons:
            raise NoGuardsError(f"the module has another {guards.builtins}")
    state = torch._C._dynamo.guards.GlobalStateGuard()
    state.__setstate__(guards.global_state)
    ordered = importlib.import_module("torch.utils._ordered_set").OrderedSet
    return OutputGraphGuardsState(
        local_scope=variables,
        global_scope=names,
        torch_function_mode_stack=[],
        guard_on_key_order={read(source) for source in guards.key_order},
        input_source_to_sizes_strides=read(guards.sizes),
        dual_level=guards.dual_level,
        functorch_layers=[],
        current_device=read(guards.current_device),
        global_state_guard=state,
        _guards=torch._guards.GuardsSet(ordered(live)),
        _aotautograd_guards=[read(guard) for guard in guards.after_autograd],
        skip_guards_check=True,
        name_of_builtins_dict_key_in_fglobals=guards.builtins,
    )


def builtins_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """Python's builtins as a module's globals have them: a dictionary, or a module."""
    found = names["__builtins__"]
    return found if isinstance(found, dict) else vars(found)


def _said(manager: Manager, guards: Sequence[Any], describe: Describe) -> list[str]:
    """Return the texts of all guards but the tree's, each line once; addresses are replaced by descriptions."""

    def described(match: re.Match[str]) -> str:
        number = int(match.group())
        return describe(manager.named[number]) if number in manager.named else match.group()

    lines = [part for guard in guards for part in guard.code_list or ()]
    root = manager.guard_manager.root
    lines += manager.own
    for leaf in (*root.get_leaf_guards(), *root.get_epilogue_lambda_guards()):  # some are added at the end
        lines += leaf.verbose_code_parts()
    # The text of a key that is a function has its address. Descriptions of the dictionary have the function.
    lines = [unguarded_facts.without_addresses(line) if line.startswith(_OF_KEYS) else line for line in lines]
    return sorted({_ADDRESS.sub(described, line) for line in lines})


def _leaves(manager: Any) -> Iterator[str]:
    """The texts of all leaf guards below a manager; torch's own listing leaves out those of dictionaries."""
    for leaf in manager.get_leaf_guards():
        yield from leaf.verbose_code_parts()
    if isinstance(manager, torchs.DictGuardManager):
        children = [one for pair in manager.get_key_value_managers().values() for one in pair if one is not None]
    else:
        children = manager.get_child_managers()
    for child in children:
        yield from _leaves(child)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging a guard that can't be built."""
    logger = logging.getLogger("torch._guards")

    def none(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(none)
    try:
        yield
    finally:
        logger.removeFilter(none)
