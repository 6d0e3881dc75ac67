"""Look at the files of compilers once per examination: one graph asks several times which compiler there is.

An examination lasts for one graph, or for a second where the frames of one function follow each other. Outside of one,
each question is answered from the files.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

__all__ = ["Examination", "current", "once", "under_way"]

P = ParamSpec("P")
T = TypeVar("T")

# Seconds after which the files are looked at again.
_LASTS = 1.0


class Examination:
    """Answers about files, for one environment."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._environment = dict(os.environ)
        self._answers: dict[object, object] = {}

    def is_over(self) -> bool:
        """Return whether another one is due."""
        # A restored process may have an earlier clock.
        return not 0 <= time.monotonic() - self._began <= _LASTS or self._environment != dict(os.environ)

    def answer(self, question: object, ask: Callable[[], T]) -> T:
        """Return the answer to a question, asked once. Errors are not remembered."""
        if question not in self._answers:
            self._answers[question] = ask()
        answer: T = self._answers[question]  # type: ignore[assignment]
        return answer


_current: contextvars.ContextVar[Examination | None] = contextvars.ContextVar("examination", default=None)


def current() -> Examination | None:
    """Return the examination that is under way in this thread."""
    return _current.get()


@contextlib.contextmanager
def under_way(earlier: Examination | None = None) -> Iterator[None]:
    """Examine in this block: continue the examination around it, or an `earlier` one, unless it is over."""
    examination = _current.get() or earlier
    token = _current.set(Examination() if examination is None or examination.is_over() else examination)
    try:
        yield
    finally:
        _current.reset(token)


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of hashable arguments answer once per examination."""

    @functools.wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        examination = _current.get()
        if examination is None:
            return function(*args, **kwargs)
        question = (function, args, tuple(sorted(kwargs.items())))
        return examination.answer(question, lambda: function(*args, **kwargs))

    return ask
