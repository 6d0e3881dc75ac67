"""Find the objects that a function refers to, and whose code they are: the user's, or that of a library.

The user's code is digested by content (`sources`). Code of torch, Triton, NumPy, sympy and the standard library is
identified by name and version.
"""

from __future__ import annotations

import dis
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fxpool.codecache.code import process_state

# Packages whose code is identified by name and version. The key includes digests of torch and Triton in any case.
NAMED_BY_VERSION = frozenset({"torch", "torchgen", "functorch", "triton", "numpy", "sympy", *sys.stdlib_module_names})
# Packages whose objects are identified by their public names. Their state is ambient state, which the key includes.
NAMED_OBJECTS = frozenset({"torch", "torchgen", "functorch", "triton"})
MISSING = object()


def is_named_by_version(value: Any) -> bool:
    """Return whether the name of a function or class leads to it in torch, Triton or another library of the tables.

    The lookup is needed because a user's wrapper can have the name of the function that it wraps (`functools.wraps`).
    """
    if top_level(value.__module__ or "") not in NAMED_BY_VERSION:
        return False
    published: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        published = getattr(published, part, None)
    return published is value


class Named:
    """A placeholder for an object of torch or Triton that is identified by name."""

    def __init__(self, name: str) -> None:
        self.name = name


def is_instance(value: Any) -> bool:
    """Return whether a value belongs to torch or Triton, except operators and tensors, which have their own digests."""
    module = type(value).__module__
    return top_level(module) in NAMED_OBJECTS and module != "torch._ops" and not hasattr(value, "untyped_storage")


def is_of_torch(function: types.FunctionType) -> bool:
    """Return whether a function is defined in a module of torch or Triton."""
    return top_level(str(function.__globals__.get("__name__", ""))) in NAMED_OBJECTS


def top_level(module: str) -> str:
    """Return the first part of a module's name."""
    return module.partition(".")[0]


def version_of(module: str) -> str:
    """Return the version that identifies a module's code."""
    top = top_level(module)
    if top in sys.stdlib_module_names or not top:
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    return str(getattr(sys.modules.get(top), "__version__", ""))


class Variable:
    """A placeholder for an environment variable that a function reads."""

    def __init__(self, name: str) -> None:
        self.name = name


def globals_read(function: types.FunctionType, refuse: Callable[[str], Exception]) -> Iterator[tuple[str, Any]]:
    """Return (dotted name, value) of the globals that a function and the code nested in it read, sorted by name.

    For a user's module, the attributes read from it are returned instead of the module. An import inside the function
    is treated as a global. `refuse` creates the error for an import of a module that is not loaded, and for a read of
    the environment with a computed variable name.
    """
    reads: set[tuple[tuple[str, ...], tuple[str, bool] | None]] = set()
    imports: set[tuple[str, int, tuple[str, ...]]] = set()
    for code in _codes(function.__code__):
        _read(code, reads, imports)
    builtins: Any = function.__globals__.get("__builtins__", {})
    known: Mapping[str, Any] = builtins if isinstance(builtins, Mapping) else vars(builtins)
    resolved: dict[str, Any] = {}
    for path, constant in reads:
        first = path[0]
        value = function.__globals__.get(first, known.get(first, MISSING))
        used, value = _followed(value, path, 1)
        if isinstance(value, (dict, list, set)) and (owner := _owner_of(first, value)):
            value = Named(f"{owner}.{first} {version_of(owner)}")
        name = ".".join(path[:used])
        if process_state.is_environment(value):
            variable = process_state.variable_read(value, constant)
            if variable is None:
                raise refuse(process_state.ENVIRONMENT)
            resolved[f"{name} {variable}"] = Variable(variable)
        else:
            resolved[name] = value
    for name, level, wanted in imports:
        resolved.update(_imported(function, name, level, wanted, refuse))
    return iter(sorted(resolved.items()))


