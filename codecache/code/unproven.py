"""The error for code that is not proven to be the same in another process."""

from __future__ import annotations

__all__ = ["UnprovenError"]


class UnprovenError(ValueError):
    """Code is outside the grammar; `what` names the part, and the references that lead to it."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"not proven to be the same in another process: {what}")
