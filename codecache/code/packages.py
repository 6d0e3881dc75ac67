"""Tell the functions of installed packages whose code is identified by the package's files (`grammar`).

A function of a package in NAMED_PACKAGES computes from its arguments. Those of one in REGISTERING_PACKAGES are
registered with Inductor while the package is imported, so a worker that imports the same modules has them as well.
They count by the package's files, by the values they hold, and by the loaded code and the plain data that they refer
to, which a program may have changed. Code that a module of a package in CHANGING_PACKAGES put in the place of torch's
counts by that module's file instead of all.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import types
from collections.abc import Iterable
from typing import Any

from fxpool.codecache.code import grammar
from fxpool.codecache.code.code_references import code_text, references
from fxpool.codecache.code.source_files import digest_file, digest_package
from fxpool.codecache.code.writer import Writer
from fxpool.torch_compat.changes import container_displays
from fxpool.torch_compat.operators import code_owner, inductor_tables

__all__ = ["add_change", "add_function", "changing", "modules_that_register", "registering"]

# Seconds for which a package's files are taken to be unchanged: one graph may have hundreds of patterns.
_CHECKED_FOR = 1.0
_digests: dict[str, tuple[float, str]] = {}


def add_function(proof: Writer, function: types.FunctionType, *, of_inductor: bool) -> bool:
    """Add a function of a package that the grammar names; return False for others. Raises UnprovenError."""
    path = function.__code__.co_filename
    if package := _package_of(path, grammar.NAMED_PACKAGES):
        proof.token("package", f"{function.__module__}.{function.__qualname__} {_digest(package)}")
        proof.token("code", code_text(function.__code__))
        return True
    package = _package_of(path, grammar.REGISTERING_PACKAGES) if of_inductor else ""
    if not package:
        return False
    proof.token("registered by", f"{function.__module__}.{function.__qualname__} {_digest(package)}")
    _add_references(proof, function, package)
    return True


def _add_references(proof: Writer, function: types.FunctionType, package: str) -> None:
    proof.token("refers to", hashlib.sha256(repr(list(references(function))).encode()).hexdigest())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            raise proof.refused(f"the closure variable {name}, which is not set") from None
        _add_held(proof, value, package, name)


def registering(value: Any) -> str:
    """Return the package in REGISTERING_PACKAGES whose function a value is, or contains; else ""."""
    if isinstance(value, (tuple, list)):
        return next(filter(None, map(registering, value)), "")
    code = getattr(value, "__code__", None)
    return _package_of(code.co_filename, grammar.REGISTERING_PACKAGES) if isinstance(code, types.CodeType) else ""


def changing(value: Any) -> str:
    """Return the module of a package in CHANGING_PACKAGES whose function or object a value is; else ""."""
    is_function = isinstance(value, types.FunctionType)
    module = sys.modules.get(getattr(value if is_function else type(value), "__module__", None) or "")
    path = getattr(module, "__file__", None)
    if module is None or not path or not _package_of(path, grammar.CHANGING_PACKAGES):
        return ""
    return module.__name__ if not is_function or value.__code__.co_filename == path else ""


def add_change(proof: Writer, value: Any, name: str) -> None:
    """Add a value for which `changing` returns a module, in torch's place `name`. Raises UnprovenError."""
    cls, module = type(value), sys.modules[changing(value)]
    package = module.__name__.partition(".")[0]
    try:
        proof.token("changed by", f"{module.__name__} {digest_file(str(module.__file__))}")
    except OSError as error:
        raise proof.refused(f"{name}: {error}") from error
    if isinstance(value, types.FunctionType):
        proof.token("function", f"{value.__qualname__} {sorted(vars(value))}")
        _add_references(proof, value, package)
        return
    if cls.__bases__ != (object,) or type(getattr(value, "__dict__", None)) is not dict:
        raise proof.refused(f"{name}: an object of {cls.__module__}.{cls.__qualname__}")
    proof.token("object", f"{cls.__qualname__} {len(vars(cls))} {len(vars(value))}")
    for attribute, item in sorted(vars(cls).items()):
        proof.token("of its class", attribute)
        if isinstance(item, types.FunctionType):
            _add_references(proof, item, package)
    for attribute, item in vars(value).items():
        proof.token("attribute", attribute)
        _add_held(proof, container_displays.flat(item), package, f"{name}.{attribute}")


def modules_that_register() -> list[str]:
    """Return the loaded modules of packages that have registered code with Inductor, in the order of their import."""
    if not grammar.REGISTERING_PACKAGES & sys.modules.keys():
        return []
    packages = {package for entry in inductor_tables.entries() if (package := registering(entry.value))}
    return [name for name in list(sys.modules) if name.partition(".")[0] in packages]


def _package_of(path: str, packages: Iterable[str]) -> str:
    for package in packages:
        for top in getattr(sys.modules.get(package), "__path__", ()):
            if path.startswith(os.path.join(top, "")) and code_owner.is_installed(os.path.dirname(top), package):
                return package
    return ""


def _digest(package: str) -> str:
    checked, digest = _digests.get(package, (0.0, ""))
    now = time.monotonic()
    if not digest or not 0 <= now - checked <= _CHECKED_FOR:  # a restored process may have an earlier clock
        digest = digest_package(sys.modules[package])
        _digests[package] = now, digest
    return digest


def _add_held(proof: Writer, value: Any, package: str, name: str) -> None:
    """Add a value that a function holds: a container, a pattern, or an object of the package, by its contents."""
    kind = type(value)
    if kind in (list, tuple):
        proof.token("held", str(len(value)))
        for item in value:
            _add_held(proof, item, package, name)
    elif kind is dict:
        proof.token("held by key", str(len(value)))
        for key, item in value.items():
            _add_held(proof, key, package, name)
            _add_held(proof, item, package, name)
    elif (pattern := inductor_tables.pattern_parts(value)) is not None:
        proof.token("pattern", pattern.text)
        for part in pattern.foreign:
            proof.add(part, name)
    elif registering(kind.__init__) == package and type(getattr(value, "__dict__", None)) is dict:
        if proof.met(value):
            return
        proof.token("object", f"{kind.__module__}.{kind.__qualname__} {len(vars(value))}")
        for attribute, item in vars(value).items():
            proof.token("attribute", attribute)
            _add_held(proof, item, package, f"{name}.{attribute}")
    else:
        proof.add(value, name)
