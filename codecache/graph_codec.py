"""A graph as plain data: the same bytes are hashed into its key and sent to a worker.

    GraphModule ──▶ GraphEncoder.encode ──▶ lists, numbers, strings ──▶ msgpack bytes ──▶ key
                                                                          │
                                             worker: GraphDecoder ◀───────┘  + constants, + debug text

Everything is a list that starts with a short tag; numbers, strings, booleans and None stand for
themselves. What does not decide what is compiled (stack traces, module paths) is kept apart in
`EncodedGraph.debug` and travels without being hashed. Tensors that are captured as constants are
hashed by content and travel beside the description. Functions and operators are named; those from
outside torch are listed in `EncodedGraph.dependencies`, for the key to hash and the worker to load.

Raises `CannotTravelError` (with the reason that is counted) for whatever has no name in another
process. Nothing in a graph is changed by encoding it: Dynamo still needs it afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxpool.codecache import guards
from fxpool.errors import CannotTravelError
from fxpool.torch_compat import operators, shape_env, tensors

# Node metadata that says where a node came from, or that compiling works out again.
_DEBUG_META = frozenset(
    ("stack_trace", "nn_module_stack", "source_fn_stack", "fwd_nn_module_stack", "fwd_source_fn_stack", "from_node",
     "creation_timestamp", "grapharg", "example_value", "val", "tensor_meta", "tensor_dict", "seq_nr", "torch_fn",
     "steal_arg", "unbacked_bindings", "desc", "output_stack_traces", "numeric_debug_handle", "arg_kwarg_vals",
     "original_output_strides", "mod_stack", "dynamo_source", "autograd_backward")
)  # fmt: skip


@dataclasses.dataclass
class EncodedGraph:
    """What `GraphEncoder` makes of a graph.

    `description` is hashed and travels. `constants` are the tensors it names by number; `debug`
    holds text for messages. `dependencies` maps a name to a function, operator or module from
    outside torch; `symbols` are the names of all symbolic numbers met.
    """

    description: list[Any]
    constants: list[torch.Tensor]
    debug: list[Any]
    dependencies: dict[str, Any]
    symbols: set[str]


class GraphEncoder:
    """Encodes one graph and its inputs. Use one instance per request: identities are counted in it."""

    def __init__(self) -> None:
        self.describer = tensors.Describer()
        self.constants: list[torch.Tensor] = []
        self.dependencies: dict[str, Any] = {}
        self.symbols: set[str] = set()
        self._constant_ids: dict[int, int] = {}
        self._nodes: dict[torch.fx.Node, int] = {}
        self._debug: list[Any] = []

    # --- the graph -----------------------------------------------------------------------

    def encode(self, gm: torch.fx.GraphModule, lifted: dict[str, torch.Tensor] | None = None) -> EncodedGraph:
        """Describe `gm`. `lifted` maps names of parameters and buffers that the graph carries as
        attributes to their fake twins; only their metadata travels. Other tensors are constants."""
        lifted = lifted or {}
        description = self._module(gm, lifted)
        return EncodedGraph(description, self.constants, self._debug, self.dependencies, self.symbols)

    def _module(self, gm: torch.fx.GraphModule, lifted: dict[str, torch.Tensor]) -> list[Any]:
        codegen = type(gm.graph._codegen)  # a flattened calling convention is not a graph of Dynamo's
        if codegen is not torch.fx.graph.CodeGen:
            raise CannotTravelError("calling_convention", codegen.__name__)
        lifted_rows = [
            [name, isinstance(gm_attribute(gm, name), torch.nn.Parameter), self.value(fake)]
            for name, fake in lifted.items()
        ]
        attributes: dict[str, list[Any]] = {}
        nodes: list[list[Any]] = []
        for node in gm.graph.nodes:
            if node.op in ("get_attr", "call_module") and node.target not in attributes and node.target not in lifted:
                attributes[node.target] = self._attribute(node.op, node.target, gm_attribute(gm, node.target))
            target = node.target if isinstance(node.target, str) else self.function(node.target)
            self._nodes[node] = len(self._nodes)
            self._debug.append(node.meta.get("stack_trace"))
            # By name: the order in which keyword arguments were written means nothing, that of a dict may.
            kwargs = self.value(dict(sorted(node.kwargs.items())))
            nodes.append([node.op, node.name, target, self.value(node.args), kwargs, self._meta(node)])
        kept = ["cudagraph_annotation", "dynamo_flat_name_to_original_fqn"]
        meta = [[name, self.value(gm.meta[name])] for name in kept if gm.meta.get(name)]
        if "_checkpoint_context_fn" in gm.meta:
            meta.append(["_checkpoint_context_fn", self.value(gm.meta["_checkpoint_context_fn"])])
        return ["graph", nodes, [[k, v] for k, v in attributes.items()], lifted_rows, meta]

    def _meta(self, node: torch.fx.Node) -> list[Any]:
        kept: list[Any] = []
        for name, value in node.meta.items():
            if name in _DEBUG_META or value is None:
                continue
            try:
                kept.append([name, self.value(_by_name(value))])
            except CannotTravelError as error:
                raise CannotTravelError(f"node_metadata:{name}", error.detail) from error
        kept.sort(key=lambda pair: str(pair[0]))
        static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
        if static:
            kept.append(["tensor_dict", ["d", ["_dynamo_static_input_type", static]]])
        bindings = node.meta.get("unbacked_bindings")
        if bindings:
            kept.append(["unbacked_bindings", self._bindings(bindings)])
        return kept

    def _bindings(self, bindings: dict[Any, Any]) -> list[Any]:
        rows: list[Any] = []
        for symbol, path in bindings.items():
            self.symbols.add(symbol.name)
            rows.append([guards.encode(symbol), [self.value_object(part) for part in path]])
        return ["bindings", *rows]

    def _attribute(self, op: str, name: str, value: Any) -> list[Any]:
        if isinstance(value, torch.fx.GraphModule):
            return self._module(value, {})
        if isinstance(value, torch.Tensor):
            return ["constant", *self.constant(value)]
        if op == "call_module":
            raise CannotTravelError("call_module", f"{name} is a {type(value).__name__}")
        raise CannotTravelError("attribute", f"{name} is a {type(value).__name__}")

    # --- values --------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """Any argument of a node, or part of one."""
        kind = type(value)
        if kind is torch.fx.Node:
            return ["n", self._nodes[value]]
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else ["i", str(value)]
        if kind is float:
            return value if math.isfinite(value) else ["f", repr(value)]
        encode = _ENCODERS.get(kind)
        if encode is not None:
            return encode(self, value)
        if isinstance(value, torch.Size):
            return ["size", *map(self.value, value)]
        if isinstance(value, tuple):
            if hasattr(value, "_fields"):
                return ["nt", self.function(type(value)), *map(self.value, value)]
            return ["t", *map(self.value, value)]
        if isinstance(value, list):
            return ["l", *map(self.value, value)]
        if isinstance(value, dict):
            return ["d", *([self.value(k), self.value(v)] for k, v in value.items())]
        if isinstance(value, (set, frozenset)):
            return ["set", *sorted(map(self.value, value), key=repr)]
        if isinstance(value, enum.Enum):
            return ["enum", self.function(type(value)), value.name]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbolic(value)
        if isinstance(value, torch.Tensor):
            return ["tensor", self.tensor(value)] if tensors.is_fake(value) else ["constant", *self.constant(value)]
        if isinstance(value, functools.partial):
            return ["partial", self.function(value.func), self.value(value.args), self.value(value.keywords)]
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or callable(value):
            return ["fn", self.function(value)]
        raise CannotTravelError("value", f"{type(value).__module__}.{type(value).__name__}")

    def value_object(self, value: Any) -> Any:
        """A frozen dataclass of torch's (a key path of a binding) by class and fields."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [[f.name, self.value_object(getattr(value, f.name))] for f in dataclasses.fields(value)]
            return ["dc", self.function(type(value)), *fields]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["nt", self.function(type(value)), *map(self.value_object, value)]
        return self.value(value)

    def symbolic(self, value: Any) -> list[Any]:
        if shape_env.is_nested_int(value):
            raise CannotTravelError("nested_int")
        expr = shape_env.expression_of(value)
        kind = "int" if isinstance(value, torch.SymInt) else "float" if isinstance(value, torch.SymFloat) else "bool"
        self.symbols.update(symbol.name for symbol in expr.free_symbols)
        try:
            return ["y", kind, guards.encode(expr)]
        except guards.UnknownGuardError as error:
            raise CannotTravelError("symbolic_expression", str(error)) from error

    def tensor(self, tensor: torch.Tensor) -> list[Any]:
        """A tensor by metadata only."""
        try:
            return self._facts(self.describer.describe(tensor))
        except tensors.UnsupportedTensor as error:
            raise CannotTravelError("tensor", str(error)) from error

    def _facts(self, facts: tensors.TensorFacts) -> list[Any]:
        row: list[Any] = []
        for field, value in zip(facts._fields, facts, strict=True):
            if field == "base":
                row.append(self._facts(value) if value is not None else None)
            elif field == "dtype":
                row.append(_dtype_name(value))
            elif field == "device":
                row.append([value.type, value.index])
            elif isinstance(value, tuple):
                row.append([self.value(v) for v in value])
            else:
                row.append(self.value(value))
        return row

    def constant(self, tensor: torch.Tensor) -> list[Any]:
        """A tensor by value: its number among the constants, and a digest of metadata and content."""
        if tensors.is_fake(tensor):
            raise CannotTravelError("fake_constant")
        try:
            tensors.refuse_unusual(tensor)
        except tensors.UnsupportedTensor as error:
            raise CannotTravelError("tensor", str(error)) from error
        number = self._constant_ids.get(id(tensor))
        if number is None:
            number = self._constant_ids[id(tensor)] = len(self.constants)
            self.constants.append(tensor)
        return [number, tensor_digest(tensor), isinstance(tensor, torch.nn.Parameter), tensor.requires_grad]

    # --- functions -----------------------------------------------------------------------

    def function(self, target: Any) -> list[Any]:
        """A function, operator or class by a name that finds the same object in another process."""
        if operators.is_overload(target):
            if not operators.is_builtin(target):
                self.dependencies[f"operator:{operators.overload_name(target)}"] = target
            return ["op", operators.overload_name(target)]
        if operators.is_packet(target):
            if not operators.is_builtin(target):
                self.dependencies[f"operator:{operators.packet_name(target)}"] = target
            return ["packet", operators.packet_name(target)]
        if operators.is_higher_order(target):
            return ["hop", operators.higher_order_name(target)]
        wrapped = operators.numpy_wrapper(target)
        if wrapped is not None:
            return ["numpy", wrapped[0], wrapped[1] if isinstance(wrapped[1], str) else self.function(wrapped[1])]
        module, qualified = name_of(target)
        if not _comes_with_torch(module):
            self.dependencies[f"function:{module}.{qualified}"] = target
        return ["py", module, qualified]


