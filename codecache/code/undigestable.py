"""The error for values without a digest."""

from __future__ import annotations

__all__ = ["UndigestableError"]


class UndigestableError(ValueError):
    """Code depends on a value without a digest; `what` describes the value and the references that lead to it."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"cannot digest {what}")
