"""Reads the facts of a process that tracing may depend on, which another is asked for: names in modules, variables."""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
import types
from collections.abc import Mapping
from typing import Any

from fxpool.codecache.code import proof
from fxpool.frames.code_digests import code_digest
from fxpool.torch_compat.frames import unguarded_facts
from fxpool.torch_compat.frames.frame_conversion import added_to
from fxpool.torch_compat.operators import operators

__all__ = [
    "UnfitError",
    "builtin_texts",
    "by_name",
    "environment",
    "has_attribute",
    "is_a",
    "listed_names",
    "names_there",
    "operator_digest",
    "package_of",
    "plain_text",
]


class UnfitError(Exception):
    """A record is of another frame than this one; the message names the first difference."""


def names_there(module: str, names: frozenset[str]) -> list[str]:
    """Return which of some names a module has, sorted, and the package that its imports are relative to."""
    if (found := sys.modules.get(module)) is None:
        return []
    there = names & (vars(found).keys() - added_to(vars(found)))
    return [*sorted(there), package_of(vars(found))]


def package_of(names: Mapping[str, Any]) -> str:
    """Return the package that imports in a module's namespace are relative to, as text."""
    spec = names.get("__spec__")
    return f"the package {names.get('__package__')!r}, {getattr(spec, 'parent', None)!r}"


def has_attribute(module: types.ModuleType | None, name: str) -> bool:
    """Return whether a module has an attribute, which may run its own code as tracing does."""
    try:
        return hasattr(module, name)
    except Exception:  # the program's: Dynamo reports it
        return False


def listed_names(module: str, name: str) -> str:
    """Return a digest of the names in a class, or in the module `name` if `module` is empty."""
    try:
        names = dir(by_name(module, name))
    except Exception:  # the program's: Dynamo reports it
        names = []
    return hashlib.blake2b(repr(names).encode(), digest_size=8).hexdigest()


def is_a(module: str, name: str, abstract_module: str, abstract: str) -> bool | None:
    """Return whether a class is a subclass of an abstract one, which may run its code; None if there is no such."""
    try:
        return issubclass(by_name(module, name), by_name(abstract_module, abstract))
    except Exception:  # the program's: Dynamo reports it
        return None


def builtin_texts(mentioned: frozenset[str]) -> list[tuple[str, str]]:
    """Return the builtins that code mentions, with a text of each: a program may replace them and add to them."""
    return [(name, _builtin_text(vars(builtins)[name])) for name in sorted(mentioned & vars(builtins).keys())]


def _builtin_text(value: Any) -> str:
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    return f"{type(value).__name__} {unguarded_facts.without_addresses(repr(value))}"


def operator_digest(name: str) -> str:
    """Return a digest of all code of an operator. Raises UnfitError: it is not defined here, or has no digest."""
    try:
        is_overload = name.count(".") == 1
        operator: Any = operators.find_overload(name) if is_overload else operators.find_packet(name)
        found = proof.Proof()
        found.add(operator)
        return found.digest()
    except Exception as error:  # its code is outside the grammar
        raise UnfitError(f"the operator {name}: {error}") from error


def environment(looked_up: frozenset[str]) -> str:
    """Return the digest of the environment for code that looks up some names.

    Dynamo guards on what code reads of ``os.environ``, but not on what it does not find there: the names count that are
    looked up. For code that names the environment the values count, too.
    """
    variables = {os.fsdecode(name): value for name, value in os.environb.items()}
    names = sorted(looked_up & variables.keys())
    values = [variables[name] for name in names] if looked_up & _ENVIRONMENT else []
    return hashlib.blake2b(repr((names, values)).encode(), digest_size=16).hexdigest()


# Names under which code reads environment variables.
_ENVIRONMENT = frozenset(("environ", "environb", "getenv", "getenvb"))


def by_name(module: str, name: str) -> Any:
    """Return the object that a module has under a qualified name, or None; the module `name` if `module` is empty."""
    if not module:
        return sys.modules.get(name)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def plain_text(value: Any) -> str | None:
    """Return a value of one of Python's plain types as text, or None."""
    return f"{type(value).__name__} {value!r}" if type(value) in _PLAIN else None


_PLAIN = frozenset((type(None), bool, int, float, str))
