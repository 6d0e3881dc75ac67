"""Every error that fxpool raises, in one place.

    FxpoolError
    ├── ConfigurationError            a setting, option or mode that does not exist or does not parse
    ├── UnsupportedTorchError         torch, Python or platform outside the supported range
    ├── PoolError
    │   ├── PoolUnavailableError      the server could not be started or reached, or went away
    │   │   ├── ServerLostError       it went away while a job waited; another server may take the job
    │   │   ├── NoWorkerError         no worker reached the job: the host lacks something
    │   │   ├── NotExecutableError        compiled kernels can't be loaded from their directory
    │   │   └── UnsafeRuntimeDirectoryError   others could put their server in the place of ours
    │   ├── ProtocolError             a frame that is malformed, too long or of another version
    │   ├── WorkerDiedError           a worker process ended before it answered (signal or exit code)
    │   ├── JobTimeoutError           a job went over its wall time
    │   ├── JobMemoryError            a job's processes went over their memory limit
    │   ├── QuarantinedError          a graph that killed its workers before, and is not compiled again
    │   └── JobCancelledError         the caller withdrew the job
    ├── CompileError
    │   ├── CannotTravelError         a graph that can't be sent to a worker at this level, with the reason
    │   ├── CannotReturnError         a result that can't be sent back, with the reason
    │   ├── NoCompilerError           no working C++ compiler
    │   └── NoHalideError             Inductor is to generate Halide, which is not installed
    ├── MeasurementBusyError          others measured for longer than the caller was ready to wait
    ├── MissingExtraError             a package that one feature needs is not installed
    └── StoreError
        ├── UnsafeDirectoryError      the cache directory belongs to, or can be written by, another user
        ├── NoEntryError              nothing is kept under this key, or several keys begin like it
        ├── CorruptEntryError         bytes with a wrong digest (callers turn it into a miss)
        ├── BundleError               a bundle that is damaged, not trusted, or of another format
        └── NotAuthenticError         bytes from elsewhere without a valid MAC (callers turn it into a miss)

Fields are plain strings and numbers, so that an error can cross a process boundary.
"""

from __future__ import annotations

import os
import shutil
import signal as signals
from collections.abc import Iterable
from dataclasses import dataclass


class FxpoolError(Exception):
    """Root of everything fxpool raises.

    `remedy` says what the reader can do; it is part of the message.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message}\n  {remedy}" if remedy else message)

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call the class with the joined message and lose the fields.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[FxpoolError], args: tuple[object, ...], state: dict[str, object]) -> FxpoolError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class ConfigurationError(FxpoolError):
    """A setting, option or mode that is not known or does not parse."""


class UnknownNameError(ConfigurationError):
    """The name of an option, mode or setting is unknown; lists the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} {name!r}", remedy=f"known: {', '.join(self.known)}")


class UnsupportedTorchError(FxpoolError):
    """torch, Python or the platform is outside the range fxpool was tested with."""


class PoolError(FxpoolError):
    """An error between the caller and the worker, not in the job's own code."""


class PoolUnavailableError(PoolError):
    """The server could not be started or reached, or went away while a job waited.

    `counted` is the name that a fallback because of it is counted under.
    """

    counted = "pool_unavailable"


class ServerLostError(PoolUnavailableError):
    """The server ended, or fell silent, after it had taken the job. Another one may do the job."""


@dataclass(frozen=True)
class LastAttempt:
    """The last attempt at a job: its worker's process number, its place in the order of attempts, and its traces.

    `phase` names what the worker was compiling, empty if it did not say; its output is in the file `log_path`.
    """

    worker: int | None = None
    attempts: int = 1
    log_path: str | None = None
    phase: str = ""

    @property
    def circumstances(self) -> str:
        """Number of the attempt and phase: ``attempt 2, lowering``."""
        return f"attempt {self.attempts}, {self.phase}" if self.phase else f"attempt {self.attempts}"

    @property
    def who(self) -> str:
        """The worker by its process number, if that is known."""
        return f"worker {self.worker}" if self.worker is not None else "a worker"


_SHORTAGES = {
    "EMFILE": "raise its limit of open files (`ulimit -n`) where the server is started",
    "ENFILE": "the host's table of open files is full (fs.file-max)",
    "EAGAIN": "raise the limit of processes (`ulimit -u`, or pids.max of its cgroup) where the server is started",
    "ENOMEM": "the host has no memory left: FXPOOL_WORKERS and FXPOOL_MEMORY_HIGH_WATERMARK set how much workers take",
    "ENOSPC": "make room (bytes or inodes: `df`, `df -i`), or set FXPOOL_RUNTIME_DIR to another disk",
    "EDQUOT": "make room in the quota, or set FXPOOL_RUNTIME_DIR to another disk",
    "EROFS": "set FXPOOL_RUNTIME_DIR to a directory that can be written",
    "ENOENT": "a directory of the server's was removed: `fxpool stop` ends it, and the next process starts another",
}


