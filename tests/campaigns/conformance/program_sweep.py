"""Runs a program eagerly and compiled, and says whether both give the same."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import closeness
from .programs.registry import Compile, Program, registered
from .record import ERROR, RIGHT, SKIP, WRONG, short

__all__ = ["AGAIN", "BATCH", "LIMIT", "attempt", "keys"]

BATCH = 24  # programs in one process: starting one takes five seconds, and a crash costs the others another start
AGAIN = True
LIMIT = 240.0  # seconds for one program


def keys() -> list[str]:
    """Names of all programs."""
    package = f"{__package__}.programs"
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name.endswith("_kernels"):
            continue  # imported by its programs, where Triton is installed
        importlib.import_module(f"{package}.{module.name}")
    return list(registered())


def attempt(key: str, backend: str, seed: int) -> tuple[str, str]:
    """(status, why) of one program under `backend`."""
    keys()
    program = registered()[key]
    expected, raised = _outcome(program, _eager, seed)
    if (raised is not None) != program.raises:
        return SKIP, f"eagerly: {short(raised) if raised else 'nothing was raised'}"
    torch._dynamo.reset()
    got, error = _outcome(program, functools.partial(torch.compile, backend=backend), seed)
    if raised is not None:
        if error is None:
            return WRONG, f"nothing was raised, and eagerly {short(raised)}"
        return (RIGHT, "") if isinstance(error, type(raised)) else (WRONG, f"{short(error)}, and eagerly {raised!r}")
    if error is not None:
        return ERROR, short(error)
    try:
        _check(program, expected, got)
    except AssertionError as difference:
        return WRONG, short(difference)
    return RIGHT, ""


def _check(program: Program, expected: Any, got: Any) -> None:
    if program.whole:
        closeness.check(expected, got, "", strides=program.strides)
        return
    for number, (one, two) in enumerate(zip(expected, got, strict=True)):
        if one.keys() != two.keys():
            raise AssertionError(f"call {number}: {', '.join(one)} against {', '.join(two)}")
        for name in one:
            closeness.check(one[name], two[name], f"call {number}, {name}: ", strides=program.strides)


def _eager(function: Any, **_: Any) -> Any:
    return function


def _outcome(program: Program, compiling: Compile, seed: int) -> tuple[Any, Exception | None]:
    torch.manual_seed(seed)
    try:
        if program.whole:
            return closeness.snapshot(program.build(compiling)), None
        return list(_readings(program, compiling, seed)), None
    except Exception as error:
        return None, error


def _readings(program: Program, compiling: Compile, seed: int) -> Iterator[dict[str, Any]]:
    made = program.build()
    # By identity, and held until the end: another function may get the address of one that is gone.
    compiled: list[tuple[Any, Any]] = []
    for function, arguments in made if inspect.isgenerator(made) else [made]:
        known = next((found for one, found in compiled if one is function), None)
        if known is None:
            known = compiling(function, **program.compiling)
            compiled.append((function, known))
        torch.manual_seed(seed + 1)
        yield _reading(known, function, arguments)


def _reading(call: Callable[..., Any], function: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the results and the effects of one call. Its gradients are those of the sum of all results."""
    out = call(*arguments)
    found = {"out": closeness.snapshot(out), "shared": _shared(out, arguments)}
    module = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    parameters = dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}
    leaves = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.requires_grad]
    results = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad]
    found["needs_grad"] = [x.requires_grad for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
    if results:
        sum((x.abs() if x.is_complex() else x).float().sum() for x in results).backward()
        found["gradients"] = closeness.snapshot([x.grad for x in leaves if x.is_leaf])
        found["of_parameters"] = closeness.snapshot({name: one.grad for name, one in parameters.items()})
    found["arguments"] = closeness.snapshot([x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)])
    if isinstance(module, torch.nn.Module):
        found["buffers"] = closeness.snapshot(dict(module.named_buffers()))
    return found


def _shared(out: Any, arguments: Any) -> list[int]:
    """For each result, the number of the argument whose memory it is, or -1."""

    def memory(x: torch.Tensor) -> int:
        try:
            return int(x.untyped_storage().data_ptr()) if x.numel() else 0
        except (RuntimeError, NotImplementedError):  # of wrapper subclasses
            return 0

    given = [memory(x) for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)]
    results = [memory(x) for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
    return [given.index(one) if one and one in given else -1 for one in results]
