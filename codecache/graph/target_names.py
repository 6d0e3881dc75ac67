"""Find names by which another process can import the functions and operators of a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fxpool.errors import CannotTravelError
from fxpool.torch_compat.operators import code_owner, operators

__all__ = ["comes_with_torch", "name_of"]

_FOUND: dict[int, tuple[Any, str, str]] = {}
_HOMES = ("torch", "torch._C._nn", "torch.nn.functional", "torch._C._special", "torch._C._linalg", "torch._C._fft",
          "torch.Tensor", "torch._C", "operator", "math")  # fmt: skip


def name_of(target: Any) -> tuple[str, str]:
    """Return (module, qualified name) by which another process can import `target`.

    Raises:
        CannotTravelError: it is local, anonymous or defined in the main script, or the name leads to another object.
    """
    known = _FOUND.get(id(target))
    if known is not None and known[0] is target:
        return known[1], known[2]
    for module, qualified in _candidates(target):
        if module in code_owner.MAIN:
            raise CannotTravelError("defined_in_main", qualified)
        with contextlib.suppress(ImportError, AttributeError, ValueError, TypeError):
            if operators.resolve(module, qualified) is target:
                _FOUND[id(target)] = (target, module, qualified)
                return module, qualified
    raise CannotTravelError("function", operators.pretty_name(target) if callable(target) else repr(target)[:80])


def _candidates(target: Any) -> Iterator[tuple[str, str]]:
    module = getattr(target, "__module__", None)
    qualified = getattr(target, "__qualname__", None)
    name = getattr(target, "__name__", None)
    if isinstance(module, str):
        module = {"_operator": "operator"}.get(module, module)
        if isinstance(qualified, str) and "<" not in qualified:
            yield module, qualified
        if isinstance(name, str) and name != qualified:
            yield module, name
    if isinstance(name, str):
        for home in _HOMES:
            if home == "torch.Tensor":
                yield "torch", f"Tensor.{name}"
            else:
                yield home, name


def comes_with_torch(module: str, target: Any) -> bool:
    """Return whether `target`, found under a name in `module`, is torch's code, or of a library that graphs may name.

    A program may have put its own function into torch's module.
    """
    return module.split(".")[0] in _KNOWN and code_owner.is_own(target)


_KNOWN = ("torch", "builtins", "operator", "math", "_operator", "torchgen")
