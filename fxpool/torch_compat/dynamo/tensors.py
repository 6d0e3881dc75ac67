"""A tensor's description, and the fake tensor made from it in another process. Constants and inputs of other kinds.

torch's own graph pickler refuses views (it clears the fake mode of a view but not of its base), so fxpool has its own
descriptions. The tensor is built by torch's MetaConverter, which preserves views, shared storages and leaves. Sizes,
strides and offsets may be symbolic.

A weight that Inductor's freezing packs for MKL's linear layer is bound to its address, because MKL stores alignments in
it, and it contains uninitialized memory: it can be neither copied nor hashed. The layer's call has the weight itself as
well, from which the form is made again (`mkl_packing`, `pack_for_mkl`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch._subclasses.fake_tensor as fake_tensor
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.meta_utils import (
    MetaConverter,
    MetaStorageDesc,
    MetaTensorDesc,
    safe_is_leaf,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch


class TensorFacts(NamedTuple):
    """The facts about a dense tensor that a compile needs. `base` is the tensor a view was made from.

    `item`: the symbol of the number that Dynamo has wrapped into this tensor.
    """

    identity: int
    storage: int
    nbytes: Any
    dtype: torch.dtype
    device: torch.device
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool
    is_conj: bool
    is_neg: bool
    is_inference: bool
    creation_meta: int | None
    base: TensorFacts | None
    item: torch.SymInt | torch.SymFloat | None = None


class UnsupportedTensor(Exception):
    """A tensor that is not a plain block of memory with sizes and strides; the message says why."""


class Describer:
    """Describes tensors of one request: one number per tensor and per storage, in order of appearance."""

    def __init__(self) -> None:
        # References to tensors and storages are kept, so that a new object cannot reuse an id.
        self._tensors: dict[int, tuple[torch.Tensor, int]] = {}
        self._storages: dict[int, tuple[Any, int]] = {}

    def describe(self, tensor: torch.Tensor) -> TensorFacts:
        """Return the facts of a fake or real dense tensor.

        Raises:
            UnsupportedTensor: a subclass, a sparse, nested or quantized tensor, a functorch wrapper.
        """
        refuse_unusual(tensor)
        _, identity = self._tensors.setdefault(id(tensor), (tensor, len(self._tensors)))
        storage = tensor.untyped_storage()
        _, storage_id = self._storages.setdefault(storage._cdata, (storage, len(self._storages)))
        is_view = tensor._is_view()
        base = self.describe(tensor._base) if is_view and tensor._base is not None else None
        return TensorFacts(
            identity=identity,
            storage=storage_id,
            nbytes=storage.size(),
            dtype=tensor.dtype,
            device=tensor.device,
            size=tuple(tensor.size()),
            stride=tuple(tensor.stride()),
            offset=tensor.storage_offset(),
            requires_grad=tensor.requires_grad,
            is_leaf=safe_is_leaf(tensor),
            is_parameter=isinstance(tensor, torch.nn.Parameter),
            is_conj=tensor.is_conj(),
            is_neg=tensor.is_neg(),
            is_inference=tensor.is_inference(),
            creation_meta=int(torch._C._autograd._get_creation_meta(tensor)) if base is not None else None,
            base=base,
            item=item_of(tensor),
        )


def item_of(tensor: torch.Tensor) -> torch.SymInt | torch.SymFloat | None:
    """Return the symbol of a number that Dynamo wrapped into an input tensor: the result of ``item()``.

    None for any other tensor, such as those on which the graph itself calls ``item()``.
    """
    known = getattr(tensor, "item_memo", None) if is_fake(tensor) and tensor.dim() == 0 else None
    if not isinstance(known, (torch.SymInt, torch.SymFloat)) or free_unbacked_symbols(known):
        return None
    return known


_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor))


def refuse_unusual(tensor: torch.Tensor) -> None:
    """Raise UnsupportedTensor unless `tensor` is plain and dense (Parameters and fake tensors included)."""
    # By exact type: all other subclasses are refused, including those that wrap tensors.
    if type(tensor) not in _PLAIN_TYPES:
        raise UnsupportedTensor(f"tensor subclass {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise UnsupportedTensor(f"layout {tensor.layout}")
    if tensor.is_nested:
        raise UnsupportedTensor("nested tensor")
    if tensor.is_quantized:
        raise UnsupportedTensor("quantized tensor")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        raise UnsupportedTensor("functorch or functionalization wrapper")


class PackedTensor(NamedTuple):
    """A tensor in a oneDNN layout, for another process: its dense values, to be packed again there."""

    dense: torch.Tensor


def to_travel(tensor: torch.Tensor) -> torch.Tensor | PackedTensor:
    """Return a constant in a form that can be pickled."""
    return PackedTensor(tensor.to_dense()) if tensor.is_mkldnn else tensor


def travelled(constant: torch.Tensor | PackedTensor) -> torch.Tensor:
    """Return the constant of `to_travel`, packed again if it was packed."""
    return constant.dense.to_mkldnn() if isinstance(constant, PackedTensor) else constant


class Builder:
    """Makes fake tensors of `fake_mode` from facts, views and shared storages included."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        self._fake_mode = fake_mode
        self._converter: MetaConverter[FakeTensor] = MetaConverter()

    def build(self, facts: TensorFacts) -> FakeTensor:
        """Return the fake tensor for `facts`."""

        def with_fake(make: Any, device: torch.device | str) -> FakeTensor:
            with no_dispatch():
                return FakeTensor(self._fake_mode, make(), device)

        made = self._converter.meta_tensor(self._describe(facts), self._fake_mode.shape_env, with_fake, None, None)
        if facts.item is not None:
            made.item_memo = facts.item
        return made

    def _describe(self, facts: TensorFacts) -> MetaTensorDesc[Any]:
        fields: dict[str, Any] = {
            "id": facts.identity,
            "ndim": len(facts.size),
            "dtype": facts.dtype,
            "device": facts.device,
            "size": facts.size,
            "dynamo_dynamic_indices": [],
            "dynamo_hint_overrides": {},
            "is_inference": facts.is_inference,
            "is_leaf": facts.is_leaf,
            "requires_grad": facts.requires_grad,
            "is_view": facts.base is not None,
            "is_conj": facts.is_conj,
            "is_neg": facts.is_neg,
            "is_parameter": facts.is_parameter,
            "stride": facts.stride,
            "storage_offset": facts.offset,
            "storage": MetaStorageDesc(id=facts.storage, size=facts.nbytes, data=None),
            "base": self._describe(facts.base) if facts.base is not None else None,
            "creation_meta": (
                torch._C._autograd.CreationMeta(facts.creation_meta) if facts.creation_meta is not None else None
            ),
            "fake_mode": self._fake_mode,
        }
        known = {field.name for field in dataclasses.fields(MetaTensorDesc)}
        return MetaTensorDesc(**{name: value for name, value in fields.items() if name in known})


