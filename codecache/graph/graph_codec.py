"""Encode a graph as plain data: the same bytes are hashed into its key and sent to a worker.

    GraphModule ──▶ GraphEncoder.encode ──▶ lists, numbers, strings ──▶ msgpack bytes ──▶ key
                                                                          │
                               worker: graph_decoder.GraphDecoder ◀───────┘  + constants, + debug text

Numbers, strings, booleans and None are encoded as themselves, everything else as a list that starts with a short tag.
Encoding takes most of the time spent on a key, so encoders are looked up by type, and rows that occur often (a node, a
function) are created once and shared: never modify a row.

Nodes, inputs and attributes are numbered; their names are recorded beside the description (`graph_names`), and so are
stack traces (`EncodedGraph.debug`). Tensors captured as constants are hashed by content and sent beside the
description.
Functions and operators are encoded by name; those from outside torch are also listed in `EncodedGraph.dependencies`,
for the key to hash and the worker to load.

Raises `CannotTravelError`, with the reason that is counted, for anything that has no name in another process. Encoding
does not change the graph: Dynamo still needs it afterwards.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpool.codecache.code import proof
from fxpool.codecache.code.unproven import UnprovenError
from fxpool.codecache.graph.graph_names import OF_ATTRIBUTES
from fxpool.codecache.graph.target_names import comes_with_torch, name_of
from fxpool.codecache.graph.tensor_content import dtype_name, tensor_digest
from fxpool.codecache.guards import guards
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.cuda import attention
from fxpool.torch_compat.dynamo import process_groups, shape_env, tensors
from fxpool.torch_compat.operators import operators, placement
from fxpool.torch_compat.triton import user_kernels

# Node metadata that only records the origin of a node, or that the compile recomputes.
_DEBUG_META = frozenset(
    ("stack_trace", "nn_module_stack", "source_fn_stack", "fwd_nn_module_stack", "fwd_source_fn_stack", "from_node",
     "creation_timestamp", "grapharg", "example_value", "val", "tensor_meta", "tensor_dict", "seq_nr", "torch_fn",
     "steal_arg", "unbacked_bindings", "desc", "output_stack_traces", "numeric_debug_handle", "arg_kwarg_vals",
     "mod_stack", "dynamo_source", "autograd_backward",
     "original_aten")
)  # fmt: skip

# Metadata of a graph that maps names to names: AOTInductor writes it into packages.
_NAMES_IN_META = ("dynamo_flat_name_to_original_fqn",)

# Names from `_DEBUG_META` of which a part is encoded.
_PARTLY_KEPT = frozenset(("tensor_dict", "unbacked_bindings"))

_CALLS = frozenset(("call_function", "call_method"))
_NO_ARGUMENTS, _NO_KEYWORDS = ("t",), ("d",)
_NAMES_OF_DEVICES = frozenset(("cpu", "cuda", "xpu", "mps", "hpu", "mtia"))


@dataclasses.dataclass
class EncodedGraph:
    """The result of `GraphEncoder.encode`.

    `description` is hashed and sent. `names` are those of its parts (`graph_names`). `constants` are the tensors it
    refers to by number, and `packings` says of some what they were packed from: the number of a weight, and a number of
    rows (`mkl_linear`). `debug` holds, for each node, its stack trace and the operator that was decomposed into it,
    after which kernels are named. `dependencies` maps a name to a function, operator, Triton kernel or
    module from outside torch. `symbols` are the names of all symbolic numbers in the graph. `devices` are the types of
    all its devices, including those that a text names.

    The compile does not depend on which of several equal devices a graph runs on, so the description numbers them in
    order of appearance, unless `own_indices` is set. `indices` holds this process's index of each. `current_named` is
    set if the graph refers to the current device, `attention_open` if the implementation of attention depends on the
    device alone. `sees_place`: a function may depend on the place of an input in its storage.

    Process groups are numbered in the same way: `groups` maps their names in this process to their numbers of ranks.
    """

    description: list[Any]
    names: list[Any]
    constants: list[torch.Tensor]
    debug: list[Any]
    dependencies: dict[str, Any]
    symbols: set[str]
    devices: set[str]
    indices: list[int]
    current_named: bool
    attention_open: bool
    sees_place: bool
    groups: dict[str, int]
    packings: dict[int, tuple[int, int]]
    own_indices: bool


@dataclasses.dataclass(frozen=True)
class _Group:
    """A process group by number, which replaces its name in arguments."""

    number: int


@dataclasses.dataclass(frozen=True)
class _DeviceName:
    """A text that names a device."""

    text: str


class GraphEncoder:
    """Encodes one graph and its inputs. Use one instance per request, because it numbers the objects it encodes.

    With `own_indices` CUDA devices keep their indices in this process, and all lower indices count as named by the
    graph.
    """

    def __init__(self, *, own_indices: bool = False) -> None:
        self._own_indices = own_indices
        self.describer = tensors.Describer()
        self.constants: list[torch.Tensor] = []
        self.dependencies: dict[str, Any] = {}
        self.symbols: set[str] = set()
        self.devices: set[str] = set()
        self._indices: dict[int, int] = {}
        self._current_named = False
        self.groups: dict[str, int] = {}
        self._group_at: dict[int, int] = {}  # by identity of operators
        self._attentions: dict[str, int] = {}
        self._attention_open = self._changes_switches = self._may_name_devices = False
        self._constant_ids: dict[int, int] = {}
        self._packings: dict[int, tuple[torch.Tensor, int]] = {}
        self._sees_place = False
        self._blind: set[str | int] = set()  # names of methods, and functions by identity
        self._regions: dict[Any, int] = {}
        self._calls_kernels = False
        self._kernels: dict[int, list[Any]] = {}
        self._nodes: dict[torch.fx.Node, list[Any]] = {}
        # By id, since an operator may define `==` arbitrarily. Holds the object, or its id could be reused.
        self._functions: dict[int, tuple[Any, list[Any]]] = {}
        # Combinations of metadata names of which nothing is encoded: most nodes share a few combinations.
        self._of_no_interest: set[tuple[str, ...]] = set()
        self._debug: list[Any] = []
        self._names: list[Any] = []

    # --- the graph -----------------------------------------------------------------------

    def encode(self, gm: torch.fx.GraphModule, lifted: dict[str, torch.Tensor] | None = None) -> EncodedGraph:
        """Encode `gm`. Raises CannotTravelError.

        `lifted` maps the names of parameters and buffers that are attributes of the graph to their fake tensors; only
        their metadata is sent. Other tensors are constants.
        """
        lifted = lifted or {}
        description = self._module(gm, lifted)
        is_open = self._attention_open or (self._changes_switches and bool(self._attentions))
        return EncodedGraph(
            description, self._names, self.constants, self._debug, self.dependencies, self.symbols, self.devices,
            list(self._indices), self._current_named, is_open, self._sees_place, self.groups,
            self._packings_by_number(), self._own_indices,
        )  # fmt: skip

    def _packings_by_number(self) -> dict[int, tuple[int, int]]:
        try:
            return {number: (self._constant_ids[id(weight)], rows) for number, (weight, rows) in self._packings.items()}
        except KeyError:
            raise CannotTravelError("tensor", "a packed weight was made from a parameter of the graph") from None

    def _module(self, gm: torch.fx.GraphModule, lifted: dict[str, torch.Tensor]) -> list[Any]:
        if gm.meta.get("nested_region_config") is not None:
            raise CannotTravelError("region_options", "a nested_compile_region has its own options")
        codegen = type(gm.graph._codegen)  # Dynamo's graphs have no flattened calling convention
        if codegen is not torch.fx.graph.CodeGen:
            raise CannotTravelError("calling_convention", codegen.__name__)
        own: list[Any] = []
        inputs: list[Any] = []
        names = list(lifted)
        paths = [[name, self.value(gm.meta[name])] for name in _NAMES_IN_META if gm.meta.get(name)]
        self._names.append([own, inputs, names, paths])
        numbers = {name: number for number, name in enumerate(names)}
        lifted_rows = [
            [isinstance(gm_attribute(gm, name), torch.nn.Parameter), self.value(fake)] for name, fake in lifted.items()
        ]
        attributes: list[list[Any]] = []
        nodes: list[list[Any]] = []
        for node in gm.graph.nodes:
            op, target, args, kwargs, about = node.op, node.target, node.args, node.kwargs, node.meta
            if op in OF_ATTRIBUTES:
                if target not in numbers:
                    numbers[target] = len(names)
                    names.append(target)
                    attributes.append(self._attribute(gm, node))
                called: Any = numbers[target]
            elif op == "placeholder":
                called = None
                inputs.append(target)
            else:
                called = target if isinstance(target, str) else self.function(target)
            if self._group_at and id(target) in self._group_at:
                args, kwargs = self._group_numbered(self._group_at[id(target)], args, kwargs)
            if target is attention.FUNCTION:
                called = self._attention(node, called)
            if op in _CALLS and not self._sees_place:
                self._judge(node, called)
            self._nodes[node] = ["n", len(self._nodes)]
            self._debug.append([about.get("stack_trace"), _name_of_builtin(about.get("original_aten"))])
            own.append(node.name)
            arguments = self._arguments(args, kwargs)
            if self._may_name_devices:
                self._may_name_devices = False
                if op in _CALLS:
                    arguments = self._arguments(*self._with_devices(target, called, args, kwargs))
            nodes.append([op, called, *arguments, self._meta(about)])
        meta = [[name, self.value(gm.meta[name])] for name in ("cudagraph_annotation",) if gm.meta.get(name)]
        if "_checkpoint_context_fn" in gm.meta:
            meta.append(["_checkpoint_context_fn", self.value(gm.meta["_checkpoint_context_fn"])])
        if self.groups:
            meta.append(["fxpool_group_sizes", self.value(list(self.groups.values()))])
        if self._calls_kernels:
            rows = zip(gm.graph.nodes, nodes, strict=True)
            nodes = [self._kernel_call(node, row) if user_kernels.is_call(node) else row for node, row in rows]
        return ["graph", nodes, attributes, lifted_rows, meta]

    def _judge(self, node: torch.fx.Node, called: Any) -> None:
        """Note whether a call may depend on the place of a tensor in memory."""
        known = node.target if isinstance(node.target, str) else id(node.target)
        if known not in self._blind:
            seen = placement.is_seen_by(node.target, called[1] if called[0] == "py" else "")
            if seen is False:
                self._blind.add(known)
            else:
                self._sees_place = seen or placement.is_seen_in(node)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        return (
            ["t", *self._each(args)] if args else _NO_ARGUMENTS,
            # Sorted by name: the order of keyword arguments has no meaning, unlike that of a dict's items.
            self._dict(dict(sorted(kwargs.items()))) if kwargs else _NO_KEYWORDS,
        )

    def _with_devices(self, target: Any, called: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Replace texts in a call's arguments by `_DeviceName` where they name devices."""
        if not isinstance(called, str) and called[0] == "py" and called[1].partition(".")[0] == "torch":
            target = called[2].rpartition(".")[2]
        elif not (isinstance(target, str) or operators.is_overload(target) or operators.is_packet(target)):
            return args, kwargs  # of the program, which may do anything with a text
        return operators.with_devices(target, args, kwargs, _DeviceName)

    def _kernel_call(self, node: torch.fx.Node, row: list[Any]) -> list[Any]:
        """Replace a Triton kernel's table indices by its data in a call's row: tables differ between processes."""
        try:
            constants = user_kernels.constants(node)
            described = {"kernel_idx": self._kernel(node), "constant_args_idx": ["kernel_constants", constants]}
        except (user_kernels.NotDescribedError, UnprovenError) as error:
            raise CannotTravelError(getattr(error, "reason", "triton_kernel_source"), str(error)) from error
        *before, (tag, *keywords), meta = row
        return [*before, [tag, *([name, described.get(name, value)] for name, value in keywords)], meta]

    def _kernel(self, node: torch.fx.Node) -> list[Any]:
        """Return a kernel's row, with a digest: the module may define another kernel when a worker imports it."""
        place = user_kernels.kernel_index(node)
        if place not in self._kernels:
            kernel = user_kernels.describe(node)
            self.dependencies[f"kernel:{kernel.module}:{kernel.name}"] = kernel.function
            self._kernels[place] = ["kernel", len(self._kernels), proof.digest_of(kernel.function), kernel.data]
        return self._kernels[place]

    def _group_numbered(self, at: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Replace a group's name in a call's arguments by its number."""
        name = args[at] if at < len(args) else kwargs.get("group_name")
        if not isinstance(name, str):
            return args, kwargs
        if name not in self.groups:
            try:
                self.groups[name] = process_groups.size(name)
            except LookupError as error:
                raise CannotTravelError("process_group", f"this process has no group {name}") from error
        group = _Group(list(self.groups).index(name))
        if at < len(args):
            return (*args[:at], group, *args[at + 1 :]), kwargs
        return args, {**kwargs, "group_name": group}

    def _attention(self, node: torch.fx.Node, called: Any) -> Any:
        number = attention.implementation(node, self._attentions)
        if number is None:
            self._attention_open |= attention.is_on_cuda(node)
            return called
        return ["attention", number]

    def _meta(self, about: dict[str, Any]) -> Sequence[Any]:
        names = tuple(about)
        if names in self._of_no_interest:
            return ()
        if _DEBUG_META.issuperset(names) and not _PARTLY_KEPT.intersection(names):
            self._of_no_interest.add(names)
            return ()
        kept: list[Any] = []
        for name, value in about.items():
            if name in _DEBUG_META or value is None:
                continue
            if name == "ac_graph_id":  # a process-wide counter that identifies the node's checkpointed region
                kept.append([name, self._regions.setdefault(value, len(self._regions))])
                continue
            try:
                kept.append([name, self.value(_by_name(value))])
            except CannotTravelError as error:
                raise CannotTravelError(f"node_metadata:{name}", error.detail) from error
        kept.sort(key=lambda pair: str(pair[0]))
        static = (about.get("tensor_dict") or {}).get("_dynamo_static_input_type")
        if static:
            kept.append(["tensor_dict", ["d", ["_dynamo_static_input_type", static]]])
        bindings = about.get("unbacked_bindings")
        if bindings:
            kept.append(["unbacked_bindings", self._bindings(bindings)])
        return kept

    def _bindings(self, bindings: dict[Any, Any]) -> list[Any]:
        rows: list[Any] = []
        for symbol, path in bindings.items():
            self.symbols.add(symbol.name)
            rows.append([guards.encode(symbol), [self.value_object(part) for part in path]])
        return ["bindings", *rows]

    def _attribute(self, gm: torch.fx.GraphModule, node: torch.fx.Node) -> list[Any]:
        name = str(node.target)
        value = gm_attribute(gm, name)
        if isinstance(value, torch.fx.GraphModule):
            return self._module(value, {})
        if isinstance(value, torch.Tensor):
            return ["constant", *self.constant(value, packing=_packing_of(gm, node))]
        if node.op == "call_module":
            raise CannotTravelError("call_module", f"{name} is a {type(value).__name__}")
        raise CannotTravelError("attribute", f"{name} is a {type(value).__name__}")

    # --- values --------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """Encode an argument of a node, or part of an argument."""
        return self._each((value,))[0]

    def _each(self, values: Iterable[Any]) -> list[Any]:
        """Encode each of `values`. Most are nodes and numbers, which are handled without a call."""
        nodes, encoders = self._nodes, _ENCODERS
        encoded = []
        for value in values:
            kind = type(value)
            if kind is _Node:
                encoded.append(nodes[value])
            elif kind in _THEMSELVES or (kind is int and _SMALLEST <= value <= _LARGEST):
                encoded.append(value)
            else:
                encode = encoders.get(kind)
                encoded.append(encode(self, value) if encode is not None else self._of_other_type(value))
        return encoded

    def _sequence(self, tag: str, values: Iterable[Any]) -> list[Any]:
        return [tag, *self._each(values)]

    def _dict(self, values: Mapping[Any, Any]) -> list[Any]:
        return ["d", *map(self._each, values.items())]

    def _text(self, value: str) -> str:
        if value.partition(":")[0] in _NAMES_OF_DEVICES:
            self._may_name_devices = True  # depends on the parameter
        return value

    def _device_name(self, name: _DeviceName) -> str:
        kind, _, index = name.text.partition(":")
        if kind in _NAMES_OF_DEVICES:
            self.devices.add(kind)
            if kind == "cuda":
                if index.isdigit():
                    return f"cuda:{self._number(int(index))}"
                self._current_named = True
        return name.text

    def device(self, device: torch.device) -> list[Any]:
        """Encode a device. CUDA devices are numbered in order of appearance, or keep their indices (`own_indices`)."""
        kind, index = device.type, device.index
        self.devices.add(kind)
        if kind == "cuda":
            if index is None:
                self._current_named = True
            else:
                index = self._number(index)
        return [kind, index]

    def _number(self, index: int) -> int:
        if self._own_indices:
            self._indices.update((number, number) for number in range(len(self._indices), index + 1))
        return self._indices.setdefault(index, len(self._indices))

    def _of_other_type(self, value: Any) -> Any:
        """Encode a value whose type is not in `_ENCODERS`: a tensor, a function, or an instance of a subclass."""
        if isinstance(value, torch.Tensor):
            return ["tensor", self.tensor(value)] if tensors.is_fake(value) else ["constant", *self.constant(value)]
        if isinstance(value, torch.Size):
            return self._sequence("size", value)
        if isinstance(value, tuple):
            if hasattr(value, "_fields"):
                return ["nt", self.function(type(value)), *map(self.value, value)]
            return self._sequence("t", value)
        if isinstance(value, list):
            return self._sequence("l", value)
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, (set, frozenset)):
            return ["set", *sorted(map(self.value, value), key=repr)]
        if isinstance(value, enum.Enum):
            return ["enum", self.function(type(value)), value.name]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbolic(value)
        if isinstance(value, functools.partial):
            return ["partial", self.function(value.func), self.value(value.args), self.value(value.keywords)]
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or callable(value):
            return ["fn", self.function(value)]
        raise CannotTravelError("value", f"{type(value).__module__}.{type(value).__name__}")

    def value_object(self, value: Any) -> Any:
        """Encode a frozen dataclass from torch (the key path of a binding) by class and fields."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [[f.name, self.value_object(getattr(value, f.name))] for f in dataclasses.fields(value)]
            return ["dc", self.function(type(value)), *fields]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["nt", self.function(type(value)), *map(self.value_object, value)]
        return self.value(value)

    def symbolic(self, value: Any) -> list[Any]:
        """Encode a SymInt, SymFloat or SymBool. Raises CannotTravelError."""
        expr = shape_env.expression_of(value)
        # The ragged size of a jagged tensor can be sent only as an input that the graph does not compute with.
        if shape_env.is_nested_int(value) and not isinstance(expr, sympy.Symbol):
            raise CannotTravelError("nested_int")
        return self._symbolic(value, expr)

    def expression(self, expr: sympy.Basic) -> sympy.Basic:
        """Return the expression to encode for a symbolic number. A subclass may rename its symbols."""
        return expr

    def _symbolic(self, value: Any, expr: sympy.Basic) -> list[Any]:
        kind = "int" if isinstance(value, torch.SymInt) else "float" if isinstance(value, torch.SymFloat) else "bool"
        self.symbols.update(symbol.name for symbol in expr.free_symbols)
        try:
            return ["y", kind, guards.encode(self.expression(expr))]
        except guards.UnknownGuardError as error:
            raise CannotTravelError("symbolic_expression", str(error)) from error

    def tensor(self, tensor: torch.Tensor) -> list[Any]:
        """Encode a tensor by metadata only."""
        try:
            return self._facts(self.describer.describe(tensor))
        except tensors.UnsupportedTensor as error:
            raise CannotTravelError("tensor", str(error)) from error

    def _facts(self, facts: tensors.TensorFacts) -> list[Any]:
        """Return the facts as a row, in the order of `TensorFacts`."""
        return [
            facts.identity,
            facts.storage,
            self.value(facts.nbytes),
            dtype_name(facts.dtype),
            self.device(facts.device),
            self._each(facts.size),
            self._each(facts.stride),
            self.value(facts.offset),
            facts.requires_grad,
            facts.is_leaf,
            facts.is_parameter,
            facts.is_conj,
            facts.is_neg,
            facts.is_inference,
            facts.creation_meta,
            self._facts(facts.base) if facts.base is not None else None,
            # By its symbol, even if the symbol has a value: torch needs the symbol to process a wrapped number.
            None if facts.item is None else self._symbolic(facts.item, shape_env.symbol_of(facts.item)),
        ]

    def constant(self, tensor: torch.Tensor, *, packing: tuple[torch.Tensor, int] | None = None) -> list[Any]:
        """Encode a tensor by value: its number among the constants, and a digest of metadata and content.

        One that was packed is made again in the worker, from the weight and number of rows in `packing`; its content is
        not in the digest, because it differs between processes.
        """
        if tensors.is_fake(tensor):
            raise CannotTravelError("fake_constant")
        if not tensor.is_mkldnn:
            try:
                tensors.refuse_unusual(tensor)
            except tensors.UnsupportedTensor as error:
                raise CannotTravelError("tensor", str(error)) from error
        number = self._constant_ids.get(id(tensor))
        if number is None:
            number = self._constant_ids[id(tensor)] = len(self.constants)
            self.constants.append(tensor)
        if packing is not None:
            self._packings[number] = packing
        self.devices.add(tensor.device.type)
        return [
            number,
            tensor_digest(tensor, content=packing is None),
            isinstance(tensor, torch.nn.Parameter),
            tensor.requires_grad,
        ]

    # --- functions -----------------------------------------------------------------------

    def function(self, target: Any) -> list[Any]:
        """Encode a function, operator or class by a name that leads to the same object in another process."""
        known = self._functions.get(id(target))
        if known is None:
            known = self._functions[id(target)] = target, self._function(target)
        return known[1]

    def _function(self, target: Any) -> list[Any]:
        if (at := process_groups.position(target)) is not None:
            self._group_at[id(target)] = at
        if operators.is_overload(target):
            if not operators.is_builtin(target):
                self.dependencies[f"operator:{operators.overload_name(target)}"] = target
            return ["op", operators.overload_name(target)]
        if operators.is_packet(target):
            if not operators.is_builtin(target):
                self.dependencies[f"operator:{operators.packet_name(target)}"] = target
            return ["packet", operators.packet_name(target)]
        if operators.is_higher_order(target):
            self._calls_kernels |= user_kernels.is_operator(target)
            return ["hop", operators.higher_order_name(target), type(target).__module__]
        wrapped = operators.numpy_wrapper(target)
        if wrapped is not None:
            return ["numpy", wrapped[0], wrapped[1] if isinstance(wrapped[1], str) else self.function(wrapped[1])]
        self._changes_switches |= attention.changes_switches(target)
        module, qualified = name_of(target)
        if not comes_with_torch(module, target):
            self.dependencies[f"function:{module}:{qualified}"] = target
        return ["py", module, qualified]


def _name_of_builtin(operator: Any) -> str | None:
    known = operators.is_overload(operator) and operators.is_builtin(operator)
    return operators.overload_name(operator) if known else None


def _by_name(value: Any) -> Any:
    """Sort dicts with string keys by key; return any other value unchanged."""
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: _by_name(value[name]) for name in sorted(value)}
    return value


