"""Ends a compile that meets an operator which the program would lower differently from this process.

If a program registers a lowering for one operator, its other graphs are still compiled by workers, which do not have
that lowering. The operators that a graph needs are known only during the compile: they come from decompositions, from a
backward, from passes, and a lowering may call another. So the entry of each such operator is replaced, in the tables
where a compile looks it up, by a function that records the operator and ends the compile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxpool.torch_compat.operators.operator_tables import TABLES, Treatment
from fxpool.torch_compat.patching import Patches

__all__ = ["MetError", "OperatorOverride", "forget_what_was_gathered", "watched"]


@dataclasses.dataclass(frozen=True)
class OperatorOverride:
    """An operator by its name in the tables, how its treatment differs, and the program's registration for it."""

    treatment: Treatment
    operator: str
    registration: str


class MetError(Exception):
    """A compile met a watched operator; the text names the program's registration for it."""


@contextlib.contextmanager
def watched(operators: Sequence[OperatorOverride]) -> Iterator[Callable[[], str]]:
    """End compiles that lower or decompose one of `operators`; yield a function that returns the first one met, or "".

    Code in between may catch the error: only that function's result counts.
    """
    met: list[str] = []
    unknown: list[OperatorOverride] = []
    patches = Patches()

    def first_met() -> str:
        # A module that was imported during the compile may have defined an unknown operator.
        return next(iter(met), "") or next(
            (one.registration for one in unknown if _found(one.operator) is not None), ""
        )

    try:
        for one in operators:
            looked_up = [table for table in TABLES if table.is_looked_up and table.treatment == one.treatment]
            tables = [getattr(importlib.import_module(table.module), table.name) for table in looked_up]
            keys = [key for table in tables for key in table if str(key) == one.operator]
            key = keys[0] if keys else _found(one.operator)
            if key is None:
                unknown.append(one)
                continue
            for number, table in enumerate(tables):
                if not number or key in table:
                    patches.replace_item(table, key, _telling(table.get(key), one.registration, met))
        if patches:
            forget_what_was_gathered()
        yield first_met
    finally:
        if patches:
            patches.restore()
            forget_what_was_gathered()


def _telling(entry: Any, registration: str, met: list[str]) -> Callable[..., Any]:
    def tell(*args: Any, **kwargs: Any) -> Any:
        met.append(registration)
        raise MetError(registration)

    return functools.wraps(entry)(tell) if callable(entry) else tell


def _found(operator: str) -> Any:
    """Return the operator of a name like ``aten.sin.default``; None if it is not defined in this process."""
    resolved: Any = torch.ops
    for part in operator.split("."):
        try:
            resolved = getattr(resolved, part)
        except (AttributeError, RuntimeError):
            return None
    return resolved


def forget_what_was_gathered() -> None:
    """Make Inductor and fake tensors read their tables again, as registrations may have been added."""
    gather: Any = getattr(sys.modules.get("torch._inductor.decomposition"), "fast_random_decomps", None)
    if gather is not None:
        gather.cache_clear()
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None:
        fake.FakeTensorMode.cache_clear()