# Since 2.14: also recognizes fake tensors without a separate Python class.
_is_fake_tensor = getattr(fake_tensor, "is_fake_tensor", None)


def is_fake(value: Any) -> bool:
    """Return whether a value is a tensor without contents."""
    return isinstance(value, FakeTensor) or (_is_fake_tensor is not None and _is_fake_tensor(value))


def is_plain_fake(value: Any) -> bool:
    """Return whether a value is a fake tensor, or a fake parameter, and of no other subclass."""
    return is_fake(value) and type(value) in (FakeTensor, torch.Tensor, torch.nn.Parameter)


def new_fake_mode(shape_env: Any) -> FakeTensorMode:
    """Return a fake mode for compiling: real tensors among its inputs (constants) are used as they are."""
    return FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)


def modes_disabled() -> Any:
    """Return a context without dispatch modes, for real tensors: AOTAutograd compiles under a fake mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def fake_mode_of(tensor: Any) -> Any:
    """Return the mode a fake tensor belongs to."""
    return tensor.fake_mode


@contextlib.contextmanager
def no_new_guards(tensor: Any) -> Iterator[None]:
    """Keep questions about symbolic sizes from becoming guards during a ``with`` block."""
    env = tensor.fake_mode.shape_env
    with env.suppress_guards() if env is not None else contextlib.nullcontext():
        yield


def flatten(value: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the values in nested containers, and a function that rebuilds the containers from as many other values."""
    leaves, spec = _pytree.tree_flatten(value)
    return leaves, lambda others: _pytree.tree_unflatten(list(others), spec)


class OpaqueInput:
    """Replaces an input that is not a value when it is encoded, by the name of its class (torch 2.13 and later).

    DTensor's device mesh is an input of the graph that AOTAutograd makes. The graph only passes it on to the backward.
    A worker gets an object of the same class in its place.
    """

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name


def with_opaque_inputs(graph: torch.fx.Graph, inputs: list[Any]) -> list[Any]:
    """Return the inputs, with an `OpaqueInput` for each object that the graph only returns or does not use."""
    if not any(isinstance(value, FakeScriptObject) for value in inputs):
        return inputs
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    return [
        OpaqueInput(value.script_class_name)
        if isinstance(value, FakeScriptObject) and all(user.op == "output" for user in node.users)
        else value
        for node, value in zip(placeholders, inputs, strict=True)
    ]


def opaque_stand_in(class_name: str) -> Any:
    """Return an object to compile with, in place of an input of this class."""
    return FakeScriptObject(None, class_name, None)


class UnknownPackingError(Exception):
    """A packed weight is used in a way that does not say what it was made from."""


class MklPacking(NamedTuple):
    """The origin of a packed weight: the node of the weight, and the number of rows of the layer's input."""

    weight: torch.fx.Node
    rows: int


def mkl_packing(node: torch.fx.Node) -> MklPacking | None:
    """Return the origin of the constant of a ``get_attr`` node; None if no linear layer of MKL takes it.

    Raises:
        UnknownPackingError: it has other uses as well, or different ones.
    """
    if not torch._C.has_mkl or node.op != "get_attr":
        return None
    users = [user for one in node.graph.find_nodes(op="get_attr", target=node.target) for user in one.users]
    packings = {_packing(user) for user in users if _takes_packed(user, node.target)}
    if not packings:
        return None
    if len(packings) > 1 or None in packings or not all(_takes_packed(user, node.target) for user in users):
        raise UnknownPackingError(f"{node.target} is packed for MKL, and has other uses")
    return packings.pop()


def _takes_packed(user: torch.fx.Node, target: object) -> bool:
    linear = (torch.ops.mkl._mkl_linear, torch.ops.mkl._mkl_linear.default)
    return user.target in linear and len(user.args) > 1 and _is_constant(user.args[1], target)


def _packing(user: torch.fx.Node) -> MklPacking | None:
    packed, weight, *_, rows = user.args[1:]
    if len(user.args) != 5 or not _is_constant(weight) or user.args.count(packed) != 1 or type(rows) is not int:
        return None
    assert isinstance(weight, torch.fx.Node)
    return MklPacking(weight, rows)


def _is_constant(value: object, target: object = None) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "get_attr" and target in (None, value.target)


def pack_for_mkl(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Return `weight` packed for inputs of `rows` rows."""
    packed: torch.Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach(), rows)
    return packed
