"""Facts that tracing depends on without a guard: about a program's objects, and torch's answers and configuration."""

from __future__ import annotations

import builtins
import enum
import functools
import inspect
import locale
import re
import sys
from typing import Any

import torch
from torch._dynamo import config, trace_rules
from torch._dynamo.variables.functions import PolyfilledFunctionVariable

__all__ = [
    "CONSTANT_RESULT", "MODULE_TABLES", "OF_DEVICES", "OPERATORS", "OPERATOR_NAMESPACE", "OVERLOAD",
    "WRAPPER_ADDRESS", "decimal_context", "devices", "folds", "is_folded", "is_numpys", "marks_of", "of_tensor",
    "polyfill_of", "polyfills", "schemas_of", "stable_name", "tracing_facts", "tree_functions", "without_addresses",
]  # fmt: skip

#: The types of operators, which their text names.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
#: The type of those of a packet.
OVERLOAD = torch._ops.OpOverload
#: A module that has each operator from the time that its name was first looked up.
OPERATOR_NAMESPACE = torch._ops._OpNamespace
#: Dynamo calls a function with this attribute while it traces, and keeps the result.
CONSTANT_RESULT = "_dynamo_marked_constant"
#: Dynamo puts an address under this attribute of functions that it does not trace.
WRAPPER_ADDRESS = "_torchdynamo_wrapper_id"
#: Attributes of a module that hold other attributes by name.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
# Attributes under which FSDP and its like keep their state: torch makes a random name for them in each process.
_COMPOSABLE = re.compile(r"(__composable_api_\w+_key)_[0-9a-f-]{36}")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Attributes of tensors that Dynamo reads for code, and makes no guard on.
_UNGUARDED = (
    "_backward_hooks",
    "_base",
    "_post_accumulate_grad_hooks",
    "grad_fn",
    "is_leaf",
    "names",
    "output_nr",
    "retains_grad",
)
# Attributes that decide whether a tensor is taken for a parameter or a buffer.
_MARKS = ("_is_buffer", "_is_param")
# Dynamo's sets of functions that it treats in another way.
_MARKED = ("_allowed_callable_ids", "_disallowed_callable_ids", "_leaf_function_ids", "_nonstrict_trace_callable_ids")
_STORAGE = frozenset(("untyped_storage", "storage", "_typed_storage"))
# Attributes under which Dynamo keeps what it decided about a tensor.
_OF_DYNAMO = "_dynamo_"


def without_addresses(text: str) -> str:
    """Return the text of an object without addresses, which differ between processes."""
    return _ADDRESS.sub("", text)


def of_tensor(tensor: torch.Tensor, looked_up: frozenset[str]) -> str:
    """Return what Dynamo makes no guard on: names of a tensor's attributes, and those of torch's that code looks up."""
    found = sorted(stable_name(name) for name in vars(tensor) if not name.startswith(_OF_DYNAMO))
    found += [f"{name}={vars(tensor)[name]!r}" for name in _MARKS if name in vars(tensor)]
    for name in _UNGUARDED:
        if name in looked_up:
            value = getattr(tensor, name, None)
            text = repr(value) if isinstance(value, (bool, int, tuple, type(None))) else type(value).__name__
            found.append(f"{name}={text}")
            if isinstance(value, torch.Tensor):
                found.append(_of_base(value))
    if not looked_up.isdisjoint(_STORAGE) and tensor.layout == torch.strided:
        found.append(f"nbytes={tensor.untyped_storage().nbytes()}")
    return " ".join(found)


def _of_base(tensor: torch.Tensor) -> str:
    strides = tensor.stride() if tensor.layout == torch.strided else ()
    return f"{tensor.dtype} {[*tensor.shape]} {[*strides]} {tensor.requires_grad} {tensor.is_leaf}"


def marks_of(function: Any) -> list[str]:
    """Return how Dynamo is told to treat a function, apart from its attributes."""
    return [name for name in _MARKED if id(function) in getattr(trace_rules, name, ())]


def polyfill_of(function: Any) -> Any | None:
    """Return the program's function that Dynamo traces in place of a function."""
    try:
        handler = PolyfilledFunctionVariable._get_polyfill_handlers().get(function)
    except TypeError:  # it is bound to an object without a hash
        return None
    return handler if handler is not None and not _is_torchs(handler) else None


