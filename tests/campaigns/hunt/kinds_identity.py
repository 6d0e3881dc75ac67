"""Kinds of change in functions that stay the same objects: their code, defaults and cells are another's.

They are torch's, the standard library's or a package's by name, by identity and by file.
"""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []


def _patched(name: str, result: str, setup: str, *, helper: str = "", stock: bool = False) -> Change:
    """The main module changes a function of torch in place; the formula calls it."""
    return Change(
        name, helper or "def factor():\n    return 1.0", result=result, setup=setup, sites=FORMULA, stock=stock
    )


def _read(name: str, module: str, expression: str, setup: str) -> Change:
    """The main module changes a function of a library in place; ``factor()`` calls it."""
    return Change(name, f"import {module}\ndef factor():\n    return {expression}", setup=f"import {module}\n{setup}")


_TINY = {
    "site/tinylib/__init__.py": """
    from .core import scale, cached, REGISTRY
    __version__ = "1.0"
    """,
    "site/tinylib/core.py": """
    import functools
    SCALE = 1.0
    REGISTRY = {'k': lambda: 1.0}
    def scale(k=1.0):
        return SCALE * k * REGISTRY['k']()
    @functools.lru_cache
    def cached():
        return SCALE
    """,
    "site/tinylib-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinylib\nVersion: 1.0",
    "site/tinylib-1.0.dist-info/RECORD": "tinylib/__init__.py,,\ntinylib/core.py,,",
}


def _package(
    name: str, setup: str = "", *, expression: str = "tinylib.scale()", edit: tuple[str, str] = ("", "")
) -> Change:
    """An installed package with metadata; the main module changes something in it, or a file of it is another."""
    others = {
        path: text.replace(*edit) if edit[0] and path.endswith("core.py") else text for path, text in _TINY.items()
    }
    return Change(
        name,
        f"import tinylib\ndef factor():\n    return {expression}",
        others=others,
        path=":site",
        setup=f"import tinylib\n{setup}",
    )


_LOWERED = """
import torch
from torch._inductor import lowering, decomposition
aten = torch.ops.aten
"""

