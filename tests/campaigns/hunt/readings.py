"""How a program comes by a number: ``factor()`` of its module ``helper``, written in many ways.

The number is spelled ``KKK`` in the texts. A reading says which files the helper consists of, which environment the
process has, what the program does when it has imported everything, and with which statement the number becomes another
one in a process that runs.
"""

# ruff: noqa: E501 (tables of programs' texts)

from __future__ import annotations

import dataclasses
import io
import json
import pickle
from collections.abc import Callable

__all__ = ["READINGS", "Reading"]


@dataclasses.dataclass(frozen=True)
class Reading:
    """One way. `setup` stands in the main module after its imports; `live` changes the number between two calls.

    `data` makes binary files. `traceable`: Dynamo can trace `factor` itself.
    """

    name: str
    helper: str
    others: dict[str, str] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    setup: str = ""
    ahead: str = ""
    live: str = ""
    data: dict[str, Callable[[float], bytes]] = dataclasses.field(default_factory=dict)
    traceable: bool = True

    def files(self, number: float) -> dict[str, str | bytes]:
        """The helper's files."""
        texts = {"helper.py": self.helper, **self.others}
        found: dict[str, str | bytes] = {name: _put(text, number) for name, text in texts.items()}
        for name, made in self.data.items():
            found[name] = made(number)
        return found

    def variables(self, number: float) -> dict[str, str]:
        """Environment variables of the process."""
        return {name: _put(text, number) for name, text in self.environment.items()}

    def put(self, text: str, number: float) -> str:
        """`text` with the number in it."""
        return _put(text, number)


def _put(text: str, number: float) -> str:
    return text.replace("KKK", repr(number))


def _npy(number: float) -> bytes:
    import numpy

    file = io.BytesIO()
    numpy.save(file, numpy.array([number, 1.0]))
    return file.getvalue()


def _text(name: str, helper: str, **more: object) -> Reading:
    return Reading(name, helper.strip() + "\n", **more)  # type: ignore[arg-type]


