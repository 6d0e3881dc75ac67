"""A graph's C++ kernels: grouped into few translation units, compiled side by side, bound by name.

One compiler call per kernel spends most of its time reading the same header. Here the kernels of a
graph (backward included) are shared out over as many units as there are cores to compile them, each
unit becomes one library with one method table, and the libraries are blobs of the entry. A unit
that the compiler refuses (two kernels defining the same helper, say) is compiled kernel by kernel.

    collected kernels ──▶ plan units ──▶ sub-jobs (g++) ──▶ libraries + index ──▶ entry ──▶ `Bundle.find`
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from fxpool import statistics
from fxpool.codecache import toolchain
from fxpool.errors import CompileError, NoCompilerError
from fxpool.lowering import precompiled_header
from fxpool.torch_compat import cpp, instruction_sets, output_code

MODULE = "fxpool_kernels"
COMPILE_UNIT = "fxpool.lowering.kernels:compile_unit"


class CppCompileError(CompileError):
    """The C++ compiler refused generated code; `output` is what it printed."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        self.command, self.output = list(command), output
        super().__init__(f"C++ compilation failed: {' '.join(command)}\n{output}")


class Unit(msgspec.Struct):
    """One translation unit: its source and the compiler's command; `{directory}` stands for a scratch folder."""

    source: str
    command: list[str]
    source_name: str
    library_name: str


class Submit(Protocol):
    """Runs a job function on bytes, somewhere."""

    def __call__(self, function: str, payload: bytes, label: str) -> Future[bytes]: ...


class Linked(msgspec.Struct):
    """Libraries of one graph, and for each kernel's digest the library and function that is it."""

    libraries: list[bytes]
    index: dict[str, tuple[int, str]]


# --- building, in a worker -----------------------------------------------------------------------


def link(kernels: Sequence[cpp.CollectedKernel], *, tools: str | None, units: int, submit: Submit) -> Linked:
    """Compile collected kernels into at most `units` libraries; `tools` keeps the precompiled header.

    Raises:
        NoCompilerError: there is no compiler to call.
        CppCompileError: a kernel does not compile.
    """
    unique: dict[str, cpp.CollectedKernel] = {}
    for kernel in kernels:
        unique.setdefault(output_code.kernel_digest(kernel.argument_types, kernel.source), kernel)
    if not unique:
        return Linked([], {})
    toolchain.require_compiler(tools)
    command = precompiled_header.command(tools)
    groups = plan(unique, units)
    pending = [(group, submit(COMPILE_UNIT, _unit(group, command), f"{len(group)} kernels")) for group in groups]
    linked = Linked([], {})
    for group, future in pending:
        try:
            _add(linked, group, future.result())
        except CppCompileError:
            if len(group) == 1:
                raise
            alone = [[item] for item in group]
            for single, result in [(one, submit(COMPILE_UNIT, _unit(one, command), "1 kernel")) for one in alone]:
                _add(linked, single, result.result())
    return linked


Group = list[tuple[str, cpp.CollectedKernel]]


def plan(kernels: dict[str, cpp.CollectedKernel], units: int) -> list[Group]:
    """Share kernels out over at most `units` units of about equal length of source."""
    groups: list[Group] = [[] for _ in range(max(1, min(units, len(kernels))))]
    lengths = [0] * len(groups)
    for digest, kernel in sorted(kernels.items(), key=lambda item: (-len(item[1].source), item[0])):
        shortest = lengths.index(min(lengths))
        groups[shortest].append((digest, kernel))
        lengths[shortest] += len(kernel.source)
    return groups


def _add(linked: Linked, group: Group, library: bytes) -> None:
    for position, (digest, _) in enumerate(group):
        linked.index[digest] = (len(linked.libraries), f"k{position}")
    linked.libraries.append(library)


def _unit(group: Group, command: cpp.Command) -> bytes:
    placeholder = "/fxpool-scratch"  # absolute, so that Inductor's builder does not resolve it here
    arguments, library = command.compile(f"{placeholder}/{MODULE}.cpp", MODULE)
    return msgspec.msgpack.encode(
        Unit(
            source=unit_source([kernel for _, kernel in group]),
            command=[argument.replace(placeholder, "{directory}") for argument in arguments],
            source_name=f"{MODULE}.cpp",
            library_name=os.path.basename(library),
        )
    )


_POINTER = re.compile(r"\*\s*$")


def unit_source(kernels: Sequence[cpp.CollectedKernel]) -> str:
    """C++ source of one unit: every kernel under a name of its own, and Python functions k0, k1, ... for them."""
    parts = [cpp.HEADER]
    calls: list[str] = []
    table: list[str] = []
    for number, kernel in enumerate(kernels):
        # The generated function is called `kernel`: renaming the token leaves the text, and its lines, alone.
        parts.append(f"#define kernel fxpool_kernel_{number}")
        parts.append(kernel.source.replace(cpp.HEADER, ""))
        parts.append("#undef kernel")
        arguments = ", ".join(
            f"fxpool_argument<{_plain(t)}>::of(args[{n}])" for n, t in enumerate(kernel.argument_types)
        )
        calls.append(_CALL.format(number=number, count=len(kernel.argument_types), arguments=arguments))
        table.append(f'    {{"k{number}", (PyCFunction)(void*)fxpool_call_{number}, METH_FASTCALL, nullptr}},')
    parts += [_PYTHON, *calls, _TABLE.format(methods="\n".join(table), module=MODULE)]
    return "\n".join(parts)


def _plain(argument_type: str) -> str:
    return argument_type.replace("const ", "").strip()


