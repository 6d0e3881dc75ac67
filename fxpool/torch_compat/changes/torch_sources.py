"""Remembers facts about the sources of torch's modules per host: constants, and what names are bound to.

The facts are read from compiled modules. This takes 0.6 s for 475 modules, so a process stores them for the next one
(`Sources.keep`).
"""

from __future__ import annotations

import functools
import os
import types

import msgspec

from fxpool.installed_packages import FactCache
from fxpool.torch_compat.changes import assigned_literals
from fxpool.torch_compat.changes.assigned_literals import Template
from fxpool.torch_compat.changes.name_bindings import UNKNOWN, bindings

__all__ = ["Facts", "Sources", "file_of", "loaded", "source"]

_QUESTION = ("sources of torch's modules", "constants, displays, variables, bindings and imports")


class Facts(msgspec.Struct, array_like=True):
    """Facts about one module. `stamp` identifies its file; `constants` is None until its code is read.

    `displays` are of containers that are not literals, `variables` the global names that its functions assign.
    `imports` has names by the module that they are imported from, with spaces between them (``name`` or ``name=name
    there``); `bound` has bindings of other names that were asked for, None for names that are not bound.
    """

    stamp: str
    constants: dict[str, str] | None = None
    displays: dict[str, Template] = {}
    variables: list[str] = []
    imports: dict[str, str] = {}
    stars: list[str] = []
    bound: dict[str, str | None] = {}


class _Stored(msgspec.Struct):
    modules: dict[str, Facts] = {}
    attributes: set[str] = set()
    contents: set[str] = set()


class Sources:
    """The facts about torch's modules."""

    def __init__(self, version: str, answers: FactCache | None = None) -> None:
        self._version, self._answers = version, answers
        self._is_new = False
        self._checked: set[str] = set()
        self._imports: dict[str, tuple[dict[str, tuple[str, str]], list[str]]] = {}
        self._bound: dict[str, dict[str, str]] = {}

    @functools.cached_property
    def _stored(self) -> _Stored:
        """The stored facts, with those that this process adds. Read when the first one is needed."""
        answer = self._answers.read(_QUESTION, (self._version,)) if self._answers is not None else None
        try:
            return msgspec.json.decode((answer or {}).get("modules", "{}"), type=_Stored)
        except msgspec.DecodeError:
            return _Stored()

    @property
    def attributes(self) -> set[str]:
        """The names of attributes that code of torch assigns."""
        return self._stored.attributes

    @property
    def contents(self) -> set[str]:
        """The names of containers that code of torch writes to."""
        return self._stored.contents

    def keep(self, answers: FactCache) -> None:
        """Store the facts for the next process, if any of them is new."""
        if self._is_new:
            self._is_new = False
            stored = msgspec.json.encode(self._stored, order="sorted").decode()
            answers.write(_QUESTION, (self._version,), {"modules": stored})

    def constants(self, module: types.ModuleType) -> dict[str, str]:
        """Return the constants of a module's source by name, as text. Raises OSError if its code can't be read."""
        return self._read(module).constants or {}

    def variables(self, module: types.ModuleType) -> list[str]:
        """Return the global names that functions of a module assign. Raises OSError as `constants`."""
        return self._read(module).variables

    def displays(self, module: types.ModuleType) -> dict[str, Template]:
        """Return the displays of containers in a module's source by name. Raises OSError as `constants`."""
        return self._read(module).displays

    def imports(self, module: types.ModuleType) -> tuple[dict[str, tuple[str, str]], list[str]]:
        """Return (module, name there) of the names that a module imports, and modules whose names are all imported.

        Nothing of a module whose code can't be read.
        """
        name = module.__name__
        if name not in self._imports:
            try:
                facts = self._read(module)
            except OSError:
                facts = Facts("")
            split = {
                here: (home, there or here)
                for home, names in facts.imports.items()
                for here, _, there in (one.partition("=") for one in names.split())
            }
            self._imports[name] = split, facts.stars
        return self._imports[name]

    def binding(self, module: types.ModuleType, name: str) -> str | None:
        """Return what a module's text binds a name to (see `name_bindings`); None if it is not bound there."""
        facts = self._facts(module)
        if name not in facts.bound:
            if module.__name__ not in self._bound:
                try:
                    self._bound[module.__name__] = bindings(_compiled(module), module.__package__ or "").others
                except OSError:
                    return UNKNOWN  # not stored: `constants` reports such a module
            facts.bound[name] = self._bound[module.__name__].get(name)
            self._is_new = True
        return facts.bound[name]

    def _read(self, module: types.ModuleType) -> Facts:
        """Return a module's facts with its constants and imports. Raises OSError if its code can't be read."""
        facts = self._facts(module)
        if facts.constants is None:
            code = _compiled(module)
            assigned = assigned_literals.assigned(code)
            self.attributes.update(assigned.attributes)
            self.contents.update(assigned.contents)
            bound = bindings(code, module.__package__ or "")
            names: dict[str, list[str]] = {}
            for name, (home, there) in bound.imports.items():
                names.setdefault(home, []).append(name if name == there else f"{name}={there}")
            facts.imports = {home: " ".join(inside) for home, inside in names.items()}
            facts.stars = bound.stars
            facts.variables = sorted(assigned.variables)
            body = assigned_literals.body(code)
            facts.constants = {name: one for name, one in body.literals.items() if name not in assigned.variables}
            facts.displays = {name: one for name, one in body.displays.items() if name not in assigned.variables}
            self._is_new = True
        return facts

    def _facts(self, module: types.ModuleType) -> Facts:
        """Return a module's facts, empty ones if its file has changed."""
        name = module.__name__
        if name not in self._checked:
            self._checked.add(name)
            stamp = _stamp(module)
            if name not in self._stored.modules or self._stored.modules[name].stamp != stamp:
                self._stored.modules[name] = Facts(stamp)
        return self._stored.modules[name]


_last: tuple[object, str, Sources] | None = None


def loaded(version: str, answers: FactCache | None = None) -> Sources:
    """Return this process's facts, at first those in `answers`. `version` identifies the build of torch.

    Without `answers` they are only this process's.
    """
    global _last
    if _last is None or _last[1] != version or (answers is not None and _last[0] is None):
        _last = (answers, version, Sources(version, answers))
    return _last[2]


def file_of(module: types.ModuleType) -> str:
    """Return the path of a module's source or bytecode, or ""."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith((".py", ".pyc")) else ""


def source(module: types.ModuleType) -> str:
    """Return the text of a module, "" if it can't be read."""
    try:
        return _text(module)
    except (OSError, TypeError, UnicodeDecodeError):
        return ""


def _text(module: types.ModuleType) -> str:
    with open(str(module.__file__), encoding="utf-8") as file:
        return file.read()


def _compiled(module: types.ModuleType) -> types.CodeType:
    """Return a module's code from its loader; from its text if that gives none (pytest rewrites modules)."""
    try:
        get_code = getattr(module.__loader__, "get_code", None)
        code = get_code(module.__name__) if get_code is not None else compile(_text(module), "<source>", "exec")
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    if not isinstance(code, types.CodeType):
        raise OSError("its loader has no code")
    return code


def _stamp(module: types.ModuleType) -> str:
    try:
        status = os.stat(file_of(module))
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"
