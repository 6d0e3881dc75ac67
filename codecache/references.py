"""What a function refers to, and whose that is: the user's code, or torch's, Triton's and the standard library's.

The user's is digested by its content (`sources`); the rest is known by name and version.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Whose code is identified by name and version: the key holds torch's and Triton's digests anyway.
NAMED_BY_VERSION = frozenset({"torch", "torchgen", "functorch", "triton", "numpy", "sympy", *sys.stdlib_module_names})
# Whose objects are known by the name they are published under; their state is ambient state, which the key holds.
NAMED_OBJECTS = frozenset({"torch", "torchgen", "functorch", "triton"})
MISSING = object()


def is_named_by_version(value: Any) -> bool:
    """Whether a function or class is what torch, Triton or the standard library publish under its name.

    A user's wrapper can carry the name of what it wraps (`functools.wraps`), so the name must lead back to it.
    """
    if top_level(value.__module__ or "") not in NAMED_BY_VERSION:
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


class Named:
    """Stands for an object of torch's or Triton's that is known by name."""

    def __init__(self, name: str) -> None:
        self.name = name


def is_instance(value: Any) -> bool:
    """Whether a value is an object of a class of torch's or Triton's, and not an operator, which is looked into."""
    module = type(value).__module__
    return top_level(module) in NAMED_OBJECTS and module != "torch._ops" and not hasattr(value, "untyped_storage")


def is_of_torch(function: types.FunctionType) -> bool:
    return top_level(str(function.__globals__.get("__name__", ""))) in NAMED_OBJECTS


def top_level(module: str) -> str:
    return module.partition(".")[0]


def version_of(module: str) -> str:
    """The version that stands for a module's code."""
    top = top_level(module)
    if top in sys.stdlib_module_names or not top:
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    return str(getattr(sys.modules.get(top), "__version__", ""))


def globals_read(function: types.FunctionType, refuse: Callable[[str], Exception]) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of the global names in a function's code and the code nested in it, sorted by name.

    A user's module is followed along the attributes that are read from it, to what is used of it; `refuse` makes the
    error for an import whose outcome is not known here.
    """
    paths: set[tuple[str, ...]] = set()
    for code in _codes(function.__code__):
        paths |= _paths_read(code, refuse)
    builtins: Any = function.__globals__.get("__builtins__", {})
    known: Mapping[str, Any] = builtins if isinstance(builtins, Mapping) else vars(builtins)
    resolved: dict[str, Any] = {}
    for path in paths:
        first = path[0]
        value = function.__globals__.get(first, known.get(first, MISSING))
        used = 1
        while isinstance(value, types.ModuleType) and used < len(path):
            module, value = value, getattr(value, path[used], MISSING)
            used += 1
            if top_level(module.__name__) in NAMED_OBJECTS and is_instance(value):
                value = Named(f"{module.__name__}.{path[used - 1]} {version_of(module.__name__)}")
        resolved[".".join(path[:used])] = value
    return iter(sorted(resolved.items()))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _paths_read(code: types.CodeType, refuse: Callable[[str], Exception]) -> set[tuple[str, ...]]:
    """The global names a code object loads, each with the attributes that are taken from it at once."""
    paths: set[tuple[str, ...]] = set()
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "CACHE")]
    for position, instruction in enumerate(instructions):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            path = [str(instruction.argval)]
            for follower in instructions[position + 1 :]:
                if follower.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                path.append(str(follower.argval))
            paths.add(tuple(path))
        elif instruction.opname == "IMPORT_NAME":
            level = instructions[position - 2].argval if position >= 2 else None
            if level != 0 or top_level(str(instruction.argval)) not in NAMED_BY_VERSION:
                raise refuse(f"the import of {instruction.argval or 'a sibling module'} inside the function")
    return paths
