"""torch's logs as a program has set them up: artifacts (TORCH_LOGS=post_grad_graphs), and traces (TORCH_TRACE).

A worker takes over the program's state while it compiles (`entered`), so that its records are those of a compile in the
program's process. The pool sends them back, and `prepare` makes the loggers that they are replayed through, which torch
itself makes only where it imports the compiler.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import Any, Protocol

from torch._logging import _internal, getArtifactLogger, structured

from fxpool.torch_compat.patching import patched

__all__ = ["entered", "is_loading", "kernel_code", "loading", "prepare", "wanted"]

# Structured traces name files by numbers of a table in the process: in a worker, by this mark and the name.
_INTERNED = "\0fxpool interned "


_is_loading: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_loading", default=False)
# The logger through which a result that is loaded prints its graphs.
_LOADED = "torch._functorch._aot_autograd.aot_autograd_result.__aot_graphs"


class Record(Protocol):
    """A log record of a worker."""

    name: str
    extra: dict[str, Any]


def wanted() -> dict[str, Any] | None:
    """Return the artifacts that the program wants, and whether it wants traces; None if it wants neither."""
    artifacts, traces = sorted(_internal.log_state.artifact_names), bool(_internal.trace_log.handlers)
    return {"artifacts": artifacts, "traces": traces} if artifacts or traces else None


@contextlib.contextmanager
def entered(state: dict[str, Any] | None) -> Iterator[None]:
    """Log what `wanted` returned in another process, inside the ``with`` block."""
    handlers = [logging.NullHandler()] if state and state["traces"] else []
    with patched(_internal.trace_log, "handlers", handlers), contextlib.ExitStack() as stack:
        if state is not None:
            stack.enter_context(patched(_internal.log_state, "artifact_names", set(state["artifacts"])))
            stack.enter_context(patched(structured, "intern_string", _named))
            for name in list(_internal.log_registry.get_artifact_log_qnames()):
                stack.enter_context(_enabled(logging.getLogger(name)))
        yield


@contextlib.contextmanager
def _enabled(logger: Any) -> Iterator[None]:
    level, propagates = logger.level, logger.propagate
    _internal.configure_artifact_log(logger)
    try:
        yield
    finally:
        if logger.level != level:
            logger.setLevel(level)
        logger.propagate = propagates


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Log nothing about a graph that is loaded in the ``with`` block: its compile was logged, here or in a worker."""
    for name in (_internal.trace_log.name, _LOADED):
        logger = logging.getLogger(name)
        if _keeps not in logger.filters:
            logger.addFilter(_keeps)
    before = _is_loading.set(True)
    try:
        yield
    finally:
        _is_loading.reset(before)


def is_loading() -> bool:
    """Return whether this thread is in a block of `loading`."""
    return _is_loading.get()


def _keeps(record: logging.LogRecord) -> bool:
    # The table of files is filled once.
    return not _is_loading.get() or "str" in (getattr(record, "metadata", None) or ())


def _named(text: str | None) -> int | str:
    return -1 if text is None else f"{_INTERNED}{text}"


def prepare(record: Record) -> None:
    """Make the logger of a worker's record as torch would have made it, and give files their numbers here."""
    if record.name == _internal.trace_log.name:
        record.extra = _interned(record.extra)
        return
    module, mark, artifact = record.name.rpartition(".__")
    if mark and record.name not in logging.root.manager.loggerDict:
        with contextlib.suppress(ValueError):  # not an artifact of this torch
            getArtifactLogger(module, artifact)


def kernel_code(kind: str, source: str, made_by: Any) -> None:
    """Log a kernel's source as `made_by` does, the method of Inductor's that would compile it."""
    logger = getArtifactLogger("torch._inductor.async_compile", "kernel_code")
    if logger.isEnabledFor(logging.INFO):
        code, text = made_by.__code__, "%s Kernel:\n%s"
        logger.handle(
            logger.makeRecord(
                logger.name,
                logging.INFO,
                code.co_filename,
                code.co_firstlineno,
                text,
                (kind, source),
                None,
                code.co_name,
            )
        )


def _interned(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_INTERNED):
        return structured.intern_string(value.removeprefix(_INTERNED))
    if isinstance(value, dict):
        return {name: _interned(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    return value
