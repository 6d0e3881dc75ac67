"""Digests of code: what changes them, and what must not."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from fxpool.codecache.code import sources
from fxpool.codecache.code.sources import UndigestableError, digest_callable, digest_file, digest_module, digest_value

_BASE = """
import functools, math, enum, dataclasses, logging
log = logging.getLogger("x")
SCALE = 2.0
TABLE = {"a": [1, 2], "b": (3, frozenset({"x", "y", "z"}))}
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2
@dataclasses.dataclass
class Config:
    width: int = 3
    def area(self):
        return self.width * math.pi
class Thing:
    factor = 7
    def __init__(self): self.n = 1
    @staticmethod
    def make(): return Thing()
    @property
    def size(self): return helper(self.n)
def helper(x, *, power=2):
    return x ** power
def recursive(n):
    return 1 if n == 0 else other(n - 1)
def other(n):
    return recursive(n)
def outer(k):
    def inner(x):
        log.debug("called")
        return x * k + SCALE * helper(x)
    return inner
@functools.lru_cache
def cached(x):
    return helper(x)
def f(x, y=1):
    '''Says what it does.'''
    t = [helper(v) for v in (x, y)]
    try:
        t.append(outer(3)(x))
    except ValueError:
        pass
    return Thing.make().size + Config().area() + recursive(2) + TABLE["a"][0] + cached(3) + Mode.FAST.value
