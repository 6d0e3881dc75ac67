"""Kinds of change in objects that code of a compile reads: attributes of functions, what wrappers and caches hold."""

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

_STRIDED = ("T.clone()", "T.t().contiguous().t()")
_FILLED = ("helper.factor()\nhelper.K = 3.0", "helper.K = 3.0\nhelper.factor()")

register(
    "formula",
    [
        Change(
            "function_attribute_list",
            """
            def factor():
                return factor.k[0]
            factor.k = [KKK]
            """,
        ),
        Change(
            "method_attribute",
            """
            class S:
                def get(self):
                    return self.get.k[0]
                get.k = (KKK,)
            s = S()
            def factor():
                return s.get()
            """,
        ),
        Change(
            "tuple_getitem_method_wrapper",
            """
            look = (1.0, KKK).__getitem__
            def factor():
                return look(1)
            """,
        ),
        Change(
            "memoryview_bytes",
            """
            B = memoryview(b'\\x0KKK')
            def factor():
                return float(B[0])
            """,
            values=(2, 3),
        ),
        Change(
            "iterator_constant",
            """
            import itertools
            B = itertools.repeat(KKK)
            def factor():
                return next(B)
            """,
        ),
        Change(
            "operator_methodcaller",
            """
            import operator
            class S:
                def get(self, k):
                    return k
            get = operator.methodcaller('get', KKK)
            def factor():
                return get(S())
            """,
        ),
        Change(
            "bound_method_of_object_with_lock",
            """
            import threading
            class S:
                def __init__(self):
                    self.lock = threading.Lock()
                    self.k = KKK
                def get(self):
                    return self.k
            factor = S().get
            """,
        ),
        Change(
            "lambdas_on_one_line",
            """
            f, g = lambda: 2.0, lambda: 3.0
            factor = KKK
            """,
            values=("f", "g"),
        ),
        Change(
            "wrapped_attribute",
            """
            import functools
            def base():
                return KKK
            def decorate(f):
                @functools.wraps(f)
                def wrapper():
                    return wrapper.__wrapped__()
                return wrapper
            wrapper = decorate(base)
            def factor():
                return wrapper()
            """,
        ),
        Change(
            "lru_cache_filled_before_change",
            """
            import functools
            K = 2.0
            @functools.lru_cache(None)
            def factor():
                return K
            """,
            values=_FILLED,
            setup="import helper\nKKK",
        ),
        Change(
            "cached_property_filled",
            """
            import functools
            class S:
                @functools.cached_property
                def k(self):
                    return K
            K = 2.0
            s = S()
            def factor():
                return s.k
            """,
            values=_FILLED,
            setup="import helper\nKKK",
        ),
        Change(
            "default_mutated_by_program",
            """
            def f(k=[2.0]):
                return k[0]
            def factor():
                return f()
            """,
            values=("pass", "helper.f.__defaults__[0][0] = 3.0"),
            setup="import helper\nKKK",
        ),
        Change(
            "tensor_strides",
            """
            import torch
            T = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
            T = KKK
            def factor():
                return float(T.numpy().ravel(order='K')[1])
            """,
            values=_STRIDED,
        ),
        Change(
            "tensor_stride_read",
            """
            import torch
            T = torch.arange(16.0).reshape(4, 4)
            T = KKK
            def factor():
                return float(T.stride(0))
            """,
            values=_STRIDED,
        ),
        Change(
            "torch_module_in_torch",
            """
            import torch
            def factor():
                return torch.hunted_module.lower
            """,
            setup="""
            torch.hunted_module = torch.nn.ReLU6()
            torch.hunted_module.lower = KKK
            """,
        ),
        Change(
            "line_number_read",
            "KKK\ndef factor():\n    return float(factor.__code__.co_firstlineno)",
            values=("", "pass\n"),
        ),
        Change(
            "stdlib_named_module",
            "from chunk import factor",
            others={"chunk.py": "def factor():\n    return KKK"},
        ),
        Change(
            "checksum_of_bytes",
            """
            import zlib
            def factor():
                return float(zlib.crc32(b'KKK') % 7 + 1)
            """,
            values=(2, 4),
        ),
        Change(
            "package_data",
            """
            import importlib.resources as r
            def factor():
                return float(r.files('pk').joinpath('k.txt').read_text())
            """,
            others={"pk/__init__.py": "", "pk/k.txt": "KKK"},
        ),
        Change(
            "module_class_property",
            """
            import far
            def factor():
                return far.k
            """,
            others={
                "far.py": """
                import sys, types
                class M(types.ModuleType):
                    @property
                    def k(self):
                        return KKK
                sys.modules[__name__].__class__ = M
                """
            },
        ),
        Change(
            "plugin_module_imported_by_program",
            """
            HOOKS = []
            def factor():
                product = 1.0
                for hook in HOOKS:
                    product = product * hook()
                return product
            """,
            others={"plug.py": "import helper\nhelper.HOOKS.append(lambda: KKK)"},
            setup="import plug",
        ),
        Change(
            "pytree_node_flatten",
            """
            import torch.utils._pytree as pytree
            import far
            NODE = far.Node()
            def factor():
                return pytree.tree_leaves(NODE)[0]
            """,
            others={
                "far.py": "class Node:\n    pass",
                "registration.py": """
                import torch.utils._pytree as pytree
                from far import Node
                pytree.register_pytree_node(Node, lambda node: ([KKK], None), lambda leaves, context: Node())
                """,
            },
            setup="import registration",
        ),
        Change(
            "random_generator_of_numpy",
            """
            import numpy
            make = numpy.random.default_rng
            def factor():
                return 2.0 + float(make(seed()).random())
            def seed():
                return KKK
            """,
            values=(2, 3),
            sites=FORMULA,
        ),
    ],
)
