"""Detect code that reads the state of its process: environment, files, clocks, random numbers.

Code that runs during tracing (a backward, a rule for fake tensors, a decomposition) bakes the values it reads into the
graph, and a worker is another process with other values. Environment variables with a constant name are identified by
value and sent along. Code with any other such read has no digest and is traced in the program's own process.
"""

from __future__ import annotations

import dis
import os
import types
from collections.abc import Sequence
from typing import Any

__all__ = ["ENVIRONMENT", "is_environment", "reads", "variable_asked", "variable_read"]

#: Description of an environment read whose variable is not a constant.
ENVIRONMENT = "the environment, under a computed name"

_READERS = (os.getenv, os.environ, os.environ.get)
# Instructions between loading a reader and loading its constant argument, which differ between Python versions.
_BETWEEN = frozenset(("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG", "NOP", "KW_NAMES"))

# Names of functions and classes that read the state of the process or host, by module; `...` means all its names.
_IMPURE: dict[str, Any] = {
    "builtins": {"open", "input", "eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint"},
    "io": ..., "_io": ..., "pathlib": {"Path", "PosixPath"}, "pathlib._local": {"Path", "PosixPath"},
    "time": ..., "datetime": {"datetime", "date"}, "_datetime": {"datetime", "date"},
    "random": ..., "_random": ..., "secrets": ..., "uuid": ..., "socket": ..., "_socket": ..., "subprocess": ...,
    "tempfile": ..., "glob": ..., "shutil": ..., "platform": ..., "genericpath": ..., "mmap": ..., "ctypes": ...,
    "importlib": ..., "runpy": ..., "inspect": ..., "gc": ..., "getpass": ..., "multiprocessing": ...,
    "pickle": {"load", "loads", "Unpickler"}, "_pickle": {"load", "loads", "Unpickler"},
    "json": {"load"}, "sys": ..., "torch.serialization": {"load"}, "numpy.random": ..., "numpy.random.mtrand": ...,
    "linecache": ..., "pkgutil": ...,
    # NumPy sets "numpy" as the module of most of its public names.
    "numpy": {"load", "loadtxt", "genfromtxt", "fromregex", "fromfile", "memmap", "DataSource"},
    "numpy.lib._npyio_impl": ..., "numpy.lib.npyio": ..., "numpy.lib.format": {"open_memmap", "read_array"},
    "torch": {"_VariableFunctionsClass.from_file"}, "torch.jit._serialization": {"load"}, "torch.hub": ...,
    "torch.random": {"initial_seed", "seed", "get_rng_state"},
    "configparser": ..., "sqlite3": ..., "_sqlite3": ..., "shelve": ..., "dbm": ..., "urllib": ..., "http": ...,
    "ftplib": ..., "zipfile": ..., "tarfile": ..., "gzip": ..., "bz2": ..., "lzma": ..., "codecs": {"open"},
    "fileinput": ..., "wave": ..., "xml.etree.ElementTree": {"parse", "iterparse"},
    "netrc": ..., "mimetypes": ..., "zoneinfo": ..., "resource": ..., "sysconfig": ..., "site": ..., "select": ...,
    "signal": {"getsignal"}, "pwd": ..., "grp": ..., "asyncio": ...,
}  # fmt: skip
# Exceptions in modules that otherwise count as impure: names that only compute, or that return nothing.
_PURE_OF_OS = frozenset(("fspath", "fsencode", "fsdecode", "kill", "abort", "_exit"))
_PURE_OF_PATHS = frozenset(("join", "basename", "dirname", "split", "splitext", "normpath", "isabs", "commonpath",
                            "commonprefix", "splitdrive", "normcase"))  # fmt: skip
_PURE_OF_SYS = frozenset(("getsizeof", "intern", "getrefcount", "exc_info", "getrecursionlimit", "exit"))


def reads(value: Any) -> str:
    """Return the name of a function or class of a known library if it reads process state, else ""."""
    owner = getattr(value, "__self__", None)
    module = getattr(value, "__module__", None)
    name = str(getattr(value, "__qualname__", getattr(value, "__name__", "")))
    if not module and owner is not None and not isinstance(owner, types.ModuleType):
        # A method of a class or instance that is exported as a function: random.random, datetime.now.
        kind = owner if isinstance(owner, type) else type(owner)
        module, name = kind.__module__, kind.__qualname__
    module = str(module or getattr(owner, "__name__", "") or "")
    if module in ("os", "posix", "nt"):
        return "" if name in _PURE_OF_OS else f"os.{name}"
    if module == "posixpath":
        return "" if name in _PURE_OF_PATHS else f"os.path.{name}"
    if (module == "sys" and name in _PURE_OF_SYS) or (module == "time" and name == "sleep"):
        return ""
    top = module.partition(".")[0]
    names = _IMPURE.get(module, _IMPURE.get(top) if _IMPURE.get(top) is ... else None)
    if names is ... or (names is not None and name in names):
        return f"{module}.{name}"
    return ""


def is_environment(value: Any) -> bool:
    """Return whether a value is the environment, or a function that reads a variable from it."""
    return any(value is reader or (isinstance(value, types.MethodType) and value == reader) for reader in _READERS)


def variable_asked(instructions: Sequence[dis.Instruction], position: int) -> tuple[str, bool] | None:
    """Return the constant passed directly to the value loaded before `position`, and whether it is a subscript.

    A call may have a second argument, the default, if a single instruction loads it. Return None for anything else,
    such as a computed name.
    """
    rest = [each for each in instructions[position : position + 10] if each.opname not in _BETWEEN]
    if len(rest) < 2 or rest[0].opname != "LOAD_CONST" or not isinstance(rest[0].argval, str):
        return None
    if rest[1].opname == "BINARY_SUBSCR" or (rest[1].opname == "BINARY_OP" and rest[1].argrepr == "[]"):
        return rest[0].argval, True
    after = rest[2] if rest[1].opname.startswith("LOAD_") and len(rest) > 2 else rest[1]
    return (rest[0].argval, False) if after.opname.startswith("CALL") else None


def variable_read(reader: Any, asked: tuple[str, bool] | None) -> str | None:
    """Return the environment variable that `reader` reads; None if its name is computed or the reader is passed on."""
    if asked is None or (reader is os.environ) != asked[1]:
        return None
    return asked[0]
