"""Rebuild a graph and its inputs from plain data in the worker that compiles them: the reverse of `graph_codec`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpool.codecache.code import proof
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.graph import graph_names
from fxpool.codecache.graph.graph_codec import gm_attribute
from fxpool.codecache.guards import guards
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.cuda import attention
from fxpool.torch_compat.dynamo import process_groups, shape_env, tensors
from fxpool.torch_compat.operators import operators
from fxpool.torch_compat.triton import user_kernels


class GraphDecoder:
    """Rebuilds the graphs and inputs of one request in a worker.

    `builder` creates fake tensors; `env` is the ShapeEnv of their symbols (None without symbols); `constants` are the
    tensors that were sent with the graph, by number. `parameters` maps the names of parameters and buffers to those in
    the rebuilt graph.
    """

    def __init__(self, builder: tensors.Builder, env: shape_env.ShapeEnv | None, constants: Sequence[Any]) -> None:
        self._builder = builder
        self._env = env
        self._symbols = shape_env.symbols(env) if env is not None else {}
        self._constants = constants
        self._nodes: list[torch.fx.Node] = []
        self._kernels: dict[int, int] = {}
        self.parameters: dict[str, str] = {}

    def decode(
        self, description: list[Any], names: Sequence[Any], debug: Sequence[Any] | None = None
    ) -> torch.fx.GraphModule:
        """Return the graph module, with its names and the metadata of `debug`. Raises CannotTravelError."""
        gm = self._module(graph_names.named(description, names))
        for node, (trace, operator) in zip(self._nodes, debug or (), strict=False):
            if trace:
                node.meta["stack_trace"] = trace
            if operator:
                with contextlib.suppress(AttributeError):  # its library may not be loaded here
                    node.meta["original_aten"] = operators.find_overload(operator)
        return gm

    def _module(self, description: list[Any]) -> torch.fx.GraphModule:
        _, nodes, attributes, lifted, meta = description
        root = torch.nn.Module()
        nested: dict[str, list[Any]] = dict(attributes)
        flat = self._flat([name for name, _, _ in lifted], nested)
        parameters = {flat[name]: (self.value(tensor), is_parameter) for name, is_parameter, tensor in lifted}
        for name, (tensor, is_parameter) in parameters.items():
            _place(root, name, tensor, is_parameter)
        placed: set[str] = set()
        graph = torch.fx.Graph()
        for op, name, target, args, kwargs, node_meta in nodes:
            # In the encoder's order: the nodes of a nested graph are numbered where it is first named.
            if op in graph_names.OF_ATTRIBUTES:
                if target in nested and target not in placed:
                    placed.add(target)
                    row = nested[target]
                    _place(root, target, self._module(row) if row[0] == "graph" else self.value(row), None)
                target = flat.get(target, target)
            node_target = target if isinstance(target, str) else self.function(target)
            node = graph.create_node(op, node_target, self.value(args), dict(self.value(kwargs)), name)
            for key, value in node_meta:
                node.meta[key] = self._bindings(value) if key == "unbacked_bindings" else self.value(value)
            self._nodes.append(node)
        gm = torch.fx.GraphModule(root, graph)
        for name in placed:  # GraphModule copies only attributes that the graph names, and turns tensors into buffers
            row = nested[name]
            if row[0] == "constant":
                _unregister(gm, name, gm_attribute(root, name))
        for name in parameters:
            if name in gm._parameters or name in gm._buffers:
                delattr(gm, name)  # copied in the order of use, instead of the order in which they are passed
        for name, (tensor, is_parameter) in parameters.items():
            _place(gm, name, tensor, is_parameter)
        gm.meta.update({name: self.value(value) for name, value in meta})
        return gm

    def _flat(self, lifted: Sequence[str], others: Iterable[str]) -> dict[str, str]:
        """Return names without dots for parameters: in modules they would be lifted in the order of the modules."""
        flat: dict[str, str] = {}
        taken = {name.partition(".")[0] for name in others}
        for name in lifted:
            flat[name] = name.replace(".", "_")
            while flat[name] in taken:
                flat[name] += "_"
            taken.add(flat[name])
        self.parameters |= flat
        return flat

    def _bindings(self, row: list[Any]) -> dict[Any, Any]:
        return {guards.decode(symbol, self._symbols): tuple(map(self.value, path)) for symbol, path in row[1:]}

    def value(self, data: Any) -> Any:
        """Rebuild a value that `GraphEncoder.value` encoded."""
        if not isinstance(data, list):
            return data
        return _DECODERS[data[0]](self, data)

    def symbolic(self, kind: str, expr: Any) -> Any:
        """Rebuild a symbolic number in the decoder's ShapeEnv. Raises CannotTravelError without one."""
        if self._env is None:
            raise CannotTravelError("symbols_without_shapes")
        return shape_env.make(self._env, guards.decode(expr, self._symbols), kind, None)

    def tensor(self, row: list[Any]) -> torch.Tensor:
        """Build the fake tensor of an encoded row."""
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
        values["item"] = self.value(values["item"])
        return tensors.TensorFacts(**values)

    def constant(self, number: int) -> torch.Tensor:
        """Return the constant with this number."""
        return self._constants[number]

    def kernel(self, number: int, digest: str, description: list[Any]) -> int:
        """Return a Triton kernel's index in this process's table.

        Raises CannotTravelError: the kernel imported here has another digest, or can't be described.
        """
        if number not in self._kernels:
            try:
                function = user_kernels.find(description)
                own_digest = proof.digest_of(function)
            except (user_kernels.NotDescribedError, UnprovenError) as error:
                raise CannotTravelError(getattr(error, "reason", "triton_kernel_source"), str(error)) from error
            if own_digest != digest:
                raise CannotTravelError(
                    "triton_kernel_differs", f"{description[0]}.{description[1]} differs where it is imported"
                )
            self._kernels[number] = user_kernels.add(function, description)
        return self._kernels[number]

    def function(self, row: list[Any]) -> Any:
        """Find an encoded function, operator or class. Raises ImportError, AttributeError or KeyError."""
        kind, *names = row
        if kind == "attention":
            return attention.with_implementation(names[0])
        if kind == "op":
            return operators.find_overload(names[0])
        if kind == "packet":
            return operators.find_packet(names[0])
        if kind == "hop":
            return operators.find_higher_order(*names)
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
    """Turn a buffer back into a plain attribute: AOTAutograd would lift a buffer into an input."""
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
    "il": lambda d, r: immutable_list(map(d.value, r[1:])),
    "d": lambda d, r: {d.value(k): d.value(v) for k, v in r[1:]},
    "id": lambda d, r: immutable_dict({d.value(k): d.value(v) for k, v in r[1:]}),
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
    "kernel": lambda d, r: d.kernel(*r[1:]),
    "kernel_constants": lambda d, r: user_kernels.add_constants(r[1]),
    "dtype": lambda d, r: getattr(torch, r[1]),
    "device": lambda d, r: torch.device(*[p for p in r[1:] if p is not None]),
    "layout": lambda d, r: getattr(torch, r[1]),
    "memory_format": lambda d, r: getattr(torch, r[1]),
    "...": lambda d, r: ...,
    "complex": lambda d, r: complex(d.value(r[1]), d.value(r[2])),
    "slice": lambda d, r: slice(*map(d.value, r[1:])),
    "range": lambda d, r: range(*r[1:]),
    "bytes": lambda d, r: r[1],
    "opaque": lambda d, r: tensors.opaque_stand_in(r[1]),
    "group": lambda d, r: process_groups.name_in_code(r[1]),
}
