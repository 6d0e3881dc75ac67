"""Digest tensors, operators, Triton kernels, and the wrappers that torch puts around a program's functions.

Never imports torch or Triton: without them such values do not exist.

The modules that inspect torch's operators are imported inside functions, for the same reason.
"""

from __future__ import annotations

import ctypes
import dis
import enum
import functools
import hashlib
import os
import sys
import types
from typing import Any, Protocol

from fxpool.codecache.code.code_references import is_named_by_version, top_level, version_of
from fxpool.codecache.code.source_files import digest_file

#: Prefix of the names of an operator's parts that tracing does not run.
LATER = "later: "


class Digester(Protocol):
    """The interface of `digester.Digester` that this module uses; `digester` imports this module."""

    runs_later: bool

    def token(self, tag: str, data: str | bytes = b"") -> None: ...
    def add(self, value: Any, name: str = "") -> None: ...
    def met(self, value: Any) -> bool: ...
    def child(self) -> Digester: ...
    def refuse(self, what: str) -> Exception: ...
    def hexdigest(self) -> str: ...


def add(digester: Digester, value: Any) -> bool:
    """Write a value of a torch or Triton type; return False for any other value."""
    return _add_of_torch(digester, value) or _add_triton(digester, value)


# Inductor's tables, which the program's lowerings may read. The program's registrations in them have separate digests
# (`program_code`); all other entries are torch's.
_TABLES = (
    ("torch._inductor.lowering", "lowerings"),
    ("torch._inductor.lowering", "fallbacks"),
    ("torch._inductor.decomposition", "decompositions"),
)


def table_name(value: Any) -> str:
    """Return the name of `value` if it is a table of Inductor, else ""."""
    for module, attribute in _TABLES:
        if value is getattr(sys.modules.get(module), attribute, None):
            return f"{module}.{attribute}"
    return ""