_PYTHON = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <exception>
#include <stdexcept>
#include <type_traits>

// Given by torch as an address: kernels are compiled without torch's headers and libraries.
static void* (*fxpool_data_pointer)(PyObject*) = nullptr;

template <typename T, typename = void> struct fxpool_argument;
template <typename T> struct fxpool_argument<T*, void> {
    static T* of(PyObject* object) { return static_cast<T*>(fxpool_data_pointer(object)); }
};
template <typename T> struct fxpool_argument<T, std::enable_if_t<std::is_integral<T>::value>> {
    static T of(PyObject* object) {
        if constexpr (std::is_unsigned<T>::value) {
            unsigned long long value = PyLong_AsUnsignedLongLongMask(object);
            if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred())
                throw std::invalid_argument("an integer is needed");
            return static_cast<T>(value);
        } else {
            long long value = PyLong_AsLongLong(object);
            if (value == -1 && PyErr_Occurred()) throw std::invalid_argument("an integer is needed");
            return static_cast<T>(value);
        }
    }
};
template <typename T> struct fxpool_argument<T, std::enable_if_t<std::is_floating_point<T>::value>> {
    static T of(PyObject* object) {
        double value = PyFloat_AsDouble(object);
        if (value == -1.0 && PyErr_Occurred()) throw std::invalid_argument("a number is needed");
        return static_cast<T>(value);
    }
};

static PyObject* fxpool_bind(PyObject*, PyObject* address) {
    void* pointer = PyLong_AsVoidPtr(address);
    if (pointer == nullptr) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a null address");
        return nullptr;
    }
    fxpool_data_pointer = reinterpret_cast<void* (*)(PyObject*)>(pointer);
    Py_RETURN_NONE;
}
"""

_CALL = """
static PyObject* fxpool_call_{number}(PyObject*, PyObject* const* args, Py_ssize_t count) {{
    if (count != {count}) {{
        PyErr_Format(PyExc_TypeError, "kernel takes {count} arguments, not %zd", count);
        return nullptr;
    }}
    try {{
        fxpool_kernel_{number}({arguments});
    }} catch (std::exception const& error) {{
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }} catch (...) {{
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception in a kernel");
        return nullptr;
    }}
    Py_RETURN_NONE;
}}
"""

_TABLE = """
static PyMethodDef fxpool_methods[] = {{
{methods}
    {{"bind", fxpool_bind, METH_O, nullptr}},
    {{nullptr, nullptr, 0, nullptr}}}};
static struct PyModuleDef fxpool_module = {{PyModuleDef_HEAD_INIT, "{module}", nullptr, -1, fxpool_methods}};
PyMODINIT_FUNC PyInit_{module}(void) {{
    PyObject* module = PyModule_Create(&fxpool_module);
#ifdef Py_GIL_DISABLED
    if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}}
"""


def compile_unit(payload: bytes) -> bytes:
    """Job: compile one `Unit`, answer with the library's bytes.

    Raises:
        CppCompileError: the compiler refused it.
        NoCompilerError: the compiler can't be started.
    """
    unit = msgspec.msgpack.decode(payload, type=Unit)
    with tempfile.TemporaryDirectory(prefix="fxpool-unit-") as directory:
        source = os.path.join(directory, unit.source_name)
        with open(source, "w") as file:
            file.write(unit.source)
        command = [argument.replace("{directory}", directory) for argument in unit.command]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False)
        except OSError as error:
            raise NoCompilerError([command[0]], str(error)) from None
        if done.returncode:
            raise CppCompileError(command, (done.stderr or done.stdout)[-20_000:])
        with open(os.path.join(directory, unit.library_name), "rb") as file:
            return file.read()


def in_threads(workers: int) -> tuple[Submit, Callable[[], None]]:
    """`Submit` on threads of this process (the compiler is a process of its own), and how to end them."""
    executor = ThreadPoolExecutor(workers, thread_name_prefix="fxpool-g++")

    def submit(function: str, payload: bytes, label: str) -> Future[bytes]:
        return executor.submit(compile_unit, payload)

    return submit, lambda: executor.shutdown(wait=True, cancel_futures=True)


# --- loading, where the graph is called ----------------------------------------------------------

_loading = threading.Lock()
_loaded: dict[str, Any] = {}


LibraryFile = Callable[[], AbstractContextManager[str]]


class Bundle:
    """The kernels of one entry. Each library's file is opened as a context, when a kernel of it is first asked for."""

    def __init__(self, index: dict[str, Any], files: Sequence[LibraryFile], digests: Sequence[str]) -> None:
        self._index, self._files, self._digests = index, files, digests

    def find(self, argument_types: Sequence[str], source: str) -> Callable[..., Any] | None:
        found = self._index.get(output_code.kernel_digest(argument_types, source))
        if found is None:
            return None
        number, name = found
        return getattr(load_library(self._digests[number], self._files[number]), name)

    def missed(self, what: str) -> None:
        """A kernel of the graph is not in the bundle and torch loads (or compiles) it: counted."""
        statistics.count("fallbacks", f"loader:{what}")


def load_library(digest: str, file: LibraryFile) -> Any:
    """The library of this content, loaded once per process and bound to torch's data pointer function."""
    with _loading:
        module = _loaded.get(digest)
        if module is None:
            with file() as path:
                loader = importlib.machinery.ExtensionFileLoader(MODULE, path)
                spec = importlib.util.spec_from_loader(MODULE, loader)
                assert spec is not None
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
            instruction_sets.enable_tiles()
            module.bind(cpp.tensor_data_pointer())
            _loaded[digest] = module
        return module
