"""`literals` reads constants from compiled code."""

from __future__ import annotations

import types

from fxpool.torch_compat.operators import literals

SOURCE = """
from __future__ import annotations
import math

NUMBER = 3
TEXT: str = "a"
NEGATIVE = -1
PAIR = (1, "b")
LIST = [1, 2, 3, 4]
NAMES = {"a": 1, "b": [2]}
LETTERS = {"x", "y"}
MIXED = [math.pi, 1]
EMPTY = []
TWICE = 1
TWICE = 2
filled = [1]
filled.append(2)
counter = 0
LATER = math.sqrt(2)


def plain(x: int, factor: float = 2.0, *, name: str = "n") -> int:
    global counter
    counter += 1
    return x


def computed(x, limit=math.inf):
    return x


@property
def wrapped(x, limit=1):
    return x


class Kernel:
    suffix = ";"
    sizes = {1: 2}

    def run(self, count=4):
        return count
"""


def test_literals_are_read_from_compiled_code() -> None:
    code = compile(SOURCE, "module.py", "exec")
    assert isinstance(code, types.CodeType)
    assert literals.literals(code) == {
        "NUMBER": "3",
        "TEXT": "'a'",
        "NEGATIVE": "-1",
        "PAIR": literals.text((1, "b")),
        "LIST": literals.text([1, 2, 3, 4]),
        "NAMES": literals.text({"a": 1, "b": [2]}),
        "LETTERS": literals.text({"x", "y"}),
        "counter": "0",  # left out for the whole module, as a function assigns it
        "plain.__defaults__": "tuple['2.0']",
        "plain.__kwdefaults__": literals.text({"name": "n"}),
        "Kernel.suffix": "';'",
        "Kernel.sizes": literals.text({1: 2}),
        "Kernel.run.__defaults__": "tuple['4']",
    }


def test_names_that_functions_assign_are_told() -> None:
    code = compile(SOURCE + "\n\ndef late(kernel):\n    kernel.suffix = ','\n", "module.py", "exec")
    assert literals.assigned(code) == literals.Assigned({"counter"}, {"suffix"})
