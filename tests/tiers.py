"""Two tiers of tests: `make test` runs the first, `make test-all` both.

The first tier is what a change is checked with, ten minutes on two cores: every test without a compile or a server,
the tests that `make without` names for each system, and some cases of each table of kills. The second tier
(``@pytest.mark.slow``) has what takes longer than a second or two and is not named there.
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
