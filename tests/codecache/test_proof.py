"""The grammar of provable code: what changes a digest, what must not, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import random
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpool.codecache.code import grammar
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.code.proof import digest_of
from fxpool.codecache.code.source_files import digest_file

BASE = """
import dataclasses, math, operator
from math import floor
import torch
import torch.nn.functional as F
SCALE = 2.0
NAMES = ("a", (1, None), b"bytes", 1j)
@dataclasses.dataclass(frozen=True)
class Options:
    width: int = 3
    kind: str = "plain"
OPTIONS = Options(width=5)
def helper(x, *, power=2):
    return x ** power
def recursive(n):
    return 1 if n == 0 else other(n - 1)
def other(n):
    return recursive(n)
def outer(k):
    def inner(x):
        return x * k + SCALE * helper(x)
    return inner
inner = outer(3)
def f(x, y=1):
    '''Computes.'''
    from math import ceil
    t = [helper(v) for v in (x, y)]
    try:
        t.append(inner(x))
    except ValueError:
        raise RuntimeError(f"not {y}")
    if NAMES[0] in ("a", "b") or y in {1, 2}:
        t.append(torch.sin(x).mul(F.gelu(x)))
    t.append(helper(x, power=3.5))
    total = sum(t) + math.floor(SCALE) + operator.mul(2, 3) + ceil(1.5) + floor(2.5)
    return total + OPTIONS.width + recursive(2) + (lambda z: z * 4)(y) + torch.ops.aten.cos.default(x)
