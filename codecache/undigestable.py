"""The error for what has no digest."""

from __future__ import annotations

__all__ = ["UndigestableError"]


class UndigestableError(ValueError):
    """Something that code depends on and that has no digest; `what` says what it is and the way to it."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"no digest of {what}")
