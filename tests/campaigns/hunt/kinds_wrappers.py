"""Kinds of change in wrappers of code: decorators and context managers that hold a setting or a function."""

from __future__ import annotations

from .changes import BACKWARD, FORMULA, Change, register

__all__: list[str] = []

# Types of a product under autocast.
_HALVES = ("bfloat16", "float16")
_SHOW_TYPE = """
y = ops.piece(x)
return y.float(), torch.tensor(y.dtype is torch.bfloat16)
"""
_AUTOCAST_OBJECT = "import torch\nCONTEXT = torch.autocast('cpu', dtype=torch.KKK)"
_FAR_METHOD = {"far.py": "class S:\n    def k(self, *x):\n        return KKK * x[0] if x else KKK"}

register(
    "wrapper",
    [
        Change(
            "autocast_decorator",
            """
            import torch
            @torch.autocast('cpu', dtype=torch.KKK)
            def product(x):
                return x @ x.t()
            """,
            values=_HALVES,
            result="helper.product(x)",
            sites=FORMULA,
            body=_SHOW_TYPE,
            tolerance=400.0,
        ),
        Change(
            "autocast_decorator_cast_back",
            """
            import torch
            @torch.autocast('cpu', dtype=torch.KKK)
            def product(x):
                return x @ x.t()
            """,
            values=_HALVES,
            result="helper.product(x).float()",
            sites=FORMULA,
            inputs="torch.rand(4, 8, generator=g) * 3000",
            tolerance=20.0,
        ),
        Change(
            "autocast_object_entered",
            _AUTOCAST_OBJECT,
            values=_HALVES,
            result="with helper.CONTEXT:\n    return x @ x.t()",
            sites=FORMULA,
            body=_SHOW_TYPE,
            tolerance=400.0,
        ),
        Change(
            "autocast_object_entered_cast_back",
            _AUTOCAST_OBJECT,
            values=_HALVES,
            result="with helper.CONTEXT:\n    return (x @ x.t()).float()",
            sites=FORMULA,
            inputs="torch.rand(4, 8, generator=g) * 3000",
            tolerance=20.0,
        ),
        Change(
            "backward_autocast_decorator_of_another_module",
            "from far import product",
            result="helper.product(x)",
            values=(False, True),
            others={
                "far.py": """
                import torch
                @torch.autocast('cpu', dtype=torch.bfloat16, enabled=KKK)
                def product(x):
                    return ((x * 1.001) @ torch.eye(8)).float()
                """
            },
            sites=BACKWARD,
        ),
        Change(
            "grad_mode_decorator",
            """
            import torch
            @torch.set_grad_enabled(KKK)
            def scale(x):
                return x * x
            """,
            values=(True, False),
            result="x.sin() + helper.scale(x)",
            setup="torch.set_grad_enabled(True)",
            sites=FORMULA,
            training=True,
        ),
        Change(
            "no_grad_of_function",
            """
            import torch
            @torch.no_grad()
            def scale(x):
                return x * KKK
            """,
            result="x.sin() * helper.scale(x)",
        ),
        Change(
            "no_grad_of_bound_method",
            """
            import torch
            from far import S
            scale = torch.no_grad()(S().k)
            def factor():
                return scale()
            """,
            others=_FAR_METHOD,
        ),
        Change(
            "vmap_of_bound_method",
            """
            import torch
            from far import S
            scale = torch.vmap(S().k)
            """,
            others=_FAR_METHOD,
            result="x.sin() * helper.scale(x)",
        ),
        Change(
            "disable_of_bound_method",
            """
            import torch
            from far import S
            scale = torch.compiler.disable(S().k)
            def factor():
                return scale()
            """,
            others=_FAR_METHOD,
        ),
        Change(
            "context_decorator_of_program",
            """
            import contextlib
            STATE = [1.0]
            class Scaled(contextlib.ContextDecorator):
                def __init__(self, k):
                    self.k = k
                def __enter__(self):
                    STATE[0] = self.k
                def __exit__(self, *exc):
                    STATE[0] = 1.0
            @Scaled(KKK)
            def factor():
                return STATE[0]
            """,
        ),
    ],
)