"""


def load(source: str, name: str = "a_user_module", file: str = "/tmp/a_user_module.py") -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(textwrap.dedent(source), file, "exec"), module.__dict__)
    finally:
        del sys.modules[name]
    return module


def digest(source: str, name: str = "f") -> str:
    return digest_of(getattr(load(source), name))


def test_code_has_the_same_digest_in_another_place() -> None:
    first = digest(BASE)
    assert first == digest(BASE) == digest_of(load(BASE, "another_module").f)
    assert first == digest("# a comment\n\n\n" + BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'''Computes.'''", "'''Says another thing.'''"),
        ("'''Computes.'''", "# without"),
        ("    t = [", "    # remark\n    t = ["),
        ("total", "renamed"),
        ("def helper(", "helped = 3\ndef helper("),
        ("helper", "assistant"),
    ],
)
def test_a_spelling_that_code_cannot_read_does_not_count(old: str, new: str) -> None:
    assert digest(BASE.replace(old, new)) == digest(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("SCALE = 2.0", "SCALE = 2"),
        ('("a", (1, None)', '("c", (1, None)'),
        ("(1, None)", "(1, False)"),
        ('b"bytes"', '"bytes"'),
        ("1j", "2j"),
        ("width=5", "width=6"),
        ("power=2", "power=3"),
        ("x ** power", "x * power"),
        ("power=3.5", "power=4.5"),
        ("n - 1", "n - 2"),
        ("outer(3)", "outer(4)"),
        ("y=1", "y=2"),
        ('("a", "b")', '("a", "c")'),
        ("{1, 2}", "{1, 3}"),
        ("torch.sin", "torch.cos"),
        ("F.gelu", "F.silu"),
        (".mul(", ".add("),
        ("math.floor", "math.ceil"),
        ("operator.mul", "operator.add"),
        ("import ceil", "import trunc as ceil"),
        ("import floor", "import trunc as floor"),
        ("z * 4", "z * 5"),
        ("aten.cos.default", "aten.sin.default"),
        ("except ValueError", "except TypeError"),
        ("return recursive(n)", "return recursive(n) + 1"),
    ],
)
def test_a_fact_that_code_reads_counts(old: str, new: str) -> None:
    assert old in BASE
    assert digest(BASE.replace(old, new)) != digest(BASE)


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_proof as t; "
    program += "print(t.digest(t.BASE))"
    digests = set()
    for seed in ("1", "77"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout)
    assert digests == {digest(BASE) + "\n"}


#: A module's text, and what is refused in its function `f`.
REFUSED = {
    "a list": ("K = [1.0]\ndef f(): return K[0]", "list"),
    "a dictionary": ("K = {'a': 1.0}\ndef f(): return K['a']", "dict"),
    "a set": ("K = {1.0}\ndef f(): return sum(K)", "set"),
    "a set made inside": ("def f(): return [x for x in {'a', 'b'}]", "set"),
    "a set of varying values": ("def f(x): return max({x, 1})", "BUILD_SET"),
    "a list in a tuple": ("K = (1, [2])\ndef f(): return K", "list"),
    "a mutable default": ("def f(x, k=[2.0]): return k[0]", "list"),
    "an instance": ("class C:\n    k = 1\nC = C()\ndef f(): return C.k", "C"),
    "a class": ("class C:\n    k = 1\ndef f(): return C.k", "C"),
    "an enum": ("import enum\nclass E(enum.Enum):\n    A = 1\ndef f(): return E.A.value", "E"),
    "a subclass of int": ("class I(int): pass\nK = I(2)\ndef f(): return K", "I"),
    "a subclass of tuple": ("import collections\nK = collections.namedtuple('N', 'a')(1)\ndef f(): return K.a", "N"),
    "a subclass of float with attributes": ("class I(float): pass\nK = I(2)\nK.a = 1\ndef f(): return K.a", "I"),
    "a dataclass that is not frozen": (
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = 1\nK = D()\ndef f(): return K.a",
        "D",
    ),
    "a frozen dataclass with a property": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: int = 1\n"
        "    @property\n    def b(self): return 2\nK = D()\ndef f(): return K.b",
        "D",
    ),
    "a frozen dataclass with another attribute": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: int = 1\nK = D()\n"
        "object.__setattr__(K, 'b', 2)\ndef f(): return K.b",
        "D",
    ),
    "a frozen dataclass with a list": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: list\nK = D([1])\n"
        "def f(): return K.a",
        "list",
    ),
    "a bound method": ("class C:\n    def m(self): return 1\nm = C().m\ndef f(): return m()", "method"),
    "a method of a value": ("get = (1, 2).__getitem__\ndef f(): return get(1)", "method-wrapper"),
    "a partial": ("import functools\ng = functools.partial(max, 1)\ndef f(): return g(2)", "partial"),
    "a cache": ("import functools\n@functools.cache\ndef g(): return 1\ndef f(): return g()", "lru_cache"),
    "a wrapper of torch": ("import torch\n@torch.no_grad()\ndef g(): return 1\ndef f(): return g()", "torch"),
    "attributes of a function": ("def g(): return g.k\ng.k = 1\ndef f(): return g()", "attributes"),
    "an attribute of a function": ("def g(): return 1\ndef f(): return g.__name__", "attribute"),
    "the code of a function": ("def f(): return f.__code__.co_firstlineno", "attribute"),
    "the text of a function": ("def g(): return 1\ndef f(): return f'{g}'", "text"),
    "a module as a value": ("import math\ndef f(): return getattr(math, 'pi')", "getattr"),
    "a module in a container": ("import math\ndef f(): return [math]", "module"),
    "an attribute that a module lacks": ("import math\ndef f(): return math.nothing", "nothing"),
    "a module of another class": (
        "import types\nclass M(types.ModuleType):\n    k = 1\nm = M('m')\ndef f(): return m.k",
        "m.k",
    ),
    "an import of a module": ("def f():\n    import math\n    return math.pi", "import"),
    "an import of what is not loaded": ("def f():\n    from nowhere_at_all import k\n    return k", "import"),
    "a relative import": ("__package__ = 'json'\ndef f():\n    from . import decoder\n    return decoder", "import"),
    "a write to a global": ("K = 1\ndef f():\n    global K\n    K += 1\n    return K", "STORE_GLOBAL"),
    "a write to a closure": (
        "def make():\n    k = 1\n    def g():\n        nonlocal k\n        k += 1\n    return g\nf = make()",
        "closure",
    ),
    "a closure over a list": ("def make(k):\n    return lambda: k[0]\nf = make([1])", "list"),
    "an empty cell": ("def make():\n    def g(): return k\n    return g\n    k = 1\nf = make()", "not set"),
    "a class made inside": ("def f():\n    class C: pass\n    return C()", "LOAD_BUILD_CLASS"),
    "a coroutine": ("async def f(): return 1", "coroutine"),
    "an unknown global": ("def f(): return undefined_here", "undefined_here"),
    "a hash": ("def f(): return hash('a')", "hash"),
    "an address": ("def f(x): return id(x)", "id"),
    "a private attribute": ("def f(x): return x._version", "_version"),
    "a dunder": ("def f(x): return x.__class__", "__class__"),
    "memory": ("def f(x): return x.data_ptr()", "data_ptr"),
    "a device with an index": ("import torch\nK = torch.device('cuda:1')\ndef f(x): return x.device == K", "cuda:1"),
    "the name of such a device": ("def f(x): return x.to('cuda:1')", "cuda:1"),
    "one of such names": ("def f(x): return x in {'cuda:1', 'cpu'}", "cuda:1"),
    "a device made inside": ("import torch\ndef f(x): return x.device == torch.device('cuda', 1)", "device"),
    "another index of a device": ("def f(x): return x.device.index", "index"),
    "an unknown attribute": ("def f(x): return x.my_own_attribute", "my_own_attribute"),
    "an iterator": ("K = iter([1.0])\ndef f(): return next(K)", "iterator"),
    "a generator": ("K = (i for i in (1, 2))\ndef f(): return next(K)", "generator"),
    "a tensor": ("import torch\nK = torch.ones(2)\ndef f(): return K", "Tensor"),
    "the environment": ("import os\ndef f(): return os.environ['HOME']", "environ"),
    "the environment by getenv": ("import os\ndef f(): return os.getenv('HOME')", "getenv"),
    "a clock": ("import time\ndef f(): return time.time()", "time"),
    "a random number": ("import random\ndef f(): return random.random()", "random"),
    "a file": ("def f(): return open('/etc/hostname').read()", "open"),
    "the recursion limit": ("import sys\ndef f(): return sys.getrecursionlimit()", "sys"),
    "a logger": ("import logging\nlog = logging.getLogger('a')\ndef f(): return log.isEnabledFor(10)", "log"),
    "a context variable": (
        "import contextvars\nK = contextvars.ContextVar('k')\ndef f(): return K.get()",
        "ContextVar",
    ),
    "a lock": ("import threading\nK = threading.Lock()\ndef f(): return K.locked()", "lock"),
    "process groups": ("import torch\ndef f(): return torch.distributed.is_initialized()", "is_initialized"),
    "flags of a back end": ("import torch\ndef f(): return torch.backends.cuda.flash_sdp_enabled()", "flash"),
    "the number of threads": ("import torch\ndef f(): return torch.get_num_threads()", "get_num_threads"),
    "a seed": ("import torch\ndef f(): return torch.initial_seed()", "initial_seed"),
    "a module of torch's": ("import torch\nM = torch.nn.ReLU()\ndef f(x): return M(x)", "ReLU"),
    "an autocast object": (
        "import torch\nC = torch.autocast('cpu')\ndef f(x):\n    with C:\n        return x",
        "autocast",
    ),
    "NumPy": ("import numpy\ndef f(): return numpy.pi + numpy.sqrt(2.0)", "sqrt"),
    "a decimal": ("import decimal\ndef f(): return decimal.Decimal(1)", "Decimal"),
    "a pattern": ("import re\nK = re.compile('a')\ndef f(): return K.match('a')", "Pattern"),
    "a memory view": ("K = memoryview(b'a')\ndef f(): return K[0]", "memoryview"),
    "a mapping proxy": ("import types\nK = types.MappingProxyType({1: 1})\ndef f(): return K[1]", "mappingproxy"),
    "a builtin of the program's": ("def g(x): return 1\n__builtins__ = {'len': [g]}\ndef f(x): return len(x)", "list"),
    "super": (
        "class B:\n    def m(self): return 1\nclass C(B):\n    def m(self): return super().m()\nf = C.m",
        "super",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused_by_name(name: str) -> None:
    source, what = REFUSED[name]
    with pytest.raises(UnprovenError, match=rf"(?s).*({what})"):
        digest(source)


def test_the_error_says_which_references_lead_there() -> None:
    with pytest.raises(UnprovenError, match=r"list of K of a_user_module\.g of g of a_user_module\.f"):
        digest("K = []\ndef g(): return K\ndef f(): return g()")


@pytest.mark.parametrize("method", ["__eq__(self, other): return K", "__repr__(self): return 'D'"])
@pytest.mark.parametrize("decorator", ["", "@reprlib.recursive_repr()"])
def test_methods_of_a_program_in_a_text_are_not_those_of_dataclasses(method: str, decorator: str) -> None:
    """The code of `python -c` is in a file of the name that generated methods have."""
    source = (
        "import dataclasses, reprlib\n@dataclasses.dataclass(frozen=True, eq=False, repr=False)\nclass D:\n"
        "    a: int = 1\n{}\nK = D()\ndef f(): return K.a"
    )
    digest_of(load(source.format(""), file="<string>").f)
    with pytest.raises(UnprovenError, match="D of K"):
        digest_of(load(source.format(f"    {decorator}\n    def {method}"), file="<string>").f)


def test_a_builtin_that_the_program_replaced_is_the_program_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    source = "def f(x): return round(x)"
    first = digest(source)
    monkeypatch.setattr(builtins, "round", lambda x: x * 3)
    assert digest(source) != first


def test_a_function_of_the_standard_library_that_the_program_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import math

    source = "import math\ndef f(x): return math.floor(x) + math.tau"
    first = digest(source)
    monkeypatch.setattr(math, "tau", 7.0)
    second = digest(source)
    monkeypatch.setattr(math, "floor", math.ceil)
    assert len({first, second, digest(source)}) == 3


def test_a_module_of_the_program_with_a_name_of_the_standard_library() -> None:
    one, other = load("def factor(): return 2.0", "chunk"), load("def factor(): return 3.0", "chunk")
    assert digest_of(one.factor) != digest_of(other.factor)


@dataclasses.dataclass(frozen=True)
class _Record:
    a: int
    b: tuple[Any, ...] = ()


def test_values_by_type_and_content() -> None:
    values: list[Any] = [
        None, True, 1, 1.0, 1j, "1", b"1", (1,), ((1,),), (), 0.0, -0.0, float("inf"), ..., "", b"", False, 0, 2**70,
        math.nan, math.copysign(math.nan, -1), complex(0.0, -0.0), 0j, complex(0.0, math.nan),
        _Record(1), _Record(2), _Record(1, (2,)),
    ]  # fmt: skip
    digests = [digest_of(value) for value in values]
    assert len(set(digests)) == len(values)
    assert digests == [digest_of(value) for value in values]


def test_functions_that_refer_to_each_other_end() -> None:
    source = "def f(n): return g(n)\ndef g(n): return f(n) + {}\n"
    assert digest(source.format(1)) != digest(source.format(2))


def test_every_accepted_instruction_is_one_of_some_release() -> None:
    import dis

    unknown = set(dis.opmap) - grammar.INSTRUCTIONS
    assert {"STORE_GLOBAL", "LOAD_BUILD_CLASS"} <= unknown
    assert len(grammar.INSTRUCTIONS & set(dis.opmap)) > 60


# ------------------------------------------------------------------------------ random programs


@dataclasses.dataclass
class _Program:
    """A module's text with placeholders for facts, each with two values."""

    text: str
    facts: dict[str, tuple[str, str]]

    def source(self, other: str = "") -> str:
        values = {name: pair[name == other] for name, pair in self.facts.items()}
        return self.text.format_map(values)


