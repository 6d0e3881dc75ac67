"""Replaces attributes of torch's or Triton's, and restores them; calls functions once a torch module is imported."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

__all__ = ["Patches", "cached_functions", "clear_caches", "patched", "patched_item", "triton_driver", "when_imported"]

_ABSENT = object()
_CACHED = type(functools.cache(lambda: None))


class Patches:
    """Replacements that are in force, the latest last.

    Another function than the one that replaces may restore them, as a forked child does for threads that it lacks.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[Any, Any, Any]] = []  # (object, attribute) or (dictionary, key)

    def __len__(self) -> int:
        return len(self._originals)

    def replace(self, owner: Any, name: str, value: Any, *, create: bool = False) -> None:
        """Replace an attribute of an object, such as a module or class. Raises AttributeError as `patched`."""
        original = vars(owner).get(name, _ABSENT)  # the raw attribute, so that a static method stays static
        if original is _ABSENT and not create:
            getattr(owner, name)  # inherited, or AttributeError
        self._originals.append((owner, name, original))
        setattr(owner, name, value)

    def replace_item(self, table: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Replace the entry of a dictionary, or add it."""
        self._originals.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def restore(self, count: int = 0) -> None:
        """Restore all originals but those of the first `count` replacements."""
        while len(self) > count:
            owner, name, original = self._originals.pop()
            if isinstance(owner, MutableMapping):
                if original is _ABSENT:
                    owner.pop(name, None)
                else:
                    owner[name] = original
            elif original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    @contextlib.contextmanager
    def replaced(self, owner: Any, name: str, value: Any, *, create: bool = False) -> Iterator[None]:
        """Replace an attribute in the ``with`` block, as `patched` does."""
        count = len(self)
        self.replace(owner, name, value, create=create)
        try:
            yield
        finally:
            self.restore(count)


def patched(owner: Any, name: str, value: Any, *, create: bool = False) -> contextlib.AbstractContextManager[None]:
    """Replace an attribute of a module or class by `value`, and restore the original on leaving.

    Raises AttributeError if there is no such attribute, unless `create`, for names that a release may lack.
    """
    return Patches().replaced(owner, name, value, create=create)


@contextlib.contextmanager
def patched_item(table: MutableMapping[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Replace the entry of a dictionary, or add it, and restore the original on leaving."""
    patches = Patches()
    patches.replace_item(table, key, value)
    try:
        yield
    finally:
        patches.restore()


@contextlib.contextmanager
def triton_driver(driver: Any) -> Iterator[None]:
    """Give Triton this driver in the ``with`` block. Triton then does not build or load another one."""
    from triton.runtime import driver as active

    with patched(active, "_active", driver):
        yield


def cached_functions(name: str) -> list[Any]:
    """Return the functions of an imported module, and methods of its classes, that cache their results."""
    module, functions = sys.modules.get(name), list[Any]()
    for value in [*vars(module).values()] if module is not None else ():
        if getattr(value, "__module__", None) == name:
            members = vars(value).values() if isinstance(value, type) else ()
            functions += [value, *(getattr(member, "__func__", member) for member in members)]
    return [function for function in functions if isinstance(function, _CACHED)]


def clear_caches(name: str) -> None:
    """Clear the caches of a module's functions."""
    for function in cached_functions(name):
        function.cache_clear()


# Calls that wait for the first import of a module, by its name.
_waiting: dict[str, list[Callable[[types.ModuleType], None]]] = {}


def when_imported(name: str, call: Callable[[types.ModuleType], None]) -> None:
    """Call `call` with a module as soon as it is imported: now, or when its first import is done."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        call(module)
    else:
        _waiting.setdefault(name, []).append(call)
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds no modules itself, but wraps the loaders of modules that are waited for.

    It remains when no module is waited for: removing it would shift the list under a thread that imports at the same
    time, which would then skip the next finder.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


_FINDER = _Finder()


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # `inspect` reads the source through it
        module.__loader__ = self._loader
        for call in _waiting.pop(module.__name__, ()):
            call(module)
