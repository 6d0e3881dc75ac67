"""Kinds of change in what Python runs by itself for code of a compile: special methods and suspended frames."""

from __future__ import annotations

from .changes import Change, register

__all__: list[str] = []

register(
    "python",
    [
        # Generators, iterators, coroutines: what a suspended frame holds.
        Change(
            "generator_suspended",
            """
            def forever(k):
                while True:
                    yield k
            G = forever(KKK)
            def factor():
                return next(G)
            """,
        ),
        Change(
            "generator_sent_a_value",
            """
            def forever():
                k = yield
                while True:
                    yield k
            G = forever()
            next(G)
            def factor():
                return next(G)
            """,
            setup="import helper\nhelper.G.send(KKK)",
        ),
        Change(
            "coroutine",
            """
            async def get():
                return KKK
            def factor():
                try:
                    get().send(None)
                except StopIteration as stop:
                    return stop.value
            """,
        ),
        Change(
            "map_iterator",
            """
            import itertools
            M = map(lambda number: KKK, itertools.count())
            def factor():
                return next(M)
            """,
        ),
        Change(
            "cycle_advanced_by_program",
            """
            import itertools
            C = itertools.cycle([2.0, 2.0, 3.0, 3.0])
            D = itertools.islice(C, KKK, None, 4)
            def factor():
                return next(D)
            """,
            values=(0, 2),
        ),
        # Classes that decide for themselves.
        Change(
            "set_name",
            """
            class Field:
                def __set_name__(self, owner, name):
                    owner.lengths = {'k': float(len(name))}
            class S:
                KKK = Field()
            def factor():
                return S.lengths['k']
            """,
            values=("aa", "bbb"),
        ),
        Change(
            "metaclass_call",
            """
            class Meta(type):
                def __call__(cls):
                    made = super().__call__()
                    object.__setattr__(made, 'k', KKK)
                    return made
            class S(metaclass=Meta):
                pass
            def factor():
                return S().k
            """,
        ),
        Change(
            "metaclass_prepare",
            """
            class Meta(type):
                @classmethod
                def __prepare__(meta, name, bases):
                    return {'k': KKK}
            class S(metaclass=Meta):
                get = lambda self, k=k: k
            def factor():
                return S().get()
            """,
        ),
        Change(
            "metaclass_instancecheck",
            """
            class Meta(type):
                def __instancecheck__(cls, value):
                    return value > KKK
            class S(metaclass=Meta):
                pass
            def factor():
                return 3.0 if isinstance(2.5, S) else 2.0
            """,
        ),
        Change(
            "class_getitem",
            """
            class S:
                def __class_getitem__(cls, item):
                    return item * KKK
            def factor():
                return S[1.0]
            """,
        ),
        Change(
            "init_subclass_keyword",
            """
            class Base:
                def __init_subclass__(cls, k):
                    Base.get = lambda self: k
            class S(Base, k=KKK):
                pass
            def factor():
                return S().get()
            """,
        ),
        Change(
            "getattribute",
            """
            class S:
                k = 1.0
                def __getattribute__(self, name):
                    return object.__getattribute__(self, name) * KKK
            s = S()
            def factor():
                return s.k
            """,
        ),
        Change(
            "missing",
            """
            class Table(dict):
                def __missing__(self, key):
                    return KKK
            TABLE = Table()
            def factor():
                return TABLE['k']
            """,
        ),
        Change(
            "equality_of_object",
            """
            class Key:
                def __eq__(self, other):
                    return other == KKK
            TABLE = {2.0: 2.5, 3.0: 3.5}
            def factor():
                return next(v for k, v in TABLE.items() if Key() == k)
            """,
        ),
        Change(
            "float_of_object",
            """
            class S:
                def __float__(self):
                    return KKK
            s = S()
            def factor():
                return float(s)
            """,
        ),
        Change(
            "format_of_object",
            """
            class S:
                def __format__(self, spec):
                    return 'KKK'
            s = S()
            def factor():
                return float(f'{s:x}')
            """,
        ),
        Change(
            "length_of_object",
            """
            class S:
                def __len__(self):
                    return KKK
            s = S()
            def factor():
                return float(len(s))
            """,
            values=(2, 3),
        ),
        Change(
            "operand_of_tensor",
            """
            class S:
                def __rmul__(self, x):
                    return x.cos() * KKK
            s = S()
            """,
            result="x * helper.s",
        ),
        Change(
            "torch_function_of_operand",
            """
            class S:
                @classmethod
                def __torch_function__(cls, function, types, arguments=(), named=None):
                    return arguments[0].cos() * KKK
            s = S()
            """,
            result="torch.mul(x, helper.s)",
        ),
        Change(
            "class_of_instance_replaced",
            """
            class A:
                k = 2.0
            class B:
                k = 3.0
            s = A()
            def factor():
                return s.k
            """,
            values=("A", "B"),
            setup="import helper\nhelper.s.__class__ = helper.KKK",
        ),
    ],
)
