"""A row: a program, its environment, and the expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .needs import Need
from .verdict import Expected, Run

if TYPE_CHECKING:
    from .environment import Site

__all__ = ["PLAIN", "WITNESS", "Row"]

# Replaced by the lines that make `witness` of witness.py.
WITNESS = "WITNESS\n"

PLAIN = """WITNESS
import torch


def work(x):
    return (x.sin() * 2 + 1).sum(dim=-1)


compiled = torch.compile(work, backend="fxpool")
x = torch.arange(24.0).reshape(4, 6)
witness.check(compiled(x), work(x))
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A program in an environment. In all texts ``{python}``, ``{program}``, ``{root}``, ``{home}``, ``{tmp}``,
    ``{directory}`` (the program's) and the names that `prepare` sets stand for what they are in the row's site.

    `program` is the file ``main.py``; `arguments` are the interpreter's. `files` lie beside it. `shell` runs the
    command, which is its ``"$@"``. `environment` goes over an ordinary user's; None takes a variable away. `again` is
    the second run's program, if another, `again_environment` what that adds. `prepare` makes what the row needs.
    `fresh`: nothing is known about the tool chain. `packages`: modules that are installed beside the environment.
    `also`: a check for this row alone; it returns "" or an error.
    """

    name: str
    program: str = PLAIN
    arguments: tuple[str, ...] = ("{program}",)
    files: Mapping[str, str] = field(default_factory=dict)
    shell: str = 'exec "$@"'
    environment: Mapping[str, str | None] = field(default_factory=dict)
    again: str | None = None
    again_environment: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Callable[[Site], object] | None = None
    needs: tuple[Need, ...] = ()
    packages: tuple[str, ...] = ()
    fresh: bool = False
    expected: Expected = field(default_factory=Expected)
    also: Callable[[Site, Run], str] | None = None
