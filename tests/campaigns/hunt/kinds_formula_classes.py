"""Kinds of change in classes that code of a compile reads: enums, dataclasses, descriptors, bases, and their order."""

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

_FIRST_ATTRIBUTE = """
class S:
    KKK
def factor():
    return [value for name, value in S.__dict__.items() if not name.startswith('_')][0]
"""

register(
    "formula",
    [
        Change(
            "property_subclass",
            """
            from far import classproperty
            class S:
                k0 = 2.0
                @classproperty
                def k(cls):
                    return cls.k0
            def factor():
                return S.k
            """,
            others={
                "far.py": """
                class classproperty(property):
                    def __get__(self, instance, owner):
                        return self.fget(owner) * KKK
                """
            },
        ),
        Change(
            "descriptor_of_stdlib_class",
            """
            import types
            class S:
                k = types.DynamicClassAttribute(lambda self: KKK)
            s = S()
            def factor():
                return s.k
            """,
        ),
        Change(
            "class_of_factory",
            """
            def make(k):
                class S:
                    def get(self):
                        return k
                return S
            s = make(KKK)()
            def factor():
                return s.get()
            """,
        ),
        Change(
            "mro_changed",
            """
            class A:
                k = 2.0
            class B:
                k = 3.0
            class C(KKK):
                pass
            def factor():
                return C.k
            """,
            values=("A, B", "B, A"),
        ),
        Change("class_attribute_order", _FIRST_ATTRIBUTE, values=("a, b = 2.0, 3.0", "b, a = 3.0, 2.0")),
        Change(
            "dataclass_field_metadata",
            """
            import dataclasses
            @dataclasses.dataclass
            class S:
                a: float = dataclasses.field(default=1.0, metadata={'k': KKK})
            def factor():
                return S.__dataclass_fields__['a'].metadata['k']
            """,
        ),
        Change(
            "dataclass_fields_order",
            """
            import dataclasses
            @dataclasses.dataclass(init=False)
            class S:
                KKK
                def __init__(self):
                    pass
            def factor():
                return getattr(S(), dataclasses.fields(S)[0].name)
            """,
            values=("a: float = 2.0\n    b: float = 3.0", "b: float = 3.0\n    a: float = 2.0"),
        ),
        Change(
            "orig_bases_literal",
            """
            from typing import Generic, Literal, TypeVar
            T = TypeVar('T')
            class B(Generic[T]):
                pass
            class S(B[Literal[KKK]]):
                pass
            def factor():
                return float(S.__orig_bases__[0].__args__[0].__args__[0])
            """,
            values=(2, 3),
        ),
        Change(
            "enum_nonmember",
            """
            import enum
            class S(enum.Enum):
                A = 1
                k = enum.nonmember(KKK)
            def factor():
                return S.k
            """,
        ),
        Change(
            "enum_member_attribute_set",
            """
            import enum
            class S(enum.Enum):
                A = 1
            S.A.k = KKK
            def factor():
                return S.A.k
            """,
        ),
        Change(
            "enum_order",
            """
            import enum
            class S(enum.Enum):
                KKK
            def factor():
                return list(S)[0].value
            """,
            values=("A = 2.0\n    B = 3.0", "B = 3.0\n    A = 2.0"),
        ),
        Change(
            "flag_zero_value",
            """
            import enum
            class S(enum.IntFlag):
                A = 1
                B = 2
            MODE = S(KKK)
            def factor():
                return 2.0 + int(MODE)
            """,
            values=(0, 4),
        ),
        Change(
            "abc_register",
            """
            import abc
            class Marker(abc.ABC):
                pass
            class V:
                pass
            v = V()
            def factor():
                return 3.0 if isinstance(v, Marker) else 2.0
            """,
            values=("pass", "helper.Marker.register(helper.V)"),
            setup="import helper\nKKK",
        ),
        Change(
            "subclasses_registry",
            """
            class Base:
                k = 1.0
            def factor():
                return sum((c.k for c in Base.__subclasses__()), 1.0)
            """,
            others={"plug.py": "import helper\nclass P(helper.Base):\n    k = KKK"},
            setup="import plug",
        ),
    ],
)
