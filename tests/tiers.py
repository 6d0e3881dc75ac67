"""Two tiers of tests: `make test` runs the first, `make test-slow` both.

The first tier is what a change is checked with, half an hour of two cores. The second adds most of what takes a quarter
of a minute and more, and further cases of what the first shows with some.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["first_tier"]


def first_tier(cases: Iterable[Any], *first: Any) -> list[Any]:
    """`cases` as parameters of a test, of which all but `first` are marked slow. Raises ValueError for unknown ones."""
    every = list(cases)
    if unknown := [case for case in first if case not in every]:
        raise ValueError(f"no such cases: {unknown}")
    return [case if case in first else _slow(case) for case in every]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
