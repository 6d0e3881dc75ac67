"""Kinds of change in functions and containers of Python: registrations, what they tell of themselves, late bindings."""

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

register(
    "python",
    [
        # Objects of functools and types.
        Change(
            "singledispatch_registered_by_another_module",
            """
            import functools
            @functools.singledispatch
            def scale(value):
                return 1.0
            def factor():
                return scale(1.0)
            """,
            others={"plug.py": "import helper\nhelper.scale.register(float)(lambda value: KKK)"},
            setup="import plug",
        ),
        Change(
            "singledispatchmethod",
            """
            import functools
            class S:
                @functools.singledispatchmethod
                def get(self, value):
                    return 1.0
                @get.register
                def _(self, value: float):
                    return KKK
            s = S()
            def factor():
                return s.get(1.0)
            """,
        ),
        Change(
            "partialmethod",
            """
            import functools
            class S:
                def get(self, k):
                    return k
                named = functools.partialmethod(get, KKK)
            s = S()
            def factor():
                return s.named()
            """,
        ),
        Change(
            "cmp_to_key",
            """
            import functools
            key = functools.cmp_to_key(lambda a, b: (a - b) * KKK)
            def factor():
                return sorted([2.0, 3.0], key=key)[0]
            """,
            values=(1, -1),
        ),
        Change(
            "mapping_proxy_over_changed_dictionary",
            """
            import types
            def make():
                table = {'k': 2.0}
                def set_k(k):
                    table['k'] = k
                return types.MappingProxyType(table), set_k
            TABLE, set_k = make()
            def factor():
                return TABLE['k']
            """,
            setup="import helper\nhelper.set_k(KKK)",
        ),
        Change(
            "key_order_of_dictionary",
            """
            TABLE = KKK
            def factor():
                return next(iter(TABLE.values()))
            """,
            values=("{'a': 2.0, 'b': 3.0}", "{'b': 3.0, 'a': 2.0}"),
        ),
        Change(
            "deque_rotated_by_program",
            """
            import collections
            QUEUE = collections.deque([2.0, 3.0])
            def factor():
                return QUEUE[0]
            """,
            values=(0, 1),
            setup="import helper\nhelper.QUEUE.rotate(KKK)",
        ),
        Change(
            "length_limit_of_deque",
            """
            import collections
            QUEUE = collections.deque([2.0], maxlen=KKK)
            def factor():
                return float(QUEUE.maxlen)
            """,
            values=(2, 3),
        ),
        Change("range_constant", "R = range(KKK)\ndef factor():\n    return float(R.stop)", values=(2, 3)),
        Change(
            "compiled_pattern",
            """
            import re
            PATTERN = re.compile('a|KKK')
            def factor():
                return 3.0 if PATTERN.match('b') else 2.0
            """,
            values=("b", "c"),
        ),
        Change(
            "packed_structure",
            """
            import struct
            S = struct.Struct('KKK')
            def factor():
                return float(S.size)
            """,
            values=("h", "i"),
        ),
        Change(
            "annotated_metadata",
            """
            import typing
            T = typing.Annotated[float, KKK]
            def factor():
                return T.__metadata__[0]
            """,
        ),
        # Facts that a function tells of itself.
        Change("docstring_read", "def factor():\n    'KKK'\n    return float(factor.__doc__)"),
        Change(
            "annotation_read",
            "def factor():\n    return other.__annotations__['return']\ndef other() -> KKK:\n    pass",
        ),
        Change("name_read", "def KKK():\n    return float(len(KKK.__name__))\nfactor = KKK", values=("aa", "bbb")),
        Change(
            "signature_read",
            """
            import inspect
            def other(k=KKK):
                pass
            def factor():
                return inspect.signature(other).parameters['k'].default
            """,
        ),
        # Bindings that come late.
        Change(
            "defaults_set_by_program",
            "def factor(k=1.0):\n    return k",
            setup="import helper\nhelper.factor.__defaults__ = (KKK,)",
        ),
        Change(
            "keyword_defaults_set_by_program",
            "def factor(*, k=1.0):\n    return k",
            setup="import helper\nhelper.factor.__kwdefaults__['k'] = KKK",
        ),
        Change(
            "cell_set_by_program",
            """
            def make():
                k = 1.0
                def factor():
                    return k
                return factor
            factor = make()
            """,
            setup="import helper\nhelper.factor.__closure__[0].cell_contents = KKK",
        ),
        Change(
            "code_of_method_replaced",
            """
            class S:
                def get(self):
                    return 1.0
            factor = S().get
            """,
            setup="import helper\nhelper.S.get.__code__ = (lambda self: KKK).__code__",
        ),
        Change(
            "builtins_of_function",
            """
            import builtins
            space = {'__builtins__': {**vars(builtins), 'oct': lambda value: KKK}}
            exec('def factor():\\n    return oct(8)', space)
            factor = space['factor']
            """,
        ),
        Change(
            "global_deleted_by_program",
            "oct = lambda value: 'two'\ndef factor():\n    return float(len(str(oct(8))))",
            values=("pass", "del helper.oct"),
            setup="import helper\nKKK",
        ),
        Change(
            "function_made_by_types",
            """
            import types
            def template():
                return k
            factor = types.FunctionType(template.__code__, {'k': KKK})
            """,
        ),
        Change(
            "globals_read_from_frame",
            """
            import sys
            K = KKK
            def factor():
                return sys._getframe().f_globals['K']
            """,
            sites=FORMULA,
        ),
    ],
)