def polyfills() -> list[tuple[Any, Any]]:
    """Return the functions in whose place Dynamo traces others of the program's, with these."""
    handlers = PolyfilledFunctionVariable._get_polyfill_handlers().items()
    return [(one, handler) for one, handler in handlers if not _is_torchs(handler)]


def _is_torchs(handler: Any) -> bool:
    return bool(handler.__module__.startswith("torch."))


def folds(polyfill: Any) -> bool:
    """Return whether Dynamo calls a function that has a polyfill, and takes the result for a constant."""
    return bool(getattr(polyfill, "__torch_dynamo_can_constant_fold_through__", False))


def schemas_of(operator: Any) -> list[str]:
    """Return the schemas of the overloads of an operator."""
    if isinstance(operator, torch._ops.OpOverload):
        return [str(operator._schema)]
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return sorted(map(str, torch._C._jit_get_schemas_for_operator(operator._qualified_op_name)))
    return []


def tree_functions(cls: type) -> list[Any]:
    """Return the functions by which torch takes objects of a class apart and puts them together; none for leaves."""
    node = torch.utils._pytree.SUPPORTED_NODES.get(cls)
    return [] if node is None else [node.flatten_fn, node.unflatten_fn]


def is_numpys(value: Any) -> bool:
    """Return whether a value is a function in C of numpy's, under its name."""
    numpy = sys.modules.get("numpy")
    name = getattr(value, "__name__", None) if numpy is not None and type(value) is vars(numpy).get("ufunc") else None
    return name is not None and vars(sys.modules["numpy"]).get(name) is value


def is_folded(cls: type) -> bool:
    """Return whether Dynamo takes objects of a class for constants, and runs its methods."""
    return issubclass(
        cls, (int, float, complex, str, bytes, tuple, enum.Enum)
    ) or torch.utils._pytree.is_constant_class(cls)


def stable_name(name: str) -> str:
    """Return an attribute's name without a part that is random in each process."""
    return _COMPOSABLE.sub(r"\1", name)


def tracing_facts() -> list[Any]:
    """Return them as plain data."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    return [sorted(_answers()), device, sorted(_configuration()), _interpreter()]


def decimal_context() -> str:
    """Return what results and errors of decimal numbers depend on in this thread."""
    import decimal

    context = decimal.getcontext()
    traps = sorted(one.__name__ for one, is_set in context.traps.items() if is_set)
    numbers = (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp)
    return f" {numbers} {traps}"


def _interpreter() -> list[str]:
    """Answers of Python's that Dynamo takes for constants."""
    importing = builtins.__import__
    digits = getattr(sys, "get_int_max_str_digits", int)()
    formats = [str(locale.setlocale(category)) for category in (locale.LC_CTYPE, locale.LC_NUMERIC)]
    return [str(sys.getrecursionlimit()), str(digits), f"{importing.__module__}.{importing.__qualname__}", *formats]


def _answers() -> list[list[str]]:
    """The results of functions without arguments that Dynamo calls while it traces."""
    from torch._dynamo.variables import torch as variables

    found = []
    for function in variables.constant_fold_functions:
        if function.__name__ not in OF_DEVICES and _takes_nothing(function):
            try:
                answer = repr(function())
            except Exception as error:  # no such device, no process group
                answer = type(error).__name__
            found.append([f"{getattr(function, '__module__', '')}.{function.__qualname__}", answer])
    return found


#: Functions that initialize CUDA. `facts` does not ask them.
OF_DEVICES = frozenset(("current_device", "current_device_index", "get_device_properties", "is_initialized"))


def devices() -> list[str]:
    """Return the current CUDA device and the properties of all. Initializes CUDA, as the code that asks does."""
    if not torch.cuda.is_available():
        return []
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [str(torch.cuda.current_device()), *map(repr, properties)]


@functools.cache
def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return True
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


def _configuration() -> list[list[str]]:
    found = []
    for name, value in config.get_config_copy().items():
        if isinstance(value, (set, frozenset)):
            value = sorted(map(str, value))
        if not callable(value):
            found.append([name, repr(value)])
    return found
