"""Prove that code is the same in another process: walk what it refers to, accept what `grammar` has, digest it.

Two processes whose code has the same digest run the same code: a function's digest covers its instructions and the
digests of all values that these read by name. Names of functions, local variables and files, docstrings and lines are
left out, as no accepted instruction can read them.

Functions are numbered when first met, so cycles end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import os
import struct
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fxpool.codecache.code import grammar, operator_code, packages, triton_code
from fxpool.codecache.code.code_references import code_text
from fxpool.codecache.code.grammar import UnprovenError
from fxpool.torch_compat.operators import code_owner, operator_tables

__all__ = ["Proof", "digest_of"]


def digest_of(value: Any, *, of_inductor: bool = False, covered: dict[str, str] | None = None) -> str:
    """Return the digest of a value or function that is proven to be the same wherever it has this digest.

    `of_inductor`: Inductor calls the code while it lowers a graph, with its own objects as arguments. `covered` is
    filled, by name, with the functions that are part of the digest.

    Raises UnprovenError: some part is outside the grammar.
    """
    proof = Proof(of_inductor=of_inductor, covered=covered)
    proof.add(value)
    return proof.digest()


class Proof:
    """One digest. `add` any number of values; `digest` checks the attributes that all of them together read."""

    def __init__(self, *, of_inductor: bool = False, covered: dict[str, str] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._of_inductor = of_inductor
        self._covered = covered
        # id -> (number, object). The reference prevents reuse of the id.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._way: list[str] = []
        self._attributes_read: dict[str, str] = {}
        self._attributes_set: set[str] = set()
        #: The code reads one of Inductor's tables by operator, so any entry of these may be a part of it.
        self.reads_tables = False

    def new(self) -> Proof:
        """Return an empty proof, for code of the same kind."""
        return Proof(of_inductor=self._of_inductor, covered=self._covered)

    def digest(self) -> str:
        """Return the sha256 of everything added. Raises UnprovenError: the code reads an attribute not accepted."""
        for name, where in self._attributes_read.items():
            if name not in self._attributes_set and not _is_attribute(name):
                raise UnprovenError(f"{where}: the attribute {name}")
        return self._hash.hexdigest()

    def add(self, value: Any, name: str = "") -> None:
        """Digest a value; `name` describes the reference that led to it. Raises UnprovenError."""
        with self._within(name):
            self._add(value)

    def token(self, tag: str, data: str | bytes = b"") -> None:
        """Write one item, with its length, into the digest."""
        content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self._hash.update(f"{tag} {len(content)}:".encode() + content)

    def refused(self, part: str) -> UnprovenError:
        """Return the error for a part outside the grammar, with the references that lead to it."""
        return UnprovenError(" of ".join([part, *reversed(self._way)]))

    @contextlib.contextmanager
    def _within(self, name: str) -> Iterator[None]:
        if not name:
            yield
            return
        self._way.append(name)
        yield  # not restored after an error: the first one ends the proof
        self._way.pop()

    def met(self, value: Any) -> bool:
        """Number an object, or write its number if it has one."""
        if known := self._seen.get(id(value)):
            self.token("again", str(known[0]))
            return True
        self._seen[id(value)] = (len(self._seen), value)
        return False

    # ------------------------------------------------------------------------------ values

    def _add(self, value: Any) -> None:
        kind = type(value)
        if grammar.names_device_by_index(value):
            raise self.refused(f"the device {value}")
        if kind in grammar.PLAIN:
            self.token(kind.__name__, _text(value))
        elif kind is tuple:
            self.token("tuple", str(len(value)))
            for item in value:
                self._add(item)
        elif kind is types.FunctionType:
            self._add_function(value)
        elif grammar.is_builtin(getattr(value, "__name__", ""), value) if _is_builtin_kind(kind) else False:
            self.token("builtin", value.__name__)
        elif kind is types.BuiltinFunctionType and _is_pure(value):
            self.token("builtin", f"{value.__self__.__name__}.{value.__name__}")
        elif self._of_inductor and (place := operator_tables.place_of(value)):
            self.reads_tables = True
            self.token("table", ".".join(place))
        elif not (self._add_of_torch(value) or triton_code.add(self, value) or self._add_record(value)):
            raise self.refused(describe(value))

    def _add_record(self, value: Any) -> bool:
        """Add a frozen dataclass by its fields; return False for any other value."""
        cls = type(value)
        if not grammar.is_record(cls):
            return False
        fields = [field.name for field in dataclasses.fields(cls)]
        held = object.__getattribute__(value, "__dict__") if "__slots__" not in vars(cls) else None
        if held is not None and set(held) != set(fields):
            return False
        self.token("record", " ".join(fields))
        self._attributes_set.update(fields)
        for name in fields:
            self.add(object.__getattribute__(value, name), f"the field {name}")
        return True

    def _add_of_torch(self, value: Any) -> bool:
        kind = type(value)
        if any(kind is getattr(torch, name) for name in grammar.TORCH_VALUES):
            self.token("torch", f"{kind.__name__} {value}")
        elif kind is torch.Size:
            self.token("torch.Size", repr(tuple(map(int, value))))
        elif kind.__module__ == "torch._ops" or kind.__name__ == "CustomOpDef":
            operator_code.add(self, value)
        elif (name := code_owner.operator_function(value)) is not None:
            if name in grammar.TORCH_OPERATORS_NOT:
                raise self.refused(f"torch.{name}, which reads more than its arguments")
            self.token("torch operator", name)
        elif isinstance(value, type):
            name = next((one for one in sorted(grammar.TORCH_CLASSES) if _attribute(torch, one) is value), None)
            if name is None and not (self._of_inductor and code_owner.function_home(value) is not None):
                return False
            self.token("torch class", name or ".".join(code_owner.function_home(value) or ()))
        elif isinstance(value, types.BuiltinFunctionType) and (home := code_owner.function_home(value)) is not None:
            if ".".join(home) not in grammar.TORCH_NAMES:
                return False
            self.token("torch function", ".".join(home))
        else:
            return False
        return True

    # ------------------------------------------------------------------------------ functions

    def _add_function(self, function: types.FunctionType) -> None:
        if self.met(function):
            return
        name = f"{function.__module__}.{function.__qualname__}"
        if self._add_by_name(function):
            return
        if any(not key.startswith("__") for key in function.__dict__):
            raise self.refused(f"attributes of the function {name}")
        with self._within(name):
            self.token("function")
            for default in (function.__defaults__, tuple(sorted((function.__kwdefaults__ or {}).items()))):
                self.add(default, "a default")
            _Instructions(self, function).add()
        self.cover(function)

    def add_kernel_function(self, function: types.FunctionType) -> None:
        """Add the globals that a Triton kernel reads: Triton compiles its source, and Python does not run it."""
        kernel = Proof(of_inductor=True)
        kernel._seen = self._seen
        kernel._way = [*self._way, f"the kernel {function.__qualname__}"]
        _Instructions(kernel, function).add()
        self.token("kernel", kernel.digest())

    def _add_by_name(self, function: types.FunctionType) -> bool:
        """Add a function of torch or of a named package by name; return False for the program's own."""
        if triton_code.is_of_triton(function):
            self.token("triton function", f"{function.__module__}.{function.__qualname__}")
            return True
        if packages.add_function(self, function, of_inductor=self._of_inductor):
            return True
        if not code_owner.is_file_of_torch(function.__code__.co_filename):
            return False
        home = code_owner.function_home(function)
        name = ".".join(home or ())
        if home is None and self._of_inductor and (wrapper := code_owner.inductors_wrapper(function)):
            self.token("torch wrapper", wrapper)
            for cell in function.__closure__ or ():
                try:
                    content = cell.cell_contents
                except ValueError:
                    raise self.refused(f"a variable of {wrapper}, which is not set") from None
                self._add_held(content)
            return True
        accepted = home is not None and (home[0] in grammar.TORCH_MODULES or name in grammar.TORCH_NAMES)
        if not accepted and self._of_inductor and home is not None:
            accepted = home[0].startswith(("torch._inductor", "torch.fx", "torch._prims"))
        if not accepted:
            raise self.refused(f"the function {name or function.__qualname__} of torch")
        self.token("torch function", name)
        return True

    def _add_held(self, value: Any) -> None:
        """Add a value that one of Inductor's wrappers holds: a container by contents, which only torch changes."""
        if type(value) in (list, tuple):
            self.token("held", str(len(value)))
            for item in value:
                self._add_held(item)
        elif isinstance(value, enum.Enum) and code_owner.function_home(type(value)) is not None:
            self.token("enum", f"{type(value).__qualname__}.{value.name}")
        else:
            self.add(value, "what it holds")

    def cover(self, function: types.FunctionType, name: str = "", value: Any = None) -> None:
        """Note a function, or a value that it reads by name, to explain a miss. Texts may be secrets: their digest."""
        if self._covered is None:
            return
        file = os.path.basename(function.__code__.co_filename)
        where = f"function {function.__module__}.{function.__qualname__} ({file})"
        if not name:
            text = f"code {_short_digest(code_text(function.__code__))}"
        elif type(value) in (type(None), bool, int, float, complex):
            where, text = f"{where}: {name}", repr(value)
        elif type(value) in (str, bytes, tuple) or grammar.is_record(type(value)):
            where, text = f"{where}: {name}", f"digest {_short_digest(repr(value))}"
        else:
            return
        self._covered[where] = text

    def attribute(self, name: str) -> None:
        """Note that code reads an attribute of a value that is not known before it runs."""
        if name.startswith("_") or name in grammar.DENIED:
            raise self.refused(f"the attribute {name}")
        if not self._of_inductor:
            self._attributes_read.setdefault(name, " of ".join(reversed(self._way)))

    def attribute_set(self, name: str) -> None:
        if name.startswith("_"):
            raise self.refused(f"setting the attribute {name}")
        self._attributes_set.add(name)


