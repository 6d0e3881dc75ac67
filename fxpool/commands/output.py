"""Shared by all commands: error messages, exit statuses, durations as options, widths.

    0    done                                   2    wrong usage or settings, or a refused directory
    1    the command found a problem,           130  stopped by Ctrl-C
         or could not finish                    141  broken pipe: the output is no longer read

An error is one message on standard error that starts with ``fxpool: ``, never a traceback, even if a directory cannot
be read or the output cannot be written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from rich.console import Console

from fxpool import quantities
from fxpool.errors import FxpoolError

__all__ = [
    "SHORT", "Commands", "Duration", "Listen", "console", "fail", "filled", "show_rows", "width",
    "wrapped",
]  # fmt: skip

SHORT = 12  # characters of a key that are shown; enough to identify it
FOUND_WRONG, MISTAKE, INTERRUPTED, NOBODY_READS = 1, 2, 130, 141
# Columns of tables in a file or a pipe, which have no width; 80 would wrap lines that fit into a log.
_WIDE = 120
# Columns that text needs beside its label; with fewer, it continues below the label.
_TEXT_COLUMNS = 30
# Errors of writing to a stream; errors about files have a file name.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)


class Commands(click.Group):
    """A group whose commands end with at most one error message and an exit status listed in `docs/fxpool.1.md`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # caught here, because click exits with another status
            _give_up_output()
            raise SystemExit(NOBODY_READS) from None

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        run: Any = super().main  # its parameters differ between versions of click
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        status: Any
        try:
            try:
                returned = run(*args, standalone_mode=False, **extra)
                status = returned if isinstance(returned, int) else 0
            except SystemExit as ended:
                status = ended.code
            # Flush now: an error at the interpreter's exit would be ignored.
            if sys.stdout is not None:
                sys.stdout.flush()
        except FxpoolError as error:
            status = _said(str(error), MISTAKE)
        except click.Abort as error:
            stopped = isinstance(error.__cause__, KeyboardInterrupt)
            status = _said("stopped", INTERRUPTED) if stopped else _said("aborted, nothing was changed", FOUND_WRONG)
        except click.ClickException as error:
            status = _refused(error)
        except OSError as error:
            status = _failed(error)
        raise SystemExit(status)


def fail(message: str, status: int = MISTAKE) -> NoReturn:
    """End the command with a message. Raises SystemExit."""
    raise SystemExit(_said(message, status))


class Duration(click.ParamType):
    """A duration option in seconds, also written ``2m``, ``90s`` or ``1h30m``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return quantities.parse_duration(str(value))
        except ValueError:
            self.fail(f"{value!r} is not {quantities.DURATION_EXPECTED}", param, ctx)


class Listen(click.ParamType):
    """An address to listen on: ``9464`` on this machine only, ``10.0.0.7:9464`` on that address."""

    name = "[address:]port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        address, _, port = str(value).rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not a port (0 to 65535) or address:port", param, ctx)
        return address.strip("[]") or "127.0.0.1", int(port)


def console() -> Console:
    """Return a console for tables and live displays, without colours if NO_COLOR is set."""
    shown = _Console(highlight=False)
    return shown if shown.is_terminal else _Console(highlight=False, width=width() or _WIDE)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise instead of exiting with rich's own status."""
        raise  # the BrokenPipeError that is being handled


def width() -> int | None:
    """Return the columns of a line: COLUMNS or the terminal's; None if the output is a file or a pipe."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def wrapped(first: str, text: str, columns: int | None) -> str:
    """Wrap `first` and `text` to `columns` without breaking words; indent continuation lines."""
    if columns is None:
        return f"{first}{text}".rstrip()
    blank = not first.strip()
    lines = textwrap.wrap(
        text if blank else f"{first}{text}",
        max(columns, 20),
        initial_indent=first if blank else "",
        subsequent_indent=" " * _indent(first, columns),
        break_on_hyphens=False,
        break_long_words=False,  # keys and paths must stay copyable
        replace_whitespace=False,
    )
    return "\n".join(_moved_left(line) if len(line) > columns else line for line in lines)


def _indent(first: str, columns: int) -> int:
    return len(first) if columns - len(first) >= _TEXT_COLUMNS else min(len(first), 2)


def _moved_left(line: str) -> str:
    """Indent a word by 2 only, if it is longer than the rest of a line."""
    word = line.lstrip()
    return line if " " in word or line == word else f"  {word}"


def filled(first: str, parts: Sequence[str], columns: int | None) -> str:
    """Wrap `parts`, separated by two spaces; a part is only broken if it is longer than a line."""
    if columns is None:
        return f"{first}{'  '.join(parts)}"
    indent = " " * _indent(first, columns)
    lines = [first]
    for part in parts:
        line = lines[-1]
        joined = line + part if not line.strip() or line == first else f"{line}  {part}"
        if len(joined) <= columns:
            lines[-1] = joined
        else:
            lines += wrapped(indent, part, columns).split("\n")
    return "\n".join(line.rstrip() for line in lines if line.strip())


def show_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Print a line for each name with its value, aligned."""
    before = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(wrapped(f"{name:<{before}}  ", value, width()))


def _said(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # standard error may be closed, too
        click.echo(f"fxpool: {message}", err=True)
    return status


def _refused(error: click.ClickException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # of newer versions of click
        error.show()
        return error.exit_code
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is not None:
        message += f"\n  `{context.command_path} --help` lists arguments and options"
    return _said(message, error.exit_code)


def _failed(error: OSError) -> int:
    """Report an error of a file or of the output itself. Return the exit status."""
    if isinstance(error, BrokenPipeError):
        _give_up_output()
        return NOBODY_READS
    what = error.strerror or str(error)
    if not error.filename and error.errno in _OF_OUTPUT:
        _give_up_output()
        return _said(f"cannot write the output: {what}", FOUND_WRONG)
    return _said(f"{os.fsdecode(error.filename)}: {what}" if error.filename else what, MISTAKE)


def _give_up_output() -> None:
    """Drop all further output, including that of the interpreter's exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
