"""`container_displays` compares containers with the displays that made them."""

from __future__ import annotations

import math
import operator
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._ordered_set import OrderedSet

from fxpool.torch_compat.changes import assigned_literals, container_displays

SOURCE = """
import math, operator
from collections import OrderedDict
from collections.abc import Callable
from torch.utils._ordered_set import OrderedSet
def defined(): pass
MAP = {"a": math.sin, operator.add: [1, math.pi], (1, math.e): {"x", "y"}}
ITEMS = [defined, lambda: 3, 2.5, True]
NAMES = {math.sin, math.cos}
ORDERED = OrderedSet([math.sin, "b"])
FROZEN = frozenset({math.sin, 3})
KEYED = OrderedDict({"a": math.sin})
PAIR = (math.sin, 1)
CHOSEN = [math.sin if operator else 1, 2 if math == operator else 3]
LAST = 0  # of the last statement, Python 3.12 compiles branches to the end of the module
"""


@pytest.fixture
def module() -> types.ModuleType:
    made = types.ModuleType("made")
    exec(compile(SOURCE, math.__spec__.origin or "math", "exec"), vars(made))
    vars(made)["ITEMS"][1] = operator.itemgetter  # as torch's code would be: this file's is the program's
    return made


def differs(module: types.ModuleType, name: str) -> bool:
    template = assigned_literals.body(compile(SOURCE, "made.py", "exec")).displays[name]
    return container_displays.differs(template, vars(module)[name], container_displays.scopes(module, module))


NAMES = ("MAP", "ITEMS", "NAMES", "ORDERED", "FROZEN", "KEYED", "PAIR", "CHOSEN")


def test_containers_as_the_source_makes_them_do_not_differ(module: types.ModuleType) -> None:
    assert [name for name in NAMES if differs(module, name)] == []


def write_map(module: Any) -> None:
    module.MAP["a"] = math.cos


def add_to_map(module: Any) -> None:
    module.MAP["b"] = math.cos


def remove_from_map(module: Any) -> None:
    del module.MAP[operator.add]


def write_inside(module: Any) -> None:
    module.MAP[operator.add][0] = 2


def write_a_set_inside(module: Any) -> None:
    module.MAP[1, math.e].add("z")


def swap_equal(module: Any) -> None:
    module.ITEMS[3] = 1


def put_own_code(module: Any) -> None:
    module.ITEMS[1] = lambda: 4


def add_to_set(module: Any) -> None:
    module.NAMES.add(math.tan)


def exchange_in_set(module: Any) -> None:
    module.NAMES.remove(math.sin)
    module.NAMES.add(math.tan)


def add_to_ordered_set(module: Any) -> None:
    module.ORDERED.add("c")


def replace_frozen(module: Any) -> None:
    module.FROZEN = frozenset({math.sin, 4})


def write_ordered_dict(module: Any) -> None:
    module.KEYED["a"] = math.cos


def replace_pair(module: Any) -> None:
    module.PAIR = (math.sin, 2)


def the_other_branch(module: Any) -> None:
    module.CHOSEN[0] = 1


def another_type(module: Any) -> None:
    module.NAMES = [*module.NAMES]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (write_map, "MAP"), (add_to_map, "MAP"), (remove_from_map, "MAP"), (write_inside, "MAP"),
        (write_a_set_inside, "MAP"), (swap_equal, "ITEMS"), (put_own_code, "ITEMS"), (add_to_set, "NAMES"),
        (exchange_in_set, "NAMES"), (add_to_ordered_set, "ORDERED"), (replace_frozen, "FROZEN"),
        (write_ordered_dict, "KEYED"), (replace_pair, "PAIR"), (another_type, "NAMES"),
        (the_other_branch, "CHOSEN"),
    ],
)  # fmt: skip
def test_any_change_of_one_is_seen(module: types.ModuleType, change: Any, name: str) -> None:
    change(module)
    assert [one for one in NAMES if differs(module, one)] == [name]


def test_a_dictionary_may_have_been_the_names_of_evaluated_code(module: types.ModuleType) -> None:
    eval("1", module.MAP)
    assert "__builtins__" in module.MAP and not differs(module, "MAP")
    module.MAP["__builtins__"] = {"len": max}
    assert differs(module, "MAP")


def test_a_name_that_can_t_be_looked_up_tells_nothing(module: types.ModuleType) -> None:
    del vars(module)["operator"]
    assert not differs(module, "MAP")


@pytest.mark.parametrize(
    "change",
    [
        lambda whole, inner: inner.append(2),
        lambda whole, inner: whole.update(a=3),
        lambda whole, inner: whole.update(b=3),
        lambda whole, inner: whole.update(z=whole.pop("a")),
        lambda whole, inner: whole["after"].insert(0, inner.pop()),
    ],
)
def test_each_change_to_what_containers_hold_is_seen(change: Callable[[Any, Any], object]) -> None:
    inner = [object()]
    whole = {"a": (inner, frozenset((1,))), "after": [object()]}
    contents = container_displays.Contents([whole, OrderedDict(b=2)])
    assert contents.are_unchanged()
    change(whole, inner)
    assert not contents.are_unchanged()


def test_code_of_the_program_is_found_but_not_for_its_own_classes() -> None:
    class Mine:
        pass

    assert container_displays.has_foreign_code({"a": [1, (len, lambda: 3)]})
    assert container_displays.has_foreign_code([staticmethod(lambda: 3)])
    assert not container_displays.has_foreign_code({Mine: lambda: 3, "a": OrderedSet([len, math.sin])})
