"""A program's operators and registrations as bytes, for a process whose imports do not make them.

    operators       of `torch.library.custom_op` that are defined in the main script, in a notebook or in a function
    registrations   functions that a program put into Inductor's tables of lowerings and decompositions

Functions of importable modules are sent by name, all others as code with the objects that they refer to (cloudpickle).
The worker compares the digest of each rebuilt function with the sender's, so it never compiles with a function that
lost a part on the way.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import torch

from fxpool import notices
from fxpool.torch_compat.operators import code_owner, operator_tables, operators
from fxpool.torch_compat.operators.operator_overrides import forget_what_was_gathered
from fxpool.torch_compat.patching import Patches

__all__ = [
    "NotBroughtError",
    "as_bytes",
    "bring_operator",
    "from_bytes",
    "is_custom_op",
    "is_made_by_import",
    "operator_as_bytes",
    "registrations_as_bytes",
    "settle_registrations",
]

log = notices.logger(__name__)

#: The largest definition that is sent: a model in a closure should not be sent with each graph.
LIMIT = 16 * 1024 * 1024  # bytes

# The attributes of torch's `CustomOpDef` that are functions or plain data, besides those that its methods set.
_FLAGS = ("_is_inplace", "_is_out", "_out_kwarg_names")


class NotBroughtError(Exception):
    """A received definition cannot be registered here; the text says why."""


class _Definition(NamedTuple):
    namespace: str
    name: str
    schema: str
    tags: Sequence[str]
    tags_in_tuple: bool
    function: Any
    kernels: Mapping[str | None, Any]
    fake: Any
    setup_context: Any
    backward: Any
    vmap: Any
    autocast: Mapping[str, torch.dtype]
    disabled: Sequence[str]
    flags: Mapping[str, Any]


class _Entry(NamedTuple):
    """One function in one of Inductor's tables; `key` is an operator."""

    module: str
    table: str
    key: Any
    function: Any


# ------------------------------------------------------------------------------------ operators


def operator_as_bytes(target: Any) -> bytes | None:
    """Return the definition of an operator for `bring_operator`; None if it cannot be sent."""
    definition = operators.custom_op(target)
    if definition is None or getattr(definition, "_torch_dispatch_fns", None):
        return None
    if getattr(definition, "_used_triton_kernels", None):
        return None
    made = _Definition(
        namespace=definition._namespace,
        name=definition._name,
        schema=definition._schema,
        tags=[_name_of_tag(tag) for tag in definition._tags],
        tags_in_tuple=isinstance(definition._tags, tuple),
        function=definition._init_fn,
        kernels={device: _given(function) for device, function in definition._backend_fns.items()},
        fake=definition._abstract_fn,
        setup_context=definition._setup_context_fn,
        backward=definition._backward_fn,
        vmap=definition._vmap_fn,
        autocast=_autocast(definition),
        disabled=sorted(definition._disabled_kernel),
        flags={name: getattr(definition, name) for name in _FLAGS if getattr(definition, name, None)},
    )
    return _dumped(made)


def is_made_by_import(target: Any) -> bool:
    """Return whether importing modules defines an operator of `custom_op`, which a script or function does not."""
    definition = operators.custom_op(target)
    if definition is None:
        return True
    functions = [definition._init_fn, definition._abstract_fn, definition._backward_fn, definition._setup_context_fn]
    return all(function is None or _is_of_a_module(function) for function in functions)


