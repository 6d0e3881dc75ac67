"""C++ source of one translation unit: several generated kernels, and the way Python calls each of them.

Inductor calls every kernel's function ``kernel``, and different kernels define helpers of the same name. So each kernel
gets a separate namespace, and its digest names it in the library, which is the same in every library with this kernel.
A unit lists its functions in a section of the object file, and the linker gathers these sections from all units of a
library. So units compile in any order, independently of each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fxpool.torch_compat.cpp import compile_commands

MODULE = "fxpool_kernels"

# Hexadecimal digits of its digest that tell a kernel from the others of a library.
_NAMED_BY = 24
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


def function_name(digest: str) -> str:
    """Return the name of a kernel in its library."""
    return f"k{digest[:_NAMED_BY]}"


def unit_source(kernels: Sequence[tuple[str, compile_commands.CollectedKernel]], *, own_namespaces: bool = True) -> str:
    """Return the source of a unit of kernels, each with its digest.

    Without `own_namespaces` kernels share the global namespace: some code (for example a specialization of one of
    torch's templates) is valid only there.
    """
    parts = [compile_commands.HEADER]
    calls: list[str] = []
    for digest, kernel in kernels:
        name = function_name(digest)
        space = f"fxpool_space_{name}" if own_namespaces else ""
        # Includes have to be outside of namespaces.
        parts += [
            line for line in dict.fromkeys(_INCLUDE.findall(kernel.source)) if compile_commands.HEADER not in line
        ]
        # The generated function is called `kernel`: renaming the token does not change the text and its lines.
        parts.append(f"#define kernel fxpool_kernel_{name}")
        parts.append(f"namespace {space} {{" if space else "")
        parts.append(_INCLUDE.sub("", kernel.source))
        parts.append("}" if space else "")
        parts.append("#undef kernel")
        types = [argument.replace("const ", "").strip() for argument in kernel.argument_types]
        arguments = ", ".join(f"fxpool_argument<{one}>::of(args[{n}])" for n, one in enumerate(types))
        calls.append(_CALL.format(name=name, space=space, count=len(types), arguments=arguments))
    return "\n".join([*parts, _PYTHON, *calls])


_PYTHON = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <exception>
#include <stdexcept>
#include <type_traits>

#define FXPOOL_SHARED __attribute__((weak, visibility("hidden")))

// Given by torch as an address: kernels are compiled without torch's headers and libraries.
FXPOOL_SHARED void* (*fxpool_data_pointer)(PyObject*) = nullptr;

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

extern "C" FXPOOL_SHARED PyObject* fxpool_bind(PyObject*, PyObject* address) {
    void* pointer = PyLong_AsVoidPtr(address);
    if (pointer == nullptr) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a null address");
        return nullptr;
    }
    fxpool_data_pointer = reinterpret_cast<void* (*)(PyObject*)>(pointer);
    Py_RETURN_NONE;
}

// Where the linker puts the functions of all units, one pointer after another.
extern "C" __attribute__((visibility("hidden"))) PyMethodDef* __start_fxpool_methods[];
extern "C" __attribute__((visibility("hidden"))) PyMethodDef* __stop_fxpool_methods[];

extern "C" __attribute__((weak, visibility("default"))) PyObject* PyInit_MODULE(void) {
    static PyMethodDef bind = {"bind", fxpool_bind, METH_O, nullptr};
    static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "MODULE", nullptr, -1, nullptr};
    PyObject* module = PyModule_Create(&definition);
    if (module == nullptr) return nullptr;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    for (PyMethodDef** method = __start_fxpool_methods; method <= __stop_fxpool_methods; ++method) {
        PyMethodDef* added = method == __stop_fxpool_methods ? &bind : *method;
        PyObject* function = PyCFunction_New(added, nullptr);
        if (function == nullptr || PyModule_AddObject(module, added->ml_name, function) < 0) {
            Py_XDECREF(function);
            Py_DECREF(module);
            return nullptr;
        }
    }
    return module;
}
""".replace("MODULE", MODULE)

_CALL = """
static PyObject* fxpool_call_{name}(PyObject*, PyObject* const* args, Py_ssize_t count) {{
    if (count != {count}) {{
        PyErr_Format(PyExc_TypeError, "kernel takes {count} arguments, not %zd", count);
        return nullptr;
    }}
    try {{
        {space}::fxpool_kernel_{name}({arguments});
    }} catch (std::exception const& error) {{
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }} catch (...) {{
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception in a kernel");
        return nullptr;
    }}
    Py_RETURN_NONE;
}}
static PyMethodDef fxpool_method_{name} = {{
    "{name}", (PyCFunction)(void*)fxpool_call_{name}, METH_FASTCALL, nullptr}};
__attribute__((section("fxpool_methods"), used)) static PyMethodDef* fxpool_entry_{name} = &fxpool_method_{name};
"""