_IN_CODE = [
    _text("code", "def factor():\n    return KKK", live="helper.factor.__code__ = (lambda: KKK).__code__"),
    _text("constant", "K = KKK\ndef factor():\n    return K", live="helper.K = KKK"),
    _text("default_argument", "def factor(k=KKK):\n    return k", live="helper.factor.__defaults__ = (KKK,)"),
    _text("keyword_default", "def factor(*, k=KKK):\n    return k", live="helper.factor.__kwdefaults__ = {'k': KKK}"),
    _text(
        "closure",
        "def _make(k):\n    def inner():\n        return k\n    return inner\nfactor = _make(KKK)",
        live="helper.factor.__closure__[0].cell_contents = KKK",
    ),
    _text(
        "deep_closure",
        """
def _outer(k):
    def middle(scale):
        table = [k, scale]
        def low():
            def lowest():
                return table[0] * scale
            return lowest
        return low()
    return middle
factor = _outer(KKK)(1.0)
""",
    ),
    _text(
        "class_attribute",
        "class Settings:\n    k = KKK\ndef factor():\n    return Settings.k",
        live="helper.Settings.k = KKK",
    ),
    _text(
        "instance_attribute",
        """
class Settings:
    def __init__(self, k):
        self.k = k
SETTINGS = Settings(KKK)
def factor():
    return SETTINGS.k
""",
        live="helper.SETTINGS.k = KKK",
    ),
    _text("dictionary", "TABLE = {'k': KKK, 'other': 1}\ndef factor():\n    return TABLE['k']",
          live="helper.TABLE['k'] = KKK"),
    _text("nested_dictionary", "TABLE = {'a': {'b': [0, {'k': KKK}]}}\ndef factor():\n    return TABLE['a']['b'][1]['k']",
          live="helper.TABLE['a']['b'][1]['k'] = KKK"),
    _text("list", "VALUES = [0.5, KKK]\ndef factor():\n    return VALUES[-1]", live="helper.VALUES[1] = KKK"),
    _text("tuple", "VALUES = (0.5, (KKK, 1))\ndef factor():\n    return VALUES[1][0]"),
    _text("set", "VALUES = frozenset([KKK])\ndef factor():\n    return max(VALUES)", traceable=False),
    _text(
        "dataclass",
        """
import dataclasses
@dataclasses.dataclass
class Settings:
    k: float = KKK
    other: int = 1
SETTINGS = Settings()
def factor():
    return SETTINGS.k
""",
        live="helper.SETTINGS.k = KKK",
    ),
    _text(
        "dataclass_factory",
        """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Settings:
    values: list = dataclasses.field(default_factory=lambda: [KKK])
def factor():
    return Settings().values[0]
""",
        traceable=False,
    ),
    _text(
        "enum",
        "import enum\nclass Kind(enum.Enum):\n    LOW = 0.25\n    USED = KKK\ndef factor():\n    return Kind.USED.value",
    ),
    _text(
        "namedtuple",
        "import collections\nPair = collections.namedtuple('Pair', 'k other')\nPAIR = Pair(KKK, 1)\n"
        "def factor():\n    return PAIR.k",
        live="helper.PAIR = helper.Pair(KKK, 1)",
    ),
    _text(
        "base_class",
        """
from base import Base
class Scale(Base):
    pass
def factor():
    return Scale().k()
""",
        others={"base.py": "class Base:\n    def k(self):\n        return KKK\n"},
    ),
    _text(
        "base_of_base",
        """
from base import Middle
class Scale(Middle):
    pass
SCALE = Scale()
def factor():
    return SCALE.k()
""",
        others={
            "base.py": "from root import Root\nclass Middle(Root):\n    pass\n",
            "root.py": "class Root:\n    value = KKK\n    def k(self):\n        return self.value\n",
        },
    ),
    _text(
        "metaclass",
        """
class Meta(type):
    @property
    def k(cls):
        return KKK
class Scale(metaclass=Meta):
    pass
def factor():
    return Scale.k
""",
        traceable=False,
    ),
    _text("partial", "import functools\ndef _k(a, b):\n    return a + b\nfactor = functools.partial(_k, KKK, b=0.0)",
          live="import functools\nhelper.factor = functools.partial(helper._k, KKK, b=0.0)"),
    _text("lru_cache", "import functools\n@functools.lru_cache(None)\ndef factor():\n    return KKK", traceable=False),
    _text(
        "wraps",
        """
import functools
def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * by
        return wrapper
    return decorate
@scaled(KKK)
def factor():
    return 1.0
""",
    ),
    _text("property", "class Scale:\n    @property\n    def k(self):\n        return KKK\nSCALE = Scale()\n"
          "def factor():\n    return SCALE.k"),
    _text("staticmethod", "class Scale:\n    @staticmethod\n    def k():\n        return KKK\ndef factor():\n"
          "    return Scale.k()"),
    _text("classmethod", "class Scale:\n    value = KKK\n    @classmethod\n    def k(cls):\n        return cls.value\n"
          "def factor():\n    return Scale.k()", live="helper.Scale.value = KKK"),
    _text("callable_object", "class Scale:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self):\n"
          "        return self.k\nfactor = Scale(KKK)", live="helper.factor.k = KKK"),
    _text("bound_method", "class Scale:\n    def __init__(self, k):\n        self.k = k\n    def get(self):\n"
          "        return self.k\nfactor = Scale(KKK).get", live="helper.factor.__self__.k = KKK"),
    _text("lambda", "factor = lambda: KKK"),
    _text("function_attribute", "def factor():\n    return factor.k\nfactor.k = KKK", live="helper.factor.k = KKK"),
    _text("generator", "def _values():\n    yield 0.5\n    yield KKK\ndef factor():\n    return list(_values())[1]",
          traceable=False),
    _text("generated_constants", "VALUES = tuple(KKK + i for i in range(3))\ndef factor():\n    return VALUES[0]"),
    _text("slots", "class Scale:\n    __slots__ = ('k',)\nSCALE = Scale()\nSCALE.k = KKK\ndef factor():\n"
          "    return SCALE.k", live="helper.SCALE.k = KKK"),
    _text("namespace", "import types\nSETTINGS = types.SimpleNamespace(k=KKK)\ndef factor():\n    return SETTINGS.k",
          live="helper.SETTINGS.k = KKK"),
    _text("chain_map", "import collections\nTABLE = collections.ChainMap({'k': KKK}, {'k': 9.0})\ndef factor():\n"
          "    return TABLE['k']", live="helper.TABLE['k'] = KKK", traceable=False),
    _text("default_dict", "import collections\nTABLE = collections.defaultdict(lambda: KKK)\ndef factor():\n"
          "    return TABLE.get('k', TABLE.default_factory())", traceable=False),
    _text("descriptor", "class Value:\n    def __init__(self, k):\n        self.k = k\n    def __get__(self, obj, owner):\n"
          "        return self.k\nclass Scale:\n    k = Value(KKK)\ndef factor():\n    return Scale().k", traceable=False),
    _text("decimal", "import decimal\nK = decimal.Decimal('KKK')\ndef factor():\n    return float(K)", traceable=False),
    _text("fraction", "import fractions\nK = fractions.Fraction('KKK')\ndef factor():\n    return float(K)",
          traceable=False),
    _text("bytes", "import struct\nK = struct.pack('d', KKK)\ndef factor():\n    return struct.unpack('d', K)[0]",
          traceable=False),
    _text("array", "import array\nK = array.array('d', [KKK])\ndef factor():\n    return K[0]",
          live="helper.K[0] = KKK", traceable=False),
    _text("numpy_constant", "import numpy\nK = numpy.array([KKK, 1.0])\ndef factor():\n    return float(K[0])",
          live="helper.K[0] = KKK", traceable=False),
    _text("numpy_scalar", "import numpy\nK = numpy.float64(KKK)\ndef factor():\n    return float(K)", traceable=False),
    _text("evaluated", "SOURCE = 'KKK'\nfactor = eval('lambda: ' + SOURCE)"),
    _text("executed", "exec('def factor():\\n    return KKK')", traceable=True),
    _text("module_getattr", "import helper as _me\ndef __getattr__(name):\n    if name == 'k':\n        return KKK\n"
          "    raise AttributeError(name)\ndef factor():\n    return _me.k", traceable=False),
    _text("chosen_at_import", "try:\n    import there\n    K = there.K\nexcept ImportError:\n    K = 1.0\n"
          "def factor():\n    return K", others={"there.py": "K = KKK\n"}),
    _text("context_variable", "import contextvars\nK = contextvars.ContextVar('k', default=KKK)\ndef factor():\n"
          "    return K.get()", live="helper.K.set(KKK)", traceable=False),
    _text("thread_local", "import threading\nLOCAL = threading.local()\nLOCAL.k = KKK\ndef factor():\n"
          "    return LOCAL.k", live="helper.LOCAL.k = KKK", traceable=False),
    _text("tensor_item", "import torch\nK = torch.tensor(KKK, dtype=torch.float64)\ndef factor():\n"
          "    return float(K.item())", live="helper.K.fill_(KKK)", traceable=False),
    _text("tensor_subclass_attribute", "import torch\nclass Scale(torch.nn.Module):\n    k = KKK\nSCALE = Scale()\n"
          "def factor():\n    return SCALE.k", live="helper.SCALE.k = KKK"),
    _text("local_import", "def factor():\n    from there import K\n    return K", others={"there.py": "K = KKK\n"}),
    _text("shadowed_builtin", "abs = lambda value: KKK\ndef factor():\n    return abs(1.0)"),
    _text("weak_reference", "import weakref\nclass Scale:\n    k = KKK\nSCALE = Scale()\nREF = weakref.ref(SCALE)\n"
          "def factor():\n    return REF().k", live="helper.Scale.k = KKK", traceable=False),
]  # fmt: skip

