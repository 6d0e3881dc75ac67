"""Kinds in which nothing that counts changes: the second process shall hit; a compile there is counted as lost."""

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

_PLAIN = "return x.sin() * 2 + 1"
_TWO = "def factor():\n    return 2.0"
_MODULE = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.{name}(x).relu()
torch.manual_seed({seed})
NET = Net()
"""
_FORMULA = """
import torch
{above}
import helper
LIB = torch.library.Library("hunted", "DEF")
LIB.define("op(Tensor x) -> Tensor")
@torch.library.impl(LIB, "op", "CompositeImplicitAutograd")
def _op(x):
    return x.sin() * helper.factor()
def piece(x):
    return torch.ops.hunted.op(x)
{below}
"""
_OTHER_OPERATOR = """
import torch
@torch.library.custom_op("other::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
"""
_OTHER_LOWERING = (
    _OTHER_OPERATOR
    + """
from torch._inductor.lowering import register_lowering, lowerings
@register_lowering(torch.ops.other.op.default)
def _lowering(x):
    return lowerings[torch.ops.aten.sin.default](x)
"""
)
_IN_NAMESPACE = """
import torch
@torch.library.custom_op("{namespace}::hunted_op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
@op.register_fake
def _(x):
    return torch.empty_like(x)
"""


def _plain(name: str, first: str, second: str) -> Change:
    """A plain function, with one or the other statements ahead of the main module."""
    return Change(name, values=(first, second), ahead="KKK", body=_PLAIN)


register(
    "same",
    [
        # The process.
        Change("cwd", values=("one", "two"), others={"one/a": "", "two/a": ""}, cwd="KKK", body=_PLAIN),
        Change("sys_path_longer", values=("", ":library"), others={"library/a": ""}, path="KKK", body=_PLAIN),
        Change("hashseed", values=(1, 77), environment={"PYTHONHASHSEED": "KKK"}, fresh=True, body=_PLAIN),
        Change(
            "other_variables",
            values=(1, 2),
            environment={"HUNTED": "KKK", "LANG": "C.UTF-8", "TERM": "KKK", "HOSTNAME": "h-KKK", "USER": "u-KKK"},
            body=_PLAIN,
        ),
        _plain("threads_between_operators", "import torch", "import torch\ntorch.set_num_interop_threads(2)"),
        _plain("other_seed", "import torch\ntorch.manual_seed(98)", "import torch\ntorch.manual_seed(99)"),
        _plain(
            "logging_on",
            "import logging",
            "import logging\nlogging.basicConfig(level=logging.ERROR)\nlogging.getLogger('x').setLevel(10)",
        ),
        _plain(
            "verbose_dynamo", "import torch._dynamo.config as d", "import torch._dynamo.config as d\nd.verbose = True"
        ),
        _plain("affinity", "import os", "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"),
        # Imports.
        _plain("unrelated_import", "", "import json, decimal, xml.dom"),
        _plain("inductor_imported_before", "", "import torch._inductor.lowering"),
        Change(
            "operator_imported",
            values=("", "import other"),
            ahead="KKK",
            others={"other.py": _OTHER_OPERATOR},
            body=_PLAIN,
        ),
        Change(
            "unrelated_lowering",
            values=("", "import other"),
            ahead="KKK",
            others={"other.py": _OTHER_LOWERING},
            body=_PLAIN,
        ),
        # Spelling.
        _plain("comment", "", "# a comment"),
        Change("docstring", values=("", "'a docstring'"), body=f"KKK\n{_PLAIN}"),
        Change("comment_in_function", values=("", "# said here"), body=f"KKK\n{_PLAIN}"),
        Change("local_variable_renamed", values=("y", "other"), body="KKK = x.sin()\nreturn KKK * 2 + 1"),
        Change(
            "argument_renamed",
            values=("x", "argument"),
            main="""
            import torch
            def inputs():
                return (torch.rand(4, 8, generator=torch.Generator().manual_seed(7)),)
            def run(KKK):
                return KKK.sin() * 2 + 1
            """,
        ),
        Change(
            "file_of_another_name",
            values=("first", "second"),
            main="from KKK import *",
            others={
                name + ".py": """
                import torch
                def inputs():
                    return (torch.rand(4, 8, generator=torch.Generator().manual_seed(7)),)
                def run(x):
                    return x.sin() * 2 + 1
                """
                for name in ("first", "second")
            },
        ),
        Change("keyword_or_position", values=("0", "dim=0"), body="return x.sum(KKK) + 1"),
        Change(
            "called_from_another_function_first",
            values=("pass", "torch.compile(lambda x: x.cos(), backend='eager')(torch.ones(3))"),
            setup="KKK",
            body=_PLAIN,
        ),
        # Modules and inputs.
        Change(
            "submodule_renamed",
            values=("first", "second"),
            setup=_MODULE.format(name="KKK", seed=1),
            body="return NET(x)",
            tolerance=2.0,
        ),
        Change(
            "other_weights",
            values=(1, 2),
            setup=_MODULE.format(name="linear", seed="KKK"),
            body="return NET(x)",
            tolerance=2.0,
        ),
        Change(
            "input_at_another_offset",
            values=("[:32]", "[32:]"),
            inputs="torch.rand(64, generator=g)KKK.view(4, 8)",
            body=_PLAIN,
        ),
        Change(
            "input_is_a_slice",
            values=("torch.rand(64, generator=g)[:32]", "torch.rand(32, generator=g)"),
            inputs="KKK.view(4, 8)",
            body=_PLAIN,
        ),
        # Code of an operator.
        Change("comment_in_helper", values=("", "# a comment"), helper="KKK\n" + _TWO, sites=FORMULA),
        Change("docstring_in_helper", values=("", "'Says so.'"), helper="def factor():\n    KKK\n    return 2.0"),
        Change(
            "comment_in_operators_module", _TWO, values=("", "# a comment"), ops=_FORMULA.format(above="KKK", below="")
        ),
        Change(
            "other_function_in_operators_module",
            _TWO,
            values=("", "def unrelated():\n    return 7"),
            ops=_FORMULA.format(above="", below="KKK"),
        ),
        Change("helper_variable_renamed", values=("a", "b"), helper="def factor():\n    KKK = 2.0\n    return KKK"),
        Change(
            "helper_renamed",
            values=("helper", "renamed"),
            helper=_TWO,
            others={"renamed.py": _TWO},
            ops=_FORMULA.format(above="", below="").replace("import helper", "import KKK as helper"),
        ),
        Change(
            "ids_of_hooks",
            """
            import torch
            KKK
            MODULE = torch.nn.Tanh()
            MODULE.register_forward_hook(lambda m, a, output: output * 2)
            """,
            values=("", "OTHER = torch.nn.Tanh()\nOTHER.register_forward_hook(lambda m, a, output: output)"),
            result="helper.MODULE(x)",
        ),
        Change(
            "flag_without_a_name",
            """
            import enum
            class S(enum.IntFlag):
                A = 1
            MODE = S(0)
            def factor():
                return 2.0 + int(MODE)
            """,
            values=("", ""),
        ),
        Change(
            "object_whose_getattr_raises_keyerror",
            """
            class Settings:
                def __init__(self, table):
                    object.__setattr__(self, 'table', table)
                def __getattr__(self, name):
                    return self.table[name]
            SETTINGS = Settings({'k': 2.0})
            def factor():
                return SETTINGS.k
            """,
            values=("", ""),
        ),
        Change(
            "namedtuple_in_helper",
            """
            import collections
            S = collections.namedtuple('S', 'k')
            SETTINGS = S(2.0)
            def factor():
                return SETTINGS.k
            """,
            values=("", ""),
        ),
        Change(
            "numpy_array_in_helper",
            """
            import numpy
            SETTINGS = numpy.array([2.0])
            def factor():
                return float(SETTINGS[0])
            """,
            values=("", ""),
        ),
        *(
            Change(
                f"operator_in_namespace_{namespace}",
                values=("", ""),
                ops=_IN_NAMESPACE.format(namespace=namespace),
                body=f"return torch.ops.{namespace}.hunted_op(x) + 1",
            )
            for namespace in ("sparse", "quantized")
        ),
    ],
    hit=True,
)