def _by_name(value: Any) -> Any:
    """Mappings of names, in the order of the names; anything else as it is."""
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: _by_name(value[name]) for name in sorted(value)}
    return value


def gm_attribute(gm: torch.nn.Module, path: str) -> Any:
    """The attribute a dotted target names."""
    found: Any = gm
    for part in path.split("."):
        found = getattr(found, part)
    return found


def tensor_digest(tensor: torch.Tensor) -> str:
    """Digest of a real tensor's metadata and content (read to the CPU; sizes in elements)."""
    meta = repr(
        (_dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.device.type, tensor.is_conj(),
         tensor.is_neg())
    )  # fmt: skip
    digest = hashlib.sha256(meta.encode())
    digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview | bytes:
    """The elements of a real tensor in row-major order."""
    with tensors.modes_disabled():
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
        if flat.numel() == 0:
            return b""
        return memoryview(flat.view(torch.uint8).numpy())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_ENCODERS: dict[type, Callable[[GraphEncoder, Any], Any]] = {
    torch.dtype: lambda _, v: ["dtype", _dtype_name(v)],
    torch.device: lambda _, v: ["device", v.type, v.index],
    torch.layout: lambda _, v: ["layout", str(v).removeprefix("torch.")],
    torch.memory_format: lambda _, v: ["memory_format", str(v).removeprefix("torch.")],
    type(...): lambda _, v: ["..."],
    complex: lambda e, v: ["complex", e.value(v.real), e.value(v.imag)],
    slice: lambda e, v: ["slice", e.value(v.start), e.value(v.stop), e.value(v.step)],
    range: lambda _, v: ["range", v.start, v.stop, v.step],
    bytes: lambda _, v: ["bytes", v],
}

