"""`name_bindings` reads what a module's names are bound to."""

from __future__ import annotations

from fxpool.torch_compat.changes.name_bindings import DECORATED, DEFINED, UNKNOWN, bindings

SOURCE = """
from .near import first as other, second
from ..above import third
from whole.package import fourth
from everything import *
import a.b as c
import d.e
import d
import e as g

def plain(x=1):
    pass

def annotated(x: int = 1, *, y: str = "") -> int:
    pass

@decorator("name")
def decorated():
    pass

class Plain:
    value = torch._C.value
    def method(self):
        pass
    @property
    def attribute(self):
        pass

@decorator
class Decorated(Plain):
    pass

assigned = wrap(torch._C.function, "text")
alias = plain
many = [lambda: 0]
try:
    from maybe import optional
except ImportError:
    optional = object
"""


def test_each_way_to_bind_a_name() -> None:
    found = bindings(compile(SOURCE, "source", "exec"), "top.package")
    assert found.imports == {
        "other": ("top.package.near", "first"),
        "second": ("top.package.near", "second"),
        "third": ("top.above", "third"),
        "fourth": ("whole.package", "fourth"),
        "c": ("a", "b"),
    }
    assert found.stars == ["everything"]
    others = {name: binding for name, binding in found.others.items() if "__" not in name}
    assert others == {
        "d": "import d",
        "g": "import e",
        "plain": DEFINED,
        "annotated": DEFINED,
        "decorated": DECORATED,
        "Plain": DECORATED,
        "Plain.value": "= torch _C value",
        "Plain.method": DEFINED,
        "Plain.attribute": DECORATED,
        "Decorated": DECORATED,
        "assigned": "call wrap torch _C function text",
        "alias": "= plain",
        "many": UNKNOWN,
        "optional": UNKNOWN,
    }


def test_what_is_bound_twice_is_unknown() -> None:
    found = bindings(compile("from a import b\nfrom a import b as c\nc = 1\nfrom a import b\n", "source", "exec"))
    assert (found.imports, found.others) == ({"b": ("a", "b")}, {"c": UNKNOWN})
