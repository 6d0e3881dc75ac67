"""Captures log records and warnings in workers, and replays them through the caller's loggers and filters.

In a worker, `Forwarder` replaces `Logger.callHandlers`: records that pass a logger's level are sent to the caller, and
handlers that preloaded modules installed do not see them. Loggers have the caller's levels (`level_map`), so that only
records the caller wants are sent.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fxpool import notices
from fxpool.pool.wire import messages as m

__all__ = ["STREAMS", "Forwarder", "level_map", "replay", "stop_forwarding_prints"]

#: Names of records that hold printed text, and the streams it was printed to.
STREAMS = {"fxpool printed": "stdout", "fxpool printed to stderr": "stderr"}

# A job that logs in an endless loop must not fill the caller's memory.
_RECORDS_KEPT = 10_000
_TEXT_KEPT = 1 << 20


def level_map() -> tuple[dict[str, int], int]:
    """Return the levels that a worker should use: {logger: level} and the level of logging.disable.

    The loggers are the root ("") and all loggers whose level is set.
    """
    levels = {"": logging.root.level}
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if isinstance(logger, logging.Logger) and logger.level:
            levels[name] = logger.level
    return levels, logging.root.manager.disable


class Forwarder:
    """Sends the log records and warnings of this process after `install`. For a process that runs one job."""

    def __init__(self, send: Callable[[m.LogRecord | m.WarningRecord], None]) -> None:
        self._send = send
        self._left = _RECORDS_KEPT

    def install(self, levels: dict[str, int], disabled: int) -> None:
        """Set the caller's `levels` ({logger: level}) and `disabled`, and start forwarding."""
        others = [
            logger
            for name, logger in list(logging.root.manager.loggerDict.items())
            if isinstance(logger, logging.Logger) and logger.level and name not in levels
        ]
        wanted = [(logging.getLogger(name or None), level) for name, level in levels.items()]
        for logger, level in [*((logger, logging.NOTSET) for logger in others), *wanted]:
            # Not setLevel: each call clears the caches of all loggers, tens of milliseconds with torch's hundreds.
            logger.level = level
        logging.root.setLevel(logging.root.level)
        logging.disable(disabled)
        # Not a handler on the root: loggers that do not propagate would never reach it.
        logging.Logger.callHandlers = lambda logger, record: self._log(record)  # type: ignore
        # "always", because the caller's filters decide.
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.showwarning = self._warn
        for name, stream in STREAMS.items():
            setattr(sys, stream, _Printed(getattr(sys, stream), functools.partial(self._print, name)))

    def _print(self, name: str, text: str) -> None:
        """Send text that the job printed."""
        self._forward(m.LogRecord(name, 0, _text(text)))

    def _log(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception as error:
            text = f"{record.msg!r} (not formatted: {error!r})"
        exc_text = record.exc_text
        if exc_text is None and record.exc_info:
            exc_text = logging.Formatter().formatException(record.exc_info)
        self._forward(
            m.LogRecord(
                name=record.name,
                level=record.levelno,
                message=_text(text),
                pathname=_text(record.pathname),
                lineno=record.lineno,
                function=record.funcName or "",
                process=record.process or 0,
                thread=record.threadName or "",
                created=record.created,
                exc_text=None if exc_text is None else _text(exc_text),
                extra=_extra(record),
            )
        )

    def _warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        kind = f"{category.__module__}:{category.__qualname__}"
        self._forward(
            m.WarningRecord(
                message=_text(str(message)),
                category=kind,
                filename=_text(filename),
                lineno=lineno,
                module=_module_of(filename),
            )
        )

    def _forward(self, record: m.LogRecord | m.WarningRecord) -> None:
        self._left -= 1
        if self._left < 0:
            return
        if not self._left:
            text = f"dropping further records and warnings of this job, after {_RECORDS_KEPT}"
            record = m.LogRecord(__name__, logging.WARNING, text, pathname=__file__)
        self._send(record)


def stop_forwarding_prints() -> None:
    """Undo for printed text what `Forwarder.install` did, in a process that serves several jobs."""
    for stream in STREAMS.values():
        printed = getattr(sys, stream)
        if isinstance(printed, _Printed):
            setattr(sys, stream, printed.log)


class _Printed:
    """A stream that writes to the worker's log, and passes whole lines on; `flush` passes on the rest."""

    def __init__(self, log: Any, forward: Callable[[str], None]) -> None:
        self.log, self._forward, self._line = log, forward, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def write(self, text: str) -> int:
        if self.log is not None:
            self.log.write(text)
        self._line += text
        if "\n" in self._line:
            lines, _, self._line = self._line.rpartition("\n")
            self._forward(lines + "\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.log is not None:
            self.log.flush()
        if self._line:
            text, self._line = self._line, ""
            self._forward(text)


# Attributes that every record has. Others come from the call's `extra`, and formatters may read them.
_USUAL = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    fields = {_text(name): _plain(value) for name, value in vars(record).items() if name not in _USUAL}
    return fields if not fields or len(repr(fields)) <= 4 * _TEXT_KEPT else {}  # too large for a message: dropped


def _plain(value: Any, depth: int = 8) -> Any:
    """Return `value` as numbers, strings, lists and dicts; anything else, or nested too deep, becomes its `repr`."""
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    if isinstance(value, str):
        return _text(value)
    if depth and isinstance(value, dict):
        return {_text(str(name)): _plain(part, depth - 1) for name, part in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [_plain(part, depth - 1) for part in value]
    try:
        return _text(repr(value))
    except Exception as error:
        return f"{type(value).__name__} (without a repr: {type(error).__name__})"


def _text(text: str) -> str:
    # Lone surrogates can't be encoded as UTF-8.
    return text[:_TEXT_KEPT].encode("utf-8", "backslashreplace").decode()


def _module_of(filename: str) -> str:
    """Return the module of `filename`. Warning filters name modules, but `showwarning` receives only the file."""
    for name, module in sys.modules.copy().items():
        if getattr(module, "__file__", None) == filename:
            return name
    return ""


# Registries for the warning actions "default" and "once", by the module that warned in a worker.
_registries: dict[str, dict[Any, Any]] = {}


def replay(
    records: Sequence[m.LogRecord | m.WarningRecord], prepare: Callable[[m.LogRecord], object] | None = None
) -> Exception | None:
    """Pass records and warnings to this process's loggers and warning filters, and printed text to its streams.

    `prepare` is called with each log record first: its logger may have to be made in a way that the pool cannot know.

    Returns the first warning that a filter turned into an error, or None: the program asked for that error. Exceptions
    of log handlers (standard error is closed, say) are dropped.
    """
    raised: Exception | None = None
    for record in records:
        try:
            if isinstance(record, m.LogRecord):
                with contextlib.suppress(Exception):
                    if prepare is not None:
                        prepare(record)
                    _replay_print(record) if record.name in STREAMS else _replay_log(record)
            else:
                _replay_warning(record)
        except Warning as error:
            raised = raised or error
        except Exception:
            pass
    return raised


def _replay_print(record: m.LogRecord) -> None:
    stream = getattr(sys, STREAMS[record.name])
    if stream is not None:
        stream.write(record.message)
        stream.flush()


def _replay_log(record: m.LogRecord) -> None:
    logger = notices.logger(record.name) if record.name.startswith("fxpool") else logging.getLogger(record.name)
    if not logger.isEnabledFor(record.level):
        return
    made = logging.LogRecord(
        record.name, record.level, record.pathname, record.lineno, record.message, (), None, record.function
    )
    vars(made).update({name: value for name, value in record.extra.items() if name not in _USUAL})
    made.exc_text = record.exc_text
    made.process, made.threadName = record.process, record.thread
    if record.created:
        made.created = record.created
        made.msecs = (record.created % 1) * 1000
    logger.handle(made)


def _replay_warning(record: m.WarningRecord) -> None:
    module = record.module or None
    registry = _registries.setdefault(record.module or record.filename, {})
    warnings.warn_explicit(
        record.message, _category(record.category), record.filename, record.lineno, module=module, registry=registry
    )


def _category(name: str) -> type[Warning]:
    module, _, qualname = name.partition(":")
    try:
        category: Any = builtins if module == "builtins" else importlib.import_module(module)
        for part in qualname.split("."):
            category = getattr(category, part)
    except Exception:
        return UserWarning
    return category if isinstance(category, type) and issubclass(category, Warning) else UserWarning
