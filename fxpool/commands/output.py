"""What all commands have in common: how errors are said, exit statuses, times as options, widths.

    0    done                                   2    a mistake in the call or the settings, a directory that is refused
    1    the command found something wrong,     130  stopped by Ctrl-C
         or could not do all of it              141  who read the output stopped reading

An error is one message on standard error that begins with ``fxpool: ``, and never a traceback: not for a directory
that can't be read, and not for an output that can't be written.
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

__all__ = ["Commands", "Duration", "console", "fail", "filled", "width", "wrapped"]

FOUND_WRONG, MISTAKE, INTERRUPTED, NOBODY_READS = 1, 2, 130, 141
# For tables in a file or a pipe, which have no width; 80 columns would break lines that a log can hold.
_WIDE = 120
# What the system says to who writes into a stream; errors about files name one.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)


class Commands(click.Group):
    """A group whose commands end with one message and a status that `docs/fxpool.1.md` names."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, as click has a status of its own for it
            _give_up_output()
            raise SystemExit(NOBODY_READS) from None

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        run: Any = super().main  # what it takes differs between versions of click
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        status: Any
        try:
            try:
                returned = run(*args, standalone_mode=False, **extra)
                status = returned if isinstance(returned, int) else 0
            except SystemExit as ended:
                status = ended.code
            # Now, and not when the interpreter ends, where it could only be printed as ignored.
            if sys.stdout is not None:
                sys.stdout.flush()
        except FxpoolError as error:
            status = _said(str(error), MISTAKE)
        except click.Abort as error:
            stopped = isinstance(error.__cause__, KeyboardInterrupt)
            status = _said("stopped", INTERRUPTED) if stopped else _said("nothing was done", FOUND_WRONG)
        except click.ClickException as error:
            status = _refused(error)
        except OSError as error:
            status = _failed(error)
        raise SystemExit(status)


def fail(message: str, status: int = MISTAKE) -> NoReturn:
    """End the command with a message."""
    raise SystemExit(_said(message, status))


class Duration(click.ParamType):
    """Seconds, also written ``2m``, ``90s`` or ``1h30m``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return quantities.parse_duration(str(value))
        except ValueError:
            self.fail(f"{value!r} is not {quantities.DURATION_EXPECTED}", param, ctx)


def console() -> Console:
    """For tables and for what is drawn anew. Without colours where NO_COLOR is set."""
    made = _Console(highlight=False)
    return made if made.is_terminal else _Console(highlight=False, width=width() or _WIDE)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Instead of ending with a status of rich's."""
        raise  # the BrokenPipeError that is being handled


def width() -> int | None:
    """Columns that a line may have: the terminal's, or COLUMNS; None where lines go to a file or a pipe."""
    with contextlib.suppress(ValueError):
        if (asked := int(os.environ.get("COLUMNS", ""))) > 0:
            return asked
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def wrapped(first: str, text: str, columns: int | None) -> str:
    """`first` and `text` in lines of at most `columns`, where words allow; those after the first are indented."""
    if columns is None:
        return f"{first}{text}".rstrip()
    lines = textwrap.wrap(
        f"{first}{text}",
        max(columns, 20),
        subsequent_indent=" " * _indent(first, columns),
        break_on_hyphens=False,
        break_long_words=False,  # keys and paths are copied
        replace_whitespace=False,
    )
    return "\n".join(lines)


def _indent(first: str, columns: int) -> int:
    return len(first) if columns >= 3 * len(first) else 2


def filled(first: str, parts: Sequence[str], columns: int | None) -> str:
    """As `wrapped`, with two spaces between `parts`, which are broken only if they have to be."""
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


def _said(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # there is nobody left to tell
        click.echo(f"fxpool: {message}", err=True)
    return status


def _refused(error: click.ClickException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # of newer versions of click
        error.show()
        return error.exit_code
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is not None:
        message += f"\n  `{context.command_path} --help` says what can be given"
    return _said(message, error.exit_code)


def _failed(error: OSError) -> int:
    """Say what the system refused: a file, or the output itself."""
    if isinstance(error, BrokenPipeError):
        _give_up_output()
        return NOBODY_READS
    what = error.strerror or str(error)
    if not error.filename and error.errno in _OF_OUTPUT:
        _give_up_output()
        return _said(f"the output can't be written: {what}", FOUND_WRONG)
    return _said(f"{os.fsdecode(error.filename)}: {what}" if error.filename else what, MISTAKE)


def _give_up_output() -> None:
    """Nothing more is tried to be written, not even when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