def _packing_of(gm: torch.fx.GraphModule, node: torch.fx.Node) -> tuple[torch.Tensor, int] | None:
    try:
        packing = tensors.mkl_packing(node)
    except tensors.UnknownPackingError as error:
        raise CannotTravelError("tensor", str(error)) from error
    return (gm_attribute(gm, str(packing.weight.target)), packing.rows) if packing is not None else None


def gm_attribute(gm: torch.nn.Module, path: str) -> Any:
    """Return the attribute that a dotted target names."""
    attribute: Any = gm
    for part in path.split("."):
        attribute = getattr(attribute, part)
    return attribute


_Node = torch.fx.Node
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # range of the integers that msgpack can encode as themselves
_THEMSELVES = frozenset((bool, type(None)))
_ENCODERS: dict[type, Callable[[GraphEncoder, Any], Any]] = {
    int: lambda _, v: ["i", str(v)],
    str: GraphEncoder._text,
    float: lambda _, v: v if math.isfinite(v) else ["f", repr(v)],
    tuple: lambda e, v: e._sequence("t", v),
    list: lambda e, v: e._sequence("l", v),
    # Distinct from "l": torch compares arguments of nodes with other values, and the types have to match.
    immutable_list: lambda e, v: e._sequence("il", v),
    dict: GraphEncoder._dict,
    immutable_dict: lambda e, v: ["id", *e._dict(v)[1:]],
    torch.Size: lambda e, v: e._sequence("size", v),
    torch.SymInt: GraphEncoder.symbolic,
    torch.SymFloat: GraphEncoder.symbolic,
    torch.SymBool: GraphEncoder.symbolic,
    torch.dtype: lambda _, v: ["dtype", dtype_name(v)],
    torch.device: lambda e, v: ["device", *e.device(v)],
    torch.layout: lambda _, v: ["layout", str(v).removeprefix("torch.")],
    torch.memory_format: lambda _, v: ["memory_format", str(v).removeprefix("torch.")],
    type(...): lambda _, v: ["..."],
    complex: lambda e, v: e._sequence("complex", (v.real, v.imag)),
    slice: lambda e, v: e._sequence("slice", (v.start, v.stop, v.step)),
    range: lambda _, v: ["range", v.start, v.stop, v.step],
    bytes: lambda _, v: ["bytes", v],
    _Group: lambda _, v: ["group", v.number],
    _DeviceName: GraphEncoder._device_name,
    tensors.OpaqueInput: lambda _, v: ["opaque", v.class_name],
}
