"""Programs whose frame is recorded, and a change of each that the next process meets: see `frame_kinds`.

A program is a module with ``make``, which returns a function and its arguments. A change is an edit of the text of the
module or of its helpers, a statement that runs ahead of the compile (names: those of the module, `module`, `function`,
`torch`, `os`, `sys`), another environment, or another context.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
from typing import Any, ClassVar

import torch

__all__ = ["Kind", "Together", "function", "model"]

HEAD = """
import collections, contextlib, dataclasses, enum, functools, itertools, math, operator, os, sys, types
import torch
import torch.nn as nn
import torch.nn.functional as F
import helpers
from helpers import by_name
"""

HELPERS = """
import torch
RATE = 1.5
TABLE = {"a": 2.0}
def other(x):
    return x - 0.1
def by_name(x):
    return x * 0.01
def twice(function):
    def wrapper(x):
        return function(x) * 1.01
    return wrapper
"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One program and its change.

    `text` is the program without its imports; `forward` in short for a function of one argument. `edit` is (old, new)
    in the text, or (file, old, new). `neutral`: the frame may be served, as what it
    depends on stays. `silent`: it may not, though the result stays. `refused` is a part of the reason why the frame is
    never kept. `once`: it is kept, and fits no other process. `lenient`: it may be refused, or fit no other process, as
    long as no process has a wrong result. `flat`: its graph is flattened to operators, as AOTAutograd does it, so that
    the functions that run in the graph are part of it.
    """

    text: str
    edit: tuple[str, ...] = ()
    run: str = ""
    before: str = ""
    variables: tuple[str, str] = ("", "")
    inside: tuple[str, str] = ("", "")
    neutral: bool = False
    silent: bool = False
    refused: str = ""
    once: bool = False
    lenient: bool = False
    flat: bool = False

    def files(self, changed: bool) -> dict[str, str]:
        """The texts of the program's modules, by name."""
        found = {"program": HEAD + textwrap.dedent(self.text), "helpers": HELPERS}
        if changed and self.edit:
            name, old, new = self.edit if len(self.edit) == 3 else ("program", *self.edit)
            assert old in found[name], (name, old)
            found[name] = found[name].replace(old, new)
        return found

    def prepare(self, module: Any, function: Any, changed: bool) -> None:
        """Run what is to run ahead of the compile."""
        statement = textwrap.dedent(self.run if changed else self.before)
        names = {"module": module, "function": function, "torch": torch, "os": os, "sys": sys}
        exec(statement, {**vars(module), **names})

    def environment(self, changed: bool) -> dict[str, str]:
        """Environment variables of the process."""
        name, _, value = self.variables[changed].partition("=")
        return {name: value} if name else {}

    def context(self, changed: bool) -> str:
        """The context manager around the calls, as an expression."""
        return self.inside[changed]


_TOGETHER = """
import importlib
modules, functions = [], []
def make():
    inputs, ends = [], [0]
    functions.clear()
    for name in {names!r}:
        module = importlib.import_module(name)
        function, own = module.make()
        modules.append(module)
        functions.append(function)
        inputs += own
        ends.append(len(inputs))
    {parts} = functions
    {cuts} = ends
    def together(*inputs):
        return {calls}
    return together, tuple(inputs)
"""


@dataclasses.dataclass(frozen=True)
class Together:
    """Programs whose functions one function calls, and a change of one of them, the number `at`.

    With `back` the changed program comes first, and the change is undone.
    """

    kinds: tuple[Kind, ...]
    at: int
    back: bool
    flat: ClassVar[bool] = False

    def _is_changed(self, number: int, changed: bool) -> bool:
        return number == self.at and changed != self.back

    def files(self, changed: bool) -> dict[str, str]:
        """As `Kind.files`."""
        count = range(len(self.kinds))
        names = {
            "names": [f"part{number}" for number in count],
            "parts": ", ".join(f"f{number}" for number in count) + ",",
            "cuts": ", ".join(f"e{number}" for number in (*count, len(self.kinds))),
            "calls": ", ".join(f"f{number}(*inputs[e{number}:e{number + 1}])" for number in count) + ",",
        }
        found = {"program": _TOGETHER.format(**names)}
        for number, kind in enumerate(self.kinds):
            files = kind.files(self._is_changed(number, changed))
            found[f"part{number}"] = files["program"]
            if number == self.at or "helpers" not in found:
                found["helpers"] = files["helpers"]
        return found

    def prepare(self, module: Any, function: Any, changed: bool) -> None:
        """As `Kind.prepare`."""
        for number, kind in enumerate(self.kinds):
            kind.prepare(module.modules[number], module.functions[number], self._is_changed(number, changed))

    def environment(self, changed: bool) -> dict[str, str]:
        """As `Kind.environment`."""
        changes = [kind.environment(self._is_changed(number, changed)) for number, kind in enumerate(self.kinds)]
        return {name: value for variables in changes for name, value in variables.items()}

    def context(self, changed: bool) -> str:
        """As `Kind.context`: that of the program that changes."""
        return self.kinds[self.at].context(changed != self.back)


def function(body: str, more: str = "", inputs: str = "torch.randn(4, 8)") -> str:
    """A program that compiles a function of one tensor."""
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"{textwrap.dedent(more)}\ndef function(x):\n{lines}\ndef make():\n    return function, ({inputs},)\n"


def model(body: str, init: str = "pass", more: str = "", members: str = "") -> str:
    """A program that compiles a module with one layer."""
    return (
        f"{textwrap.dedent(more)}\nclass Net(nn.Module):\n{textwrap.indent(textwrap.dedent(members), '    ')}\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(8, 8)\n"
        f"{textwrap.indent(textwrap.dedent(init).strip(), '        ')}\n"
        f"    def forward(self, x):\n{textwrap.indent(textwrap.dedent(body).strip(), '        ')}\n"
        "def make():\n    return Net(), (torch.randn(4, 8),)\n"
    )
