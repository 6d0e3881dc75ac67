"""Encode values as plain data: the arguments of a graph's nodes, and its inputs.

Numbers, strings, booleans and None are encoded as themselves, everything else as a list that starts with a short tag.
Encoding takes most of the time spent on a key, so encoders are looked up by type, and rows that occur often (a node, a
function) are created once and shared: never modify a row.

Tensors captured as constants are hashed by content and sent beside the description. Functions and operators are encoded
by name; those from outside torch are also dependencies, for the key to hash and the worker to load.

Raises `CannotTravelError`, with the reason that is counted, for anything that has no name in another process.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpool.codecache.graph.target_names import comes_with_torch, name_of
from fxpool.codecache.guards import guards
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.cuda import attention
from fxpool.torch_compat.dynamo import process_groups, shape_env, tensors
from fxpool.torch_compat.operators import operators
from fxpool.torch_compat.triton import user_kernels

__all__ = ["DeviceName", "Group", "ValueEncoder", "tensor_digest"]

_NAMES_OF_DEVICES = frozenset(("cpu", "cuda", "xpu", "mps", "hpu", "mtia"))


@dataclasses.dataclass(frozen=True)
class Group:
    """A process group by number, which replaces its name in arguments."""

    number: int


@dataclasses.dataclass(frozen=True)
class DeviceName:
    """A text that names a device."""

    text: str


class ValueEncoder:
    """Encodes the values of one request, and numbers the objects that they refer to.

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
        self._current_named = self._may_name_devices = False
        self._group_at: dict[int, int] = {}  # by identity of operators
        self._changes_switches = self._calls_kernels = False
        self._constant_ids: dict[int, int] = {}
        self._packings: dict[int, tuple[torch.Tensor, int]] = {}
        self._nodes: dict[torch.fx.Node, list[Any]] = {}
        # By id, since an operator may define `==` arbitrarily. Holds the object, or its id could be reused.
        self._functions: dict[int, tuple[Any, list[Any]]] = {}

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

    def _device_name(self, name: DeviceName) -> str:
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


def tensor_digest(tensor: torch.Tensor, *, content: bool = True) -> str:
    """Return the digest of a real tensor's metadata and, with `content`, of its elements (copied to the CPU)."""
    strides = tensor.stride() if tensor.layout is torch.strided else str(tensor.layout)
    meta = repr(
        (dtype_name(tensor.dtype), tuple(tensor.shape), strides, tensor.device.type, tensor.is_conj(),
         tensor.is_neg())
    )  # fmt: skip
    digest = hashlib.sha256(meta.encode())
    if content:
        digest.update(_tensor_bytes(tensor))
    return digest.hexdigest()


def _tensor_bytes(tensor: torch.Tensor) -> memoryview | bytes:
    """Return the elements of a real tensor in row-major order."""
    with tensors.modes_disabled():
        dense = tensor.to_dense() if tensor.is_mkldnn else tensor
        flat = dense.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
        if flat.numel() == 0:
            return b""
        return memoryview(flat.view(torch.uint8).numpy())


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")


_Node = torch.fx.Node
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # range of the integers that msgpack can encode as themselves
_THEMSELVES = frozenset((bool, type(None)))
_ENCODERS: dict[type, Callable[[ValueEncoder, Any], Any]] = {
    int: lambda _, v: ["i", str(v)],
    str: ValueEncoder._text,
    float: lambda _, v: v if math.isfinite(v) else ["f", repr(v)],
    tuple: lambda e, v: e._sequence("t", v),
    list: lambda e, v: e._sequence("l", v),
    # Distinct from "l": torch compares arguments of nodes with other values, and the types have to match.
    immutable_list: lambda e, v: e._sequence("il", v),
    dict: ValueEncoder._dict,
    immutable_dict: lambda e, v: ["id", *e._dict(v)[1:]],
    torch.Size: lambda e, v: e._sequence("size", v),
    torch.SymInt: ValueEncoder.symbolic,
    torch.SymFloat: ValueEncoder.symbolic,
    torch.SymBool: ValueEncoder.symbolic,
    torch.dtype: lambda _, v: ["dtype", dtype_name(v)],
    torch.device: lambda e, v: ["device", *e.device(v)],
    torch.layout: lambda _, v: ["layout", str(v).removeprefix("torch.")],
    torch.memory_format: lambda _, v: ["memory_format", str(v).removeprefix("torch.")],
    type(...): lambda _, v: ["..."],
    complex: lambda e, v: e._sequence("complex", (v.real, v.imag)),
    slice: lambda e, v: e._sequence("slice", (v.start, v.stop, v.step)),
    range: lambda _, v: ["range", v.start, v.stop, v.step],
    bytes: lambda _, v: ["bytes", v],
    Group: lambda _, v: ["group", v.number],
    DeviceName: ValueEncoder._device_name,
    tensors.OpaqueInput: lambda _, v: ["opaque", v.class_name],
}