class _Writer:
    """Writes a random program in the grammar: functions that read facts in each way that the grammar accepts."""

    def __init__(self, random_: random.Random) -> None:
        self._random, self._numbers = random_, itertools.count()
        self.top: list[str] = ["import dataclasses, math, operator, torch", "import torch.nn.functional as F"]
        self.facts: dict[str, tuple[str, str]] = {}

    def fact(self, one: str, other: str) -> str:
        name = f"fact{len(self.facts)}"
        self.facts[name] = (one, other)
        return "{" + name + "}"

    def number(self) -> str:
        one = self._random.choice(("1", "2.5", "-3", "True", "None or 4", "1e300", "0.0", "7j.real"))
        return self.fact(one, self._random.choice(("11", "12.5", "-0.125")))

    def name(self) -> str:
        return f"name{next(self._numbers)}"

    def expression(self, deep: int) -> str:
        kinds = [self._literal, self._global, self._tuple, self._record, self._math, self._torch, self._membership]
        if deep:
            kinds += [self._call, self._default, self._closure, self._lambda, self._sum, self._keyword, self._choice]
        return self._random.choice(kinds)(deep - 1)

    def _literal(self, deep: int) -> str:
        return f"x * {self.number()}"

    def _global(self, deep: int) -> str:
        name = self.name()
        self.top.append(f"{name} = {self.number()}")
        return f"x + {name}"

    def _tuple(self, deep: int) -> str:
        name = self.name()
        self.top.append(f"{name} = (1, ({self.number()}, 'text'), {self.number()})")
        return f"x + {name}[1][0] + {name}[2]"

    def _record(self, deep: int) -> str:
        name = self.name()
        self.top.append(f"@dataclasses.dataclass(frozen=True)\nclass C{name}:\n    a: object\n    b: object = 1")
        self.top.append(f"{name} = C{name}(a={self.number()}, b=({self.number()},))")
        return f"x + {name}.a + {name}.b[0]"

    def _math(self, deep: int) -> str:
        return f"x * math.{self.fact('floor', 'ceil')}(2.5) + operator.{self.fact('add', 'mul')}(2, 3)"

    def _torch(self, deep: int) -> str:
        call = self._random.choice(
            ("torch.{}(x)", "F.{}(x)", "x.{}()", "torch.ops.aten.{}.default(x)", "torch.nn.functional.{}(x)")
        )
        names = ("gelu", "silu") if "F." in call or "functional" in call else ("sin", "cos")
        return call.replace("{}", self.fact(*names))

    def _membership(self, deep: int) -> str:
        return f"(x if 'a' in ('a', {self.fact(repr('b'), repr('c'))}) else -x)"

    def _function(self, arguments: str, body: str, indent: str = "") -> str:
        name = self.name()
        self.top.append(f"def {name}({arguments}):\n    '''Text.'''\n    local = {body}\n    return local")
        return name

    def _call(self, deep: int) -> str:
        return f"{self._function('x', self.expression(deep))}(x)"

    def _default(self, deep: int) -> str:
        return f"{self._function(f'x, y={self.number()}', f'y + {self.expression(deep)}')}(x)"

    def _keyword(self, deep: int) -> str:
        return f"{self._function(f'x, *, y={self.number()}', f'y * {self.expression(deep)}')}(x)"

    def _closure(self, deep: int) -> str:
        name = self.name()
        inner = self.expression(deep)
        self.top.append(f"def make{name}(k):\n    def inner(x):\n        return k + {inner}\n    return inner")
        self.top.append(f"{name} = make{name}({self.number()})")
        return f"{name}(x)"

    def _lambda(self, deep: int) -> str:
        return f"(lambda x: {self.expression(deep)})(x)"

    def _sum(self, deep: int) -> str:
        return f"sum([{self.expression(deep)} for _ in range({self.fact('2', '3')})])"

    def _choice(self, deep: int) -> str:
        return f"({self.expression(deep)} if x is not None else {self.expression(deep)})"


def write(seed: int) -> _Program:
    writer = _Writer(random.Random(seed))
    body = " + ".join(f"({writer.expression(3)})" for _ in range(3))
    return _Program("\n".join([*writer.top, f"def f(x):\n    return {body}\n"]), writer.facts)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_each_mutation_of_a_proven_fact_misses(seed: int) -> None:
    program = write(seed)
    first = digest(program.source())
    assert first == digest(program.source())
    for name in program.facts:
        assert digest(program.source(name)) != first, (name, program.facts[name], program.source())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_program_without_effect_on_the_values_has_the_same_digest(seed: int) -> None:
    source = write(seed).source()
    renamed = source.replace("local", "another").replace("'''Text.'''", "'''Other.'''").replace("name", "called")
    assert digest(source) == digest("# remark\n" + renamed)


# ------------------------------------------------------------------------------------- files


def test_files_are_read_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.py"
    path.write_text("a")
    first = digest_file(str(path))
    monkeypatch.setattr(hashlib, "sha256", lambda *args: pytest.fail("read again"))
    assert digest_file(str(path)) == first
    monkeypatch.undo()
    path.write_text("bc")
    assert digest_file(str(path)) != first
    with pytest.raises(OSError):
        digest_file(str(tmp_path / "nothing"))
