"""Kinds of change in values and code that look as if they could be compared: frozen dataclasses, numbers, constants."""

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

_FROZEN = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class S:
    a: float = 1.0
    {more}
s = S()
def factor():
    return {expression}
"""


def _frozen(name: str, more: str, expression: str, setup: str = "", values: tuple[object, ...] = (2.0, 3.0)) -> Change:
    return Change(name, _FROZEN.format(more=more, expression=expression), values=values, setup=setup)


def _constant(name: str, first: str, second: str, expression: str) -> Change:
    """Two constants that compare or print alike, once as a global and once in the code."""
    return Change(name, f"import math\nK = KKK\ndef factor():\n    return {expression}", values=(first, second))


def _literal(name: str, first: str, second: str, expression: str) -> Change:
    return Change(
        f"{name}_in_code",
        f"import math\ndef factor():\n    K = KKK\n    return {expression}",
        values=(first, second),
    )


_ALIKE = [
    ("true_or_one", "True", "1", "2.0 + (type(K) is bool)"),
    ("integer_or_float", "1", "1.0", "2.0 + (type(K) is float)"),
    ("sign_of_zero", "0.0", "-0.0", "2.0 + math.copysign(0.5, K)"),
    ("sign_of_imaginary_zero", "complex(0.0, 0.0)", "complex(0.0, -0.0)", "2.0 + math.copysign(0.5, K.imag)"),
    ("sign_of_nan", "float('nan')", "-float('nan')", "2.0 + math.copysign(0.5, K)"),
    ("zero_in_tuple", "(1, (0.0, 'a'))", "(1, (-0.0, 'a'))", "2.0 + math.copysign(0.5, K[1][0])"),
    ("true_in_tuple", "(True, 2)", "(1, 2)", "2.0 + (type(K[0]) is bool)"),
    ("tuple_flattened", "((1, 2), 3)", "(1, (2, 3))", "2.0 + len(str(K[0])) / 4"),
    ("text_or_bytes", "'a'", "b'a'", "2.0 + (type(K) is bytes)"),
    ("lone_surrogate", "'\\ud800'", "'\\udfff'", "2.0 + (K > '\\ud900')"),
    ("text_of_none", "None", "'None'", "2.0 + (K is None)"),
    ("composed_letter", "'\\u00e9'", "'e\\u0301'", "1.0 + len(K)"),
    ("last_digit", "0.1", "0.10000000000000002", "2.0 + (K > 0.1)"),
]

register(
    "accepted",
    [
        # A frozen dataclass holds more than its fields.
        _frozen("dataclass_field", "b: float = KKK", "s.b"),
        _frozen("dataclass_class_attribute", "b = 1.0", "s.b", "import helper\nhelper.S.b = KKK"),
        _frozen(
            "dataclass_attribute_beside_fields", "", "s.b", "import helper\nobject.__setattr__(helper.s, 'b', KKK)"
        ),
        _frozen("dataclass_field_set_all_the_same", "", "s.a", "import helper\nobject.__setattr__(helper.s, 'a', KKK)"),
        _frozen("dataclass_property", "b = property(lambda self: self.a * KKK)", "s.b"),
        _frozen("dataclass_getattr", "def __getattr__(self, name):\n        return KKK", "s.b"),
        _frozen("dataclass_getattribute", "def __getattribute__(self, name):\n        return KKK", "s.a"),
        _frozen("dataclass_post_init", "def __post_init__(self):\n        object.__setattr__(self, 'a', KKK)", "S().a"),
        _frozen("dataclass_multiplies", "def __rmul__(self, other):\n        return other * KKK", "1.0 * s"),
        _frozen("dataclass_called", "def __call__(self):\n        return KKK", "s()"),
        _frozen("dataclass_default_set", "", "S().a", "import helper\nhelper.S.__init__.__defaults__ = (KKK,)"),
        _frozen("dataclass_of_list", "b: tuple = ([KKK],)", "s.b[0][0]"),
        _frozen("dataclass_list_in_field", "b: tuple = ([1.0],)", "s.b[0][0]", "import helper\nhelper.s.b[0][0] = KKK"),
        Change(
            "dataclass_base",
            """
            import dataclasses
            class Base:
                b = KKK
            @dataclasses.dataclass(frozen=True)
            class S(Base):
                a: float = 1.0
            s = S()
            def factor():
                return s.b
            """,
        ),
        Change(
            "dataclass_made_by_function",
            """
            import dataclasses
            def make(k):
                get = lambda self: k
                return dataclasses.make_dataclass('S', ['a'], frozen=True, namespace={'get': get})
            s = make(KKK)(1.0)
            def factor():
                return s.get()
            """,
        ),
        # Numbers that are more than numbers.
        Change(
            "float_subclass",
            """
            class K(float):
                def __rmul__(self, other):
                    return other * KKK
            k = K(1.0)
            def factor():
                return k
            """,
            result="x.sin() * (1.0 * helper.factor())",
        ),
        Change(
            "text_subclass",
            """
            class T(str):
                def __len__(self):
                    return KKK
            t = T('a')
            def factor():
                return float(len(t))
            """,
            values=(2, 3),
        ),
        Change(
            "tuple_subclass",
            """
            class T(tuple):
                def __getitem__(self, index):
                    return KKK
            t = T((1.0,))
            def factor():
                return t[0]
            """,
        ),
        *(_constant(*row) for row in _ALIKE),
        *(_literal(*row) for row in _ALIKE),
        # Code whose instructions are the same.
        Change(
            "exception_table",
            """
            def fails():
                raise ValueError
            def inner():
                try:
                    len('')
            KKK
                return 1.0
            def factor():
                try:
                    return inner()
                except ValueError:
                    return 2.0
            """,
            values=(
                "        fails()\n    except ValueError:\n        return 3.0",
                "    except ValueError:\n        return 3.0\n    fails()",
            ),
        ),
        Change(
            "positional_only",
            """
            def scale(a=1.0KKK, **named):
                return a * 2 + len(named)
            def factor():
                return scale(**{'a': 2.0})
            """,
            values=("", ", /"),
        ),
        Change(
            "starred_argument",
            """
            def scale(KKKa):
                return 1.0 + len(a)
            def factor():
                return scale((1, 2))
            """,
            values=("", "*"),
        ),
        Change(
            "generator_or_function",
            """
            def scale():
                KKK
                return 1.0
            def factor():
                return 2.0 + (type(scale()) is float)
            """,
            values=("1", "yield"),
        ),
        Change(
            "free_variables_in_another_order",
            """
            def make(a, b):
                def factor():
                    return a * 2 + b
                return factor
            factor = make(KKK)
            """,
            values=("1.0, 2.0", "2.0, 1.0"),
        ),
        Change(
            "cell_shared",
            """
            def make():
                k = 2.0
                def get():
                    return k
                def put():
                    KKK
                    k = 3.0
                return get, put
            get, put = make()
            put()
            factor = get
            """,
            values=("pass", "nonlocal k"),
        ),
        Change(
            "global_or_builtin",
            "def factor():\n    return float(len(str(oct(8))))",
            values=("pass", "helper.oct = lambda value: 'two'"),
            setup="import helper\nKKK",
        ),
        Change(
            "name_in_exec",
            "def factor():\n    space = {}\n    exec('k = KKK', space)\n    return space['k']",
        ),
        Change(
            "name_computed",
            "first, second = 2.0, 3.0\ndef factor():\n    return globals()['KKK'.lower()]",
            values=("FIRST", "SECOND"),
        ),
        Change(
            "attribute_by_computed_name",
            "class S:\n    first, second = 1.0, 1.0\ndef factor():\n    return getattr(S, 'fir' + 'ST'.lower())",
            setup="import helper\nhelper.S.first = KKK",
        ),
        Change(
            "global_written_by_another_function",
            """
            K = 1.0
            def put():
                global K
                K = KKK
            def factor():
                put()
                return K
            """,
        ),
    ],
)
