"""Draws the parts of a case that are the same for many kinds: numbers, references, surroundings, processes."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import random
from pathlib import Path
from typing import Any

from .pieces import EARLY, PIECES, Piece
from .program import Built, Case, Step
from .readings import READINGS, Reading

__all__ = [
    "Drawn",
    "Kind",
    "Program",
    "case_of",
    "draw",
    "kind",
    "kinds",
    "mode_of",
    "numbers_of",
    "program_of",
    "steps_of",
]

# (what stands at the top of the module, the number's expression, whether it is read when the module is imported)
_REFERENCES = [
    ("import helper", "helper.factor()", False),
    ("from helper import factor", "factor()", False),
    ("import helper as chosen", "chosen.factor()", False),
    ("from helper import factor as scale", "scale()", False),
    ("import helper\ndef _value():\n    return helper.factor()", "_value()", False),
    ("import helper\nclass _Get:\n    @staticmethod\n    def k():\n        return helper.factor()", "_Get.k()", False),
    ("import helper\n_TABLE = {'get': helper.factor}", "_TABLE['get']()", False),
    ("from helper import factor\ndef _value(get=factor):\n    return get()", "_value()", False),
    ("import helper\ndef _make(module):\n    def get():\n        return module.factor()\n    return get\n"
     "_get = _make(helper)", "_get()", False),
    ("from helper import factor\nK = factor()", "K", True),
    ("import helper\nclass _Settings:\n    k = helper.factor()", "_Settings.k", True),
    ("from helper import factor\ndef _value(k=factor()):\n    return k", "_value()", True),
]  # fmt: skip
_SURROUNDINGS = [
    "y", "y.tanh() + x", "y * x", "(y * x).sum(0)", "torch.relu(y) - 0.25", "y + y.mean()", "torch.cat([y, x])",
    "(y, x.exp())", "{'y': y.abs(), 'x': x + 1}", "y.t().contiguous()", "torch.where(x > 0.5, y, x)",
]  # fmt: skip
_NUMBERS = (0.5, 1.5, 2.0, 2.25, 2.5, 3.0, 4.0)


@dataclasses.dataclass
class Drawn:
    """A random generator and the choices it has made, by name."""

    random: random.Random
    number: int
    note: dict[str, Any] = dataclasses.field(default_factory=dict)

    def choose(self, name: str, values: Any) -> Any:
        """One of `values`, remembered under `name`."""
        found = self.random.choice(list(values))
        self.note[name] = found if isinstance(found, (str, int, float, bool, type(None))) else repr(found)[:60]
        return found

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.random.random() < probability

    def two(self, values: tuple[float, ...] = ()) -> tuple[float, float]:
        """Two different numbers."""
        one, other = self.random.sample(list(values or _NUMBERS), 2)
        self.note["numbers"] = [one, other]
        return one, other


@dataclasses.dataclass
class Program:
    """A piece that uses a reading, ready to be written out with a number."""

    reading: Reading
    piece: Piece
    imports: str
    expression: str
    at_import: bool
    surrounding: str
    training: bool
    setup_first: bool
    uuid: str = "'the-pass'"
    hook: str = "post_grad_custom_post_pass"
    table: int = 1
    shape: tuple[int, int] = (4, 8)

    def main(self, number: float, *, after: str = "", before: str = "") -> str:
        """The main module's text. `before` is executed before the operators' module is imported, `after` at its end."""
        setup = self.reading.put(self.reading.setup, number)
        first = self.setup_first or self.at_import or self.piece.name in EARLY
        gradient = ".requires_grad_()" if self.training else ""
        wrapped = "sub.Wrapped(x)" if "subclass" in self.piece.families else "x"
        parts = [
            self.reading.put(self.reading.ahead, number),
            setup if first else "",
            before,
            "import torch",
            "from ops import piece",
            "import helper",
            "" if first else setup,
            self.piece.main,
            "def inputs():",
            "    generator = torch.Generator().manual_seed(7)",
            f"    x = torch.rand({self.shape[0]}, {self.shape[1]}, generator=generator) + 0.1",
            f"    return ({wrapped}{gradient},)",
            "def run(x):",
            f"    y = {self.piece.call}",
            f"    return {self.surrounding}",
            after,
        ]
        return "\n".join(part for part in parts if part) + "\n"

    def operators(self, text: str | None = None) -> str:
        """The text of the module that registers the piece."""
        return self._put(self.piece.text if text is None else text)

    def _put(self, text: str) -> str:
        return (
            text.replace("IMPORTS", self.imports)
            .replace("VALUE", self.expression)
            .replace("UUID", self.uuid)
            .replace("HOOK", self.hook)
            .replace("NUMBER", str(self.table))
        )

    def files(self, number: float, **main: str) -> dict[str, str | bytes | Built]:
        """All files of the program."""
        return {
            "hunted.py": self.main(number, **main),
            "ops.py": self.operators(),
            **{name: self._put(text) for name, text in self.piece.others.items()},
            **self.reading.files(number),
        }

    def step(self, name: str, number: float, **more: Any) -> Step:
        """A process in which the number is `number`."""
        main = {key: more.pop(key) for key in ("after", "before") if key in more}
        return Step(name, self.files(number, **main), environment=self.reading.variables(number), **more)


def _fits(reading: Reading, piece: Piece) -> bool:
    if piece.plain and not reading.traceable:
        return False
    return not (piece.values and reading.name == "environment_presence")


def program_of(drawn: Drawn, reading: str | None = None, piece: str | None = None) -> Program:
    """A program; parts that are not named are drawn among those that fit."""
    if piece is None:
        assert reading is not None
        fitting = [one for one in PIECES.values() if _fits(READINGS[reading], one) and "same" not in one.families]
        piece = drawn.choose("piece", [one.name for one in fitting])
    if reading is None:
        fitting_readings = [one for one in READINGS.values() if _fits(one, PIECES[piece])]
        reading = drawn.choose("reading", [one.name for one in fitting_readings])
    used = PIECES[piece]
    references = _REFERENCES if used.others == {} or "sub.py" in used.others else _REFERENCES[:4]
    imports, expression, at_import = drawn.choose("reference", references)
    training = used.training if used.training is not None else drawn.chance(0.4)
    drawn.note["training"] = training
    surroundings = _SURROUNDINGS if "subclass" not in used.families else _SURROUNDINGS[:3]
    return Program(
        READINGS[reading],
        used,
        imports,
        expression,
        at_import,
        drawn.choose("surrounding", surroundings),
        training,
        setup_first=drawn.chance(0.5),
        uuid=drawn.choose("uuid", ["('pass ' + str(VALUE)).encode()", "None"]).replace("VALUE", expression)
        if "pass" in used.families
        else "None",
        hook=drawn.choose("hook", ["post_grad_custom_post_pass", "post_grad_custom_pre_pass", "joint_custom_post_pass",
                                   "joint_custom_pre_pass"]) if "HOOK" in used.text else "",
        table=drawn.choose("table", [0, 1, 2] if "post_grad" in used.text else [0, 1]) if "NUMBER" in used.text else 0,
        shape=drawn.choose("shape", [(4, 8), (3, 8), (5, 8)]) if "replacement" not in used.name else (4, 8),
    )  # fmt: skip


def case_of(drawn: Drawn, name: str, program: Program, steps: list[Step], **more: Any) -> Case:
    """A case with the mode and the kind of sizes drawn."""
    stock = more.pop("stock", program.piece.stock)
    mode = more.pop("mode", None) or mode_of(drawn, steps, stock=stock)
    dynamic = True if drawn.chance(0.15) and "subclass" not in program.piece.families else None
    drawn.note["mode"], drawn.note["dynamic"] = mode, dynamic
    return Case(
        name,
        drawn.number,
        steps,
        stock=stock,
        training=program.training,
        dynamic=dynamic,
        mode=mode,
        tolerance=program.piece.tolerance,
        note=drawn.note,
        **more,
    )


def mode_of(drawn: Drawn, steps: list[Step], *, stock: bool) -> str | None:
    """Draw a mode, mostly none; in one that compiles in the background every call waits for the code before it."""
    modes = [None, "serialize", "normal", "async+subprocess", "progressive+subprocess"]
    mode = drawn.random.choices(modes, [86, 4, 2, 5, 3])[0]
    if not mode or "+" not in mode:
        return mode
    if stock:
        return None  # until the code is there such a graph runs eagerly, which no pass and no lowering changes
    for step in steps:
        step.calls = [text for call in step.calls for text in (call, "__import__('fxpool').wait(100)")]
    return mode


def numbers_of(drawn: Drawn, program: Program) -> tuple[float, float]:
    """The numbers before and after the change."""
    one, other = drawn.two(program.piece.values)
    if program.reading.name == "environment_presence":
        one, other = 2.5, 2.0
    return one, other


def steps_of(drawn: Drawn, program: Program, one: float, other: float) -> list[Step]:
    """Before and after a change; sometimes the change undone, sometimes one that changes nothing."""
    steps = [program.step("before", one), program.step("after", other)]
    if drawn.chance(0.35):
        steps.append(program.step("back", one, expect_hit=True))
    if drawn.chance(0.25):
        unrelated = program.step("unrelated", other, expect_hit=True)
        unrelated.files["notes.txt"] = "Nothing reads this.\n"
        unrelated.environment["HUNTED_UNRELATED"] = "1"
        steps.append(unrelated)
    return steps


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of change: `draw` makes a case of it."""

    name: str
    draw: Any
    slow: bool = False


_KINDS: dict[str, Kind] = {}


def kind(name: str, *, slow: bool = False) -> Any:
    """Register a function that draws a case: ``(drawn, name) -> Case``. `slow`: its processes are fresh ones."""

    def register(draw: Any) -> Any:
        assert name not in _KINDS, name
        _KINDS[name] = Kind(name, draw, slow)
        return draw

    return register


def kinds() -> dict[str, Kind]:
    """All kinds, by name."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("kinds_"):
            importlib.import_module(f"{__package__}.{module.name}")
    return _KINDS


def draw(name: str, number: int, seed: int) -> Case:
    """The case of that number; the same for the same seed."""
    drawn = Drawn(random.Random(f"{seed} {name} {number}"), number)
    return kinds()[name].draw(drawn, name)
