"""`assigned_literals` reads constants from compiled code."""

from __future__ import annotations

import sys
import types

from fxpool.torch_compat.changes import assigned_literals

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
    assert assigned_literals.body(code).literals == {
        "NUMBER": "3",
        "TEXT": "'a'",
        "NEGATIVE": "-1",
        "PAIR": assigned_literals.text((1, "b")),
        "LIST": assigned_literals.text([1, 2, 3, 4]),
        "NAMES": assigned_literals.text({"a": 1, "b": [2]}),
        "LETTERS": assigned_literals.text({"x", "y"}),
        "filled": assigned_literals.text([1]),  # likewise, as code writes to it
        "counter": "0",  # left out for the whole module, as a function assigns it
        "plain.__defaults__": "tuple['2.0']",
        "plain.__kwdefaults__": assigned_literals.text({"name": "n"}),
        "Kernel.suffix": "';'",
        "Kernel.sizes": assigned_literals.text({1: 2}),
        "Kernel.run.__defaults__": "tuple['4']",
    }


def test_names_that_functions_assign_are_told() -> None:
    code = compile(SOURCE + "\n\ndef late(kernel):\n    kernel.suffix = ','\n", "module.py", "exec")
    assert assigned_literals.assigned(code) == assigned_literals.Assigned(
        {"counter"}, {"suffix"}, {"filled", "__annotations__"}
    )


DISPLAYS = """
import math, other
from other import Bag, known
FUNCTIONS = {"a": math.sin, math: [other.name, 2], **{"b": known}}
COMPUTED = [known, known(3), *[math.pi]]
NAMES = {math.e, "text"}
CALLED = Bag([math.pi, 1])
OTHERWISE = [known if math else 2, (1 if math.a else 2 if not math.b else 3), 1]
COMPARED = [known if math == other else 2, math or known]
known_twice = 1
known_twice = 2
TWICE = [known_twice, math]
MANY = [MANY_NAMES]
class Kernel:
    names = {1: other.name}
"""


# Python 3.11 and earlier have an instruction for `or` after which nothing is known.
COMPARED = ["list", ["?"] if sys.version_info < (3, 12) else ["if", ["?"], ["name", "known"], "2"], ["?"]]


def test_displays_are_read_with_the_names_in_them() -> None:
    names = ", ".join(f"math.n{i}" for i in range(33))
    displays = assigned_literals.body(compile(DISPLAYS.replace("MANY_NAMES", names), "module.py", "exec")).displays
    many = displays.pop("MANY")
    assert len(many) == 34 and many[-1] == ["name", "math.n32"]
    assert displays == {
        "FUNCTIONS": [
            "dict", "'a'", ["name", "math.sin"], ["name", "math"], ["list", ["name", "other.name"], "2"],
            "'b'", ["name", "known"],
        ],
        "COMPUTED": ["list", ["name", "known"], ["?"], ["name", "math.pi"]],
        "NAMES": ["set", "'text'", ["name", "math.e"]],
        "CALLED": ["call", "Bag", ["list", ["name", "math.pi"], "1"]],
        "OTHERWISE": [
            "list", ["if", ["name", "math"], ["name", "known"], "2"],
            ["if", ["name", "math.a"], "1", ["if", ["name", "math.b"], "3", "2"]], "1",
        ],
        "COMPARED": COMPARED,
        "TWICE": ["list", ["?"], ["name", "math"]],
        "Kernel.names": ["dict", "1", ["name", "other.name"]],
    }  # fmt: skip


def test_containers_that_code_writes_to_are_told() -> None:
    source = """
from elsewhere import thing
A, B, C, D, E, F = {}, {}, [], {}, {}, {}
def write(key, module):
    A[key] = 1
    module.B[key.name][key] = C[0]
    thing.known.update(D)
    del E[len(key) + 1]
    return F[key]
"""
    assert assigned_literals.assigned(compile(source, "module.py", "exec")).contents == {"A", "B", "known", "E"}
