"""Digest a program's Triton kernels: sources, options, and the globals that they read.

Never imports Triton: without it there are no such objects.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from fxpool.codecache.code.writer import Writer

__all__ = ["add", "is_of_triton"]

#: Modules of Triton whose functions kernels call.
_LANGUAGE = ("triton.language", "triton._utils")
#: Functions of Triton that compute from numbers, for grids.
_FUNCTIONS = frozenset(("cdiv", "next_power_of_2"))
_OF_A_KERNEL = ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment")
_OF_A_TUNER = ("keys", "arg_names", "values", "restore_value", "reset_to_zero")


def add(proof: Writer, value: Any) -> bool:
    """Add a kernel, an autotuner, a constexpr or a dtype of Triton; return False for any other value."""
    kind = _kind(value)
    if kind == "constexpr":
        proof.token("constexpr")
        proof.add(value.value)
    elif kind == "dtype":
        proof.token("triton dtype", str(value))
    elif kind == "JITFunction":
        if is_of_triton(value.fn):
            proof.token("triton function", f"{value.fn.__module__}.{value.fn.__qualname__}")
        elif not proof.met(value):
            proof.token("triton kernel", value.src)
            for name in _OF_A_KERNEL:
                proof.token(name, repr(_plain(getattr(value, name, None))))
            proof.add_kernel_function(value.fn)
    elif kind in ("Autotuner", "Heuristics"):
        if not proof.met(value):
            proof.token("triton", kind)
            for config in getattr(value, "configs", ()):
                proof.add(tuple(sorted((name, _plain(option)) for name, option in vars(config).items())))
            for name in _OF_A_TUNER:
                proof.add(_plain(getattr(value, name, None)), name)
            proof.add(value.fn, "the kernel")
    else:
        return False
    return True


def _kind(value: Any) -> str:
    """Return the name of a value's class if it is exactly one of Triton's, else ""."""
    cls = type(value)
    home = sys.modules.get(cls.__module__)
    if not cls.__module__.startswith("triton.") or getattr(home, cls.__name__, None) is not cls:
        return ""
    return str(cls.__name__)


def is_of_triton(function: Any) -> bool:
    """Return whether a function is defined by Triton's language, under the name that it has."""
    home = sys.modules.get(getattr(function, "__module__", "") or "")
    triton = sys.modules.get("triton")
    if home is None or triton is None or not isinstance(function, types.FunctionType):
        return False
    if not function.__code__.co_filename.startswith(tuple(triton.__path__)):
        return False
    return home.__name__.startswith(_LANGUAGE) or function.__name__ in _FUNCTIONS


def _plain(value: Any) -> Any:
    """Return containers of options as tuples; functions stay, as autotuners have some (to prune configurations)."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(repr, value)))
    if isinstance(value, dict):
        return tuple((_plain(name), _plain(item)) for name, item in sorted(value.items()))
    return value