class NoWorkerError(PoolUnavailableError):
    """`attempts` workers were begun for a job, and none reached its function: the host lacks something.

    The job is not to blame; `code` is the name of the last errno with which the host refused something, if there is
    one.
    """

    counted = "no_worker"

    def __init__(
        self,
        job: str,
        reason: str,
        last: LastAttempt = LastAttempt(),
        *,
        code: str = "",
    ) -> None:
        self.job, self.reason, self.code = job, reason, code
        self.worker, self.attempts, self.log_path = last.worker, last.attempts, last.log_path
        who = f", the last was process {last.worker}" if last.worker is not None else ""
        super().__init__(
            f"no worker came as far as job {job!r} (tried {last.attempts} times{who}): {reason}",
            remedy=_SHORTAGES.get(code, "the server's log says more; `fxpool status` names its directory"),
        )


class NotExecutableError(PoolUnavailableError):
    """A worker's compiled kernels are on a file system mounted noexec, and can't be loaded from memory either.

    Another worker would put its result there, too.
    """

    counted = "not_executable"

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"compiled kernels can't be loaded from {os.path.dirname(path)}, which is mounted noexec: {reason}",
            remedy="set FXPOOL_CACHE_DIR (or TMPDIR, if that is the place) to a directory whose files may be executed",
        )


class UnsafeRuntimeDirectoryError(PoolUnavailableError):
    """The runtime directory, or one above it, is another user's or open to others: results are code."""

    counted = "runtime_directory_refused"


class ProtocolError(PoolError):
    """A frame that is malformed, longer than the cap, or of another protocol version."""


class WorkerDiedError(PoolError):
    """A worker process ended before it answered, in every attempt that the job had."""

    def __init__(
        self,
        job: str,
        last: LastAttempt = LastAttempt(),
        *,
        signal: int | None = None,
        exit_code: int | None = None,
        reason: str = "",
    ) -> None:
        self.job, self.signal, self.exit_code, self.reason = job, signal, exit_code, reason
        self.worker, self.attempts, self.log_path, self.phase = last.worker, last.attempts, last.log_path, last.phase
        message = f"{last.who} {_end(signal, exit_code)} while it ran {job!r} ({last.circumstances})"
        if reason:
            message += f": {reason}"
        super().__init__(message, remedy=f"its output is in {last.log_path}" if last.log_path else "")


class JobTimeoutError(PoolError):
    """A job ran longer than its wall-time limit (`seconds`) and was killed with all its processes."""

    def __init__(
        self,
        job: str,
        seconds: float,
        last: LastAttempt = LastAttempt(),
    ) -> None:
        self.job, self.seconds = job, seconds
        self.worker, self.attempts, self.log_path, self.phase = last.worker, last.attempts, last.log_path, last.phase
        super().__init__(
            f"job {job!r} in {last.who} was killed after its limit of {seconds:g} s ({last.circumstances})",
            remedy=_see(last.log_path, "FXPOOL_JOB_TIMEOUT"),
        )


class JobMemoryError(PoolError):
    """A job's processes took more memory (`used`) than its `limit`, both in bytes, and were killed."""

    def __init__(
        self,
        job: str,
        limit: int,
        used: int,
        last: LastAttempt = LastAttempt(),
    ) -> None:
        self.job, self.limit, self.used = job, limit, used
        self.worker, self.attempts, self.log_path, self.phase = last.worker, last.attempts, last.log_path, last.phase
        super().__init__(
            f"job {job!r} in {last.who} was killed when it took {used / 2**20:.0f} MB of memory, "
            f"over its limit of {limit / 2**20:.0f} MB ({last.circumstances})",
            remedy=_see(last.log_path, "FXPOOL_JOB_MEMORY"),
        )


def _end(signal: int | None, exit_code: int | None) -> str:
    if signal is not None:
        return f"was killed by {signal_name(signal)}"
    return f"exited with code {exit_code}" if exit_code is not None else "ended"


def signal_name(number: int) -> str:
    """Return a signal's number and name: ``signal 11 (SIGSEGV)``."""
    try:
        return f"signal {number} ({signals.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _see(log_path: str | None, setting: str) -> str:
    return (f"its output is in {log_path}; " if log_path else "") + f"{setting} sets the limit"


class QuarantinedError(PoolError):
    """The graph killed too many workers, in this process or an earlier one, and is not compiled again.

    If it exceeded a `limit` (``timeout``, ``memory``), `value` is the largest that was tried (seconds, bytes).
    """

    def __init__(
        self, job: str, *, key: str, error: str, log_path: str = "", limit: str = "", value: float = 0.0
    ) -> None:
        self.job, self.key, self.error, self.log_path = job, key, error, log_path
        self.limit, self.value = limit, value
        tried = {"timeout": f"{value:g} s", "memory": f"{value / 2**20:.0f} MB"}.get(limit)
        more = {"timeout": "FXPOOL_JOB_TIMEOUT", "memory": "FXPOOL_JOB_MEMORY"}.get(limit)
        super().__init__(
            f"{job} is in quarantine: {error}" + (f"; no more than {tried} was tried" if tried else ""),
            remedy=(f"the worker's output is in {log_path}; " if log_path else "")
            + (f"a larger {more} has it tried again, and " if more else "")
            + f"`fxpool cache quarantine --release {key[:12]}` lets it be compiled again",
        )


