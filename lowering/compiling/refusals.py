"""Compiles that failed before, and are not tried again.

    code      a worker has other code than the program, or could not load a module or library of it
    levels    a level of the fallback chain failed for a graph

A level that fails costs a compile, and each level below costs another. A level that failed although a lower level works
is recorded under its key (`codecache.store.small_records`), as are a result that could not be sent back, and a graph
that compiles at no level.

Later processes with the same environment know of code that could not be loaded, too, for an hour and while the file is
unchanged: an import may fail for a reason outside of the file, which the user then mends.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

from fxpool import failures, notices
from fxpool.codecache.key import probe_cache
from fxpool.codecache.store import small_records
from fxpool.errors import CannotReturnError, CannotTravelError, StoreError
from fxpool.lowering.core import pool_environment
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import CODE_DIFFERS, CompileRequest

__all__ = ["NOT_IMPORTABLE", "compiles_nowhere", "refuse", "remember_code", "remember_level"]

log = notices.logger(__name__)

#: The reason for a graph whose code a worker could not load.
NOT_IMPORTABLE = "code_not_importable"
_REMEMBERED_SECONDS = 3600.0


class _Code(Part):
    """Code that this process's workers do not have: `differing` pieces with their digests, messages by module or
    library that is `not_importable`."""

    def __init__(self) -> None:
        self.differing: set[tuple[str, str]] = set()
        self.not_importable: dict[str, str] = {}


def refuse(captured: Captured, attempt: Attempt) -> None:
    """Raise CannotTravelError or CannotReturnError if no worker could compile the graph, or return its result."""
    if captured.stays is not None:
        raise captured.stays
    _refuse_code(captured.request)
    if attempt.store is None or captured.key is None:
        return
    if reason := small_records.failed.find(attempt.store.root, captured.key.digest):
        raise CannotReturnError(reason, "it failed in an earlier process")


# ---------------------------------------------------------------- code


def _refuse_code(request: CompileRequest) -> None:
    absent = runtime.part(_Code)
    for name, _ in absent.differing.intersection(request.code.digests.items() if request.code is not None else ()):
        raise CannotTravelError(CODE_DIFFERS, name)
    for name in (*request.modules, *request.libraries):
        if name not in absent.not_importable and (detail := _recorded(request, name)):
            absent.not_importable[name] = detail
        if name in absent.not_importable:
            raise CannotTravelError(NOT_IMPORTABLE, absent.not_importable[name])


def remember_code(captured: Captured, error: CannotTravelError) -> None:
    """Note that a worker has other code, or could not load a module or library, if `error` says so."""
    request, (name, _, _) = captured.request, error.detail.partition(": ")
    code = request.code
    if error.reason == CODE_DIFFERS and code is not None and error.detail in code.digests:
        runtime.part(_Code).differing.add((error.detail, code.digests[error.detail]))
    if error.reason != NOT_IMPORTABLE or name not in (*request.modules, *request.libraries):
        return
    runtime.part(_Code).not_importable[name] = error.detail
    if (question := _question(request, name)) is not None:
        until = str(time.time() + _REMEMBERED_SECONDS)
        probe_cache.write(request.toolchain_dir, *question, {"detail": error.detail, "until": until})


def _recorded(request: CompileRequest, name: str) -> str:
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


# ---------------------------------------------------------------- levels


def compiles_nowhere(error: BaseException) -> bool:
    """Return whether an error of `refuse` says that the graph did not compile at any level."""
    return isinstance(error, CannotReturnError) and error.reason.startswith(small_records.NO_LEVEL)


def remember_level(attempt: Attempt, error: BaseException, *, nowhere: bool = False) -> None:
    """Record that the level of `attempt` failed with `error`, so that it is not tried again.

    `nowhere`: the graph did not compile in this process either, so the next one tries no worker.
    """
    store = attempt.store
    if store is None or attempt.key is None or not failures.FOLLOWS[failures.of(error)].remembered:
        return
    if isinstance(error, CannotReturnError):
        reason = error.reason
    else:
        reason = f"{small_records.NO_LEVEL if nowhere else small_records.COMPILE_ERROR}{type(error).__name__}"
    try:
        small_records.failed.add(store.root, attempt.key, reason)
    except StoreError as refused:
        log.info(
            "could not record that %s failed at this level, the next process will try it: %s", attempt.label, refused
        )
