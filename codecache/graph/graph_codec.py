"""Encode a graph as plain data: the same bytes are hashed into its key and sent to a worker.

    GraphModule ──▶ GraphEncoder.encode ──▶ lists, numbers, strings ──▶ msgpack bytes ──▶ key
                                                                          │
                               worker: graph_decoder.GraphDecoder ◀───────┘  + constants, + debug text

Nodes, inputs and attributes are numbered; their names are recorded beside the description (`graph_names`), and so are
stack traces (`EncodedGraph.debug`). Arguments of nodes are encoded by `value_encoder`. Encoding does not change the
graph: Dynamo still needs it afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fxpool.codecache.code import proof
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.graph.graph_names import OF_ATTRIBUTES
from fxpool.codecache.graph.value_encoder import DeviceName, Group, ValueEncoder
from fxpool.codecache.guards import guards
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.cuda import attention
from fxpool.torch_compat.dynamo import process_groups, tensors
from fxpool.torch_compat.operators import memory_placement, operators
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


class GraphEncoder(ValueEncoder):
    """Encodes one graph and its inputs. Use one instance per request, because it numbers the objects it encodes."""

    def __init__(self, *, own_indices: bool = False) -> None:
        super().__init__(own_indices=own_indices)
        self.groups: dict[str, int] = {}
        self._attentions: dict[str, int] = {}
        self._attention_open = self._sees_place = False
        self._blind: set[str | int] = set()  # names of methods, and functions by identity
        self._regions: dict[Any, int] = {}
        self._kernels: dict[int, list[Any]] = {}
        # Combinations of metadata names of which nothing is encoded: most nodes share a few combinations.
        self._of_no_interest: set[tuple[str, ...]] = set()
        self._debug: list[Any] = []
        self._names: list[Any] = []

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
            seen = memory_placement.is_seen_by(node.target, called[1] if called[0] == "py" else "")
            if seen is False:
                self._blind.add(known)
            else:
                self._sees_place = seen or memory_placement.is_seen_in(node)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        return (
            ["t", *self._each(args)] if args else _NO_ARGUMENTS,
            # Sorted by name: the order of keyword arguments has no meaning, unlike that of a dict's items.
            self._dict(dict(sorted(kwargs.items()))) if kwargs else _NO_KEYWORDS,
        )

    def _with_devices(self, target: Any, called: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Replace texts in a call's arguments by `DeviceName` where they name devices."""
        if not isinstance(called, str) and called[0] == "py" and called[1].partition(".")[0] == "torch":
            target = called[2].rpartition(".")[2]
        elif not (isinstance(target, str) or operators.is_overload(target) or operators.is_packet(target)):
            return args, kwargs  # of the program, which may do anything with a text
        return operators.with_devices(target, args, kwargs, DeviceName)

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
        group = Group(list(self.groups).index(name))
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