class _Instructions:
    """Digests a function's bytecode with the values that it reads by name."""

    def __init__(self, proof: Proof, function: types.FunctionType) -> None:
        self._proof, self._function = proof, function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._closure = dict(cells)

    def add(self) -> None:
        self._add(self._function.__code__, frozenset(self._closure))

    def _add(self, code: types.CodeType, outer: frozenset[str]) -> None:
        """Digest a code object; `outer` are the names of its free variables that are the function's own."""
        proof = self._proof
        if code.co_flags & _ASYNCHRONOUS:
            raise proof.refused(f"the coroutine {code.co_name}")
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        proof.token("code", repr(counts))
        arguments = code.co_argcount + code.co_kwonlyargcount
        proof.token("arguments", " ".join(code.co_varnames[:arguments]))
        proof.token("exceptions", getattr(code, "co_exceptiontable", b""))
        steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
        used_until = 0
        for position, step in enumerate(steps):
            name = step.opname
            if name not in grammar.INSTRUCTIONS:
                raise proof.refused(f"the instruction {name}")
            if position < used_until:
                continue  # an attribute of a module
            if name == "LOAD_GLOBAL":
                used_until = self._load(self._global(str(step.argval)), str(step.argval), steps, position)
            elif name == "LOAD_DEREF" and step.argval in outer:
                used_until = self._load(self._cell(str(step.argval)), str(step.argval), steps, position)
            elif name == "STORE_DEREF" and step.argval in outer:
                raise proof.refused(f"setting the closure variable {step.argval}")
            elif name in ("LOAD_ATTR", "LOAD_METHOD"):
                proof.attribute(str(step.argval))
                proof.token(name, str(step.argval))
            elif name == "STORE_ATTR":
                proof.attribute_set(str(step.argval))
                proof.token(name, str(step.argval))
            elif name in ("IMPORT_NAME", "IMPORT_FROM"):
                self._import(steps, position)
            elif name == "CALL_INTRINSIC_1" and step.arg not in grammar.INTRINSICS:
                raise proof.refused(f"the instruction {name} {step.argrepr}")
            elif name in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES", "LOAD_CONST_IMMORTAL"):
                self._constant(
                    name,
                    code.co_consts[step.arg or 0],
                    steps[position + 1].opname if position + 1 < len(steps) else "",
                    outer,
                )
            else:
                proof.token(name, str(step.arg))

    def _constant(self, name: str, value: Any, following: str, outer: frozenset[str]) -> None:
        proof = self._proof
        proof.token(name)
        if isinstance(value, types.CodeType):
            self._add(value, outer & frozenset(value.co_freevars))
        elif type(value) is frozenset:
            if following != "CONTAINS_OP":
                raise proof.refused("a set, whose order depends on the process")
            proof.token("one of")
            for item in sorted(value, key=repr):
                proof.add(item)
        else:
            proof.add(value)

    def _global(self, name: str) -> Any:
        names = self._function.__globals__
        if name in names:
            return names[name]
        function: Any = self._function  # not every release of the types knows the attribute
        known: Mapping[str, Any] = function.__builtins__
        if name not in known:
            raise self._proof.refused(f"the global {name}, which is not defined")
        return known[name]

    def _cell(self, name: str) -> Any:
        try:
            return self._closure[name].cell_contents
        except ValueError:
            raise self._proof.refused(f"the closure variable {name}, which is not set") from None

    def _load(self, value: Any, name: str, steps: list[dis.Instruction], position: int) -> int:
        """Follow the attributes that are read from a value, add what they lead to; return the position behind them."""
        position += 1
        while position < len(steps) and steps[position].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attribute = str(steps[position].argval)
            inner = self._inside(value, attribute, name)
            if inner is _NOT_A_CONTAINER:
                break
            value, name = inner, f"{name}.{attribute}"
            position += 1
        if isinstance(value, types.ModuleType) or _is_namespace(value):
            raise self._proof.refused(f"{name}, a module or namespace as a value")
        following = steps[position].opname if position < len(steps) else ""
        is_code = callable(value)
        if is_code and (following in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") or following.startswith("FORMAT")):
            raise self._proof.refused(f"an attribute or the text of {name}")
        self._proof.add(value, name)
        self._proof.cover(self._function, name, value)
        return position

    def _inside(self, value: Any, attribute: str, name: str) -> Any:
        """Return an attribute of a module, of a namespace of operators, or a field of a record."""
        if isinstance(value, types.ModuleType) or _is_namespace(value):
            if attribute.startswith("__") or not (_is_namespace(value) or _is_plain_module(value)):
                raise self._proof.refused(f"{name}.{attribute}")
            if type(value) is types.ModuleType and attribute not in vars(value) and not _is_torchs(value):
                raise self._proof.refused(f"{name}.{attribute}, which the module does not define")
            try:
                return getattr(value, attribute)
            except AttributeError:
                raise self._proof.refused(f"{name}.{attribute}, which does not exist") from None
        if _is_of_operators(value, "OpOverloadPacket") and attribute in value.overloads():
            return getattr(value, attribute)
        if grammar.is_record(type(value)):
            fields = [field.name for field in dataclasses.fields(value)]
            return object.__getattribute__(value, attribute) if attribute in fields else _NOT_A_CONTAINER
        return _NOT_A_CONTAINER

    def _import(self, steps: list[dis.Instruction], position: int) -> None:
        """Accept ``from module import name``, if the module is loaded and the value is not a module itself."""
        step = steps[position]
        if step.opname == "IMPORT_FROM":
            return
        wanted = []
        for follower in steps[position + 1 :]:
            if follower.opname == "IMPORT_FROM":
                wanted.append(str(follower.argval))
            elif not follower.opname.startswith("STORE_FAST"):
                break
        level = steps[position - 2].argval if position >= 2 else 0
        module = sys.modules.get(str(step.argval)) if level in (0, None) else None
        if module is None or not wanted or not _is_plain_module(module):
            raise self._proof.refused(f"the import of {step.argval or 'a sibling module'} inside the function")
        for name in wanted:
            value = vars(module).get(name)
            if name not in vars(module) or isinstance(value, types.ModuleType):
                raise self._proof.refused(f"the import of {step.argval}.{name} inside the function")
            self._proof.add(value, f"{step.argval}.{name}")


_NOT_A_CONTAINER = object()
_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _is_namespace(value: Any) -> bool:
    """Return whether a value is ``torch.ops`` or one of its namespaces."""
    return _is_of_operators(value, "_Ops", "_OpNamespace")


def _is_of_operators(value: Any, *names: str) -> bool:
    return type(value).__module__ == "torch._ops" and type(value).__name__ in names


def _is_plain_module(module: types.ModuleType) -> bool:
    return type(module) is types.ModuleType or _is_torchs(module)


def _is_torchs(module: types.ModuleType) -> bool:
    return code_owner.is_torchs_module(module)


def _is_builtin_kind(kind: type) -> bool:
    return kind is types.BuiltinFunctionType or kind is type


def _is_pure(function: types.BuiltinFunctionType) -> bool:
    """Return whether a function in C belongs to one of the standard library's modules that only compute."""
    module = function.__self__
    if type(module) is not types.ModuleType or module.__name__ not in grammar.PURE_MODULES:
        return False
    origin = getattr(module.__spec__, "origin", None)
    return sys.modules.get(module.__name__) is module and (origin == "built-in" or _is_of_python(str(origin)))


def _is_of_python(path: str) -> bool:
    return os.path.dirname(path) == os.path.join(os.path.dirname(os.__file__), "lib-dynload")


def _attribute(owner: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        owner = getattr(owner, part, None)
    return owner


@functools.cache
def _tensor_attributes() -> frozenset[str]:
    return frozenset(name for name in code_owner.tensor_attributes() if not name.startswith("_"))


def _is_attribute(name: str) -> bool:
    if name in grammar.ATTRIBUTES or name in _tensor_attributes():
        return True
    return code_owner.is_tensor_method(name)


def _text(value: Any) -> str | bytes:
    """Return plain data as text that differs if the value does."""
    if isinstance(value, (float, complex)):
        return struct.pack("<dd", value.real, value.imag).hex()  # tells the sign of zero and of NaN
    return value if isinstance(value, (str, bytes)) else repr(value)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def describe(value: Any) -> str:
    """Describe a value by its type, for errors."""
    kind = type(value)
    if isinstance(value, (types.BuiltinFunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    return f"an object of {kind.__module__}.{kind.__qualname__}"
