"""Tells whether a value of torch stands where torch's text has another one.

`code_owner` tells whose code a value is. A program may also put one function of torch in the place of another:
``torch.layer_norm = torch.instance_norm``. A fresh torch has the original, so such a place counts as changed.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fxpool.torch_compat.changes.name_bindings import CALL, DECORATED, DEFINED, WORDS
from fxpool.torch_compat.changes.torch_sources import Sources
from fxpool.torch_compat.operators.code_owner import C_CODE, OPERATOR_MODULES, held_functions, is_torchs_module

__all__ = ["is_in_place", "is_substitute"]


def is_in_place(name: str, value: Any, home: Mapping[str, Any]) -> bool:
    """Return whether a value is a function that the text of a module, with the names `home`, defines as `name`."""
    if type(value) is not types.FunctionType:
        return False
    code = value.__code__
    return value.__globals__ is home and code.co_name == name and code.co_freevars in ((), ("__class__",))


def is_substitute(module: types.ModuleType, cls: type | None, name: str, value: Any, sources: Sources) -> bool:
    """Return whether torch's text binds something else to `name` in a module, or in one of its classes.

    False for values other than functions, classes and code in C, and where the text does not tell.
    """
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    kind = type(value)
    if kind is not types.FunctionType and kind not in _IN_C and not issubclass(kind, type):
        return False
    if not _stands_elsewhere(module, cls, name, value, sources):
        return False
    return kind is not types.FunctionType or not any(map(_is_fxpools, (value, *held_functions(value))))


def _stands_elsewhere(module: types.ModuleType, cls: type | None, name: str, value: Any, sources: Sources) -> bool:
    if cls is not None:
        return _is_substitute_in_class(module, cls, name, value, sources)
    if module.__name__ in OPERATOR_MODULES:  # they have no source
        return _own_name(value) != name
    imported = [
        (owner, there) for owner, there in _sources(module, name, sources) if _get(owner, there) is not _MISSING
    ]
    if imported:
        return not any(_is_from(owner, there, value, sources) for owner, there in imported)
    return _is_another(value, name, (module,), sources.binding(module, name), vars(module))


#: fxpool replaces some functions of Inductor's; a worker has the same ones.
_FXPOOL = os.path.dirname(os.path.abspath(sys.modules["fxpool"].__file__ or "")) + os.sep
#: Types of functions in C, without attributes that stand for ``__slots__``.
_IN_C = C_CODE - {types.MemberDescriptorType}


def _is_fxpools(value: Any) -> bool:
    return type(value) is types.FunctionType and value.__code__.co_filename.startswith(_FXPOOL)


def _get(module: Any, name: str) -> Any:
    """Return a value of a module, without asking a module that finds some only when asked."""
    names = vars(module) if isinstance(module, types.ModuleType) else {name: getattr(module, name, _MISSING)}
    return names.get(name, _MISSING)


_MISSING = object()


def _is_from(module: Any, name: str, value: Any, sources: Sources, depth: int = 8) -> bool:
    """Return whether a module has, defines or imports a value under a name. It may have another one by now."""
    if _get(module, name) is value:
        return True
    if not depth or not isinstance(module, types.ModuleType) or not is_torchs_module(module):
        return False  # `depth` ends imports in a circle
    if is_in_place(name, value, vars(module)):
        return True
    return any(_is_from(owner, there, value, sources, depth - 1) for owner, there in _sources(module, name, sources))


def _sources(module: types.ModuleType, name: str, sources: Sources) -> Iterator[tuple[Any, str]]:
    """Yield (module or namespace, name there) for each place that a module may import a name from."""
    imports, stars = sources.imports(module)
    if name in imports:
        home, there = imports[name]
        if home in sys.modules and home != module.__name__:
            yield sys.modules[home], there
    elif (stars or module is torch) and sources.binding(module, name) is None:
        yield from ((sys.modules[star], name) for star in stars if star in sys.modules)
        if module is torch:
            yield from ((namespace, name) for namespace in (torch._C._VariableFunctions, torch._C))


def _is_substitute_in_class(module: types.ModuleType, cls: type, name: str, value: Any, sources: Sources) -> bool:
    is_wrapper = getattr(value, "__closure__", None) is not None
    if is_wrapper and value.__name__ == name and cls is not torch.Tensor:
        return False  # as decorators of a class make them, and bases
    binding = sources.binding(module, f"{cls.__qualname__}.{name}")
    if cls is torch.Tensor and binding is None:
        return hasattr(torch._C.TensorBase, name)  # inherited
    if binding == DEFINED and is_wrapper:
        binding = DECORATED
    return _is_another(value, name, cls.__mro__, binding, vars(module))


def _is_another(value: Any, name: str, places: Sequence[Any], binding: str | None, home: Mapping[str, Any]) -> bool:
    """Return whether a value is not what a name is bound to; `places` are the module, or a class and its bases."""
    given = _own_name(value)
    if binding in (DEFINED, DECORATED):
        if type(value) in _IN_C or (given != name and any(given in vars(one) for one in places)):
            return True
        if type(value) is not types.FunctionType or binding == DEFINED:
            return binding == DEFINED and not is_in_place(name, value, home)
        # A decorator may return another function, with another name.
        return value.__closure__ is None and value.__globals__ is not home and given == name
    if binding is None or not binding.startswith((WORDS, CALL)):
        return False
    # A function in Python may come from a call in the statement, or have another name there; a class from a call.
    if type(value) not in _IN_C and not (isinstance(value, type) and binding.startswith(WORDS)):
        return False
    words = binding.split()
    return given not in words and not any(home.get(word) is value for word in words if word != name)


def _own_name(value: Any) -> str:
    """Return the name that a function or class was made with.

    The code of a wrapper has another name than the wrapper, which torch sets to that of the function inside.
    """
    if type(value) is types.FunctionType and value.__closure__ is None:
        return value.__code__.co_name
    return str(value.__name__)
