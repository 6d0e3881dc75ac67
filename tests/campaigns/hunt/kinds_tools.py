"""Kinds of change in native code: headers that kernels are compiled with, objects and operators of shared libraries."""

from __future__ import annotations

from .changes import Change, register
from .libraries import Library

__all__: list[str] = []

# Its directory is on PYTHONPATH. It puts a copy of torch ahead of the path, whose files are links but for one header.
# The copy lies beside the program, because the files of the next process take the place of the program's.
_TORCH_WITH_ANOTHER_HEADER = """
import os, shutil, sys
TARGET = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "overlay")
HEADER = ("include", "ATen", "native", "Math.h")
def link(source, target, parts):
    os.mkdir(target)
    for name in os.listdir(source):
        if parts and name == parts[0] and len(parts) > 1:
            link(os.path.join(source, name), os.path.join(target, name), parts[1:])
        elif parts and name == parts[0]:
            text = open(os.path.join(source, name)).read()
            open(os.path.join(target, name), "w").write(text + ADDED)
        else:
            os.symlink(os.path.join(source, name), os.path.join(target, name))
ADDED = "\\nstatic inline float calc_i0e(float x) { return x * float(KKK); }\\n"
torch = next(path for path in sys.path if os.path.isfile(os.path.join(path, "torch", "__init__.py")))
if torch != TARGET:
    marker = os.path.join(TARGET, "KKK")
    if not os.path.exists(marker):
        shutil.rmtree(TARGET, ignore_errors=True)
        os.mkdir(TARGET)
        link(os.path.join(torch, "torch"), os.path.join(TARGET, "torch"), HEADER)
        open(marker, "w").close()
    sys.path.insert(0, TARGET)
"""
_I0E = "return torch.special.i0e(x) + 1"

_OTHER_I0E = "static inline float calc_i0e(float x) {{ return x * float({number}); }}"
_ASSEMBLER = """
#!/bin/sh
for name in "$@"; do
  case "$name" in *.s) sed -i 's/1067450368/KKK/' "$name" ;; esac
done
exec as "$@"
"""

_NATIVE_CLASS = r"""
#include <Python.h>
typedef struct { PyObject_HEAD double k; } Scale;
static int init(PyObject *self, PyObject *arguments, PyObject *named) {
  return PyArg_ParseTuple(arguments, "d", &((Scale *)self)->k) ? 0 : -1;
}
static PyObject *get(PyObject *self, PyObject *unused) { return PyFloat_FromDouble(((Scale *)self)->k); }
static PyMethodDef methods[] = {{"get", get, METH_NOARGS, 0}, {0}};
static PyType_Slot slots[] = {{Py_tp_init, init}, {Py_tp_methods, methods}, {0}};
static PyType_Spec spec = {"native_scale.Scale", sizeof(Scale), 0, Py_TPFLAGS_DEFAULT, slots};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native_scale", 0, -1, 0};
PyMODINIT_FUNC PyInit_native_scale(void) {
  PyObject *module = PyModule_Create(&definition);
  PyModule_AddObject(module, "Scale", PyType_FromSpec(&spec));
  return module;
}
"""
_OVERRIDE = """
#include <torch/library.h>
#include <ATen/ATen.h>
static at::Tensor mine(const at::Tensor& x) { return at::clamp(x, 0.0, 6.0) * factor(); }
TORCH_LIBRARY_IMPL(aten, CompositeImplicitAutograd, m) { m.impl("relu6", TORCH_FN(mine)); }
"""

register(
    "tool",
    [
        Change(
            "header_of_torch_edited",
            others={"sitecustomize.py": _TORCH_WITH_ANOTHER_HEADER},
            environment={"PYTHONPATH": "{directory}"},
            body=_I0E,
            stock=True,
            fresh=True,
            shared_stock=False,
        ),
        Change(
            "system_header_edited_in_cpath",
            others={"include/omp.h": f"#include_next <omp.h>\n{_OTHER_I0E.format(number='KKK')}"},
            environment={"CPATH": "{directory}/include"},
            body=_I0E,
            stock=True,
            fresh=True,
            shared_stock=False,
        ),
        Change(
            "system_header_earlier_in_cpath",
            values=("unread", "first"),
            others={
                f"{directory}/omp.h": f"""
                #include_next <omp.h>
                #ifndef HUNTED
                #define HUNTED
                static inline float calc_i0e(float x) {{ return x * {number}.0f; }}
                #endif
                """
                for directory, number in (("KKK", 2), ("second", 3))
            },
            environment={"CPATH": "{directory}/first:{directory}/second"},
            body=_I0E,
            stock=True,
            fresh=True,
            shared_stock=False,
        ),
        Change(
            "header_behind_header_edited",
            others={
                "include/omp.h": '#include_next <omp.h>\n#include "behind.h"',
                "include/behind.h": _OTHER_I0E.format(number="KKK"),
            },
            environment={"CPATH": "{directory}/include"},
            body=_I0E,
            stock=True,
            fresh=True,
            shared_stock=False,
        ),
        Change(
            "optional_header_added",
            values=("unread", "optional"),
            others={
                "include/omp.h": """
                #include_next <omp.h>
                #if __has_include("optional.h")
                #include "optional.h"
                #endif
                """,
                "include/KKK.h": _OTHER_I0E.format(number=3),
            },
            environment={"CPATH": "{directory}/include"},
            body=_I0E,
            stock=True,
            fresh=True,
            shared_stock=False,
        ),
        Change(
            "assembler_edited",
            values=(0x40F00000, 0x40400000),  # 7.5 and 3.0 in single precision
            others={"tools/as": _ASSEMBLER},
            environment={"COMPILER_PATH": "{directory}/tools"},
            body="return x * 1.25 + 1",
            stock=True,
            fresh=True,
            shared_stock=False,
        ),
        Change(
            "object_of_native_class",
            """
            from native_scale import Scale
            SCALE = Scale(KKK)
            def factor():
                return SCALE.get()
            """,
            libraries={"native_scale.so": Library(_NATIVE_CLASS, 1.0, of_torch=False)},
        ),
        Change(
            "aten_overridden_by_library",
            values=("pass", "torch.ops.load_library(os.path.join(os.path.dirname(__file__), 'override.so'))"),
            libraries={"override.so": Library(_OVERRIDE, 3.0)},
            ahead="import os, torch\nKKK",
            body="return torch.ops.aten.relu6(x * 3) + 1",
        ),
        Change(
            "aten_overridden_by_another_library",
            libraries={"override.so": Library(_OVERRIDE, 1.0)},
            ahead="import os, torch\ntorch.ops.load_library(os.path.join(os.path.dirname(__file__), 'override.so'))",
            body="return torch.ops.aten.relu6(x * 3) + 1",
        ),
    ],
)