_FOUND: dict[int, tuple[Any, str, str]] = {}
_HOMES = ("torch", "torch._C._nn", "torch.nn.functional", "torch._C._special", "torch._C._linalg", "torch._C._fft",
          "torch.Tensor", "torch._C", "operator", "math")  # fmt: skip


def name_of(target: Any) -> tuple[str, str]:
    """(module, qualified name) under which `target` is found again.

    Raises:
        CannotTravelError: it is local, anonymous, of the main script, or the name leads elsewhere.
    """
    known = _FOUND.get(id(target))
    if known is not None and known[0] is target:
        return known[1], known[2]
    for module, qualified in _candidates(target):
        if module == "__main__":
            raise CannotTravelError("defined_in_main", qualified)
        with contextlib.suppress(ImportError, AttributeError, ValueError, TypeError):
            if operators.resolve(module, qualified) is target:
                _FOUND[id(target)] = (target, module, qualified)
                return module, qualified
    raise CannotTravelError("function", operators.pretty_name(target) if callable(target) else repr(target)[:80])


def _candidates(target: Any) -> Iterator[tuple[str, str]]:
    module = getattr(target, "__module__", None)
    qualified = getattr(target, "__qualname__", None)
    name = getattr(target, "__name__", None)
    if isinstance(module, str):
        module = {"_operator": "operator"}.get(module, module)
        if isinstance(qualified, str) and "<" not in qualified:
            yield module, qualified
        if isinstance(name, str) and name != qualified:
            yield module, name
    if isinstance(name, str):
        for home in _HOMES:
            if home == "torch.Tensor":
                yield "torch", f"Tensor.{name}"
            else:
                yield home, name


