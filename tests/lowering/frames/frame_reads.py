"""Kinds of changes, for `frame_kinds`: what code reads of objects that it is given, whether Dynamo guards it or not.

`READS` are single reads, written in ``reads.toml``. `HELD` is each kind of value in each position that code may read it
from: an attribute of a class, a default, a closure.
"""

from __future__ import annotations

import sys
from pathlib import Path

from frame_programs import Kind, function

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings this
    import tomli as tomllib

__all__ = ["HELD", "READS"]

# A value, an expression that reads it, and a statement that changes it; VALUE is where it is.
_VALUES = (
    ("[1]", "sum(VALUE)", "VALUE.append(2)"),
    ("{'a': 1}", "VALUE['a']", "VALUE['a'] = 2"),
    ("{1}", "len(VALUE)", "VALUE.add(2)"),
    ("[[1]]", "VALUE[0][0]", "VALUE[0][0] = 2"),
    ("{'a': [1]}", "VALUE['a'][0]", "VALUE['a'][0] = 2"),
    ("(1, [2])", "VALUE[1][0]", "VALUE[1][0] = 3"),
    ("D()", "VALUE.k", "VALUE.k = 2"),
    ("f", "VALUE()", "VALUE = lambda *_: 5"),
    ("functools.partial(f, 1)", "VALUE()", "VALUE = functools.partial(module.f, 2)"),
    ("collections.OrderedDict(a=1)", "VALUE['a']", "VALUE['a'] = 2"),
    ("collections.deque([1])", "VALUE[0]", "VALUE[0] = 2"),
    ("collections.defaultdict(int)", "len(VALUE)", "VALUE['a']"),
    ("types.SimpleNamespace(k=1)", "VALUE.k", "VALUE.k = 2"),
    ("types.MappingProxyType(Q)", "VALUE['a']", "module.Q['a'] = 2"),
    ("lambda *_: len(Q)", "VALUE()", "module.Q['b'] = 2"),
    ("range(3)", "len(VALUE)", "VALUE = range(4)"),
    ("W.A", "VALUE.value", "VALUE = module.W.B"),
    ("torch.ones(8)", "VALUE.shape[0]", "VALUE = torch.ones(1)"),
    ("torch.float32", "VALUE.itemsize", "VALUE = torch.float64"),
    ("torch.device('cpu')", "len(VALUE.type)", "VALUE = torch.device('meta')"),
)
# Where a value is held: the place in the program, and in the changing process. `_held` has the program.
_POSITIONS = {
    "class attribute": ("C.R", "module.C.R"),
    "base's attribute": ("B.R", "module.C.R"),
    "attribute of an object's class": ("O.R", "module.C.R"),
    "attribute": ("O.S", "module.O.S"),
    "class method's": ("cls.R", "module.C.R"),
    "attribute of a module's class": ("self.R", "module.N.R"),
    "module's attribute": ("self.S", "module.N.S"),
    "function's attribute": ("g.R", "module.g.R"),
    "file's attribute": ("helpers.R", "module.helpers.R"),
    "member's attribute": ("E.A.R", "module.E.A.R"),
    "global": ("G", "module.G"),
    "dictionary's value": ("K['z']", "module.K['z']"),
    "closure's variable": ("R", "module.inner.__closure__[0].cell_contents"),
    "default": ("R", "module.by_default.__defaults__[0]"),
    "keyword's default": ("R", "module.by_keyword.__kwdefaults__['R']"),
}
_CALLS = {
    "class method's": "x * C.read()",
    "attribute of a module's class": "N(x, True)",
    "module's attribute": "N(x, False)",
    "closure's variable": "inner(x)",
    "default": "by_default(x)",
    "keyword's default": "by_keyword(x)",
}
# A function in a class is a method there: it is read as one in other kinds.
_METHODS = ("attribute of an object's class", "attribute of a module's class")
# A release runs code of enumerations' members while it traces, and refuses others of their attributes.
_MEMBERS = ("[", "{", "(")

_PROGRAM = """
Q = {{'a': 1}}
def f(a=1): return a
class D:
    k = 1
class W(enum.Enum):
    A = 1
    B = 2
class C:
    R = {value}
    @classmethod
    def read(cls): return {of_class}
class B(C): pass
O = C()
O.S = {value}
def g(): pass
g.R = {value}
{of_file}
class E(enum.Enum):
    A = 1
E.A.R = {value}
G = {value}
K = {{'z': {value}}}
class N(nn.Module):
    R = {value}
    def __init__(self):
        super().__init__()
        self.S = {value}
    def forward(self, x, of_class): return x * ({of_module} if of_class else {of_self})
N = N()
def outer(R):
    def inner(x): return x * {own}
    return inner
inner = outer({value})
def by_default(x, R={value}): return x * {own}
def by_keyword(x, *, R={value}): return x * {own}
"""


def _held(value: str, read: str, change: str, position: str) -> Kind:
    place, live = _POSITIONS[position]

    def read_of(name: str) -> str:
        return read.replace("VALUE", name)

    program = _PROGRAM.format(
        value=value,
        of_class=read_of("cls.R"),
        of_module=read_of("self.R"),
        of_self=read_of("self.S"),
        own=read_of("R"),
        of_file=f"helpers.R = {value}" if position == "file's attribute" else "",  # programs of one process share it
    )
    body = f"return {_CALLS.get(position, f'x * {read_of(place)}')}"
    if position == "default" and change.startswith("VALUE = "):
        statement = change.replace("VALUE = ", "module.by_default.__defaults__ = (") + ",)"
    else:
        statement = change.replace("VALUE", live)
    return Kind(function(body, program), run=statement)


def _reads() -> dict[str, Kind]:
    table = tomllib.loads(Path(__file__).with_name("reads.toml").read_text())
    return {
        f"read: {name}": Kind(
            function(row["body"], row.get("more", "")),
            edit=tuple(row.get("edit", ())),
            run=row.get("run", ""),
            refused=row.get("refused", ""),
            silent=row.get("silent", False),
        )
        for name, row in table.items()
    }


READS = _reads()
HELD = {
    f"{position}: {value}": _held(value, read, change, position)
    for value, read, change in _VALUES
    for position in _POSITIONS
    if not (position in _METHODS and value in ("f", "lambda *_: len(Q)"))
    if position != "member's attribute" or value.startswith(_MEMBERS)
}