_ELSEWHERE = [
    _text("two_hops", "from middle import value\ndef factor():\n    return value()",
          others={"middle.py": "import far\ndef value():\n    return far.K\n", "far.py": "K = KKK\n"},
          live="import far\nfar.K = KKK"),
    _text("three_hops", "import middle\ndef factor():\n    return middle.value()",
          others={"middle.py": "from further import take as value\n",
                  "further.py": "import far\ndef take():\n    return far.Settings.k\n",
                  "far.py": "class Settings:\n    k = KKK\n"},
          live="import far\nfar.Settings.k = KKK"),
    _text("star_import", "from far import *\ndef factor():\n    return K", others={"far.py": "K = KKK\n"}),
    _text("subpackage", "from parts.sub import deep\ndef factor():\n    return deep.K",
          others={"parts/__init__.py": "", "parts/sub/__init__.py": "from . import deep\n",
                  "parts/sub/deep.py": "from ..root import K\n", "parts/root.py": "K = KKK\n"}),
    _text("package_init", "import parts\ndef factor():\n    return parts.K",
          others={"parts/__init__.py": "K = KKK\n"}, live="import parts\nparts.K = KKK"),
    _text("import_module", "import importlib\ndef factor():\n    return importlib.import_module('far').K",
          others={"far.py": "K = KKK\n"}, traceable=False),
    _text("name_in_table", "import far\nNAMES = {'use': 'k'}\ndef factor():\n    return getattr(far, NAMES['use'])",
          others={"far.py": "k = KKK\n"}, live="import far\nfar.k = KKK"),
]  # fmt: skip

