"""Modules and libraries of the program that a worker could not load: no other graph and no other level tries again.

Later processes with the same environment know it too, for an hour and while the file is unchanged: an import may fail
for a reason outside of the file, which the user then mends.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

from fxpool.codecache.key import probe_cache
from fxpool.errors import CannotTravelError
from fxpool.lowering.core import pool_environment
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.captured import Captured
from fxpool.lowering.request.compile_request import CompileRequest

__all__ = ["REASON", "refuse", "remember"]

REASON = "code_not_importable"
_KEPT_SECONDS = 3600.0


class _Unimportable:
    """Names that this process's workers could not load, with the message."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def after_fork_in_child(self) -> None:
        pass  # the child's workers import the same files

    def reset(self) -> None:
        self.names.clear()


def refuse(captured: Captured) -> None:
    """Raise CannotTravelError if the graph needs a module or library that a worker could not load."""
    request = captured.request
    known = runtime.part(_Unimportable).names
    for name in (*request.modules, *request.libraries):
        if name not in known and (detail := _kept(request, name)):
            known[name] = detail
        if name in known:
            raise CannotTravelError(REASON, known[name])


def remember(captured: Captured, error: CannotTravelError) -> None:
    """Note that a worker could not load a module or library, if `error` says so."""
    request, (name, _, _) = captured.request, error.detail.partition(": ")
    if error.reason != REASON or name not in (*request.modules, *request.libraries):
        return
    runtime.part(_Unimportable).names[name] = error.detail
    if (question := _question(request, name)) is not None:
        probe_cache.write(
            request.toolchain_dir, *question, {"detail": error.detail, "until": str(time.time() + _KEPT_SECONDS)}
        )


def _kept(request: CompileRequest, name: str) -> str:
    question = _question(request, name)
    answer = probe_cache.read(request.toolchain_dir, *question) if question is not None else None
    if answer is None:
        return ""
    try:
        return answer["detail"] if time.time() < float(answer["until"]) else ""
    except (KeyError, ValueError):
        return ""


def _question(request: CompileRequest, name: str) -> tuple[tuple[str, ...], probe_cache.Identity] | None:
    """Return a name for the attempt to load `name`, and its file's identity; None if there is no such file."""
    spec: Any = getattr(sys.modules.get(name), "__spec__", None)
    path = spec.origin if getattr(spec, "has_location", False) else name
    directory = pool_environment.working_directory()  # None if it was removed
    surroundings = hashlib.sha256(repr((sorted(request.ambient.environment.items()), directory)).encode())
    try:
        return ("import", name, surroundings.hexdigest()), probe_cache.identity_of(path)
    except (OSError, TypeError, ValueError):
        return None