class JobCancelledError(PoolError):
    """The caller withdrew the job, or the pool was closed while it waited."""


class CompileError(FxpoolError):
    """fxpool could not compile a graph."""


class CannotTravelError(CompileError):
    """A graph can't be sent to a worker at this level; `reason` is the name it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"the graph can't travel ({reason})" + (f": {detail}" if detail else ""))


class CannotReturnError(CompileError):
    """A compiled graph can't be sent back from the worker; `reason` is the name it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"the compiled graph can't be sent back ({reason})" + (f": {detail}" if detail else ""))


class NotKeptError(CompileError):
    """A graph can't be kept, where the program wants to be told; `reason` is the name it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(
            f"the compiled graph can't be kept ({reason})" + (f": {detail}" if detail else ""),
            remedy="without `strict` (FXPOOL_STRICT, or torch's strict_autograd_cache) every process compiles it",
        )


class NoCompilerError(CompileError):
    """There is no working C++ compiler; `tried` lists the candidates.

    `arguments`: a candidate may be a command with arguments (torch 2.14 and later).
    """

    def __init__(self, tried: Iterable[str], detail: str = "", *, arguments: bool = False) -> None:
        self.tried = list(tried)
        super().__init__(
            f"no working C++ compiler (tried {', '.join(self.tried) or 'none, CXX is empty'})"
            + (f": {detail}" if detail else ""),
            remedy=_NO_ARGUMENTS if not arguments and any(map(_is_command_line, self.tried)) else _INSTALL_COMPILER,
        )


class NoHalideError(CompileError):
    """Inductor is to generate Halide programs (``cpu_backend="halide"``), and there is no Halide to compile them."""

    def __init__(self) -> None:
        super().__init__(
            "Halide is not installed, and Inductor's cpu_backend or cuda_backend is 'halide'",
            remedy="pip install halide (21 was tried), or leave the option away",
        )


_INSTALL_COMPILER = "install one (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) or set CXX to it"
_NO_ARGUMENTS = (
    "CXX is one program, without arguments: instead of 'ccache g++' a link to ccache that is called g++ "
    "(Debian and Ubuntu have /usr/lib/ccache/g++), or a script that runs what you mean"
)


def _is_command_line(tried: str) -> bool:
    """Return whether a candidate is a command line whose first word is an executable."""
    words = tried.split()
    return len(words) > 1 and not os.path.exists(tried) and shutil.which(words[0]) is not None


class MeasurementBusyError(FxpoolError):
    """Others measured on `device` for longer than `patience` seconds."""

    def __init__(self, device: str, patience: float) -> None:
        self.device, self.patience = device, patience
        super().__init__(
            f"other processes have measured on {device} for {patience:g} s",
            remedy="wait longer (patience=...), or see `fxpool status` for who they are",
        )


class MissingExtraError(FxpoolError):
    """`feature` needs `package`, which the optional dependencies `extra` install."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.feature, self.package, self.extra = feature, package, extra
        super().__init__(f"{feature} need {package}, which is not installed", remedy=f"pip install 'fxpool[{extra}]'")


class StoreError(FxpoolError):
    """The cache directory can't be used for this operation."""


class UnsafeDirectoryError(StoreError):
    """The cache directory belongs to another user, or others can write to it: entries are code."""


class NoEntryError(StoreError):
    """Nothing is kept under `key`, or it is the beginning of several keys."""

    def __init__(self, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(f"{key!r}: {why}", remedy="`fxpool cache ls` lists the entries")


class CorruptEntryError(StoreError):
    """Bytes on disk with a wrong digest. Never leaves the store: a lookup turns it into a miss."""


class NotAuthenticError(StoreError):
    """Bytes from a network or a file that no accepted key authenticates; `name` is what was asked for."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(
            f"{name} is not authentic: {why}",
            remedy="writers and readers need a key in common: see FXPOOL_REMOTE_KEY_FILE",
        )


_BUNDLE_REMEDIES = {
    "damaged": "nothing of it was used; copy or export it again",
    "other_version": "nothing of it was used; export it with the fxpool that is to import it",
    "unsealed": "nothing of it was used; export it with FXPOOL_REMOTE_KEY_FILE or --key-file",
    "untrusted": "a bundle is run as code: chown and chmod go-w it if you know what wrote it, seal it with a key file, "
    "or give --trust",
    "needs_earlier": "nothing of it was used; import the bundles it builds on first, or in the same call before it",
}


class BundleError(StoreError):
    """A bundle can't be used, and nothing of it was; `name` is its file, `reason` a word, `why` the details.

    Reasons: `damaged`, `other_version`, `unsealed`, `untrusted`, `needs_earlier`, `unreadable`, `gone`.
    """

    def __init__(self, name: str, reason: str, why: str) -> None:
        self.name, self.reason, self.why = name, reason, why
        super().__init__(f"{name} can't be used as a bundle: {why}", remedy=_BUNDLE_REMEDIES.get(reason, ""))
