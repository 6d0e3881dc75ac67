"""Reads suites: Python files, TOML files, and the suites that ship with fxpool.

A Python file defines ``CASES``, or a function ``cases()`` that returns them. The runner and the process of each run
import it, so slow imports belong into the functions that make models. A TOML file:

    [defaults]
    backends = ["eager", "fxpool"]

    [[case]]
    name = "mlp"
    make = "mymodels:mlp"
    arguments = {width = 512}
    modes = ["inference", "training"]
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import runpy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fxpool.bench.case import Case
from fxpool.errors import ConfigurationError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Suite", "load", "maker", "select", "shipped"]

_SHIPPED = Path(__file__).with_name("suites")


@dataclass(frozen=True)
class Suite:
    """The cases of a file. `digest` is that of the file; results belong to a suite only if their digest matches."""

    name: str
    path: Path
    digest: str
    cases: tuple[Case, ...]

    def case(self, name: str) -> Case:
        """Return a case by its name. Raises UnknownNameError."""
        for case in self.cases:
            if case.name == name:
                return case
        raise UnknownNameError("case", name, [case.name for case in self.cases])


def shipped() -> list[str]:
    """Return the names of the suites that ship with fxpool."""
    return sorted(path.stem for path in _SHIPPED.glob("*.py") if path.stem != "__init__")


def load(name: str) -> Suite:
    """Read a suite by the path of its file, or by the name of a suite that ships with fxpool.

    Raises ConfigurationError if the file does not exist, or if its cases are missing, invalid, or not unique by name.
    """
    path = Path(name)
    if not path.suffix and not path.exists() and name in shipped():
        path = _SHIPPED / f"{name}.py"
    path = path.absolute()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"suite {name} not found: {error.strerror}",
            remedy=f"name a .py or .toml file, or a built-in suite: {', '.join(shipped())}",
        ) from None
    if path.suffix == ".toml":
        cases = _of_toml(path, content)
    elif path.suffix == ".py":
        cases = _of_python(path)
    else:
        raise ConfigurationError(f"{path} is not a suite", remedy="name a .py or .toml file")
    names = [case.name for case in cases]
    if not names or len(set(names)) != len(names):
        raise ConfigurationError(
            f"suite {path} has no cases" if not names else f"suite {path} has several cases with one name"
        )
    return Suite(path.stem, path, hashlib.sha256(content).hexdigest(), tuple(cases))


def select(cases: Iterable[Case], patterns: Iterable[str]) -> list[Case]:
    """Return the cases whose names match a shell pattern; all cases without patterns. Raises UnknownNameError."""
    cases, patterns = list(cases), list(patterns)
    for pattern in patterns:
        if not any(fnmatch.fnmatch(case.name, pattern) for case in cases):
            raise UnknownNameError("case", pattern, [case.name for case in cases])
    return [case for case in cases if not patterns or any(fnmatch.fnmatch(case.name, one) for one in patterns)]


def maker(case: Case, suite: Path) -> Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return the function that makes a case's model and inputs. Raises ConfigurationError if it can't be imported.

    Modules in the suite's directory can be imported too.
    """
    if not isinstance(case.make, str):
        return case.make
    sys.path.insert(0, str(suite.parent))
    module, _, name = case.make.partition(":")
    try:
        made: Any = importlib.import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"case {case.name!r}: cannot import {case.make!r}: {error}", remedy="make must be 'module:function'"
        ) from error
    if not callable(made):
        raise ConfigurationError(
            f"case {case.name!r}: {case.make!r} is not a function", remedy="make must be 'module:function'"
        )
    return made


def _of_python(path: Path) -> list[Case]:
    sys.path.insert(0, str(path.parent))
    try:
        space = runpy.run_path(str(path), run_name=f"fxpool_suite_{path.stem}")
        cases = space["cases"]() if "cases" in space else space.get("CASES", ())
        cases = list(cases)
    except Exception as error:
        raise ConfigurationError(f"cannot read suite {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    wrong = [case for case in cases if not isinstance(case, Case)]
    if wrong:
        raise ConfigurationError(f"suite {path} lists {wrong[0]!r} as a case, which is not a Case")
    return cases


def _of_toml(path: Path, content: bytes) -> list[Case]:
    known = {one.name for one in fields(Case)}
    try:
        data = tomllib.loads(content.decode())
        tables = data.pop("case", [])
        defaults = data.pop("defaults", {})
        if data:
            raise ValueError(f"it has the tables {', '.join(data)}, allowed are defaults and case")
        cases = []
        for table in tables:
            settings = {**defaults, **table}
            if unknown := set(settings) - known:
                raise ValueError(f"unknown settings of a case: {', '.join(sorted(unknown))}")
            cases.append(Case(**settings))
        return cases
    except (ValueError, TypeError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigurationError(f"cannot read suite {path}: {error}") from error
