"""Where programs are registered, by name: one function each, in the module of its subject.

A `program` returns the function (or module) to compile and its arguments, or yields several such pairs, which are
called one after another; the same function is compiled once. Outputs, arguments afterwards, and gradients of arguments
and parameters are compared with what eager execution gives.

A `script` gets something to call in place of `torch.compile`, calls it as it likes, and returns what is to be compared.
Eagerly that something hands the function back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Compile", "Program", "program", "registered", "script"]

Compile = Callable[..., Any]
"""Takes what torch.compile takes, but for the back end, and gives what it gives."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and how it is compiled. `raises`: eager execution raises, and the compiled program does the same."""

    name: str
    subject: str
    build: Callable[..., Any]
    whole: bool
    compiling: dict[str, Any]
    raises: bool
    strides: bool


_programs: dict[str, Program] = {}


def _register(name: str, whole: bool, raises: bool, strides: bool, compiling: dict[str, Any]) -> Callable[[Any], Any]:
    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        if name in _programs:
            raise ValueError(f"two programs are called {name}")
        subject = build.__module__.rpartition(".")[2]
        _programs[name] = Program(name, subject, build, whole, compiling, raises, strides)
        return build

    return decorate


def program(name: str, *, raises: bool = False, strides: bool = True, **compiling: Any) -> Callable[[Any], Any]:
    """Register a function that returns or yields what is to be compiled, and its arguments.

    `compiling` are arguments of torch.compile. Without `strides`, those of the results may differ from eager's, which
    Inductor does not promise everywhere.
    """
    return _register(name, False, raises, strides, compiling)


def script(name: str, *, strides: bool = True) -> Callable[[Any], Any]:
    """Register a function that is given a `Compile` and returns a tree of results."""
    return _register(name, True, False, strides, {})


def registered() -> dict[str, Program]:
    """All programs of the modules that have been imported, by name."""
    return dict(_programs)
