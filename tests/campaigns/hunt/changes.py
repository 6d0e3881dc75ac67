"""Rows that become kinds: a program with `KKK` in its texts, which is one of two values in each of two processes.

    helper    holds what the change is about
    ops       has code that runs while a graph is compiled and calls the helper: by default a formula of an operator
    hunted    the main module; it imports the others, and its function `run` is compiled

Case 0 of a kind is the program as its row gives it. Others draw another site for the code, another order of the values,
a mode, dynamic sizes, and a third process like the first.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Mapping

from .drawing import Drawn, kind, mode_of
from .libraries import Library
from .program import Built, Case, Step

__all__ = ["BACKWARD", "FORMULA", "Change", "block", "register"]

_OPS = """
import torch
import helper
def _result(x):
{result}
"""
_IMPLICIT = """
LIB = torch.library.Library("hunted", "DEF")
LIB.define("op(Tensor x) -> Tensor")
@torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
def _op(x):
    return _result(x)
def piece(x):
    return torch.ops.hunted.op(x)
"""
_ALLOWED = """
@torch.compiler.allow_in_graph
def piece(x):
    return _result(x)
"""
_NONSTRICT = """
@torch._dynamo.nonstrict_trace
def piece(x):
    return _result(x)
"""
_BACKWARD = """
@torch.library.custom_op("hunted::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
@op.register_fake
def _(x):
    return torch.empty_like(x)
def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
def _backward(ctx, gradient):
    return gradient * _result(ctx.saved_tensors[0])
op.register_autograd(_backward, setup_context=_setup)
def piece(x):
    return op(x)
"""
_CODE = {"formula": _IMPLICIT, "allowed": _ALLOWED, "nonstrict": _NONSTRICT, "backward": _BACKWARD}

#: Sites of code that AOTAutograd runs: anywhere, or only where the result's shape and graph matter.
ANYWHERE = ("formula", "allowed", "nonstrict", "backward")
FORMULA = ("formula",)
BACKWARD = ("backward",)

_MAIN = """
{ahead}
import torch
{imports}
{setup}
def inputs():
    g = torch.Generator().manual_seed(7)
    x = {inputs}
    return (x{gradient},)
def run(x):
{body}
"""
_BODIES = ("return y + 1", "return y * 0.5 - x.sum()", "return y, x.exp()", "return {'y': y.abs(), 'x': x + 1}")


def block(text: str, indent: str = "") -> str:
    """Return `text` without the indentation that its lines share, behind `indent`."""
    return textwrap.indent(textwrap.dedent(text).strip("\n"), indent)


@dataclasses.dataclass(frozen=True)
class Change:
    """A program of two processes, as the module says.

    `values` stand for `KKK` in every text, also in names of files, variables, directories and in `calls`; one value
    makes one process. `result` is what the code in `ops` returns, an expression of ``x`` or several lines of
    statements; `sites` are the kinds of code it may be in. `ahead` comes before the main module's imports and `setup`
    behind them; `body` are all statements of `run`. `ops`, `main` and `others` are whole texts of modules.
    `libraries` are C++ sources of files, built for each value. `calls` are statements before each call of a process.
    """

    name: str
    helper: str = "def factor():\n    return 1.0"
    values: tuple[object, ...] = (2.0, 3.0)
    result: str = "x.sin() * helper.factor()"
    sites: tuple[str, ...] = ANYWHERE
    ahead: str = ""
    setup: str = ""
    body: str = ""
    inputs: str = "torch.rand(4, 8, generator=g) + 0.1"
    ops: str = ""
    main: str = ""
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    libraries: Mapping[str, Library] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    calls: tuple[str, ...] = ("",)
    cwd: str = ""
    path: str = ""
    training: bool = False
    stock: bool = False
    fresh: bool = False
    shared_stock: bool = True
    tolerance: float = 1.0
    mode: str | None = None
    dynamic: bool = True
    anew: bool = True

    def step(self, name: str, value: object, site: str, body: str) -> Step:
        """The process in which `KKK` is `value`."""
        text = value if isinstance(value, str) else repr(value)

        def put(part: str) -> str:
            return block(part).replace("KKK", text)

        texts = {"helper.py": self.helper, "ops.py": self.ops or self._operators(site), **self.others}
        files: dict[str, str | bytes | Built] = {put(name): put(part) + "\n" for name, part in texts.items()}
        files["hunted.py"] = put(self.main or self._main(site, body)) + "\n"
        for file, library in self.libraries.items():
            number = value if isinstance(value, float) and library.number is not None else library.number
            files[file] = dataclasses.replace(library, source=put(library.source), number=number)
        return Step(
            name,
            files,
            calls=[put(call) for call in self.calls],
            environment={name: put(part) for name, part in self.environment.items()},
            path=put(self.path).split(":"),
            cwd=put(self.cwd),
        )

    def trains(self, site: str) -> bool:
        """Whether gradients are asked for."""
        return self.training or site == "backward"

    def _uses_operators(self) -> bool:
        return bool(self.ops or not self.body or re.search(r"(?<![.\w])ops\.", self.body))

    def _operators(self, site: str) -> str:
        statements = block(self.result)
        if "\n" not in statements:
            statements = f"return {statements}"
        return _OPS.format(result=block(statements, "    ")) + _CODE[site]

    def _main(self, site: str, body: str) -> str:
        return _MAIN.format(
            ahead=block(self.ahead),
            imports="import ops" if self._uses_operators() else "",
            setup=block(self.setup),
            inputs=self.inputs,
            gradient=".requires_grad_()" if self.trains(site) else "",
            body=block(self.body, "    ") or block(f"y = ops.piece(x)\n{body}", "    "),
        )


def register(prefix: str, changes: Iterable[Change], *, hit: bool = False) -> None:
    """Make a kind of each row, named by `prefix` and the row. `hit`: nothing that counts changes, a hit is wanted."""
    rows = {f"{prefix}_{change.name}": change for change in changes}

    def case(drawn: Drawn, name: str) -> Case:
        return _case(drawn, name, rows[name], hit)

    for name, change in rows.items():
        kind(name, slow=change.fresh)(case)


def _case(drawn: Drawn, name: str, change: Change, hit: bool) -> Case:
    first = drawn.number == 0
    site = change.sites[0] if first else drawn.choose("site", change.sites)
    body = _BODIES[0] if first else drawn.choose("body", _BODIES)
    values = list(change.values)
    if not first and drawn.chance(0.5):
        values.reverse()
    drawn.note["values"] = [str(value)[:60] for value in values]
    steps = [change.step("before", values[0], site, body)]
    steps += [change.step("after", value, site, body) for value in values[1:]]
    if not first and drawn.chance(0.25):
        steps.append(change.step("back", values[0], site, body))
    if hit:
        for step in steps[1:]:
            step.expect_hit = True
    several = len(change.calls) > 1
    dynamic = True if change.dynamic and not first and drawn.chance(0.15) else None
    mode = change.mode
    if not (first or mode or several):
        mode = mode_of(drawn, steps, stock=change.stock)
    drawn.note["mode"], drawn.note["dynamic"] = mode, dynamic
    return Case(
        name,
        drawn.number,
        steps,
        stock=change.stock,
        anew=several and change.anew,
        fresh=change.fresh,
        training=change.trains(site),
        dynamic=dynamic,
        mode=mode,
        tolerance=change.tolerance,
        shared_stock=change.shared_stock,
        note=drawn.note,
    )