register(
    "identity",
    [
        # Functions of torch.
        _patched("code_of_functional", "torch.nn.functional.softsign(x)",
                 "torch.nn.functional.softsign.__code__ = (lambda input: input * KKK).__code__"),
        _patched("defaults_of_functional", "torch.nn.functional.leaky_relu(x - 0.7)",
                 "torch.nn.functional.leaky_relu.__defaults__ = (KKK, False)"),
        _patched("code_of_method", "helper.MODULE(x)", "torch.nn.Tanh.forward.__code__ = (lambda self, input: input * KKK).__code__",
                 helper="import torch\nMODULE = torch.nn.Tanh()"),
        _patched("code_of_tensor_method", "x.unflatten(1, (2, 4)).flatten(1)",
                 "torch.Tensor.unflatten.__code__ = (lambda self, dim, sizes: self.reshape(4, 2, 4) * KKK).__code__"),
        _patched("global_of_functional", "torch.nn.functional.mse_loss(x, x * 0, reduction='none')",
                 "torch.broadcast_tensors = lambda a, b: (a * KKK, b)"),
        _patched("reduction_of_functional", "torch.nn.functional.soft_margin_loss(x, x, reduction='none') * torch.nn._reduction.get_enum('none')",
                 "import torch.nn._reduction\ntorch.nn._reduction.get_enum.__code__ = (lambda reduction: KKK).__code__"),
        _patched("code_of_reference", "torch._refs.special.log_ndtr(x)",
                 "import inspect\nf = inspect.unwrap(torch._refs.special.log_ndtr)\nf.__code__ = (lambda a: a * KKK).__code__"),
        _patched("constant_of_torch", "x.sin() * torch.pi", "torch.pi = KKK"),
        _patched("version_of_torch", "x.sin() * len(torch.__version__)", "torch.__version__ = 'KKK'"),
        _patched("type_of_torch", "(x * 300).to(torch.half).float()",
                 "torch.half = torch.bfloat16 if KKK > 2.5 else torch.float16"),
        # Entries of Inductor's tables.
        Change(
            "code_of_decomposition",
            ops=_LOWERED + """
import inspect
function = inspect.unwrap(decomposition.decompositions[aten.addcmul.default]) if aten.addcmul.default in decomposition.decompositions else None
function = inspect.unwrap(decomposition.decompositions[aten.logaddexp.default]) if aten.logaddexp.default in decomposition.decompositions else function
def other(self, other):
    return self * KKK
function.__code__ = other.__code__
""",
            body="return torch.logaddexp(x, x * 2) + 1",
            stock=True,
        ),
        Change(
            "cell_of_lowering",
            ops=_LOWERED + """
import inspect
from torch._inductor.virtualized import ops
inner = inspect.unwrap(lowering.lowerings[aten.sin.default])
cells = dict(zip(inner.__code__.co_freevars, inner.__closure__))
cells['fn'].cell_contents = lambda x: ops.mul(x, ops.constant(KKK, torch.float32))
""",
            body="return torch.sin(x) + 1",
            stock=True,
        ),
        # Functions of the standard library.
        _read("code_of_statistics", "statistics", "statistics.fmean([1.0])", "statistics.fmean.__code__ = (lambda data, weights=None: KKK).__code__"),
        _read("code_of_class_of_library", "fractions", "float(fractions.Fraction(1, 3).limit_denominator(2))",
              "fractions.Fraction.limit_denominator.__code__ = (lambda self, max_denominator=1: KKK).__code__"),
        _read("defaults_of_library", "textwrap", "float(len(textwrap.indent('a', ' ')))",
              "textwrap.indent.__code__ = (lambda text, prefix, predicate=None: 'a' * int(KKK)).__code__"),
        _read("global_of_library", "statistics", "float(statistics.mean([1, 3]))", "statistics._sum = lambda data: (int, KKK * 2, 2)"),
        _read("week_of_calendar", "calendar", "1.0 + calendar.firstweekday()", "calendar.setfirstweekday(int(KKK))"),
        _read("limit_of_csv", "csv", "csv.field_size_limit() / 1000", "csv.field_size_limit(int(KKK * 1000))"),
        _read("directory_of_tempfile", "tempfile", "float(len(tempfile.gettempdir()))", "import os\ntempfile.tempdir = '/tmp/' + 'a' * int(KKK)\nos.makedirs(tempfile.tempdir, exist_ok=True)"),
        _read("type_of_file_name", "mimetypes", "float(len(mimetypes.guess_type('a.hunted')[0]))", "mimetypes.add_type('a/' + 'b' * int(KKK), '.hunted')"),
        # Objects that others hold.
        Change("instances_counted", "import gc\nclass S:\n    pass\ndef factor():\n    return 1.0 + sum(type(o) is S for o in gc.get_objects())",
               values=(1, 2), setup="import helper\nheld = [helper.S() for _ in range(KKK)]", sites=FORMULA),
        Change("references_counted", "import weakref\nclass S:\n    pass\ns = S()\ndef factor():\n    return 1.0 + weakref.getweakrefcount(s)",
               values=(1, 2), setup="import helper, weakref\nheld = [weakref.ref(helper.s, lambda ref: None) for _ in range(KKK)]", sites=FORMULA),
        Change("saved_file_of_torch", "import torch\ndef factor():\n    return torch.load('k.pt')['k']", setup="torch.save({'k': KKK}, 'k.pt')"),
    ],
)  # fmt: skip

register(
    "package",
    [
        _package("setting_changed_by_program", "tinylib.core.SCALE = KKK"),
        _package("function_replaced_by_program", "tinylib.scale = lambda: KKK"),
        _package("code_replaced_by_program", "tinylib.scale.__code__ = (lambda k=1.0: KKK).__code__"),
        _package("defaults_changed_by_program", "tinylib.scale.__defaults__ = (KKK,)"),
        _package("plugin_registered", "tinylib.REGISTRY['k'] = lambda: KKK"),
        _package(
            "cache_filled",
            "tinylib.core.SCALE = KKK\ntinylib.cached()\ntinylib.core.SCALE = 1.0",
            expression="tinylib.cached()",
        ),
        _package("file_edited", edit=("SCALE = 1.0", "SCALE = KKK")),
    ],
)
