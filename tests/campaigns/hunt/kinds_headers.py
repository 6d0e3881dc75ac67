"""Kinds of change in the headers that kernels include: edited, or others of the same names in earlier directories."""

from __future__ import annotations

from .drawing import Drawn, kind
from .program import Case, Step

__all__: list[str] = []

_PROGRAM = """
import torch
import torch._inductor.config
torch._inductor.config.cpp.simdlen = {simdlen}
def inputs():
    generator = torch.Generator().manual_seed(7)
    return (torch.rand(4, 8, generator=generator) + 0.1,)
def run(x):
    return {result}
"""
# A header of the system's, in which a function that kernels of one number call is another one. A macro alone would not
# do: stock Inductor looks at the preprocessor's output, which lacks them.
_CMATH = """
#include_next <cmath>
#ifndef HUNTED
#define HUNTED
namespace std {{
template <typename T> inline T hunted(T a, T b) {{ return remainder(a * T({number}), b + 100); }}
}}
#define {function}(a, b) hunted((a), (b))
#endif
"""
# A tree of links to torch, which Python imports in its place: directories and a header are copies, and the header is
# edited. Run by each interpreter that has the directory on its path, before any other code.
_OVERLAY = """
import importlib.machinery, os, shutil, sys
here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "overlay")
torch = os.path.dirname(importlib.machinery.PathFinder.find_spec("torch").origin)
made = os.path.join(here, "torch")
below = ["", *(os.path.join(*{header!r}.split("/")[:depth]) for depth in range(1, {header!r}.count("/") + 1))]
for inside in below:
    if os.path.islink(os.path.join(made, inside)):
        os.unlink(os.path.join(made, inside))
    os.makedirs(os.path.join(made, inside), exist_ok=True)
    for name in os.listdir(os.path.join(torch, inside)):
        if name != "__pycache__" and not os.path.lexists(os.path.join(made, inside, name)):
            os.symlink(os.path.join(torch, inside, name), os.path.join(made, inside, name))
target = os.path.join(made, {header!r})
with open(os.path.join(torch, {header!r})) as file:
    text = file.read()
edited = text.replace({before!r}, {after!r})
assert {changed} == (edited != text)
if os.path.islink(target) or open(target).read() != edited:
    os.unlink(target)
    with open(target, "w") as file:
        file.write(edited)
sys.path.insert(0, here)
"""
_MATH = "include/ATen/native/Math.h"
_NDTRI = "inline C10_HOST_DEVICE T calc_ndtri(T y0) {"
# (header below torch's directory, its text, the text after an edit, a call that depends on it, the width of vectors)
_EDITS = (
    (_MATH, "std::exp(x) * chbevl(y, A, len)", "std::exp(x) * 2 * chbevl(y, A, len)", "torch.special.i0(x)", None),
    (_MATH, _NDTRI, f"{_NDTRI} return y0 * 3;", "torch.special.ndtri(x / 3)", 1),
)


def _computed(drawn: Drawn) -> tuple[str, str]:
    function = drawn.choose("function", ["hypot", "atan2"])
    return _PROGRAM.format(simdlen=1, result=f"torch.{function}(x, x + 1) * 2"), function


def _of_path(drawn: Drawn, name: str, headers: list[tuple[str, dict[str, float]]]) -> Case:
    """Steps whose headers have these numbers, by directory; the last one has those of the first."""
    text, function = _computed(drawn)
    variable = drawn.choose("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
    steps = []
    for label, numbers in headers:
        files: dict[str, str | bytes | object] = {"hunted.py": text, "one/notes.h": "", "two/notes.h": ""}
        for directory, number in numbers.items():
            files[f"{directory}/cmath"] = _CMATH.format(function=function, number=number)
        places = {variable: "{directory}/one:{directory}/two"}
        steps.append(Step(label, files, environment=places, expect_hit=label in ("back", "unrelated")))  # type: ignore[arg-type]
    return Case(name, drawn.number, steps, stock=True, shared_stock=False, fresh=True, note=drawn.note)


@kind("header_edited_in_cpath", slow=True)
def _edited(drawn: Drawn, name: str) -> Case:
    """A header of the system's is another one in a directory of the program's, where it is edited."""
    one, other = drawn.two()
    place = drawn.choose("directory", ["one", "two"])
    return _of_path(drawn, name, [("before", {place: one}), ("after", {place: other}), ("back", {place: one})])


@kind("header_shadowed_in_cpath", slow=True)
def _shadowed(drawn: Drawn, name: str) -> Case:
    """A header of the same name appears in an earlier directory, and goes."""
    one, other = drawn.two()
    first = drawn.choose("first", [{}, {"two": one}])
    return _of_path(drawn, name, [("before", first), ("after", {**first, "one": other}), ("back", first)])


@kind("header_of_torch_edited", slow=True)
def _of_torch(drawn: Drawn, name: str) -> Case:
    """In a tree that is imported in place of the installed torch."""
    header, before, after, result, simdlen = drawn.choose("edit", _EDITS)
    steps = []
    for label, edited in (("before", before), ("after", after), ("back", before)):
        overlay = _OVERLAY.format(header=header, before=before, after=edited, changed=edited != before)
        files = {"hunted.py": _PROGRAM.format(simdlen=simdlen, result=result), "start/sitecustomize.py": overlay}
        steps.append(Step(label, files, environment={"PYTHONPATH": "{directory}/start"}, expect_hit=label == "back"))  # type: ignore[arg-type]
    return Case(name, drawn.number, steps, stock=True, shared_stock=False, fresh=True, note=drawn.note)