_ENVIRONMENT = [
    _text("environment_at_import", "import os\nK = float(os.environ['HUNTED_K'])\ndef factor():\n    return K",
          environment={"HUNTED_K": "KKK"}),
    _text("environment_default", "import os\nK = float(os.environ.get('HUNTED_K', '1.0'))\ndef factor():\n    return K",
          environment={"HUNTED_K": "KKK"}),
    _text("environment_far", "from far import K\ndef factor():\n    return K",
          others={"far.py": "import os\nK = float(os.getenv('HUNTED_K', '1'))\n"}, environment={"HUNTED_K": "KKK"}),
    _text("environment_at_call", "import os\ndef factor():\n    return float(os.environ['HUNTED_K'])",
          environment={"HUNTED_K": "KKK"}, live="import os\nos.environ['HUNTED_K'] = 'KKK'", traceable=False),
    _text("getenv_at_call", "import os\ndef factor():\n    return float(os.getenv('HUNTED_K', '1.0'))",
          environment={"HUNTED_K": "KKK"}, live="import os\nos.environ['HUNTED_K'] = 'KKK'", traceable=False),
    _text("environment_through_helper", "from far import read\ndef factor():\n    return read('K')",
          others={"far.py": "from os import environ\ndef read(name):\n    return float(environ.get('HUNTED_' + name, 1))\n"},
          environment={"HUNTED_K": "KKK"}, live="import os\nos.environ['HUNTED_K'] = 'KKK'", traceable=False),
    _text("environment_presence", "import os\ndef factor():\n    return 1.0 + ('HUNTED_%d' % int(10 * KKK) in os.environ)",
          environment={"HUNTED_25": "1"}, traceable=False),
    _text("environment_set_by_program", "import os\ndef factor():\n    return float(os.environ['HUNTED_K'])",
          setup="import os\nos.environ['HUNTED_K'] = 'KKK'", live="import os\nos.environ['HUNTED_K'] = 'KKK'",
          traceable=False),
    _text("environment_set_before_import", "import os\nK = float(os.environ['HUNTED_K'])\ndef factor():\n    return K",
          ahead="import os\nos.environ['HUNTED_K'] = 'KKK'"),
]  # fmt: skip

_BESIDE = "import os, {0}\nPLACE = os.path.join(os.path.dirname(__file__), '{1}')\n"
_FILES = [
    _text("json_at_import", _BESIDE.format("json", "k.json") + "with open(PLACE) as file:\n    K = json.load(file)['k']\n"
          "def factor():\n    return K", others={"k.json": json.dumps({"k": "@"}).replace('"@"', "KKK")}),
    _text("json_at_call", _BESIDE.format("json", "k.json") + "def factor():\n    with open(PLACE) as file:\n"
          "        return json.load(file)['k']", others={"k.json": '{"k": KKK}'}, traceable=False),
    _text("text_at_import", _BESIDE.format("sys", "k.txt") + "K = float(open(PLACE).read())\ndef factor():\n    return K",
          others={"k.txt": "KKK\n"}),
    _text("text_at_call", "import pathlib\nPLACE = pathlib.Path(__file__).with_name('k.txt')\ndef factor():\n"
          "    return float(PLACE.read_text())", others={"k.txt": "KKK\n"}, traceable=False),
    _text("npy_at_import", _BESIDE.format("numpy", "k.npy") + "K = float(numpy.load(PLACE)[0])\ndef factor():\n"
          "    return K", data={"k.npy": _npy}),
    _text("npy_at_call", _BESIDE.format("numpy", "k.npy") + "def factor():\n    return float(numpy.load(PLACE)[0])",
          data={"k.npy": _npy}, traceable=False),
    _text("pickle_at_import", _BESIDE.format("pickle", "k.pickle") + "with open(PLACE, 'rb') as file:\n"
          "    TABLE = pickle.load(file)\ndef factor():\n    return TABLE['k']",
          data={"k.pickle": lambda number: pickle.dumps({"k": number})}),
    _text("file_of_working_directory", "K = float(open('k.txt').read())\ndef factor():\n    return K",
          others={"k.txt": "KKK\n"}),
    _text("ini_at_import", _BESIDE.format("configparser", "k.ini") + "_read = configparser.ConfigParser()\n"
          "_read.read(PLACE)\ndef factor():\n    return float(_read['a']['k'])",
          others={"k.ini": "[a]\nk = KKK\n"}, traceable=False),
    _text("source_of_module", "import inspect, far\nK = float(inspect.getsource(far).split('=')[1])\ndef factor():\n"
          "    return K", others={"far.py": "K = KKK\n"}),
]  # fmt: skip