def _add_of_torch(digester: Digester, value: Any) -> bool:
    """Write a value of a torch type; return False for any other value, or if torch is not imported."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):
        return False
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        digester.token("torch", f"{type(value).__name__} {value}")
    elif isinstance(value, torch.Size):
        digester.token("torch.Size", repr(tuple(value)))
    elif isinstance(value, torch.Tensor):
        _add_tensor(digester, torch, value)
    elif type(value).__module__ == "torch._ops":
        add_operator(digester, value)
    elif top_level(type(value).__module__) == "torch":
        from fxpool.torch_compat.operators.custom_operators import operator_behind

        operator = operator_behind(value)
        if operator is None:
            return False
        add_operator(digester, operator)
    else:
        return False
    return True


def _add_tensor(digester: Digester, torch: Any, tensor: Any) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise digester.refuse(f"a tensor of the class {type(tensor).__qualname__}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise digester.refuse(f"a tensor on {tensor.device} with layout {tensor.layout}")
    traits = (str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
    digester.token("tensor", repr(traits))
    plain = tensor.detach().contiguous()
    if type(plain) is not torch.Tensor:  # an active dispatch mode changed its type
        raise digester.refuse("a tensor under a dispatch mode")
    size = plain.numel() * plain.element_size()
    digester.token("content", hashlib.sha256(ctypes.string_at(plain.data_ptr(), size) if size else b"").digest())


def add_operator(digester: Digester, op: Any) -> None:
    """Write an operator, with its registrations if the program defines it. Raises UndigestableError."""
    from fxpool.torch_compat.operators import operators

    if operators.is_higher_order(op):
        digester.token("higher order operator", operators.higher_order_name(op))
        return
    if not (operators.is_overload(op) or operators.is_packet(op)):
        # `torch.ops` and its namespaces: the operators read from them are written separately.
        digester.token("operators", str(getattr(op, "__name__", "")))
        return
    digester.token("operator", operators.overload_name(op) if operators.is_overload(op) else operators.packet_name(op))
    if operators.is_builtin(op) or digester.met(op):
        return
    for part, digest in parts_of_operator(op, digester).items():
        digester.token("part", part)
        digester.token("digest", digest)


def parts_of_operator(op: Any, digester: Digester, *, after_autograd: bool = False) -> dict[str, str]:
    """Return digests of the program's registrations for an operator, by part.

    Names of parts that do not run during tracing begin with `LATER`. With `after_autograd`, only the parts that graphs
    need after AOTAutograd are included.

    Raises UndigestableError: a part has no digest, or the operator's registration is unknown.
    """
    from fxpool.torch_compat.operators import operators, registrations

    name = operators.pretty_name(op)
    try:
        registered = registrations.registration(op)
    except registrations.NotFoundError as error:
        raise digester.refuse(str(error)) from error
    if not registered.is_known:
        raise digester.refuse(f"the operator {name}, whose registration has no file")
    digests: dict[str, str] = {}
    for part, (value, runs_later, before_autograd) in sorted(registered.parts.items()):
        if after_autograd and before_autograd:
            continue
        inner = digester.child()
        if runs_later:
            inner.runs_later = True
        inner.add(value, f"{part} of the operator {name}")
        digests[f"{LATER if runs_later else ''}{part}"] = inner.hexdigest()
    try:
        for path in registered.files:
            # The whole file is included, which covers code reached by a computed name. Its imports are not followed.
            digests[f"{LATER}file {os.path.basename(path)}"] = digest_file(path)
        for path in registered.libraries:
            digests[f"library {os.path.basename(path)}"] = digest_file(path)
    except OSError as error:
        raise digester.refuse(f"the operator {name}: {error}") from error
    return digests


def add_wrapper(digester: Digester, function: types.FunctionType) -> None:
    """Write a wrapper from torch around a program's function: torch's code by name, the program's parts by content.

    Closure variables that the wrapper assigns (a flag that it has been called, cached results) are state and left out.
    """
    written = _written(function.__code__)
    digester.token("wrapper", f"{function.__module__}.{function.__qualname__} {version_of('torch')}")
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if variable in written:
            continue
        digester.token("holds", variable)
        _add_held(digester, content)


def _written(code: types.CodeType) -> set[str]:
    """Return the closure variables that a code object assigns to."""
    names = {str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_DEREF"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _written(constant)
    return names


def _add_held(digester: Digester, value: Any) -> None:
    """Write a value held by a wrapper, as far as it is plain data or belongs to the program."""
    if value is None or isinstance(value, (bool, int, float, str)):
        digester.add(value)
    elif isinstance(value, (types.FunctionType, enum.Enum)):
        digester.add(value)  # another wrapper, or the program's function
    elif isinstance(value, type):
        if is_named_by_version(value) or top_level(value.__module__) != "torch":
            digester.add(value)
        elif not digester.met(value):
            for name, attribute in sorted(vars(value).items()):
                if isinstance(attribute, (staticmethod, classmethod, types.FunctionType)):
                    digester.token("attribute", name)
                    _add_held(digester, getattr(attribute, "__func__", attribute))
    elif isinstance(value, (tuple, list)):
        digester.token("items", str(len(value)))
        for item in value:
            _add_held(digester, item)
    elif isinstance(value, dict):
        digester.token("items", str(len(value)))
        for key, item in value.items():
            _add_held(digester, key)
            _add_held(digester, item)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            _add_held(digester, part)
    elif top_level(type(value).__module__) in ("torch", "builtins"):
        if not digester.met(value):
            digester.token("of torch", type(value).__qualname__)
            if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
                digester.token("value", str(value))
            for name in ("_backward_fn", "_setup_context_fn"):  # set by `torch.library.register_autograd`
                if hasattr(value, name):
                    _add_held(digester, getattr(value, name))
    else:
        digester.add(value)


def _add_triton(digester: Digester, value: Any) -> bool:
    """Write kernels (`JITFunction`: `fn`, `src`), autotuners (`fn`, `configs`), `constexpr`s and dtypes."""
    kind = type(value)
    if kind.__name__ == "constexpr" and hasattr(value, "value"):
        digester.token("constexpr")
        digester.add(value.value)
    elif kind.__name__ == "dtype" and top_level(kind.__module__) == "triton":
        digester.token("triton dtype", str(value))
    elif isinstance(getattr(value, "src", None), str) and isinstance(getattr(value, "fn", None), types.FunctionType):
        if not digester.met(value):
            digester.token("triton kernel", value.src)
            for name in ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment"):
                digester.add(_plain_or_text(getattr(value, name, None)), name)
            digester.add(value.fn, "the kernel's function")
    elif hasattr(value, "fn") and kind.__name__ in ("Autotuner", "Heuristics"):
        if not digester.met(value):
            digester.token("triton", kind.__name__)
            for config in getattr(value, "configs", ()):
                digester.token("config")
                digester.add(dict(sorted(vars(config).items())), "a configuration")
            for name in ("keys", "arg_names", "values", "restore_value", "reset_to_zero"):
                digester.add(getattr(value, name, None), name)
            digester.add(value.fn, "the kernel")
    else:
        return False
    return True


def _plain_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str, tuple, list, set, frozenset)) else repr(value)
