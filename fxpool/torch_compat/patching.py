"""Replaces attributes of torch's or Triton's, and restores them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Patches", "patched", "triton_driver"]

_ABSENT = object()


class Patches:
    """Replacements that are in force, the latest last.

    Another function than the one that replaces may restore them, as a forked child does for threads that it lacks.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def __len__(self) -> int:
        return len(self._originals)

    def replace(self, owner: Any, name: str, value: Any, *, create: bool = False) -> None:
        """Replace an attribute of an object, such as a module or class. Raises AttributeError as `patched`."""
        original = vars(owner).get(name, _ABSENT)  # the raw attribute, so that a static method stays static
        if original is _ABSENT and not create:
            getattr(owner, name)  # inherited, or AttributeError
        self._originals.append((owner, name, original))
        setattr(owner, name, value)

    def restore(self, count: int = 0) -> None:
        """Restore all originals but those of the first `count` replacements."""
        while len(self) > count:
            owner, name, original = self._originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    @contextlib.contextmanager
    def replaced(self, owner: Any, name: str, value: Any, *, create: bool = False) -> Iterator[None]:
        """Replace an attribute in the ``with`` block, as `patched` does."""
        count = len(self)
        self.replace(owner, name, value, create=create)
        try:
            yield
        finally:
            self.restore(count)


def patched(owner: Any, name: str, value: Any, *, create: bool = False) -> contextlib.AbstractContextManager[None]:
    """Replace an attribute of a module or class by `value`, and restore the original on leaving.

    Raises AttributeError if there is no such attribute, unless `create`, for names that a release may lack.
    """
    return Patches().replaced(owner, name, value, create=create)


@contextlib.contextmanager
def triton_driver(driver: Any) -> Iterator[None]:
    """Give Triton this driver in the ``with`` block. Triton then does not build or load another one."""
    from triton.runtime import driver as active

    with patched(active, "_active", driver):
        yield