_BY_PROGRAM = [
    _text("global_set_by_program", "K = 1.0\ndef factor():\n    return K", setup="import helper\nhelper.K = KKK",
          live="helper.K = KKK"),
    _text("dictionary_filled_by_program", "TABLE = {}\ndef factor():\n    return TABLE['k']",
          setup="import helper\nhelper.TABLE['k'] = KKK", live="helper.TABLE['k'] = KKK"),
    _text("list_filled_by_program", "VALUES = []\ndef add(k):\n    VALUES.append(k)\ndef factor():\n    return VALUES[-1]",
          setup="import helper\nhelper.add(KKK)", live="helper.add(KKK)"),
    _text("function_set_by_program", "def factor():\n    return inner()\ndef inner():\n    return 1.0",
          setup="import helper\nhelper.inner = lambda: KKK", live="helper.inner = lambda: KKK"),
    _text("class_attribute_set_by_program", "class Settings:\n    k = 1.0\ndef factor():\n    return Settings.k",
          setup="import helper\nhelper.Settings.k = KKK", live="helper.Settings.k = KKK"),
    _text("method_set_by_program", "class Scale:\n    def k(self):\n        return 1.0\nSCALE = Scale()\n"
          "def factor():\n    return SCALE.k()", setup="import helper\nhelper.Scale.k = lambda self: KKK",
          live="helper.Scale.k = lambda self: KKK"),
    _text("configured_by_call", "_k = None\ndef configure(k):\n    global _k\n    _k = k\ndef factor():\n    return _k",
          setup="import helper\nhelper.configure(KKK)", live="helper.configure(KKK)"),
    _text("code_set_by_program", "def factor():\n    return 1.0",
          setup="import helper\nhelper.factor.__code__ = (lambda: KKK).__code__",
          live="helper.factor.__code__ = (lambda: KKK).__code__"),
    _text("global_of_main", "import sys\ndef factor():\n    return sys.modules['hunted'].K", setup="K = KKK",
          live="K = KKK", traceable=False),
    _text("command_line", "import sys\ndef factor():\n    return float(sys.argv[-1])",
          setup="import sys\nsys.argv.append('KKK')", live="import sys\nsys.argv.append('KKK')", traceable=False),
    _text("builtin_set_by_program", "def factor():\n    return THE_FACTOR",
          setup="import builtins\nbuiltins.THE_FACTOR = KKK", live="import builtins\nbuiltins.THE_FACTOR = KKK",
          traceable=False),
    _text("attribute_of_torch", "import torch\ndef factor():\n    return torch.hunted_factor",
          setup="import torch\ntorch.hunted_factor = KKK", live="import torch\ntorch.hunted_factor = KKK",
          traceable=False),
    _text("attribute_of_math", "import math\ndef factor():\n    return math.tau",
          setup="import math\nmath.tau = KKK", live="import math\nmath.tau = KKK", traceable=False),
    _text("replaced_module", "import far\ndef factor():\n    return far.K", others={"far.py": "K = 1.0\n"},
          setup="import types, helper\nhelper.far = types.SimpleNamespace(K=KKK)",
          live="import types\nhelper.far = types.SimpleNamespace(K=KKK)"),
]  # fmt: skip

READINGS: dict[str, Reading] = {
    reading.name: reading for reading in [*_IN_CODE, *_ELSEWHERE, *_ENVIRONMENT, *_FILES, *_BY_PROGRAM]
}