def _owner_of(name: str, value: Any) -> str:
    """Return the module of torch or Triton that has this table under `name`, or "". Such tables are named, not read."""
    for module_name, module in sys.modules.copy().items():
        if top_level(module_name) in NAMED_OBJECTS and getattr(module, "__dict__", {}).get(name) is value:
            return module_name
    return ""


def _followed(value: Any, path: tuple[str, ...], used: int) -> tuple[int, Any]:
    """Follow `path` from module to module; return the number of names used, and the value they lead to."""
    while used < len(path) and (isinstance(value, types.ModuleType) or process_state.is_environment(value)):
        owner, attribute = value, getattr(value, path[used], MISSING)
        if not isinstance(owner, types.ModuleType) and not process_state.is_environment(attribute):
            break  # a method of the environment that does not read a variable
        value, used = attribute, used + 1
        if isinstance(owner, types.ModuleType) and top_level(owner.__name__) in NAMED_OBJECTS and is_instance(value):
            value = Named(f"{owner.__name__}.{path[used - 1]} {version_of(owner.__name__)}")
    return used, value


def _imported(
    function: types.FunctionType, name: str, level: int, wanted: tuple[str, ...], refuse: Callable[[str], Exception]
) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of an import in a function; raise `refuse`'s error if the module is not loaded."""
    package = str(function.__globals__.get("__package__") or function.__globals__.get("__name__", ""))
    try:
        full = importlib.util.resolve_name("." * level + name, package)
    except (ImportError, ValueError):
        full = ""
    if top_level(full) in NAMED_BY_VERSION:
        yield from _imported_of_libraries(function, full, wanted)
        return
    module = sys.modules.get(full)
    if module is None:
        raise refuse(f"the import of {full or name or 'a sibling module'} inside the function, which is not loaded")
    if not wanted:
        yield f"import {full}", module
    for attribute in wanted:
        yield f"import {full}.{attribute}", getattr(module, attribute, sys.modules.get(f"{full}.{attribute}", MISSING))


def _imported_of_libraries(
    function: types.FunctionType, full: str, wanted: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    """Yield the imports from a library that read process state; other imports are covered by the library's version.

    The bytecode does not show which attributes of a module are used, so every name in the function may be an attribute.
    """
    for attribute in wanted:
        yield from _readers(function, f"{full}.{attribute}", getattr(sys.modules.get(full), attribute, None))
    if not wanted:
        for name in dict.fromkeys((top_level(full), full)):
            yield from _readers(function, name, sys.modules.get(name))


def _readers(function: types.FunctionType, name: str, value: Any, deep: int = 2) -> Iterator[tuple[str, Any]]:
    if process_state.is_environment(value):
        yield f"import {name}", os.getenv  # the variable's name is not visible here
    elif isinstance(value, types.ModuleType):
        named = {each for code in _codes(function.__code__) for each in code.co_names}
        for attribute in sorted(named) if deep else ():
            yield from _readers(function, f"{name}.{attribute}", getattr(value, attribute, None), deep - 1)
    elif callable(value) and process_state.reads(value):
        yield f"import {name}", value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _read(
    code: types.CodeType,
    reads: set[tuple[tuple[str, ...], tuple[str, bool] | None]],
    imports: set[tuple[str, int, tuple[str, ...]]],
) -> None:
    """Add a code object's reads and imports.

    A read is a global with the attributes that directly follow it, and the constant it is called with. An import has
    its relative level and the imported names.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "CACHE")]
    for position, instruction in enumerate(instructions):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            path = [str(instruction.argval)]
            for follower in instructions[position + 1 :]:
                if follower.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                path.append(str(follower.argval))
            constant = process_state.variable_asked(instructions, position + len(path))
            reads.add((tuple(path), constant))
        elif instruction.opname == "IMPORT_NAME":
            level = instructions[position - 2].argval if position >= 2 else 0
            wanted: list[str] = []
            for follower in instructions[position + 1 :]:
                if follower.opname == "IMPORT_FROM":
                    wanted.append(str(follower.argval))
                elif not follower.opname.startswith("STORE_"):
                    break
            imports.add((str(instruction.argval), level if isinstance(level, int) else 0, tuple(wanted)))
