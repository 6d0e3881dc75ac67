"""Digests of the Python code that a compiled graph depends on, where torch's own keys see only a name.

A function's digest covers its code (not where it is written), its defaults, what its closure holds, and whatever its
global names lead to: the user's functions and classes with theirs in turn, constants and tensors by value, modules
and what belongs to torch, Triton or the standard library by name and version.

It is the same in every process and under every hash seed. What has no value that could be hashed (any object with
state of its own) raises `UndigestableError`: the caller does without the cache rather than serve old code.

Not seen: what is reached by `getattr` with a computed name, `eval`, or attributes of instances.
"""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import hashlib
import logging
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from fxpool import forks
from fxpool.codecache.references import (
    MISSING,
    NAMED_BY_VERSION,
    Named,
    globals_read,
    is_named_by_version,
    is_of_torch,
    top_level,
    version_of,
)

# What a class body leaves in the class besides code and values; `_autograd_function_id` counts definitions.
_SKIPPED_CLASS_ATTRIBUTES = frozenset(
    (
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__",
        "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__firstlineno__",
        "__static_attributes__", "__parameters__", "__orig_bases__", "__dataclass_fields__", "__dataclass_params__",
        "__type_params__", "__classcell__", "_autograd_function_id",
    )
)  # fmt: skip


class UndigestableError(ValueError):
    """Something that code depends on and that has no digest; `what` says what it is and the way to it."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"no digest of {what}")


def digest_callable(fn: Callable[..., Any]) -> str:
    """sha256 of what a callable does, as far as its code and what that refers to say.

    Takes functions, methods, partials, built-ins, classes, operators and Triton kernels. Raises UndigestableError.
    """
    return digest_value(fn)


def digest_value(value: Any) -> str:
    """As `digest_callable`, for anything a function could refer to: constants, containers, tensors, callables."""
    digester = _Digester()
    try:
        digester.add(value)
    except RecursionError:
        raise UndigestableError(f"{_describe(value)}: it refers to others too deeply") from None
    return digester.hexdigest()


# ---------------------------------------------------------------- files

_files: dict[tuple[str, int, int, int, int], str] = {}
_files_lock = forks.lock(__name__, "_files_lock")


def digest_file(path: str) -> str:
    """sha256 of a file's content; read once per process unless its inode, size or times change. Raises OSError."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        identity = (os.path.abspath(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        with _files_lock:
            if known := _files.get(identity):
                return known
        whole = hashlib.sha256()
        while chunk := file.read(1 << 20):
            whole.update(chunk)
    with _files_lock:
        _files[identity] = whole.hexdigest()
    return whole.hexdigest()


def digest_module(module: types.ModuleType) -> str:
    """sha256 of a module's source (or of its binary), with its name. Raises UndigestableError if it has no file."""
    path = getattr(module, "__file__", None)
    if path is None and module.__name__ in sys.builtin_module_names:
        content = f"builtin {sys.version}"
    else:
        try:
            content = digest_file(path)  # type: ignore[arg-type]
        except (OSError, TypeError) as error:
            raise UndigestableError(f"the module {module.__name__}, which has no file to read") from error
    return hashlib.sha256(f"module {module.__name__} {content}".encode()).hexdigest()


# ---------------------------------------------------------------- values