def _is_of_a_module(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    return (
        module not in code_owner.MAIN
        and module in sys.modules
        and "<locals>" not in getattr(function, "__qualname__", "")
    )


def is_custom_op(target: Any) -> bool:
    """Return whether `torch.library.custom_op` defined an operator, here or in the process that sent it."""
    return operators.custom_op(target) is not None


def _given(kernel: Any) -> Any:
    """Return the program's function inside torch's wrappers of a kernel, which are nested through `fn`."""
    while isinstance(kernel, types.FunctionType) and str(kernel.__globals__.get("__name__")).startswith("torch."):
        names = kernel.__code__.co_freevars
        if kernel.__closure__ is None or "fn" not in names:
            break
        kernel = kernel.__closure__[names.index("fn")].cell_contents
    return kernel


def _name_of_tag(tag: Any) -> str:
    return str(getattr(tag, "name", None) or tag).rpartition(".")[2]


def _autocast(definition: Any) -> dict[str, torch.dtype]:
    by_device = getattr(definition, "_autocast_dtype", None)  # since 2.13
    if by_device is None:
        by_device = {kind: getattr(definition, f"_autocast_{kind}_dtype", None) for kind in ("cpu", "cuda")}
    return {kind: dtype for kind, dtype in by_device.items() if dtype is not None}


# Definitions that this process received, by the operator's name.
_brought: dict[str, bytes] = {}


def bring_operator(data: bytes) -> None:
    """Define an operator of another process in this process, replacing an operator of the same name.

    Raises NotBroughtError.
    """
    definition: _Definition = _loaded(data)
    qualified = f"{definition.namespace}::{definition.name}"
    if _brought.get(qualified) == data:
        return
    from torch._library.custom_ops import CustomOpDef

    tags = tuple(getattr(torch.Tag, name) for name in definition.tags)
    try:
        # In the original type of container, which is part of the digest.
        given = tags if definition.tags_in_tuple else list(tags)
        made = CustomOpDef(definition.namespace, definition.name, definition.schema, definition.function, given or None)
        for name, value in definition.flags.items():
            setattr(made, name, value)
        for device, kernel in definition.kernels.items():
            made.register_kernel(device)(kernel)
        if definition.fake is not None:
            made.register_fake(definition.fake)
        if definition.backward is not None:
            made.register_autograd(definition.backward, setup_context=definition.setup_context)
        if definition.vmap is not None:
            made.register_vmap(definition.vmap)
        for kind, dtype in definition.autocast.items():
            made.register_autocast(kind, dtype)
        made._disabled_kernel.update(definition.disabled)
    except Exception as error:  # torch's registrations may raise anything
        raise NotBroughtError(f"the operator {qualified}: {type(error).__name__}: {error}") from error
    _brought[qualified] = data
    forget_what_was_gathered()


# ------------------------------------------------------------------------------- registrations


def registrations_as_bytes(entries: Iterable[tuple[str, str, Any, Any]]) -> list[bytes]:
    """Return entries of Inductor's tables, as (module, table, operator, function), for `settle_registrations`.

    An entry that cannot be sent is left out: a compile that needs it ends as if it were unknown.
    """
    dumped = (_dumped(_Entry(*entry)) for entry in entries)
    return [one for one in dumped if one is not None]


# Entries that this process received, and their replacements in Inductor's tables.
_settled: list[bytes] = []
_replacements = Patches()


def settle_registrations(wanted: Sequence[bytes]) -> None:
    """Put entries of another process into Inductor's tables, and remove those of earlier calls.

    An entry for an operator that is not defined here is left out: the graph does not call it.
    """
    if _settled == list(wanted):
        return
    _replacements.restore()
    _settled.clear()
    try:
        for data in wanted:
            try:
                entry: _Entry = _loaded(data)
            except NotBroughtError as error:
                log.info("leaving out a registration: %s", error)
                continue
            table = getattr(importlib.import_module(entry.module), entry.table)
            _replacements.replace_item(table, entry.key, entry.function)
            _settled.append(data)
    finally:
        forget_what_was_gathered()


# ---------------------------------------------------------------------------------------- bytes


class _Pickler(cloudpickle.Pickler):
    """Pickles operators and Inductor's tables by name, and wrappers of lowerings as functions of Inductor's module.

    `functools.wraps` gave these the module of the function inside, so pickling by value would copy their globals.
    """

    def persistent_id(self, value: Any) -> Any:
        return operator_tables.place_of(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch._ops.OpOverload):
            return operators.find_overload, (operators.overload_name(value),)
        if isinstance(value, torch._ops.OpOverloadPacket):
            return operators.find_packet, (operators.packet_name(value),)
        if isinstance(value, types.ModuleType) and value.__name__ == "torch.ops":
            return _ops, ()
        if isinstance(value, types.FunctionType) and code_owner.inductors_wrapper(value):
            held = tuple(cell.cell_contents for cell in value.__closure__ or ())
            names = value.__name__, value.__qualname__, value.__module__
            code = value.__code__.co_name, value.__code__.co_firstlineno
            return _wrapper, (value.__globals__["__name__"], code, names, value.__defaults__, held)
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    """Finds Inductor's tables by name."""

    def persistent_load(self, pid: Any) -> Any:
        module, name = pid
        return getattr(importlib.import_module(module), name)


def _wrapper(
    home: str, found_at: tuple[str, int], names: tuple[str, str, str], defaults: Any, held: tuple[Any, ...]
) -> Any:
    """Return a function with the code of a function inside one of a module's functions."""
    module = importlib.import_module(home)
    functions = [value.__code__ for value in vars(module).values() if isinstance(value, types.FunctionType)]
    code = next(one for outer in functions for one in _inner(outer) if (one.co_name, one.co_firstlineno) == found_at)
    made = types.FunctionType(code, vars(module), names[0], defaults, tuple(map(types.CellType, held)))
    made.__qualname__, made.__module__ = names[1:]
    return made


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inner(constant)


def _ops() -> Any:
    return torch.ops


@contextlib.contextmanager
def _main_by_value() -> Iterator[None]:
    """Let cloudpickle treat the script of a spawned process as the main script, which it is."""
    main = sys.modules.get("__mp_main__")
    known = cloudpickle.list_registry_pickle_by_value()
    if main is None or main.__name__ != "__mp_main__" or main.__name__ in known:
        yield
        return
    cloudpickle.register_pickle_by_value(main)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(main)


def as_bytes(value: Any) -> bytes | None:
    """Return configured code, such as a pass, for `from_bytes`; None if it cannot be sent."""
    return _dumped(value)


def from_bytes(data: bytes) -> Any:
    """Return the value given to `as_bytes`. Raises NotBroughtError."""
    return _loaded(data)


def _dumped(value: Any) -> bytes | None:
    file = io.BytesIO()
    try:
        with _main_by_value():
            _Pickler(file, protocol=5).dump(value)
    except Exception:  # the program's objects may raise anything: they cannot be sent
        return None
    return file.getvalue() if file.tell() <= LIMIT else None


def _loaded(data: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # it imports the program's modules, which may raise anything
        raise NotBroughtError(f"code from another process: {type(error).__name__}: {error}") from error