def _comes_with_torch(module: str) -> bool:
    return module.split(".")[0] in ("torch", "builtins", "operator", "math", "_operator", "einops", "torchgen")


# --- the way back --------------------------------------------------------------------------------


class GraphDecoder:
    """Rebuilds graphs and inputs of one request in a worker.

    `builder` makes fake tensors; `env` is the ShapeEnv their symbols live in (None without
    symbols); `constants` are the tensors sent along, by number.
    """

    def __init__(self, builder: tensors.Builder, env: Any | None, constants: list[torch.Tensor]) -> None:
        self._builder = builder
        self._env = env
        self._symbols = shape_env.symbols(env) if env is not None else {}
        self._constants = constants
        self._nodes: list[torch.fx.Node] = []

    def decode(self, description: list[Any], debug: list[Any] | None = None) -> torch.fx.GraphModule:
        """The graph module; `debug` puts stack traces back."""
        gm = self._module(description)
        for node, trace in zip(self._nodes, debug or (), strict=False):
            if trace:
                node.meta["stack_trace"] = trace
        return gm

    def _module(self, description: list[Any]) -> torch.fx.GraphModule:
        _, nodes, attributes, lifted, meta = description
        root = torch.nn.Module()
        for name, is_parameter, tensor in lifted:
            _place(root, name, self.value(tensor), is_parameter)
        nested: dict[str, list[Any]] = dict(attributes)
        placed: set[str] = set()
        graph = torch.fx.Graph()
        for op, name, target, args, kwargs, node_meta in nodes:
            # In the encoder's order: nested graphs take their node numbers where they are first named.
            if op in ("get_attr", "call_module") and target in nested and target not in placed:
                placed.add(target)
                row = nested[target]
                _place(root, target, self._module(row) if row[0] == "graph" else self.value(row), None)
            found = target if isinstance(target, str) else self.function(target)
            node = graph.create_node(op, found, self.value(args), dict(self.value(kwargs)), name)
            for key, value in node_meta:
                node.meta[key] = self._bindings(value) if key == "unbacked_bindings" else self.value(value)
            self._nodes.append(node)
        gm = torch.fx.GraphModule(root, graph)
        for name in placed:  # GraphModule copies only what the graph names, and turns tensors into buffers
            row = nested[name]
            if row[0] == "constant":
                _unregister(gm, name, gm_attribute(root, name))
        for name, _, _ in lifted:
            _place(gm, name, gm_attribute(root, name), isinstance(gm_attribute(root, name), torch.nn.Parameter))
        gm.meta.update({name: self.value(value) for name, value in meta})
        return gm

    def _bindings(self, row: list[Any]) -> dict[Any, Any]:
        return {guards.decode(symbol, self._symbols): tuple(map(self.value, path)) for symbol, path in row[1:]}

    def value(self, data: Any) -> Any:
        if not isinstance(data, list):
            return data
        return _DECODERS[data[0]](self, data)

    def symbolic(self, kind: str, expr: Any) -> Any:
        if self._env is None:
            raise CannotTravelError("symbols_without_shapes")
        return shape_env.make(self._env, guards.decode(expr, self._symbols), kind, None)

    def tensor(self, row: list[Any]) -> torch.Tensor:
        return self._builder.build(self._facts(row))

    def _facts(self, row: list[Any]) -> tensors.TensorFacts:
        values = dict(zip(tensors.TensorFacts._fields, row, strict=True))
        values["dtype"] = getattr(torch, values["dtype"])
        values["device"] = torch.device(*[part for part in values["device"] if part is not None])
        values["size"] = tuple(map(self.value, values["size"]))
        values["stride"] = tuple(map(self.value, values["stride"]))
        values["offset"] = self.value(values["offset"])
        values["nbytes"] = self.value(values["nbytes"])
        values["base"] = self._facts(values["base"]) if values["base"] is not None else None
        return tensors.TensorFacts(**values)

    def constant(self, number: int) -> torch.Tensor:
        return self._constants[number]

    def function(self, row: list[Any]) -> Any:
        kind, *names = row
        if kind == "op":
            return operators.find_overload(names[0])
        if kind == "packet":
            return operators.find_packet(names[0])
        if kind == "hop":
            return operators.find_higher_order(names[0])
        if kind == "numpy":
            kept = names[1] if isinstance(names[1], str) else self.function(names[1])
            return operators.make_numpy_wrapper(names[0], kept)
        return operators.resolve(*names)