class _Digester:
    """Writes a value as tokens, each with its length, into a hash.

    A function, class or mutable container met before is written as the number it was met under, which makes cycles
    finite; the order of meeting depends on the code alone.
    """

    def __init__(self, seen: dict[int, tuple[int, Any]] | None = None, way: tuple[str, ...] = ()) -> None:
        self._hash = hashlib.sha256()
        # id -> (number, object); the object is kept so that its id stays taken.
        self._seen = {} if seen is None else dict(seen)
        self._way = way

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def token(self, tag: str, data: str | bytes = b"") -> None:
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self._hash.update(f"{tag}:{len(raw)}:".encode() + raw)

    def add(self, value: Any, name: str = "") -> None:
        """Write a value; `name` is how it was reached, for the error."""
        if name:
            self._way += (name,)
        if not self._add_plain(value):
            self._add_object(value)
        if name:
            self._way = self._way[:-1]

    def refuse(self, what: str) -> UndigestableError:
        way = " of ".join(reversed(self._way))
        return UndigestableError(f"{way}: {what}" if way else what)

    def _aside(self, value: Any) -> bytes:
        """The digest of one element of a set, for sorting."""
        child = _Digester(self._seen, self._way)
        child.add(value)
        return child._hash.digest()

    def _met(self, value: Any) -> bool:
        """Whether it was written before, in which case its number is written."""
        if found := self._seen.get(id(value)):
            self.token("again", str(found[0]))
            return True
        self._seen[id(value)] = (len(self._seen), value)
        return False

    def _add_plain(self, value: Any) -> bool:
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented:
            self.token("singleton", repr(value))
        elif kind is bool or kind is int:
            self.token(kind.__name__, hex(value))
        elif kind is float:
            self.token("float", value.hex())
        elif kind is complex:
            self.token("complex", f"{value.real.hex()} {value.imag.hex()}")
        elif kind is str:
            self.token("str", value)
        elif kind is bytes or kind is bytearray:
            self.token(kind.__name__, bytes(value))
        elif kind is tuple or kind is list:
            if kind is list and self._met(value):
                return True
            self.token(kind.__name__, str(len(value)))
            for item in value:
                self.add(item)
        elif kind is frozenset or kind is set:
            self.token(kind.__name__, b"".join(sorted(self._aside(item) for item in value)))
        elif kind in (dict, collections.OrderedDict, types.MappingProxyType):
            if self._met(value):
                return True
            self.token("dict", str(len(value)))
            for key, item in value.items():
                self.add(key)
                self.add(item, f"[{key!r:.40}]")
        elif kind is Named:
            self.token("named", value.name)
        elif kind is slice or kind is range:
            self.token(kind.__name__)
            for part in (value.start, value.stop, value.step):
                self.add(part)
        elif kind is types.CodeType:
            self._add_code(value)
        else:
            return False
        return True

    def _add_object(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.MethodType):
            self.token("method")
            self.add(value.__func__)
            self.add(value.__self__, "its instance")
        elif isinstance(value, functools.partial):
            self.token("partial")
            for part in (value.func, value.args, value.keywords):
                self.add(part)
        elif isinstance(value, types.ModuleType):
            self._add_module(value)
        elif isinstance(value, (staticmethod, classmethod)):
            self.token(type(value).__name__)
            self.add(value.__func__)
        elif isinstance(value, (property, functools.cached_property)):
            self.token("property")
            for name in ("fget", "fset", "fdel", "func"):
                self.add(getattr(value, name, None))
        elif isinstance(value, types.BuiltinFunctionType):
            self._add_builtin(value)
        elif isinstance(
            value,
            (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
             types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodWrapperType),
        ):  # fmt: skip
            owner = getattr(value, "__objclass__", type(getattr(value, "__self__", None)))
            self.token("descriptor", f"{owner.__module__}.{owner.__qualname__}.{value.__name__}")
        elif isinstance(value, enum.Enum):
            self.token("enum", value.name)
            self.add(type(value))
        elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
            self.token("namedtuple", str(len(value)))
            self.add(type(value))
            for item in value:
                self.add(item)
        elif isinstance(value, logging.Logger):
            self.token("logger", value.name)
        elif isinstance(value, re.Pattern):
            self.token("pattern", str(value.flags))
            self.add(value.pattern)
        elif type(value).__module__ == "typing" or isinstance(value, (types.GenericAlias, types.UnionType)):
            self.token("annotation", repr(value))
        elif _is_wrapper(value):
            self.token("cached")
            self.add(value.__wrapped__)
        elif not (self._add_of_torch(value) or self._add_triton(value)):
            raise self.refuse(_describe(value))

    # ------------------------------------------------------------ code

    def _add_code(self, code: types.CodeType) -> None:
        """All of a code object but where it was written (file name, line tables)."""
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.token("code", repr(counts))
        self.token("name", code.co_name)
        # co_code is the original byte code, whatever the interpreter has specialised since.
        self.token("bytecode", code.co_code)
        self.token("exceptions", getattr(code, "co_exceptiontable", b""))
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.add(tuple(names))
        self.add(code.co_consts)

    def _add_function(self, function: types.FunctionType) -> None:
        if self._met(function):
            return
        if is_named_by_version(function):
            self._add_by_name(function)
            return
        self.token("function")
        name = f"{function.__module__}.{function.__qualname__}"
        self._way += (name,)
        self._add_code(function.__code__)
        self.add(function.__defaults__, "a default")
        self.add(function.__kwdefaults__, "a default")
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                self.token("empty cell")
                continue
            self.add(content, f"the closure variable {variable}")
        for key, attribute in sorted(function.__dict__.items()):
            if isinstance(attribute, (bool, int, float, str)):
                self.token("attribute", key)
                self.add(attribute)
        for path, value in globals_read(function, self.refuse):
            self.token("global", path)
            if value is MISSING:
                self.token("missing")
            else:
                self.add(value, f"the global {path}")
        self._way = self._way[:-1]

    def _add_class(self, cls: type) -> None:
        if self._met(cls):
            return
        if is_named_by_version(cls):
            self._add_by_name(cls)
            return
        self.token("class", f"{cls.__module__}.{cls.__qualname__}")
        if type(cls) is not type:
            self.add(type(cls), "the metaclass")
        for base in cls.__bases__:
            self.add(base, f"the base of {cls.__qualname__}")
        if issubclass(cls, enum.Enum):
            for name, member in cls.__members__.items():
                self.token("member", name)
                self.add(member.value, f"{cls.__qualname__}.{name}")
        for name, attribute in sorted(vars(cls).items()):
            if name in _SKIPPED_CLASS_ATTRIBUTES or (issubclass(cls, enum.Enum) and not _is_code(attribute)):
                continue
            self.token("attribute", name)
            self.add(attribute, f"{cls.__qualname__}.{name}")

    def _add_builtin(self, function: types.BuiltinFunctionType) -> None:
        owner = function.__self__
        name = getattr(function, "__qualname__", function.__name__)
        # pybind11 binds its functions to a record of theirs, which says nothing.
        bound_to_record = type(owner).__module__ == "pybind11_builtins" or type(owner).__name__ == "PyCapsule"
        if owner is None or bound_to_record or isinstance(owner, (types.ModuleType, type)):
            module = function.__module__ or getattr(owner, "__module__", None) or getattr(owner, "__name__", "")
            self.token("builtin", f"{module}.{name} {version_of(str(module))}")
            if top_level(str(module)) not in NAMED_BY_VERSION and str(module) in sys.modules:
                self._add_module(sys.modules[str(module)])
        else:
            self.token("builtin method", name)
            self.add(owner, "its instance")

    def _add_module(self, module: types.ModuleType) -> None:
        """A module as a whole: by version if it is one of those, else by its source, since anything in it may count."""
        if top_level(module.__name__) in NAMED_BY_VERSION:
            self.token("module", f"{module.__name__} {version_of(module.__name__)}")
        else:
            self.token("module", digest_module(module))

    def _add_by_name(self, value: Any) -> None:
        self.token("named", f"{value.__module__}.{value.__qualname__} {version_of(value.__module__)}")

    # ------------------------------------------------------------ torch's and Triton's objects

    def _add_of_torch(self, value: Any) -> bool:
        """Values of torch's own types; only looked at when torch is imported."""
        torch: Any = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):
            return False
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            self.token("torch", f"{type(value).__name__} {value}")
        elif isinstance(value, torch.Size):
            self.token("torch.Size", repr(tuple(value)))
        elif isinstance(value, torch.Tensor):
            self._add_tensor(torch, value)
        elif type(value).__module__ == "torch._ops":
            self._add_operator(value)
        elif top_level(type(value).__module__) == "torch":
            from fxpool.torch_compat.custom_operators import operator_behind

            operator = operator_behind(value)
            if operator is None:
                return False
            self._add_operator(operator)
        else:
            return False
        return True

    def _add_tensor(self, torch: Any, tensor: Any) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise self.refuse(f"a tensor of the class {type(tensor).__qualname__}")
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise self.refuse(f"a tensor on {tensor.device} with layout {tensor.layout}")
        traits = (str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
        self.token("tensor", repr(traits))
        plain = tensor.detach().contiguous()
        if type(plain) is not torch.Tensor:  # a mode of the caller's made something else of it
            raise self.refuse("a tensor under a dispatch mode")
        size = plain.numel() * plain.element_size()
        self.token("content", hashlib.sha256(ctypes.string_at(plain.data_ptr(), size) if size else b"").digest())

    def _add_operator(self, op: Any) -> None:
        from fxpool.torch_compat import operators

        if operators.is_higher_order(op):
            self.token("higher order operator", operators.higher_order_name(op))
            return
        if not (operators.is_overload(op) or operators.is_packet(op)):
            # `torch.ops` and its namespaces: what is taken from them is an operator of its own.
            self.token("operators", str(getattr(op, "__name__", "")))
            return
        name = operators.overload_name(op) if operators.is_overload(op) else operators.packet_name(op)
        self.token("operator", name)
        if operators.is_builtin(op) or self._met(op):
            return
        registered = operators.registration(op)
        if not registered.files and not registered.libraries:
            raise self.refuse(f"the operator {name}, whose registration has no file")
        for path in [*registered.files, *sorted(registered.libraries)]:
            try:
                self.token("file", digest_file(path))
            except OSError as error:
                raise self.refuse(f"the operator {name}: {error}") from error
        # The files say nothing of what is imported into them. Wrappers that torch puts around the user's functions
        # have state of their own; what is inside is among the others.
        for part, function in sorted(registered.functions.items()):
            if isinstance(function, types.FunctionType) and not is_of_torch(function):
                self.token("implementation", part)
                self.add(function, f"{part} of the operator {name}")

    def _add_triton(self, value: Any) -> bool:
        """Kernels (`JITFunction`: `fn`, `src`), what autotunes them (`fn`, `configs`), `constexpr`s and dtypes."""
        kind = type(value)
        if kind.__name__ == "constexpr" and hasattr(value, "value"):
            self.token("constexpr")
            self.add(value.value)
        elif kind.__name__ == "dtype" and top_level(kind.__module__) == "triton":
            self.token("triton dtype", str(value))
        elif isinstance(getattr(value, "src", None), str) and isinstance(
            getattr(value, "fn", None), types.FunctionType
        ):
            if not self._met(value):
                self.token("triton kernel", value.src)
                for name in ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment"):
                    self.add(_plain_or_text(getattr(value, name, None)), name)
                self.add(value.fn, "the kernel's function")
        elif hasattr(value, "fn") and kind.__name__ in ("Autotuner", "Heuristics"):
            if not self._met(value):
                self.token("triton", kind.__name__)
                for config in getattr(value, "configs", ()):
                    self.token("config")
                    self.add(dict(sorted(vars(config).items())), "a configuration")
                for name in ("keys", "arg_names", "values", "restore_value", "reset_to_zero"):
                    self.add(getattr(value, name, None), name)
                self.add(value.fn, "the kernel")
        else:
            return False
        return True


def _is_code(attribute: Any) -> bool:
    return isinstance(attribute, (types.FunctionType, staticmethod, classmethod, property))


def _is_wrapper(value: Any) -> bool:
    return type(value).__module__ == "functools" and hasattr(value, "__wrapped__")


def _plain_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str, tuple, list, set, frozenset)) else repr(value)


def _describe(value: Any) -> str:
    kind = type(value)
    return f"an object of {kind.__module__}.{kind.__qualname__}"
