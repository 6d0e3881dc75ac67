"""The kinds of programs and their changes: `KINDS`, by name. See `frame_programs`."""

from __future__ import annotations

from frame_hunted import HUNTED
from frame_programs import Kind, function, model
from frame_reads import HELD, READS

__all__ = ["KINDS"]

_PATCH = "torch.nn.functional.{0} = lambda *args, **options: args[0] * 3"
_AUTOGRAD = function(
    "return A.apply(x)",
    """
    class A(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0
        @staticmethod
        def backward(ctx, g):
            return g * 4.0
    """,
)

KINDS: dict[str, Kind] = {
    # ---------------------------------------------------------------- edits of code
    "comment": Kind(
        function("return x * SCALE", "SCALE = 2.0"), ("SCALE = 2.0", "# words\n\nSCALE = 2.0"), neutral=True
    ),
    "own code": Kind(function("return x * 2"), ("x * 2", "x * 3")),
    "inlined function": Kind(function("return f(x)", "def f(x):\n    return x * 1.5"), ("1.5", "2.5")),
    "two calls down": Kind(
        function("return f(x)", "def g(x):\n    return x + 0.25\ndef f(x):\n    return g(x)"), ("0.25", "0.75")
    ),
    "function of another file": Kind(function("return helpers.other(x)"), ("helpers", "0.1", "0.9")),
    "function imported by name": Kind(function("return by_name(x)"), ("helpers", "0.01", "0.5")),
    "method": Kind(model("return self.f(x)", members="def f(self, x):\n    return x + 0.5"), ("0.5", "2.5")),
    "property": Kind(model("return x * self.p", members="@property\ndef p(self):\n    return 1.75"), ("1.75", "2.75")),
    "static method": Kind(
        model("return self.f(x)", members="@staticmethod\ndef f(x):\n    return x * 0.9"), ("0.9", "2")
    ),
    "class method": Kind(
        model("return self.f(x)", members="K = 2.0\n@classmethod\ndef f(cls, x):\n    return x * cls.K"), ("2.0", "3.0")
    ),
    "decorator": Kind(
        function("return f(x)", "@helpers.twice\ndef f(x):\n    return x * 2"), ("helpers", "1.01", "3.01")
    ),
    "decorated": Kind(function("return f(x)", "@helpers.twice\ndef f(x):\n    return x * 2"), ("x * 2", "x * 5")),
    "closure's value": Kind(
        function("return f(x)", "def outer(c=1.25):\n    def f(x):\n        return x * c\n    return f\nf = outer()"),
        ("1.25", "4.25"),
    ),
    "default": Kind(function("return f(x)", "def f(x, k=0.3):\n    return x * k"), ("0.3", "0.9")),
    "keyword default": Kind(function("return f(x)", "def f(x, *, k=0.3):\n    return x * k"), ("0.3", "0.9")),
    "global number": Kind(function("return x * SCALE", "SCALE = 2.0"), ("2.0", "5.0")),
    "global text": Kind(function("return x * len(NAME)", "NAME = 'abc'"), ("'abc'", "'abcde'")),
    "global tuple": Kind(function("return x * SIZES[1]", "SIZES = (1, 2)"), ("(1, 2)", "(1, 3)")),
    "global list": Kind(function("return x * sum(SIZES)", "SIZES = [1, 2]"), ("[1, 2]", "[1, 3]")),
    "list's length": Kind(function("return x * len(SIZES)", "SIZES = [1, 2]"), ("[1, 2]", "[1, 2, 3]")),
    "global dictionary": Kind(function("return x * D['a']", "D = {'a': 2.0}"), ("2.0", "3.0")),
    "dictionary's order": Kind(
        function("for name in D:\n    x = x * 2 + D[name]\nreturn x", "D = {'a': 1.0, 'b': 2.0}"),
        ("{'a': 1.0, 'b': 2.0}", "{'b': 2.0, 'a': 1.0}"),
    ),
    "key that appears": Kind(
        function("return x * 2 if 'b' in D else x - 7", "D = {'a': 2.0}"), ("{'a': 2.0}", "{'a': 2.0, 'b': 1.0}")
    ),
    "key that raises and appears": Kind(
        function("try:\n    k = TABLE['b']\nexcept KeyError:\n    k = 1.0\nreturn x * k", "TABLE = {'a': 2.0}"),
        run="module.TABLE['b'] = 3.0",
    ),
    "key with a computed name that raises and appears": Kind(
        function(
            "try:\n    k = TABLE['b' + str(x.ndim)]\nexcept KeyError:\n    k = 1.0\nreturn x * k", "TABLE = {'a': 2.0}"
        ),
        run="module.TABLE['b2'] = 3.0",
    ),
    "key of a mapping that appears": Kind(
        function(
            "return x * TABLE.get('b', 1.0)",
            """
            class Mapping(collections.abc.Mapping):
                def __init__(self):
                    self.items = {"a": 2.0}
                def __getitem__(self, key):
                    return self.items[key]
                def __len__(self):
                    return len(self.items)
                def __iter__(self):
                    return iter(self.items)
            TABLE = Mapping()
            """,
        ),
        run="module.TABLE.items['b'] = 3.0",
    ),
    "environment under another name": Kind(
        function("return x * 2 if settings.get('KIND_MODE') == 'a' else x - 7", "from os import environ as settings"),
        variables=("", "KIND_MODE=a"),
    ),
    "missing key's default": Kind(
        function("return x * D.get('b', 3.0)", "D = {'a': 2.0}"), ("{'a': 2.0}", "{'a': 2.0, 'b': 1.0}")
    ),
    "set": Kind(function("return x * 2 if 'b' in S else x - 7", "S = {'a'}"), ("{'a'}", "{'a', 'b'}")),
    "frozen set": Kind(
        function("return x * 2 if 'b' in S else x - 7", "S = frozenset({'a'})"), ("{'a'}", "{'a', 'b'}")
    ),
    "class attribute": Kind(model("return x * self.K", members="K = 1.5"), ("1.5", "4.5")),
    "base's attribute": Kind(
        model("return x * self.base.K", "self.base = B()", "class A:\n    K = 1.5\nclass B(A):\n    pass"),
        ("1.5", "4.5"),
    ),
    "enumeration": Kind(function("return x * C.RED.value", "class C(enum.Enum):\n    RED = 2"), ("RED = 2", "RED = 3")),
    "integer enumeration": Kind(
        function("return x * C.RED", "class C(enum.IntEnum):\n    RED = 2"), ("RED = 2", "RED = 3")
    ),
    "data class": Kind(
        function("return x * C.k", "@dataclasses.dataclass\nclass D:\n    k: float = 2.0\nC = D()"), ("2.0", "3.0")
    ),
    "named tuple": Kind(
        function("return x * C.k", "N = collections.namedtuple('N', 'j k')\nC = N(1.0, 2.0)"), ("2.0", "3.0")
    ),
    "namespace": Kind(function("return x * C.k", "C = types.SimpleNamespace(k=2.0)"), ("k=2.0", "k=3.0")),
    "slots": Kind(function("return x * C.k", "class S:\n    __slots__ = ('k',)\nC = S()\nC.k = 2.0"), ("2.0", "3.0")),
    "partial": Kind(
        function("return f(x)", "def g(x, k):\n    return x * k\nf = functools.partial(g, k=2.0)"), ("2.0", "3.0")
    ),
    "partial's function": Kind(
        function("return f(x)", "def g(x, k):\n    return x * k\nf = functools.partial(g, k=2.0)"), ("x * k", "x - k")
    ),
    "lambda": Kind(function("return f(x)", "f = lambda x: x * 2.0"), ("2.0", "3.0")),
    "generator": Kind(
        function("for k in g():\n    x = x * k\nreturn x", "def g():\n    yield 2.0\n    yield 3.0"), ("3.0", "4.0")
    ),
    "comprehension": Kind(function("return x * sum([k * 2 for k in range(N)])", "N = 3"), ("N = 3", "N = 4")),
    "object's call": Kind(
        function("return C(x)", "class A:\n    def __call__(self, x):\n        return x * 2.0\nC = A()"), ("2.0", "3.0")
    ),
    "object's length": Kind(
        function("return x * len(C)", "class A:\n    def __len__(self):\n        return 2\nC = A()"),
        ("return 2", "return 3"),
    ),
    "object's operator": Kind(
        function("return x * (C + 1)", "class A:\n    def __add__(self, k):\n        return k * 2\nC = A()"),
        ("k * 2", "k * 3"),
    ),
    "object's equality": Kind(
        function(
            "return x * 2 if C == 1 else x - 7", "class A:\n    def __eq__(self, k):\n        return True\nC = A()"
        ),
        ("return True", "return False"),
    ),
    "object's item": Kind(
        function("return x * C[1]", "class A:\n    def __getitem__(self, k):\n        return k * 2\nC = A()"),
        ("k * 2", "k * 3"),
    ),
    "attribute by function": Kind(
        function("return x * C.k", "class A:\n    def __getattr__(self, name):\n        return 2.0\nC = A()"),
        ("2.0", "3.0"),
    ),
    "descriptor": Kind(
        function(
            "return x * C.k",
            "class D:\n    def __get__(self, a, b):\n        return 2.0\nclass A:\n    k = D()\nC = A()",
        ),
        ("2.0", "3.0"),
    ),
    "object made in the function": Kind(
        function("return x * A(2).k", "class A:\n    def __init__(self, k):\n        self.k = k * 2"),
        ("k * 2", "k * 3"),
    ),
    "base of an object made there": Kind(
        function(
            "return x * B(2).k",
            "class A:\n    def __init__(self, k):\n        self.k = k * 2\nclass B(A):\n    pass",
        ),
        ("k * 2", "k * 3"),
    ),
    "data class made there": Kind(
        function("return x * A(2).k", "@dataclasses.dataclass\nclass A:\n    j: int\n    k: float = 2.0"),
        ("2.0", "3.0"),
    ),
    "context manager": Kind(
        function(
            "with c():\n    return x * 2 * STATE[0]",
            "STATE = [1.0]\n@contextlib.contextmanager\ndef c():\n    STATE[0] = 2.0\n    yield\n    STATE[0] = 1.0",
        ),
        ("2.0", "3.0"),
    ),
    "class of an object": Kind(
        function("return x * 2 if isinstance(C, A) else x - 7", "class A:\n    pass\nclass B:\n    pass\nC = A()"),
        ("C = A()", "C = B()"),
    ),
    "bases of a class": Kind(
        function("return x * 2 if isinstance(C, A) else x - 7", "class A:\n    pass\nclass B(A):\n    pass\nC = B()"),
        ("B(A)", "B()"),
    ),
    "class's name": Kind(
        function("return x * len(type(C).__name__)", "class Abc:\n    pass\nC = Abc()"), ("Abc", "Abcde")
    ),
    "function's name": Kind(function("return x * len(f.__name__)", "def abc():\n    pass\nf = abc"), ("abc", "abcde")),
    "autograd function": Kind(
        _AUTOGRAD,
        ("2.0", "3.0"),
    ),
    # ---------------------------------------------------------------- attributes of the model
    "attribute": Kind(model("return x * self.k", "self.k = 2.0"), run="function.k = 3.0"),
    "attribute's type": Kind(model("return x * self.k", "self.k = 2"), run="function.k = 2.5"),
    "attribute's dictionary": Kind(model("return x * self.k['a']", "self.k = {'a': 2.0}"), run="function.k['a'] = 3.0"),
    "attribute that appears": Kind(
        model("return x * self.e if hasattr(self, 'e') else x - 7", "self.k = 2.0"), run="function.e = 3.0"
    ),
    "attribute's default": Kind(model("return x * getattr(self, 'e', 2.0)", "self.k = 2.0"), run="function.e = 3.0"),
    "attribute that goes": Kind(model("return x * getattr(self, 'e', 2.0)", "self.e = 3.0"), run="del function.e"),
    "attribute of the class that appears": Kind(
        model("return x * getattr(self, 'e', 2.0)"), run="type(function).e = 3.0"
    ),
    "attribute that raises": Kind(
        model("try:\n    return x * self.e\nexcept AttributeError:\n    return x - 7"), run="function.e = 3.0"
    ),
    "None": Kind(model("return x - 7 if self.k is None else x * 2", "self.k = None"), run="function.k = 1"),
    "flag": Kind(model("return x - 7 if self.k else x * 2", "self.k = True"), run="function.k = False"),
    "nested configuration": Kind(
        model("return x * self.c.k", "self.c = types.SimpleNamespace(k=2.0)"), run="function.c.k = 3.0"
    ),
    "training": Kind(model("return F.dropout(self.layer(x), 0.5, self.training)"), run="function.eval()"),
    "layer's class": Kind(
        model("return self.layer(x)"),
        run="""
        class Other(torch.nn.Linear):
            def forward(self, x):
                return super().forward(x) * 7
        other = Other(8, 8)
        other.load_state_dict(function.layer.state_dict())
        function.layer = other
        """,
    ),
    "layer without bias": Kind(model("return self.layer(x)"), run="function.layer.bias = None"),
    "layer's type of numbers": Kind(model("return self.layer.weight * 2"), run="function.layer.double()"),
    "parameter that is frozen": Kind(model("return self.layer(x)"), run="function.requires_grad_(False)"),
    "parameters that are tied": Kind(
        model("return self.layer(x) + self.more(x)", "self.more = nn.Linear(8, 8)"),
        run="function.more = function.layer",
        silent=True,
    ),
    "number of layers": Kind(
        model("for layer in self.layers:\n    x = layer(x)\nreturn x", "self.layers = nn.ModuleList([nn.ReLU()])"),
        run="function.layers.append(torch.nn.Sigmoid())",
    ),
    "order of layers": Kind(
        model("return self.layers(x)", "self.layers = nn.Sequential(nn.ReLU(), nn.Sigmoid())"),
        run="function.layers = torch.nn.Sequential(function.layers[1], function.layers[0])",
    ),
    "buffer's value": Kind(
        model("return x * self.k", "self.register_buffer('k', torch.ones(8))"),
        run="function.k.fill_(3.0)",
        neutral=True,
    ),
    "buffer's shape": Kind(
        model("return x * self.k", "self.register_buffer('k', torch.ones(8))"), run="function.k = torch.full((1,), 3.0)"
    ),
    "dropout's rate": Kind(
        model("return self.drop(self.layer(x))", "self.drop = nn.Dropout(0.5)"), run="function.drop.p = 0.0"
    ),
    "norm's epsilon": Kind(model("return self.n(x)", "self.n = nn.LayerNorm(8)"), run="function.n.eps = 1.0"),
    # ---------------------------------------------------------------- hooks and patches
    "forward hook": Kind(
        model("return self.layer(x)"), run="function.layer.register_forward_hook(lambda module, i, o: o * 3)"
    ),
    "forward pre hook": Kind(
        model("return self.layer(x)"), run="function.layer.register_forward_pre_hook(lambda module, i: (i[0] * 3,))"
    ),
    "hook of the model": Kind(
        model("return self.layer(x)"), run="function.register_forward_hook(lambda module, i, o: o * 3)"
    ),
    "buffers that become one": Kind(
        model(
            "self.p.add_(1.0)\nreturn x * self.q",
            "self.register_buffer('p', torch.ones(8))\nself.register_buffer('q', torch.ones(8))",
        ),
        run="function.q = function.p",
    ),
    "buffers that share memory": Kind(
        model(
            "self.p.add_(1.0)\nreturn x * self.q",
            "self.register_buffer('p', torch.ones(8))\nself.register_buffer('q', torch.ones(8))",
        ),
        run="function.q = function.p.view(8)",
    ),
    "parameters that become one": Kind(
        model("return self.layer(self.other(x))", "self.other = nn.Linear(8, 8)"),
        run="function.other.weight = function.layer.weight",
    ),
    "layer that becomes another's": Kind(
        model("return self.layer(self.other(x))", "self.other = nn.Linear(8, 8)"), run="function.other = function.layer"
    ),
    "arguments that share memory": Kind(
        "A = torch.ones(8)\ndef function(x, y):\n    x.add_(1.0)\n    return x * y\n"
        "def make():\n    return function, (torch.ones(8), torch.ones(8))\n",
        ("(torch.ones(8), torch.ones(8))", "(lambda t: (t, t.view(8)))(torch.ones(8))"),
    ),
    "global hook": Kind(
        model("return self.layer(x)"),
        run="torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 3 if 'Lin' in str(m) else o)",
    ),
    "patched method": Kind(
        model("return self.f(x)", members="def f(self, x):\n    return x - 7"), run="Net.f = lambda self, x: x * 5"
    ),
    "patched on the object": Kind(
        model("return self.f(x)", members="def f(self, x):\n    return x - 7"), run="function.f = lambda x: x * 5"
    ),
    "patched function": Kind(function("return helpers.other(x)"), run="helpers.other = lambda x: x + 5"),
    "patched global": Kind(function("return by_name(x)"), run="module.by_name = lambda x: x + 5"),
    "other code": Kind(function("return by_name(x)"), run="by_name.__code__ = (lambda x: x + 5).__code__"),
    "other defaults": Kind(
        function("return f(x)", "def f(x, k=2.0):\n    return x * k"), run="module.f.__defaults__ = (9.0,)"
    ),
    "other cell": Kind(
        function("return f(x)", "def outer(c=1.25):\n    def f(x):\n        return x * c\n    return f\nf = outer()"),
        run="module.f.__closure__[0].cell_contents = 9.0",
    ),
    "patched layer": Kind(
        model("return self.layer(x)"), run="torch.nn.Linear.forward = lambda self, x: F.linear(x, self.weight) * 3"
    ),
    "patched call": Kind(
        model("return self.layer(x)"),
        run="""
        original = torch.nn.Module.__call__
        torch.nn.Module.__call__ = lambda self, *args: original(self, *args) * (2 if 'Lin' in str(type(self)) else 1)
        """,
    ),
    "patched gelu": Kind(function("return F.gelu(x)"), run=_PATCH.format("gelu")),
    "patched softmax": Kind(function("return F.softmax(x, -1)"), run=_PATCH.format("softmax")),
    "patched relu": Kind(function("return torch.relu(x)"), run="torch.relu = lambda x: x * 3"),
    "patched tensor method": Kind(function("return x.relu()"), run="torch.Tensor.relu = lambda x: x * 3"),
    "patched pi": Kind(function("return x * math.pi"), run="math.pi = 3.0"),
    "patched sqrt": Kind(function("return x * math.sqrt(4.0)"), run="math.sqrt = lambda k: k"),
    "patched builtin": Kind(function("return x * abs(-2)"), run="import builtins\nbuiltins.abs = lambda k: 7"),
    "global instead of a builtin": Kind(function("return x * max(1, 2)"), run="module.max = lambda *args: 7"),
    "patched operator": Kind(function("return operator.add(x, 1)"), run="operator.add = lambda a, b: a - b"),
    "patched autograd function": Kind(
        _AUTOGRAD,
        run="module.A.forward = staticmethod(lambda ctx, x: x * 9.0)",
    ),
    "patched property": Kind(
        model("return x * self.p", members="@property\ndef p(self):\n    return 1.75"),
        run="type(function).p = property(lambda self: 9.0)",
    ),
    "patched static method": Kind(
        model("return self.f(x)", members="@staticmethod\ndef f(x):\n    return x * 0.9"),
        run="type(function).f = staticmethod(lambda x: x * 8.0)",
    ),
    "process group": Kind(
        function("return x * 2 if torch.distributed.is_initialized() else x - 7"),
        run="torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)",
    ),
    "virtual subclass": Kind(
        function(
            "return x * 2 if isinstance(C, collections.abc.Sized) else x - 7",
            "import collections.abc\nclass A:\n    pass\nC = A()",
        ),
        run="collections.abc.Sized.register(module.A)",
    ),
    "virtual subclass no longer": Kind(
        function(
            "return x * 2 if isinstance(C, collections.abc.Sized) else x - 7",
            "import collections.abc\nclass A:\n    pass\nC = A()",
        ),
        before="collections.abc.Sized.register(module.A)",
    ),
    "virtual subclass of a module that is not imported": Kind(
        function(
            "return x * 2 if isinstance(C, collections.abc.Sized) else x - 7",
            "import collections.abc\nclass A:\n    pass\nC = A()",
        ),
        before="import wave\ncollections.abc.Sized.register(wave.Wave_read)",
        neutral=True,
    ),
    "virtual subclass whose module is named wrongly": Kind(
        function(
            "return x * 2 if isinstance(C, collections.abc.Sized) else x - 7",
            "import collections.abc\nclass A:\n    __module__ = 'nowhere'\nC = A()",
        ),
        before="collections.abc.Sized.register(module.A)",
        refused="whether A is a Sized",
    ),
    "base that is a virtual subclass no longer": Kind(
        function(
            "return x * 2 if isinstance(C, collections.abc.Sized) else x - 7",
            "import collections.abc\nclass A:\n    __module__ = 'nowhere'\nclass B(A):\n    pass\nC = B()",
        ),
        before="collections.abc.Sized.register(module.A)",
    ),
    "class as a key": Kind(
        function("return x * 2 if type((1, 2)) in D else x - 7", "D = {tuple: 2.0}"), ("{tuple:", "{list:")
    ),
    "value under a class": Kind(
        function("return x * D[type((1, 2))]", "D = {tuple: 2.0, list: 3.0}"), ("tuple: 2.0", "tuple: 4.0")
    ),
    "order of classes as keys": Kind(
        function("for key in D:\n    x = x * 2 + D[key]\nreturn x", "D = {tuple: 1.0, list: 2.0}"),
        ("{tuple: 1.0, list: 2.0}", "{list: 2.0, tuple: 1.0}"),
    ),
    "class of a library's as a key": Kind(
        function(
            "return x * 2 if type(C) in D else x - 7",
            "C = collections.OrderedDict(a=1)\nD = {collections.OrderedDict: 2.0}",
        ),
        ("{collections.OrderedDict:", "{collections.deque:"),
    ),
    "operator instead of one of torch's": Kind(
        function("return torch.ops.aten.relu(x)", inputs="torch.randn(4, 8)"),
        run="torch.ops.aten.relu = torch.ops.aten.neg",
    ),
    "function instead of an operator": Kind(
        function("return torch.ops.aten.relu(x)", inputs="torch.randn(4, 8)"),
        run="torch.ops.aten.relu = lambda x: x * 3",
    ),
    "names of operators that were looked up": Kind(
        function("return torch.ops.aten.relu(x) if hasattr(torch.ops.aten, 'relu') else x"),
        run="torch.ops.aten.__dict__.pop('relu', None)",
        before="torch.ops.aten.relu",
        neutral=True,
    ),
    "class of tensors as a key": Kind(
        function("return x * 2 if type(x) in D else x - 7", "D = {tuple: 2.0}"),
        ("{tuple: 2.0}", "{tuple: 2.0, torch.Tensor: 2.0}"),
    ),
    "class of the program's as a key": Kind(
        function("return x * 2 if type(C) in D else x - 7", "class A:\n    pass\nC = A()\nD = {A: 2.0}"),
        ("{A:", "{list:"),
    ),
    # ---------------------------------------------------------------- the process
    "environment": Kind(
        function("return x * 2 if os.environ.get('KIND_MODE') == 'a' else x - 7"),
        variables=("KIND_MODE=a", "KIND_MODE=b"),
    ),
    "getenv": Kind(
        function("return x * 2 if os.getenv('KIND_MODE') == 'a' else x - 7"),
        variables=("KIND_MODE=a", "KIND_MODE=b"),
    ),
    "variable with a computed name that appears": Kind(
        function("return x * 2 if os.environ.get('KIND_' + str(x.ndim)) == 'a' else x - 7"),
        variables=("", "KIND_2=a"),
    ),
    "variable with a computed name": Kind(
        function("return x * 2 if os.environ.get('KIND_' + str(x.ndim)) == 'a' else x - 7"),
        variables=("KIND_2=a", "KIND_2=b"),
    ),
    "getenv of a computed name": Kind(
        function("return x * 2 if os.getenv('KIND_' + str(x.ndim)) == 'a' else x - 7"),
        variables=("KIND_2=a", "KIND_2=b"),
    ),
    "all variables": Kind(
        function("return x * 2 if 'a' in os.environ.values() else x - 7"),
        variables=("KIND_2=a", "KIND_2=b"),
    ),
    "value of a variable that is not read": Kind(
        function("return x * 2 if os.environ.get('KIND_MODE') == 'a' else x - 7"),
        variables=("KIND_PORT=1", "KIND_PORT=2"),
        neutral=True,
    ),
    "environment through a helper": Kind(
        function("return x * f()", "def f():\n    return 2 if 'KIND_MODE' in os.environ else 1"),
        variables=("", "KIND_MODE=b"),
    ),
    "constant result": Kind(
        function(
            "return x * f()",
            "@torch._dynamo.assume_constant_result\ndef f():\n    return float(os.environ['KIND_MODE'])",
        ),
        variables=("KIND_MODE=2", "KIND_MODE=3"),
    ),
    "constant result of a file": Kind(
        function(
            "return x * f()",
            "TABLE = __file__ + '.txt'\n@functools.lru_cache\n@torch._dynamo.assume_constant_result\n"
            "def f():\n    return 3 if os.path.exists(TABLE) else 2",
        ),
        run="open(module.TABLE, 'w').close()\nmodule.f.cache_clear()",
    ),
    "constant result with arguments": Kind(
        function(
            "return x * f(2, more='KIND_MODE')",
            "@torch._dynamo.assume_constant_result\ndef f(n, more):\n    return n * float(os.environ[more])",
        ),
        variables=("KIND_MODE=2", "KIND_MODE=3"),
    ),
    "constant result of an object": Kind(
        function(
            "return x * f(TABLE)", "TABLE = [2.0]\n@torch._dynamo.assume_constant_result\ndef f(n):\n    return n[0]"
        ),
        refused="takes for a constant",
    ),
    "constant result that is an object": Kind(
        function("return x * f()[0]", "@torch._dynamo.assume_constant_result\ndef f():\n    return [2.0]"),
        refused="takes for a constant",
    ),
    "code of a constant result": Kind(
        function("return x * f()", "@torch._dynamo.assume_constant_result\ndef f():\n    return 2"),
        edit=("return 2", "return 3"),
    ),
    "cached result": Kind(
        function("return x * f()", "@functools.lru_cache\ndef f():\n    return float(os.environ['KIND_MODE'])"),
        variables=("KIND_MODE=2", "KIND_MODE=3"),
    ),
    "gradients off": Kind(model("return self.layer(x)"), inside=("", "torch.no_grad()")),
    "inference mode": Kind(model("return self.layer(x)"), inside=("", "torch.inference_mode()")),
    "gradients asked": Kind(
        function("return x * 2 if torch.is_grad_enabled() else x - 7"), inside=("", "torch.no_grad()")
    ),
    "autocast": Kind(model("return self.layer(x)"), inside=("", "torch.autocast('cpu', dtype=torch.bfloat16)")),
    "default type": Kind(function("return x + torch.zeros(8)"), run="torch.set_default_dtype(torch.float64)"),
    "default device": Kind(function("return x + torch.zeros(8)"), run="torch.set_default_device('cpu')", silent=True),
    "deterministic": Kind(
        function("return x * 2 if torch.are_deterministic_algorithms_enabled() else x - 7"),
        run="torch.use_deterministic_algorithms(True)",
    ),
    "threads": Kind(function("return x * torch.get_num_threads()"), run="torch.set_num_threads(2)"),
    "random numbers of Python": Kind(
        function("return x * random.random()", "import random"), run="import random\nrandom.seed(4)", neutral=True
    ),
    "Dynamo's configuration": Kind(
        function("return x * x.shape[0]"), run="torch._dynamo.config.assume_static_by_default = False", neutral=True
    ),
    "backend flag": Kind(
        function("return x * 2 if torch.backends.mkldnn.enabled else x - 7"),
        run="torch.backends.mkldnn.enabled = False",
    ),
    "module that is imported": Kind(function("return x * 2 if 'wave' in sys.modules else x - 7"), run="import wave"),
    "import in the function": Kind(
        function("import helpers as h\nreturn x * h.RATE"), ("helpers", "RATE = 1.5", "RATE = 2.5")
    ),
    "attribute of a module that appears": Kind(
        function("return x * 2 if hasattr(helpers, 'LATER') else x - 7"), run="helpers.LATER = 1"
    ),
    "attribute of a module": Kind(function("return x * helpers.RATE"), run="helpers.RATE = 3.0"),
    "name that is put together": Kind(
        function("return x * 2 if hasattr(helpers, 'LA' + 'TER') else x - 7"), run="helpers.LATER = 1"
    ),
    "globals": Kind(function("return x * 2 if 'LATER' in globals() else x - 7"), run="module.LATER = 1", once=True),
    "names of attributes": Kind(
        model("return x * len([name for name in vars(self) if name.startswith('k')])", "self.k = 1"),
        run="function.kk = 1",
    ),
    # ---------------------------------------------------------------- arguments
    "shape": Kind(function("return x * x.shape[0]"), ("torch.randn(4, 8)", "torch.randn(5, 8)")),
    "strides": Kind(
        function("return x * 2 if x.is_contiguous() else x - 7"), ("torch.randn(4, 8)", "torch.randn(8, 4).t()")
    ),
    "type of numbers": Kind(
        function("return x * 2 if x.dtype == torch.float32 else x - 7"),
        ("torch.randn(4, 8)", "torch.randn(4, 8).double()"),
    ),
    "gradient of the input": Kind(
        function("return x * 2 if x.requires_grad else x - 7"),
        ("torch.randn(4, 8)", "torch.randn(4, 8).requires_grad_()"),
    ),
    "number": Kind(
        "def function(x, k):\n    return x * k\ndef make():\n    return function, (torch.ones(4), 2)",
        ("(4), 2", "(4), 3"),
    ),
    "text": Kind(
        "def function(x, k):\n    return x * len(k)\ndef make():\n    return function, (torch.ones(4), 'ab')",
        ("'ab'", "'abc'"),
    ),
    "dictionary": Kind(
        "def function(x, k):\n    return x * k['a']\ndef make():\n    return function, (torch.ones(4), {'a': 2})",
        ("'a': 2", "'a': 3"),
    ),
    "same tensor twice": Kind(
        "def function(x, y):\n    return x * 5 if x is y else x + y\ndef make():\n    a = torch.ones(4)\n"
        "    return function, (a, torch.ones(4))",
        ("(a, torch.ones(4))", "(a, a)"),
    ),
    "view of the other": Kind(
        "def function(x, y):\n    x.add_(1)\n    return x * y\ndef make():\n    a = torch.ones(4)\n"
        "    return function, (a, torch.ones(4))",
        ("(a, torch.ones(4))", "(a, a.view(4))"),
        silent=True,
    ),
    "parameter for a tensor": Kind(
        function("return x * 2 if isinstance(x, nn.Parameter) else x - 7"),
        ("(torch.randn(4, 8),)", "(nn.Parameter(torch.randn(4, 8)),)"),
    ),
    # ---------------------------------------------------------------- reads of objects
    **READS,
    **HELD,
    # ---------------------------------------------------------------- changes that were served wrongly once
    **HUNTED,
}
