"""Carries an exception from a worker to its caller, with its type, the worker's frames, its causes and contexts.

Each exception of the chain is pickled separately. If one cannot be pickled, a `RemoteError` with its type, message and
formatted traceback replaces only that one. tblib rebuilds the tracebacks from file names, functions and line numbers;
local variables stay in the worker.

The tracebacks of an exception group's members are not carried, except in the formatted text.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import traceback
from types import SimpleNamespace, TracebackType
from typing import Any

import msgspec

from fxpool.errors import (
    OVER_LIMIT,
    JobCancelledError,
    LastAttempt,
    NoWorkerError,
    PoolUnavailableError,
    WorkerDiedError,
)
from fxpool.pool.wire import messages as m

__all__ = ["RemoteError", "dump", "error_of", "load"]

# Frames kept at each end of a traceback: enough to see which functions a RecursionError repeats.
_FRAMES_KEPT = 100
_CHAIN_KEPT = 32
_TEXT_KEPT = 200_000


class RemoteError(RuntimeError):
    """Replaces a worker's exception that could not be pickled or unpickled, or that must not be raised in the caller.

    SystemExit, KeyboardInterrupt and other exceptions outside `Exception` arrive as RemoteError: raised directly, they
    would end the caller's process.
    """

    def __init__(self, type_name: str, message: str, worker_traceback: str, reason: str = "") -> None:
        self.type_name = type_name
        self.worker_message = message
        self.worker_traceback = worker_traceback
        self.reason = reason
        super().__init__(f"{type_name}: {message}" + (f" ({reason})" if reason else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.type_name, self.worker_message, self.worker_traceback, self.reason)

    def __str__(self) -> str:
        return f"{self.args[0]}\n\nin the worker:\n{self.worker_traceback}" if self.worker_traceback else self.args[0]


class _Frame(msgspec.Struct, array_like=True):
    filename: str
    name: str
    lineno: int
    module: str


class _Link(msgspec.Struct, array_like=True):
    """One exception of a chain; `cause` and `context` are indices into the list, or -1."""

    type_name: str
    message: str
    text: str
    pickled: bytes | None
    refused: str
    frames: list[_Frame]
    cause: int
    context: int
    suppress_context: bool


_decoder = msgspec.msgpack.Decoder(list[_Link])


def dump(error: BaseException, *, skip: int = 0) -> bytes:
    """Serialize `error` for `load`, without its first `skip` frames (the runner's). Never raises."""
    links: list[_Link] = []
    indices: dict[int, int] = {}

    def add(part: BaseException | None, skip: int = 0) -> int:
        if part is None or len(links) >= _CHAIN_KEPT:
            return -1
        if id(part) in indices:
            return indices[id(part)]
        index = indices[id(part)] = len(links)
        trace = part.__traceback__
        for _ in range(skip):
            trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
        pickled, refused = _pickle(part)
        link = _Link(
            _type_name(part), _message(part), _format(part, trace), pickled, refused, _frames(trace), -1, -1, False
        )
        links.append(link)
        link.cause = add(part.__cause__)
        link.context = add(part.__context__)
        link.suppress_context = part.__suppress_context__
        return index

    add(error, skip)
    return msgspec.msgpack.encode(links)


def load(data: bytes | bytearray | memoryview) -> Exception:
    """Rebuild the exception passed to `dump`; a RemoteError replaces each part that can't be rebuilt. Never raises."""
    try:
        links = _decoder.decode(data)
        built = [_build(link) for link in links]
        for error, link in zip(built, links, strict=True):
            error.__cause__ = built[link.cause] if link.cause >= 0 else None
            error.__context__ = built[link.context] if link.context >= 0 else None
            error.__suppress_context__ = link.suppress_context
        return built[0]
    except Exception as broken:
        return RemoteError("unknown", "the worker's exception could not be read", "", repr(broken))


def error_of(failed: m.Failed, payload: bytes | bytearray | memoryview, label: str) -> Exception:
    """Return the exception to raise for `failed` in the job's caller."""
    if failed.kind == "exception":
        error = load(payload)
        _annotate(error, failed, label)
        return error
    last = LastAttempt(failed.worker, failed.attempts, failed.log_path, failed.phase)
    if failed.kind == "died":
        return WorkerDiedError(label, last, signal=failed.signal, exit_code=failed.exit_code, reason=failed.reason)
    if failed.kind in OVER_LIMIT:
        return OVER_LIMIT[failed.kind](label, failed.limit, failed.used, last)
    if failed.kind == "cancelled":
        return JobCancelledError(f"job {label!r} was cancelled: {failed.reason}")
    if failed.kind == "no_worker":
        return NoWorkerError(label, failed.reason, last, code=failed.code)
    return PoolUnavailableError(f"the pool cannot run job {label!r}: {failed.reason}")


def _annotate(error: Exception, failed: m.Failed, label: str) -> None:
    note = f"(raised in worker {failed.worker}, which ran job {label!r}, attempt {failed.attempts})"
    try:
        error.fxpool_job, error.fxpool_worker = label, failed.worker  # type: ignore[attr-defined]
        # Python 3.10 has no `add_note`, but tools on it read the attribute.
        error.__notes__ = [*getattr(error, "__notes__", ()), note]
    except Exception:
        pass  # a type that restricts its attributes


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return _text(str(error))
    except Exception:
        return "<message not available>"


def _format(error: BaseException, trace: TracebackType | None) -> str:
    try:
        return _text("".join(traceback.format_exception(type(error), error, trace, limit=_FRAMES_KEPT, chain=False)))
    except Exception:
        return ""


def _text(text: str) -> str:
    # Lone surrogates (file names) can't be encoded as UTF-8.
    return text[:_TEXT_KEPT].encode("utf-8", "backslashreplace").decode()


def _pickled_alone(error: BaseException) -> bytes:
    """Pickle an exception without its chain and traceback, also in a process where tblib pickles both, as Dask's."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = {
        kind: reduce
        for kind, reduce in copyreg.dispatch_table.items()
        if not getattr(reduce, "__module__", "").startswith("tblib")
    }
    pickler.dump(error)
    return buffer.getvalue()


def _pickle(error: BaseException) -> tuple[bytes | None, str]:
    if not isinstance(error, Exception):
        return None, ""
    try:
        data = _pickled_alone(error)
        # Many exceptions can be pickled but not unpickled, because the parameters of __init__ differ from `args`.
        copy = pickle.loads(data)
    except BaseException as refused:
        return None, f"it cannot be pickled: {_text(repr(refused))[:500]}"
    if type(copy) is not type(error):
        return None, "pickling changes its type"
    return data, ""


def _build(link: _Link) -> Exception:
    error: Exception | None = None
    reason = link.refused
    if link.pickled is not None:
        try:
            error = pickle.loads(link.pickled)
        except BaseException as broken:
            reason = f"it cannot be unpickled here: {broken!r}"
        if error is not None and not isinstance(error, Exception):
            error, reason = None, "unpickling does not return an exception"
    if error is None:
        error = RemoteError(link.type_name, link.message, link.text, reason)
    error.__traceback__ = _traceback(link.frames)
    return error


def _frames(trace: TracebackType | None) -> list[_Frame]:
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__")
        name = module if isinstance(module, str) else "?"
        frames.append(_Frame(_text(code.co_filename), _text(code.co_name), trace.tb_lineno or 0, name))
        trace = trace.tb_next
    if len(frames) > 2 * _FRAMES_KEPT:
        frames[_FRAMES_KEPT:-_FRAMES_KEPT] = []
    return frames


def _traceback(frames: list[_Frame]) -> TracebackType | None:
    # Imported here, so that only a caller that receives an exception pays for it. A loop: tblib's from_dict recurses.
    from tblib import Traceback

    head = None
    for f in reversed(frames):
        code = SimpleNamespace(co_filename=f.filename, co_name=f.name)
        names = {"__file__": f.filename, "__name__": f.module}
        frame = SimpleNamespace(f_globals=names, f_locals={}, f_code=code, f_lineno=f.lineno)
        head = SimpleNamespace(tb_frame=frame, tb_lineno=f.lineno, tb_next=head)
    return Traceback(head).as_traceback() if head is not None else None
