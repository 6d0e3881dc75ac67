"""What code reads of the process it runs in: environment, files, clocks, random numbers.

Code that tracing runs (a backward, a rule for fake tensors, a decomposition) leaves in the graph what it read then, and
a worker is another process. Variables of the environment that code names by a constant are known here, by value, and
travel. Anything else of this kind has no digest: such code is traced in the program's own process.
"""

from __future__ import annotations

import dis
import os
import types
from collections.abc import Sequence
from typing import Any

__all__ = ["ENVIRONMENT", "constant_after", "is_environment", "reads", "variable_read"]

#: stands for a reader of the environment that names no constant
ENVIRONMENT = "the environment, under a name that is computed"

_READERS = (os.getenv, os.environ, os.environ.get)
# Between a reader and the constant it is called with, by interpreter.
_BETWEEN = frozenset(("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG", "NOP"))
_SUBSCRIPTS = frozenset(("BINARY_SUBSCR", "BINARY_OP"))

# Modules whose functions and classes read the state of the process or of the host; `...` is all of them.
_IMPURE: dict[str, Any] = {
    "builtins": {"open", "input", "eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint"},
    "io": ..., "_io": ..., "pathlib": {"Path", "PosixPath"}, "pathlib._local": {"Path", "PosixPath"},
    "time": ..., "datetime": {"datetime", "date"}, "_datetime": {"datetime", "date"},
    "random": ..., "_random": ..., "secrets": ..., "uuid": ..., "socket": ..., "_socket": ..., "subprocess": ...,
    "tempfile": ..., "glob": ..., "shutil": ..., "platform": ..., "genericpath": ..., "mmap": ..., "ctypes": ...,
    "importlib": ..., "runpy": ..., "inspect": ..., "gc": ..., "getpass": ..., "multiprocessing": ...,
    "pickle": {"load", "loads", "Unpickler"}, "_pickle": {"load", "loads", "Unpickler"},
    "json": {"load"}, "sys": ..., "torch.serialization": {"load"}, "numpy.random": ..., "numpy.random.mtrand": ...,
    "numpy.lib._npyio_impl": {"load", "loadtxt", "genfromtxt", "fromregex"}, "linecache": ..., "pkgutil": ...,
}  # fmt: skip
# Of modules that do both, what only computes.
_PURE_OF_OS = frozenset(("fspath", "fsencode", "fsdecode"))
_PURE_OF_PATHS = frozenset(("join", "basename", "dirname", "split", "splitext", "normpath", "isabs", "commonpath",
                            "commonprefix", "splitdrive", "normcase"))  # fmt: skip
_PURE_OF_SYS = frozenset(("getsizeof", "intern", "getrefcount", "exc_info", "getrecursionlimit"))


def reads(value: Any) -> str:
    """What a function or class of the standard library, NumPy or torch reads of its process; empty if nothing."""
    module = str(getattr(value, "__module__", None) or getattr(getattr(value, "__self__", None), "__name__", "") or "")
    name = str(getattr(value, "__qualname__", getattr(value, "__name__", "")))
    if module in ("os", "posix", "nt"):
        return "" if name in _PURE_OF_OS else f"os.{name}"
    if module == "posixpath":
        return "" if name in _PURE_OF_PATHS else f"os.path.{name}"
    if module == "sys" and name in _PURE_OF_SYS:
        return ""
    top = module.partition(".")[0]
    names = _IMPURE.get(module, _IMPURE.get(top) if _IMPURE.get(top) is ... else None)
    if names is ... or (names is not None and name in names):
        return f"{module}.{name}"
    return ""


def is_environment(value: Any) -> bool:
    """Whether a value is the environment, or what reads one variable of it."""
    return any(value is reader or (isinstance(value, types.MethodType) and value == reader) for reader in _READERS)


def constant_after(instructions: Sequence[dis.Instruction], position: int) -> tuple[str, bool] | None:
    """The text that what was loaded before `position` is called or subscripted with at once, and whether subscripted.

    None if what follows is no text.
    """
    rest = [each for each in instructions[position : position + 6] if each.opname not in _BETWEEN]
    if rest and rest[0].opname == "LOAD_CONST" and isinstance(rest[0].argval, str):
        return rest[0].argval, len(rest) > 1 and rest[1].opname in _SUBSCRIPTS
    return None


def variable_read(reader: Any, constant: tuple[str, bool] | None) -> str | None:
    """The variable of the environment that a reader is asked for; None if it is computed, or the reader handed on."""
    if constant is None or (reader is os.environ and not constant[1]):
        return None
    return constant[0]