"""


def load(source: str, name: str = "a_user_module") -> types.ModuleType:
    module = types.ModuleType(name)
    code = compile(textwrap.dedent(source), f"/tmp/{name}.py", "exec")
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    finally:
        del sys.modules[name]
    return module


def test_same_code_same_digest_wherever_it_is_written() -> None:
    first = digest_callable(load(_BASE).f)
    moved = "# a comment\n\n\n" + _BASE.replace("    t = [", "    # here\n\n    t = [")
    assert digest_callable(load(moved).f) == first
    assert digest_callable(load(_BASE).f) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y=1", "y=2"),
        ("power=2", "power=3"),
        ("x ** power", "x * power"),
        ("SCALE = 2.0", "SCALE = 2.5"),
        ('"a": [1, 2]', '"a": [1, 3]'),
        ('"z"', '"w"'),
        ("outer(3)", "outer(4)"),
        ("except ValueError", "except TypeError"),
        ("factor = 7", "factor = 8"),
        ("helper(self.n)", "helper(self.n + 1)"),
        ("width: int = 3", "width: int = 4"),
        ("math.pi", "math.e"),
        ("else other(n - 1)", "else other(n - 2)"),
        ("return recursive(n)", "return 1 + recursive(n)"),
        ("SLOW = 2", "SLOW = 3"),
        ("    return helper(x)\ndef f", "    return helper(x) + 1\ndef f"),
    ],
)
def test_a_change_anywhere_below_changes_it(old: str, new: str) -> None:
    assert old in _BASE
    assert digest_callable(load(_BASE.replace(old, new)).f) != digest_callable(load(_BASE).f)


def test_what_is_not_used_does_not_count() -> None:
    assert digest_callable(load(_BASE + "\nUNUSED = object()\n").f) == digest_callable(load(_BASE).f)


def test_closures() -> None:
    make = load("def make(a):\n    def inner(): return a\n    return inner\n").make
    assert digest_callable(make(1)) == digest_callable(make(1)) != digest_callable(make(2))
    assert digest_callable(make("1")) != digest_callable(make(1)) != digest_callable(make(1.0))
    assert digest_callable(make(True)) != digest_callable(make(1))
    assert digest_callable(make(("ab", "c"))) != digest_callable(make(("a", "bc")))
    assert digest_callable(make(0.0)) != digest_callable(make(-0.0))


def test_other_callables() -> None:
    from functools import partial

    module = load(_BASE)
    each: list[Any] = [
        module.helper, partial(module.helper, 1), partial(module.helper, 2), partial(module.helper, power=2),
        len, max, "x".join, "y".join, [].append, int.__add__, str.upper, module.Thing, module.Config, module.Mode,
        module.Thing.make, module.cached, module.Mode.FAST.__class__.__call__, print, dict, ValueError,
    ]  # fmt: skip
    digests = [digest_callable(one) for one in each]
    assert len(set(digests)) == len(digests)


def test_a_wrapper_with_the_name_of_what_it_wraps() -> None:
    source = """
    import functools, textwrap
    def wrap(fn, n):
        @functools.wraps(fn)
        def inner(*args): return fn(*args) + N * "x"
        return inner
    N = 1
    dedent = wrap(textwrap.dedent, 1)
    """
    wrapped = load(source).dedent
    assert digest_callable(wrapped) != digest_callable(textwrap.dedent)
    assert digest_callable(wrapped) != digest_callable(load(source.replace("N = 1", "N = 2")).dedent)


def test_modules_are_followed_to_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = tmp_path / "fxpool_test_helper.py"

    def digest(source: str, user: str) -> str:
        helper.write_text(source)
        sys.modules.pop("fxpool_test_helper", None)
        sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
        try:
            return digest_callable(load(user).f)
        finally:
            sys.dont_write_bytecode = kept
            sys.modules.pop("fxpool_test_helper", None)

    using = "import fxpool_test_helper as h\ndef f(): return h.g()\n"
    passing = "import fxpool_test_helper as h\ndef f(): return [h]\n"
    before, after = "def g(): return 1\n", "def g(): return 2\n"
    assert digest(before, using) == digest(before + "def other(): pass\n", using) != digest(after, using)
    assert digest(before, passing) != digest(before + "def other(): pass\n", passing)


def test_what_has_no_digest_says_what_and_where() -> None:
    module = load("""
    class Model:
        pass
    MODEL = Model()
    MODEL.weights = iter([1, 2])
    def middle(): return MODEL.weights
    def f(): return middle()
    """)
    with pytest.raises(UndigestableError, match=r"weights of the global MODEL") as caught:
        digest_callable(module.f)
    assert "middle" in caught.value.what


NOTHING: tuple[int, ...] = ()


@pytest.mark.parametrize("value", [object(), open, (i for i in NOTHING), sys.stdout, iter([]), lambda: sys.stdout])
def test_undigestable(value: object) -> None:
    with pytest.raises(UndigestableError):
        digest_value(value)


def test_an_import_of_a_users_module_inside_is_refused() -> None:
    with pytest.raises(UndigestableError, match="import of user_things"):
        digest_callable(load("def f():\n    import user_things\n    return user_things.x\n").f)
    with pytest.raises(UndigestableError, match="import"):
        digest_callable(load("def f():\n    from .os import path\n    return path\n").f)
    assert digest_callable(load("def f():\n    import math\n    return math.pi\n").f)


def test_containers_that_hold_themselves() -> None:
    for n in (1, 2):
        cycle: list[object] = [n]
        cycle.append({"again": cycle})
        other: list[object] = [n]
        other.append({"again": other})
        assert digest_value(cycle) == digest_value(other)
    assert digest_value([1, []]) != digest_value([1, [[]]])
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UndigestableError):
        digest_value(deep)
    while deep:
        deep = deep[0]


_PROGRAM = """
import sys
sys.path[:0] = [{here!r}]
from test_sources import _BASE, load
from fxpool.codecache.code.sources import digest_callable
print(digest_callable(load(_BASE).f), len({{"a", "b"}}))
"""


def test_another_process_with_another_hash_seed_agrees() -> None:
    here = os.path.dirname(__file__)
    found = {digest_callable(load(_BASE).f)}
    for seed in ("1", "2", "77"):
        run = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(here=here)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout.split()[0])
    assert len(found) == 1


def test_running_it_does_not_change_it() -> None:
    """The interpreter specialises byte code as it runs."""
    module = load(_BASE)
    before = digest_callable(module.helper)
    for n in range(5000):
        module.helper(n)
    assert digest_callable(module.helper) == before


# ---------------------------------------------------------------- torch's


def test_tensors_by_content() -> None:
    import torch

    ones = torch.ones(2, 3)
    assert digest_value(ones) == digest_value(torch.ones(2, 3))
    others = [
        torch.zeros(2, 3), torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 0), torch.tensor(1.0), torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t(),
        torch.ones(2, 3, dtype=torch.complex64), torch.ones(2, 3, dtype=torch.bfloat16),
    ]  # fmt: skip
    digests = {digest_value(each) for each in [ones, *others]}
    assert len(digests) == len(others) + 1
    assert digest_value(torch.arange(12.0)[3:6]) == digest_value(torch.tensor([3.0, 4.0, 5.0]))
    changed = torch.ones(2, 3)
    changed[1, 2] = 5
    assert digest_value(changed) != digest_value(ones)
    with pytest.raises(UndigestableError):
        digest_value(torch.ones(2, device="meta"))
    with pytest.raises(UndigestableError):
        digest_value(torch.ones(2, 2).to_sparse())


def test_functions_that_use_torch() -> None:
    source = """
    import torch
    import torch.nn.functional as F
    DTYPE = torch.float32
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x * 2
        @staticmethod
        def backward(ctx, g): return g * 2
    class Net(torch.nn.Module):
        def forward(self, x): return F.relu(x)
    def f(x):
        with torch.no_grad():
            y = torch.ops.aten.add.Tensor(x, 1).to(DTYPE)
        torch.backends.cuda.matmul.allow_tf32
        return Double.apply(torch.sin(F.gelu(y))) + x.size(0)
    """
    first = digest_callable(load(source).f)
    assert first == digest_callable(load(source).f)
    for old, new in [
        ("torch.float32", "torch.float64"),
        ("g * 2", "g * 3"),
        ("torch.sin", "torch.cos"),
        ("F.gelu", "F.silu"),
        ("aten.add.Tensor", "aten.sub.Tensor"),
    ]:
        assert digest_callable(load(source.replace(old, new)).f) != first, old
    assert digest_callable(load(source).Net) == digest_callable(load(source).Net)


def test_triton_kernels_by_source_and_globals() -> None:
    """Duck-typed: Triton need not be installed."""
    source = """
    BLOCK = 64
    def helper(x): return x + BLOCK
    class JITFunction:
        def __init__(self, fn, src): self.fn, self.src, self.noinline = fn, src, False
    class Config:
        def __init__(self, **kwargs): self.kwargs, self.num_warps = kwargs, 4
    class Autotuner:
        def __init__(self, fn, configs): self.fn, self.configs, self.cache = fn, configs, {1: object()}
    def kernel(p): return helper(p)
    jitted = JITFunction(kernel, "def kernel(p): return helper(p)")
    tuned = Autotuner(jitted, [Config(B=1), Config(B=2)])
    """
    for name in ("jitted", "tuned"):
        first = digest_value(getattr(load(source), name))
        assert first == digest_value(getattr(load(source), name))
        for old, new in [("BLOCK = 64", "BLOCK = 32"), ("x + BLOCK", "x - BLOCK"), ('"def kernel', '"def  kernel')]:
            assert digest_value(getattr(load(source.replace(old, new)), name)) != first
    assert digest_value(load(source.replace("B=2", "B=3")).tuned) != digest_value(load(source).tuned)


# ---------------------------------------------------------------- files


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


def test_modules() -> None:
    assert digest_module(textwrap) != digest_module(os)
    assert digest_module(sys)
    with pytest.raises(UndigestableError, match="nowhere"):
        digest_module(types.ModuleType("nowhere"))


_OPERATOR = """
import torch
from fxpool_test_kernels import compute
@torch.library.custom_op("fxpool_test::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return compute(x)
@op.register_fake
def _(x):
    return torch.empty_like(x)
"""


@pytest.mark.slow
def test_a_custom_operator_is_what_its_implementation_calls(tmp_path: Path) -> None:
    """Torch's own keys see its name only."""
    (tmp_path / "fxpool_test_operator.py").write_text(_OPERATOR)
    program = (
        "import torch, fxpool_test_operator as m; from fxpool.codecache.code.sources import digest_callable as d;"
        "from fxpool.torch_compat.operators.registrations import registration;"
        "parts = registration(torch.ops.fxpool_test.op.default).parts.values();"
        "assert [part for part in parts if callable(part.value)];"
        "print(d(m.op), d(torch.ops.fxpool_test.op.default), d(lambda x: torch.ops.fxpool_test.op(x)))"
    )
    found = []
    for body in ("x.sin()", "x.cos()"):
        (tmp_path / "fxpool_test_kernels.py").write_text(f"def compute(x):\n    return {body}\n")
        run = subprocess.run(
            [sys.executable, "-B", "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(run.stdout.split())
    assert found[0][0] == found[0][1]
    assert not set(found[0]) & set(found[1])


class _Pickled:
    factor = 3


def test_a_class_is_the_same_once_it_was_pickled() -> None:
    """Pickling an instance leaves an attribute in the class."""
    before = digest_value(_Pickled)
    pickle.loads(pickle.dumps(_Pickled()))
    assert "__slotnames__" in vars(_Pickled)
    assert digest_value(_Pickled) == before


@pytest.mark.parametrize(
    "reading",
    [
        'os.getenv("X")',
        'os.getenv("X", "2")',
        'os.getenv("X", default="2")',
        'os.environ["X"]',
        'os.environ.get("X")',
        'os.environ.get("X", K)',
        'environ["X"]',
        'float(getenv("X", 1))',
    ],
)
def test_a_variable_of_the_environment_counts_by_value(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(f"import os\nfrom os import environ, getenv\nK = 1\ndef f(): return {reading}\n")
    found = []
    for value in ("1", "2"):
        monkeypatch.setenv("X", value)
        examined = sources.examine(module.f)
        assert examined.environment == {"X": value}
        found.append(examined.digest)
    assert len(set(found)) == 2


@pytest.mark.parametrize(
    "reading",
    [
        "os.getenv('X' + K)",
        "os.environ[f'X{K}']",
        "os.environ.get('X_' + K, 1)",
        "list(os.environ)",
        "dict(os.environ, X='1')",
        "helper(os.environ, 'X')",
        "'X' in os.environ",
        "map(os.getenv, K)",
        "environ.copy()",
        "os.environ.items()",
        "open('X').read()",
        "time.time()",
        "random.random()",
        "eval('1')",
        "Path('X').read_text()",
        "os.path.exists('X')",
        "datetime.now()",
    ],
)
def test_what_is_read_of_the_process_has_no_digest(reading: str) -> None:
    module = load(
        "import os, time, random\nfrom os import environ\nfrom pathlib import Path\nfrom datetime import datetime\n"
        f"K = 'k'\ndef helper(*args): pass\ndef f(): return {reading}\n"
    )
    with pytest.raises(UndigestableError):
        digest_callable(module.f)
    assert sources.examine(module.f, runs_later=True).digest, "its own business where it runs"


def test_objects_of_a_programs_classes_count_by_their_attributes() -> None:
    module = load("""
    import dataclasses, types
    @dataclasses.dataclass
    class Options:
        by: float = 2.0
    class Slotted:
        __slots__ = ("by",)
        def __init__(self): self.by = 2.0
    class Mixed(dict):
        by = 2.0
    OPTIONS, SLOTTED, SPACE, MIXED = Options(), Slotted(), types.SimpleNamespace(by=2.0), Mixed()
    def f(): return OPTIONS.by
    def g(): return SLOTTED.by
    def h(): return SPACE.by
    def i(): return MIXED.by
    """)
    for function, value in ((module.f, module.OPTIONS), (module.g, module.SLOTTED), (module.h, module.SPACE)):
        before = digest_callable(function)
        assert digest_callable(function) == before
        value.by = 3.0
        assert digest_callable(function) != before
    with pytest.raises(UndigestableError):
        digest_callable(module.i)  # there is more to a dictionary than its attributes


READERS = {
    "numpy.load": "import numpy\ndef f(): return numpy.load('k.npy')",
    "numpy.fromfile": "import numpy as np\ndef f(): return np.fromfile('k')",
    "numpy.random.rand": "import numpy as np\ndef f(): return np.random.rand()",
    "random.random": "import random\ndef f(): return random.random()",
    "datetime.now": "import datetime\ndef f(): return datetime.datetime.now()",
    "configparser": "import configparser\ndef f(): return configparser.ConfigParser().read('k')",
    "gzip.open": "import gzip\ndef f(): return gzip.open('k')",
    "sqlite3.connect": "import sqlite3\ndef f(): return sqlite3.connect('k')",
    "torch.from_file": "import torch\ndef f(): return torch.from_file('k', size=1)",
    "xml": "import xml.etree.ElementTree as e\ndef f(): return e.parse('k')",
    "urlopen": "from urllib.request import urlopen\ndef f(): return urlopen('k')",
    "imported in the function": "def f():\n    import random\n    return random.random()",
    "a part imported in the function": "def f():\n    from time import time\n    return time()",
    "numpy imported in the function": "import numpy\ndef f():\n    import numpy as np\n    return np.load('k')",
    "its part imported in the function": "import numpy\ndef f():\n    import numpy as np\n    return np.random.rand()",
    "the environment in the function": "def f():\n    import os\n    return os.environ['K']",
    "its part in the function": "def f():\n    from os import environ\n    return environ['K']",
}


@pytest.mark.parametrize("how", READERS)
def test_what_reads_the_process_has_no_digest(how: str) -> None:
    namespace: dict[str, Any] = {"__name__": "a_reader"}
    exec(READERS[how], namespace)
    with pytest.raises(UndigestableError):
        digest_callable(namespace["f"])


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    import numpy as np\n    return np.sin(x) + np.pi",
        "def f(x):\n    import os\n    return os.path.join(x, 'a')",
        "def f(x):\n    import math\n    return math.exp(x)",
        "def f(x):\n    import torch\n    return torch.nn.functional.relu(x)",
    ],
)
def test_what_only_computes_has_one(text: str) -> None:
    namespace: dict[str, Any] = {"__name__": "a_reader"}
    exec(text, namespace)
    assert digest_callable(namespace["f"]) == digest_callable(namespace["f"])
