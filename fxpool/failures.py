"""Tells what a failed compile means, and what follows: the one table of it.

A compile fails because of its graph, because of this host, or because of the moment: no process or memory was left, a
disk was full, something ended the compiler. Only failures of graphs say anything about the next process.

    `of(error)`            the kind of a failure; `FOLLOWS` says what follows each
    `shortage(error)`      the resource that was short, if the failure is one of the moment
    `run(command)`         calls a compiler, and waits and tries again while the host is short of something
"""

from __future__ import annotations

import enum
import errno
import math
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from fxpool import interruptions
from fxpool.errors import (
    CannotReturnError,
    CannotTravelError,
    NoCompilerError,
    NoHalideError,
    NotKeptError,
    PoolError,
    ShortageError,
    StoreError,
)

__all__ = ["ERRNOS", "FOLLOWS", "Follows", "Kind", "of", "run", "shortage"]

_DAY = 24 * 3600.0


class Kind(enum.Enum):
    """The kinds of failures. Workers that die are not among them: see `lowering.compiling.eager`."""

    INTERRUPTION = "what a signal handler or another thread raised: a test runner's timeout, say"
    FINAL = "the same at every level: there is no compiler"
    MOMENT = "the host had no process, descriptor, memory or disk space left, or something ended the compiler"
    HOST = "another error of the operating system"
    POOL = "the pool cannot run jobs"
    STORE = "the store cannot be used"
    CODE = "a worker cannot have the program's code, or the graph cannot be sent to it"
    RESULT = "the result cannot be sent back"
    GRAPH = "any other error of a compile"


class Follows(NamedTuple):
    """The consequences of a failure of a level of the fallback chain.

    `then`: the graph goes to the ``next`` level or ``home`` (it is compiled as stock Inductor does, in this process),
    or the error is ``raised``. `remembered`: seconds for which other processes skip the level (`store.small_records`).
    A failure of the moment comes here only after `run` has called the compiler again.
    """

    then: str
    remembered: float


FOLLOWS = {
    Kind.INTERRUPTION: Follows(then="raised", remembered=0.0),
    Kind.FINAL: Follows(then="raised", remembered=0.0),
    Kind.MOMENT: Follows(then="home", remembered=0.0),
    Kind.HOST: Follows(then="next", remembered=0.0),
    Kind.POOL: Follows(then="home", remembered=0.0),
    Kind.STORE: Follows(then="next", remembered=0.0),
    Kind.CODE: Follows(then="next", remembered=0.0),
    Kind.RESULT: Follows(then="next", remembered=math.inf),
    Kind.GRAPH: Follows(then="next", remembered=_DAY),
}

#: Names of the errors of system calls that another moment may not meet.
ERRNOS = frozenset(("EAGAIN", "ENOMEM", "EMFILE", "ENFILE", "ENOSPC", "EDQUOT", "ENOBUFS", "ETXTBSY", "EINTR"))

# Signals by which something else ends a compiler. Others are its own crashes, which another try would meet.
_ENDED = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU", "SIGPIPE")
_ENDED_NUMBERS = frozenset(int(getattr(signal, name)) for name in _ENDED)
# How g++, clang, ld and nvcc report that a program they called was ended.
_SAID = re.compile(
    r"(?:Killed|Terminated|Interrupt|Hangup|CPU time limit exceeded) signal terminated program"
    r"|(?:terminated with|due to|died with) signal (?:9|15|2|1)\b"
    r"|unable to execute command: (?:Killed|Terminated)"
    r"|died with <Signals\.(?:" + "|".join(_ENDED) + ")"
)
_TEXTS = {
    **{os.strerror(getattr(errno, name)): name for name in sorted(ERRNOS - {"EINTR", "ETXTBSY"})},
    "virtual memory exhausted": "ENOMEM",
    "out of memory": "ENOMEM",
    "can't allocate memory": "ENOMEM",
    "can't start new thread": "EAGAIN",
}
_TEXT_READ = 20_000

# Seconds before another call of a compiler. After all of them failed, calls try once for some time.
_PAUSES = (0.1, 0.4, 1.5)
_SHORT_FOR = 10.0
_short_until = 0.0


_CLASSES: tuple[tuple[Kind, tuple[type[BaseException], ...]], ...] = (
    (Kind.FINAL, (NoCompilerError, NoHalideError, NotKeptError)),
    (Kind.CODE, (CannotTravelError,)),
    (Kind.RESULT, (CannotReturnError,)),
    (Kind.POOL, (PoolError,)),
    (Kind.STORE, (StoreError,)),
)


def of(error: BaseException) -> Kind:
    """Return the kind of a failure."""
    if interruptions.find(error) is not None:
        return Kind.INTERRUPTION
    for kind, classes in _CLASSES:
        if isinstance(error, classes):
            return kind
    if shortage(error) is not None:
        return Kind.MOMENT
    return Kind.HOST if isinstance(error, OSError) else Kind.GRAPH


def shortage(error: BaseException) -> str | None:
    """Return the name of the error (``ENOMEM``) or the signal (``SIGKILL``) behind a failure of the moment, or None."""
    for cause in interruptions.with_causes(error):
        if isinstance(cause, ShortageError):
            return cause.code
        if isinstance(cause, OSError) and errno.errorcode.get(cause.errno or 0) in ERRNOS:
            return errno.errorcode[cause.errno or 0]
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return "ENOMEM"
        if isinstance(cause, subprocess.CalledProcessError):
            said = cause.stderr or cause.output or b""
            if code := _of_process(cause.returncode, said if isinstance(said, bytes) else said.encode()):
                return code
        if code := _in_text(_text(cause)):
            return code
    return None


def run(
    command: Sequence[str],
    *,
    directory: str | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Call a compiler in the C locale, without input. Compilers that failed in a bad moment are called again.

    Raises:
        ShortageError: the host was short of something at each try.
        OSError: it cannot be started, for another reason.
        subprocess.TimeoutExpired: it took more than `timeout` seconds.
    """
    global _short_until
    # Not before either: a restored process may have an earlier clock.
    is_short = 0 < _short_until - time.monotonic() <= _SHORT_FOR
    pauses = [] if is_short else list(_PAUSES)
    while True:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env={**os.environ, "LC_ALL": "C"},  # messages are translated otherwise
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except OSError as error:
            interruptions.pass_on(error)
            code, said = shortage(error), str(error)
            if code is None:
                raise
        else:
            code = _of_process(done.returncode, done.stderr or done.stdout or b"")
            if code is None:
                return done
            said = (done.stderr or done.stdout or b"")[-_TEXT_READ:].decode("utf-8", "replace").strip()
        if not pauses:
            _short_until = time.monotonic() + _SHORT_FOR
            raise ShortageError(os.path.basename(command[0]), code, said)
        with interruptions.let_through():
            time.sleep(pauses.pop(0) * (0.5 + random.random()))  # others that failed with it wait as well


def _of_process(status: int, said: bytes) -> str | None:
    """Return the error or signal for which another try may help, by a process's status and output."""
    if not status:
        return None
    if -status in _ENDED_NUMBERS:
        return signal.Signals(-status).name
    return _in_text(said[-_TEXT_READ:].decode("utf-8", "replace"))


def _in_text(text: str) -> str | None:
    ended = _SAID.search(text)
    if ended is not None:
        return "SIGKILL" if "9" in ended[0] or "KILL" in ended[0].upper() else "SIGTERM"
    return next((code for words, code in _TEXTS.items() if words in text), None)


def _text(error: BaseException) -> str:
    try:
        return str(error)[-_TEXT_READ:]
    except Exception:  # the program's own class
        return ""