def _place(root: torch.nn.Module, path: str, value: Any, is_parameter: bool | None) -> None:
    *parents, leaf = path.split(".")
    for part in parents:
        if not hasattr(root, part):
            root.add_module(part, torch.nn.Module())
        root = getattr(root, part)
    if is_parameter:
        root.register_parameter(leaf, value)
    elif is_parameter is False:
        root.register_buffer(leaf, value)
    else:
        setattr(root, leaf, value)


def _unregister(gm: torch.nn.Module, path: str, value: Any) -> None:
    """Make a tensor a plain attribute again: AOTAutograd would lift a buffer into an input."""
    *parents, leaf = path.split(".")
    for part in parents:
        gm = getattr(gm, part)
    if leaf in gm._buffers:
        del gm._buffers[leaf]
        gm.__dict__[leaf] = value


_DECODERS: dict[str, Callable[[GraphDecoder, list[Any]], Any]] = {
    "n": lambda d, r: d._nodes[r[1]],
    "i": lambda d, r: int(r[1]),
    "f": lambda d, r: float(r[1]),
    "t": lambda d, r: tuple(map(d.value, r[1:])),
    "l": lambda d, r: list(map(d.value, r[1:])),
    "d": lambda d, r: {d.value(k): d.value(v) for k, v in r[1:]},
    "set": lambda d, r: set(map(d.value, r[1:])),
    "size": lambda d, r: torch.Size(map(d.value, r[1:])),
    "nt": lambda d, r: d.function(r[1])(*map(d.value, r[2:])),
    "dc": lambda d, r: d.function(r[1])(**{name: d.value(v) for name, v in r[2:]}),
    "enum": lambda d, r: d.function(r[1])[r[2]],
    "y": lambda d, r: d.symbolic(r[1], r[2]),
    "tensor": lambda d, r: d.tensor(r[1]),
    "constant": lambda d, r: d.constant(r[1]),
    "partial": lambda d, r: functools.partial(d.function(r[1]), *d.value(r[2]), **d.value(r[3])),
    "fn": lambda d, r: d.function(r[1]),
    "dtype": lambda d, r: getattr(torch, r[1]),
    "device": lambda d, r: torch.device(*[p for p in r[1:] if p is not None]),
    "layout": lambda d, r: getattr(torch, r[1]),
    "memory_format": lambda d, r: getattr(torch, r[1]),
    "...": lambda d, r: ...,
    "complex": lambda d, r: complex(d.value(r[1]), d.value(r[2])),
    "slice": lambda d, r: slice(*map(d.value, r[1:])),
    "range": lambda d, r: range(*r[1:]),
    "bytes": lambda d, r: r[1],
}
