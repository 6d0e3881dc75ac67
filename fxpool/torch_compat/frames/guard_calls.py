"""Hears by which calls Dynamo makes a frame's guards: see `guard_tree`. Guards of other kinds stay with Dynamo."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._dynamo import config
from torch._dynamo import guards as torchs

from fxpool.torch_compat.frames import plain_sources
from fxpool.torch_compat.frames.guard_tree import (
    ADDRESSES,
    OTHER_EXAMPLES,
    PLAIN,
    STEPS,
    TENSOR,
    Check,
    Describe,
    Manager,
    Tree,
    tensor_facts,
)
from fxpool.torch_compat.patching import Patches

__all__ = ["Listener"]

# Kinds of guards that consist of such calls, and leave nothing else behind in Dynamo.
_KINDS = frozenset(
    (
        "BOOL_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "DICT_CONTAINS",
        "DICT_NOT_CONTAINS", "EQUALS_MATCH", "FUNCTION_MATCH", "HASATTR", "ID_MATCH", "MODULE_MATCH", "NONE_MATCH",
        "NOT_NONE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT", "SEQUENCE_LENGTH", "SET_CONTAINS", "SET_NOT_CONTAINS",
        "TENSOR_MATCH", "TYPE_MATCH",
    )
)  # fmt: skip
_HOOKS = "EMPTY_NN_MODULE_HOOKS_DICT"
# Additions of Dynamo's to a text: where the program says so, a hint, the name of a type.
_ADDED = re.compile(r"\s+# .*|\s+\(HINT: .*|\s*, type=<.*", re.DOTALL)
_NUMBER = re.compile(r"\b\d{9,}\b")


class _Heard(NamedTuple):
    """A check, with live arguments. The texts are the argument at the index `texts`."""

    manager: int
    method: str
    arguments: tuple[Any, ...]
    texts: int


class Listener:
    """Hears how Dynamo makes the guards of one frame. `heard` are the ids of guards that its tree has."""

    def __init__(self, builder: Any, root: Any) -> None:
        self.heard: set[int] = set()
        self._builder = builder
        self._tree = Tree()
        self._live: list[Any] = [root]  # so that no address is used twice
        self._numbers = {id(root): 0}
        self._values: list[Any] = [None]
        self._by_source: dict[str, int] = {}
        self._checks: list[_Heard] = []
        self._hooks: list[tuple[int, str]] = []
        self._is_strange = False

    def make(self, guards: Sequence[Any]) -> None:
        """Make guards, and hear how. Dynamo's lock must be held."""
        with self._listening():
            for guard in guards:
                self._make(guard)

    def _make(self, guard: Any) -> None:
        builder, kind = self._builder, guard.create_fn_name()
        checks, apart, matched = len(self._checks), len(builder.no_tensor_aliasing_names), len(builder.id_matched_objs)
        self._is_strange = False
        guard.create(builder)
        if kind == _HOOKS and config.skip_nnmodule_hook_guards:
            self._hear_hooks(guard)
            return
        added = [
            (self._numbers.get(id(manager)), name)
            for manager, name in zip(
                builder.no_tensor_aliasing_guard_managers[apart:], builder.no_tensor_aliasing_names[apart:], strict=True
            )
        ]
        numbered = [(number, name) for number, name in added if number is not None]
        is_other = kind not in _KINDS or matched != len(builder.id_matched_objs) or len(numbered) != len(added)
        if is_other or self._is_strange:
            del self._checks[checks:]
        else:
            self._tree.apart += numbered
            self.heard.add(id(guard))

    def _hear_hooks(self, guard: Any) -> None:
        """A module's hooks: Dynamo does not look at them once a frame is compiled, so that nothing was called."""
        source = guard.originating_source
        number = self._by_source.get(source.base.name) if type(source).__name__ == "AttrSource" else None
        if number is not None and not len(getattr(self._values[number], source.member)):
            self._hooks.append((number, source.member))
            self.heard.add(id(guard))

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        patches = Patches()
        for cls in (torchs.GuardManager, torchs.RootGuardManager, torchs.DictGuardManager):
            for name, function in [*vars(cls).items()]:
                if name.startswith("add_") or name.endswith("_manager"):
                    heard = self._manager_method if name in STEPS else self._other
                    patches.replace(cls, name, heard(name, function))
        try:
            yield
        finally:
            patches.restore()

    def _manager_method(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def method(parent: Any, *arguments: Any, **named: Any) -> Any:
            child = function(parent, *arguments, **named)
            if id(child) not in self._numbers:
                self._hear_manager(name, self._numbers.get(id(parent)), arguments, named, child)
            return child

        return method

    def _other(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def method(manager: Any, *arguments: Any, **named: Any) -> Any:
            number, texts = self._numbers.get(id(manager)), _texts_at(name, arguments)
            if number is None or named or texts is None or not self._is_known(number, name, arguments, texts):
                self._is_strange = True
            else:
                self._checks.append(_Heard(number, name, arguments, texts))
            return function(manager, *arguments, **named)

        return method

    def _hear_manager(
        self, name: str, begin: int | None, arguments: tuple[Any, ...], named: Mapping[str, Any], child: Any
    ) -> None:
        argument, step = STEPS[name]
        key, kind = named.get(argument), named.get("guard_manager_enum")
        if begin is None or arguments or kind is None or not _is_plain(key):
            self._is_strange = True
            return
        value = step(self._values[begin], key) if name in OTHER_EXAMPLES else named.get("example_value")
        self._tree.managers.append(Manager(begin, name, plain_sources.Writer().write(key), named["source"], kind.name))
        self._by_source[named["source"]] = self._numbers[id(child)] = len(self._live)
        self._live.append(child)
        self._values.append(value)

    def _is_known(self, number: int, name: str, arguments: tuple[Any, ...], texts: int) -> bool:
        value = self._values[number]
        if name in ADDRESSES:
            return texts == 1 and arguments[0] == id(value if ADDRESSES[name] == "object" else type(value))
        if name == TENSOR:
            return (
                arguments[0] is value
                and _is_plain(arguments[1:texts])
                and arguments[texts + 1 :] != ()
                and all(_other_argument(one, value) is not _STRANGE for one in arguments[texts + 2 :])
            )
        return name in PLAIN and all(map(_is_plain, arguments[:texts]))

    def globals(self) -> set[str]:
        """Return the globals that guards begin at."""
        return {manager.key for manager in self._tree.globals()}

    def tree(self, describe: Describe, names: Mapping[str, str]) -> Tree:
        """Return what was heard. `names` are other names for globals of the frame's module."""

        def renamed(text: str) -> str:
            for name, other in names.items():
                text = text.replace(name, other)
            return text

        tree = self._tree.renamed(names)
        for manager in tree.managers:
            manager.source = renamed(manager.source)
        tree.apart = [(number, renamed(name)) for number, name in tree.apart]
        tree.checks += [Check(number, "", "hooks", name) for number, name in self._hooks]
        for number, method, arguments, texts in self._checks:
            kind, data = self._data(tree, number, method, arguments, texts, describe)
            said = [_NUMBER.sub("...", _ADDED.sub("", renamed(text))) for text in arguments[texts]]
            tree.checks.append(Check(number, method, kind, data, said, len(arguments) - texts - 1))
        return tree

    def _data(
        self, tree: Tree, number: int, method: str, arguments: tuple[Any, ...], texts: int, describe: Describe
    ) -> tuple[str, Any]:
        value, write = self._values[number], plain_sources.Writer().write
        if method in ADDRESSES:
            kind = ADDRESSES[method]
            return kind, describe(value if kind == "object" else type(value))
        if method == TENSOR:
            others = [_other_argument(one, value) for one in arguments[texts + 2 :]]
            facts = tensor_facts(value, describe, of_module=tree.is_of_module(number, self._values))
            return "tensor", [*map(write, arguments[1:texts]), others, facts]
        return "plain", [write(one) for one in arguments[:texts]]


def _is_plain(value: Any) -> bool:
    try:
        plain_sources.Writer().write(value)
    except plain_sources.NotPlainError:
        return False
    return not isinstance(value, torch._guards.Source)


def _texts_at(name: str, arguments: tuple[Any, ...]) -> int | None:
    """The index of the texts that say what a check is. The program's stack may come after them, and more of tensors."""
    if name == TENSOR:
        return 4 if len(arguments) > 4 else None
    for at in range(len(arguments) - 1, max(-1, len(arguments) - 3), -1):
        if isinstance(arguments[at], list) and arguments[at] and all(isinstance(one, str) for one in arguments[at]):
            return at
    return None


_STRANGE = object()


def _other_argument(argument: Any, tensor: Any) -> Any:
    """Return a name for an argument after a tensor's texts: its type or its dispatch keys; a flag as it is."""
    if argument is None or isinstance(argument, bool):
        return argument
    if argument is type(tensor):
        return "type"
    is_keys = isinstance(argument, torch._C.DispatchKeySet) and argument == torch._C._dispatch_keys(tensor)
    return "keys" if is_keys else _STRANGE
