"""The error for code that is not proven to be the same in another process."""

from __future__ import annotations

__all__ = ["UnprovenError"]


class UnprovenError(ValueError):
    """Code is outside the grammar; `part` names it, and the references that lead to it."""

    def __init__(self, part: str) -> None:
        self.part = part
        super().__init__(f"not proven to be the same in another process: {part}")
