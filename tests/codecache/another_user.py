"""Runs a function as another user, which only root can."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from fxpool.errors import StoreError

__all__ = ["as_nobody"]

NOBODY = 65534


def as_nobody(work: Callable[[], object]) -> str:
    """Return the result of `work` in a child that is another user, as text; the error's text if it raises."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            said = f"{work()}"
        except StoreError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException:
            said = traceback.format_exc()
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said
