"""Reads from bytecode what the names of a module or class are bound to: imported, defined or assigned.

A program that puts one function of torch in the place of another leaves only torch's code behind. The module's own
text tells: it binds another function to that name.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator

from fxpool.torch_compat.changes.assigned_literals import class_bodies
from fxpool.torch_compat.changes.stack_machine import NAMED, instructions

__all__ = ["CALL", "DECORATED", "DEFINED", "IMPORT", "UNKNOWN", "WORDS", "Bindings", "bindings"]

#: The binding of a name that a ``def`` statement defines; of one that a ``def`` or ``class`` statement defines and
#: that may be decorated.
DEFINED, DECORATED = "def", "decorated"
#: The binding of a name that is bound more than once, or in a way that is not read here.
UNKNOWN = ""
#: Begins the binding of a name that is assigned; the names, attributes and texts of its statement follow. CALL begins
#: it if the statement calls something.
WORDS, CALL = "= ", "call "
#: Begins the binding of a name by ``import a`` and ``import a as b``; the module's name follows.
IMPORT = "import "


@dataclasses.dataclass
class Bindings:
    """The bindings of one module. `imports` has (module, name there) by name; `stars` has modules imported with ``*``.

    ``import a.b as c`` counts as ``from a import b as c``. `others` has DEFINED, DECORATED, UNKNOWN, WORDS, CALL or
    IMPORT by name; for names in a class, by ``class.name``.
    """

    imports: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    stars: list[str] = dataclasses.field(default_factory=list)
    others: dict[str, str] = dataclasses.field(default_factory=dict)


def bindings(code: types.CodeType, package: str = "") -> Bindings:
    """Return the bindings of a module's code; `package` is what its relative imports refer to."""
    found = Bindings()
    for name, source, other in _bound(code, package):
        if name == "*" and source is not None:
            found.stars.append(source[0])
        elif found.others.get(name) == other and source is None and other.startswith(IMPORT):
            continue  # import torch, and import torch.fx
        elif name in found.others or (name in found.imports and found.imports[name] != source):
            found.imports.pop(name, None)
            found.others[name] = UNKNOWN
        elif source is not None:
            found.imports[name] = source
        else:
            found.others[name] = other
    for cls in class_bodies(code):
        for name, other in bindings(cls).others.items():
            found.others[f"{cls.co_name}.{name}"] = other
    return found


def _bound(code: types.CodeType, package: str) -> Iterator[tuple[str, tuple[str, str] | None, str]]:
    """Yield (name, import, other binding) of each statement that binds a name."""
    statement = _Statement()
    module = before = ""
    for instruction, argument in instructions(code):
        if instruction == "LOAD_CONST":
            statement.constants.append(code.co_consts[argument])
        elif instruction == "LOAD_SMALL_INT":
            statement.constants.append(argument)
        elif instruction in NAMED:
            statement.names.append(code.co_names[argument >> NAMED[instruction]])
        elif instruction == "IMPORT_NAME":
            module = statement.imported(code.co_names[argument], package)
            statement.whole = "" if module else code.co_names[argument]
            if module and statement.constants[-1] == ("*",):
                yield "*", (module, "*"), UNKNOWN
        elif instruction == "IMPORT_FROM" and module:
            statement.source = (module, code.co_names[argument])
        elif instruction == "IMPORT_FROM" and statement.whole:  # of each part of the name after the first
            home, _, there = statement.whole.rpartition(".")
            statement.source = (home, there)
        elif instruction.startswith("CALL"):
            statement.calls = True
        elif instruction in ("STORE_NAME", "STORE_GLOBAL"):
            name = code.co_names[argument]
            yield name, statement.source, statement.binding(name, before)
            statement = _Statement()
        before = instruction


class _Statement:
    """Collects what a statement reads until it binds a name."""

    def __init__(self) -> None:
        self.constants: list[object] = []
        self.names: list[str] = []
        self.source: tuple[str, str] | None = None
        self.whole = ""  # the module of an ``import`` without ``from``
        self.calls = False

    def imported(self, module: str, package: str) -> str:
        """Return the full name of the module of a ``from module import``; "" for other imports."""
        level, names = self.constants[-2:] if len(self.constants) > 1 else (0, None)
        if not isinstance(names, tuple) or not isinstance(level, int):
            return ""
        if level == 0:
            return module
        base = package.rsplit(".", level - 1)[0]
        return f"{base}.{module}" if module else base

    def binding(self, name: str, before: str) -> str:
        """Return how the statement binds `name`, if not to something imported. `before` is the last instruction."""
        if self.whole:
            return IMPORT + self.whole.partition(".")[0]
        code = [one.co_name for one in self.constants if isinstance(one, types.CodeType)]
        if name in code:
            return DEFINED if before in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE") else DECORATED
        if code or before == "FOR_ITER":
            return UNKNOWN
        words = [*self.names, *(one for one in self.constants if isinstance(one, str) and one.isidentifier())]
        return f"{CALL if self.calls else WORDS}{' '.join(words)}" if words else UNKNOWN
