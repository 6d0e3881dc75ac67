"""All errors that fxpool raises.

    FxpoolError
    ├── ConfigurationError                a setting that cannot be parsed, or options that exclude each other
    │   └── UnknownNameError              an option, mode or setting that does not exist
    ├── UnsupportedTorchError             torch, Python or platform outside the supported range
    ├── PoolError
    │   ├── PoolUnavailableError          the server could not be started or reached
    │   │   ├── ServerLostError           the server went away while a job waited; another server may take the job
    │   │   ├── NoWorkerError             no worker could start the job: the host is out of a resource
    │   │   ├── NotExecutableError        compiled kernels cannot be loaded from their directory
    │   │   └── UnsafeRuntimeDirectoryError   other users could replace the server
    │   ├── ProtocolError                 a frame that is malformed, too long or of another version
    │   ├── WorkerDiedError               a worker process ended before it answered (signal or exit code)
    │   ├── JobTimeoutError               a job exceeded its wall-time limit
    │   ├── JobMemoryError                a job's processes exceeded their memory limit
    │   ├── QuarantinedError              the graph killed its workers earlier and is not compiled again
    │   ├── RecordedError                 the graph was recorded for another machine instead of being compiled
    │   └── JobCancelledError             the caller withdrew the job
    ├── CompileError
    │   ├── CannotTravelError             the graph cannot be sent to a worker at this level
    │   ├── CannotReturnError             the compiled graph cannot be sent back
    │   ├── NotKeptError                  the compiled graph cannot be cached, and the program is strict about it
    │   ├── NoCompilerError               no working C++ compiler
    │   ├── ShortageError                 the host had no process, memory or disk space for a compiler
    │   └── NoHalideError                 Inductor is configured for Halide, which is not installed
    ├── MeasurementBusyError              other processes measured for longer than the caller's patience
    ├── MissingExtraError                 a package that a feature needs is not installed
    ├── BuildError
    │   ├── RecursiveBuildError           the build of a product needs the same product
    │   └── TargetDirectoryError          a directory to fill has files that fxpool did not put there
    └── StoreError
        ├── UnsafeDirectoryError          another user owns the cache directory or can write to it
        ├── NoEntryError                  no entry has this key, or the prefix matches several keys
        ├── CorruptEntryError             bytes with a wrong digest (callers turn it into a miss)
        ├── NotAuthenticError             bytes from elsewhere without a valid MAC (callers turn it into a miss)
        ├── BundleError                   a bundle that is damaged, not trusted, or of another format
        └── CaptureError                  a recorded request that is damaged, not trusted, or of another format

Fields are plain strings and numbers, so that an error can cross a process boundary.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fxpool import remedies
from fxpool.quantities import signal_name


class FxpoolError(Exception):
    """Root of all errors that fxpool raises.

    `remedy` says what to do about it. It is part of the printed message.
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
    """A setting, option or mode is unknown or cannot be parsed."""


class UnknownNameError(ConfigurationError):
    """The name of an option, mode or setting is unknown. `names` are the known ones."""

    def __init__(self, kind: str, name: str, names: Iterable[str]) -> None:
        self.kind, self.name, self.names = kind, name, sorted(names)
        super().__init__(f"unknown {kind} {name!r}", remedy=f"known: {', '.join(self.names)}")


class UnsupportedTorchError(FxpoolError):
    """torch, Python or the platform is outside the supported range."""


def require_linux() -> None:
    """Raise UnsupportedTorchError on other platforms.

    Called where programs enter: by public functions and by packages, ahead of imports that fail there (fcntl, pwd).
    """
    if sys.platform == "linux":
        return
    name = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
    way = "in WSL2 or in a Linux container" if sys.platform == "win32" else "in a Linux container or virtual machine"
    raise UnsupportedTorchError(
        f"fxpool works on Linux only, and this is {name}", remedy=f'run the program {way}, or use backend="inductor"'
    )


class PoolError(FxpoolError):
    """The failure lies between the caller and the worker, not in the job's own code."""


class PoolUnavailableError(PoolError):
    """The server could not be started or reached, or went away while a job waited.

    `counted` is the reason under which a fallback is counted.
    """

    counted = "pool_unavailable"


class ServerLostError(PoolUnavailableError):
    """The server ended or stopped answering after it had accepted the job. Another server may take the job."""


@dataclass(frozen=True)
class LastAttempt:
    """The last attempt at a job: process id of its worker, number of attempts so far, and log file.

    `phase` is the last phase that the worker reported, empty if it reported none.
    """

    worker: int | None = None
    attempts: int = 1
    log_path: str | None = None
    phase: str = ""

    @property
    def circumstances(self) -> str:
        """Return the number of the attempt, and the phase: ``attempt 2, lowering``."""
        return f"attempt {self.attempts}, {self.phase}" if self.phase else f"attempt {self.attempts}"

    @property
    def who(self) -> str:
        """Return the worker with its process id, if it is known: ``worker 4711``."""
        return f"worker {self.worker}" if self.worker is not None else "a worker"


class NoWorkerError(PoolUnavailableError):
    """No worker could start the job in `attempts` attempts, because the host is out of a resource.

    The job is not to blame. `code` names the last errno (``EMFILE``), empty if it is unknown.
    """

    counted = "no_worker"

    def __init__(self, job: str, reason: str, last: LastAttempt = LastAttempt(), *, code: str = "") -> None:
        self.job, self.reason, self.code = job, reason, code
        self.worker, self.attempts, self.log_path = last.worker, last.attempts, last.log_path
        who = f", last in process {last.worker}" if last.worker is not None else ""
        tries = f"{last.attempts} attempt{'s' if last.attempts != 1 else ''}"
        super().__init__(
            f"no worker could start job {job!r} ({tries}{who}): {reason}",
            remedy=remedies.SHORTAGES.get(code, "see the server's log; `fxpool status` names its directory"),
        )


class NotExecutableError(PoolUnavailableError):
    """Compiled kernels are on a file system mounted noexec and could not be loaded from memory either.

    The job is not retried: another worker would store its result in the same directory.
    """

    counted = "not_executable"

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"cannot load compiled kernels from {os.path.dirname(path)}, which is mounted noexec: {reason}",
            remedy="set FXPOOL_CACHE_DIR (or TMPDIR, if the path lies below it) to a directory that allows execution",
        )


class UnsafeRuntimeDirectoryError(PoolUnavailableError):
    """Another user owns the runtime directory or one of its parents, or can write to it.

    Refused, because such a user could replace the server, and its results run as code.
    """

    counted = "runtime_directory_refused"


class ProtocolError(PoolError):
    """A frame is malformed, longer than the limit, or of another protocol version."""


class _AttemptError(PoolError):
    """The last attempt at a job failed: its `worker`, `attempts`, `log_path` and `phase` (see `LastAttempt`)."""

    def __init__(self, job: str, message: str, last: LastAttempt, setting: str = "") -> None:
        self.job = job
        self.worker, self.attempts, self.log_path, self.phase = last.worker, last.attempts, last.log_path, last.phase
        advice = [f"see its output in {last.log_path}"] if last.log_path else []
        advice += [f"set {setting} to change the limit"] if setting else []
        super().__init__(message, remedy="; ".join(advice))


class WorkerDiedError(_AttemptError):
    """A worker process ended before it answered, in each attempt at the job."""

    def __init__(
        self,
        job: str,
        last: LastAttempt = LastAttempt(),
        *,
        signal: int | None = None,
        exit_code: int | None = None,
        reason: str = "",
    ) -> None:
        self.signal, self.exit_code, self.reason = signal, exit_code, reason
        message = f"{last.who} {_end(signal, exit_code)} while running job {job!r} ({last.circumstances})"
        super().__init__(job, message + (f": {reason}" if reason else ""), last)


class JobTimeoutError(_AttemptError):
    """A job exceeded its wall-time limit (`seconds`) and was killed with all its processes."""

    def __init__(self, job: str, seconds: float, last: LastAttempt = LastAttempt()) -> None:
        self.seconds = seconds
        message = f"job {job!r} in {last.who} was killed at its time limit of {seconds:g} s ({last.circumstances})"
        super().__init__(job, message, last, "FXPOOL_JOB_TIMEOUT")


class JobMemoryError(_AttemptError):
    """A job's processes used more memory (`used`) than its `limit` (both in bytes) and were killed."""

    def __init__(self, job: str, limit: int, used: int, last: LastAttempt = LastAttempt()) -> None:
        self.limit, self.used = limit, used
        super().__init__(
            job,
            f"job {job!r} in {last.who} was killed because it used {used / 2**20:.0f} MB of memory; "
            f"its limit is {limit / 2**20:.0f} MB ({last.circumstances})",
            last,
            "FXPOOL_JOB_MEMORY",
        )


#: The errors of jobs over their limits, by the name of the limit in `JobSpec`; from job, limit, use and last attempt.
OVER_LIMIT: dict[str, Callable[[str, float, float, LastAttempt], PoolError]] = {
    "timeout": lambda job, limit, used, last: JobTimeoutError(job, limit, last),
    "memory": lambda job, limit, used, last: JobMemoryError(job, int(limit), int(used), last),
}


def _end(signal: int | None, exit_code: int | None) -> str:
    if signal is not None:
        return f"was killed by {signal_name(signal)}"
    return f"exited with code {exit_code}" if exit_code is not None else "ended"


class QuarantinedError(PoolError):
    """The graph killed too many workers, in this process or an earlier one, and is not compiled again.

    If it exceeded a `limit` (``timeout``, ``memory``), `value` is the largest limit tried (seconds, bytes).
    """

    def __init__(
        self, job: str, *, key: str, error: str, log_path: str = "", limit: str = "", value: float = 0.0
    ) -> None:
        self.job, self.key, self.error, self.log_path = job, key, error, log_path
        self.limit, self.value = limit, value
        tried = {"timeout": f"{value:g} s", "memory": f"{value / 2**20:.0f} MB"}.get(limit)
        more = {"timeout": "FXPOOL_JOB_TIMEOUT", "memory": "FXPOOL_JOB_MEMORY"}.get(limit)
        super().__init__(
            f"{job} is in quarantine: {error}" + (f"; the largest limit tried is {tried}" if tried else ""),
            remedy=(f"see the worker's output in {log_path}; " if log_path else "")
            + "to compile it again, "
            + (f"set {more} to a larger value or " if more else "")
            + f"run `fxpool cache quarantine --release {key[:12]}`",
        )


class RecordedError(PoolError):
    """The graph was recorded for `fxpool build` (the setting `capture`), and runs eagerly instead of being compiled."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"{job} was recorded, not compiled")


class JobCancelledError(PoolError):
    """The caller withdrew the job, or the pool was closed while the job waited."""


class CompileError(FxpoolError):
    """fxpool could not compile a graph."""


class _ReasonError(CompileError):
    """A graph cannot be cached, or not at this level. `reason` is the counted reason."""

    _failure: str
    _remedy = ""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{self._failure} ({reason})" + (f": {detail}" if detail else ""), remedy=self._remedy)


class CannotTravelError(_ReasonError):
    """The graph cannot be sent to a worker at this level. `reason` is the counted reason."""

    _failure = "the graph cannot be sent to a worker"


class CannotReturnError(_ReasonError):
    """The compiled graph cannot be sent back from the worker. `reason` is the counted reason."""

    _failure = "the compiled graph cannot be sent back"


class NotKeptError(_ReasonError):
    """The compiled graph cannot be cached. Raised only if the program is strict. `reason` is the counted reason."""

    _failure = "the compiled graph cannot be cached"
    _remedy = "turn off `strict` (FXPOOL_STRICT, or torch's strict_autograd_cache) to compile it in each process"


class NoCompilerError(CompileError):
    """No C++ compiler works. `tried` lists the candidates.

    `arguments`: a candidate may be a command with arguments (torch 2.14 and later). `python_header`: the compiler does
    not find Python.h.
    """

    def __init__(
        self, tried: Iterable[str], detail: str = "", *, arguments: bool = False, python_header: bool = False
    ) -> None:
        self.tried = list(tried)
        if python_header:
            said = f"the C++ compiler ({', '.join(self.tried)}) does not find Python.h, which all kernels include"
            super().__init__(said, remedy=remedies.INSTALL_PYTHON_HEADERS)
            return
        may_have = arguments or not any(map(_is_command_line, self.tried))
        super().__init__(
            f"no working C++ compiler (tried {', '.join(self.tried) or 'none, CXX is empty'})"
            + (f": {detail}" if detail else ""),
            remedy=remedies.INSTALL_COMPILER if may_have else remedies.NO_ARGUMENTS,
        )


class ShortageError(CompileError):
    """The host was short of something that `program` needs, at each of several tries.

    `code` names the errno (``EAGAIN``), or the signal by which the program was ended (``SIGKILL``).
    """

    def __init__(self, program: str, code: str, said: str = "") -> None:
        self.program, self.code, self.said = program, code, said
        ended = code.startswith("SIG")
        super().__init__(
            f"{program} {'was ended' if ended else 'could not run'} ({code})" + (f": {said}" if said else ""),
            remedy=remedies.SHORTAGES.get("ENOMEM" if ended else code, ""),
        )


class NoHalideError(CompileError):
    """Inductor is configured to generate Halide programs (``cpu_backend="halide"``), and Halide is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Inductor's cpu_backend or cuda_backend is 'halide', and Halide is not installed",
            remedy="pip install halide (tested with 21), or leave out the option",
        )


def _is_command_line(tried: str) -> bool:
    """Return whether a candidate is a command line whose first word is an executable."""
    words = tried.split()
    return len(words) > 1 and not os.path.exists(tried) and shutil.which(words[0]) is not None


class MeasurementBusyError(FxpoolError):
    """Other processes measured on `device` for longer than `patience` seconds."""

    def __init__(self, device: str, patience: float) -> None:
        self.device, self.patience = device, patience
        super().__init__(
            f"{device} is busy: other measurements ran on it for {patience:g} s",
            remedy="wait longer (patience=...), or see `fxpool status` for the processes that measure",
        )


class MissingExtraError(FxpoolError):
    """`feature` needs `package`, which is not installed. The optional dependencies `extra` contain it."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.feature, self.package, self.extra = feature, package, extra
        super().__init__(f"{feature} need {package}, which is not installed", remedy=f"pip install 'fxpool[{extra}]'")


class BuildError(FxpoolError):
    """A product of `fxpool.once` cannot be built or put where the caller wants it."""


class RecursiveBuildError(BuildError):
    """The build of a product calls `fxpool.once` with the same key, in the same thread. `product` describes the key."""

    def __init__(self, product: str) -> None:
        self.product = product
        super().__init__(
            f"the build of {product} calls fxpool.once with its own key and would wait for itself",
            remedy="call the builder itself there, or use another key",
        )


class TargetDirectoryError(BuildError):
    """A `directory` to fill exists and has files that fxpool did not put there. `path` is the directory."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(
            f"fxpool.once does not replace the directory {path}: {why}",
            remedy="name a directory that does not exist or is empty, or remove this one",
        )


class StoreError(FxpoolError):
    """The cache directory cannot be used for this operation."""


class UnsafeDirectoryError(StoreError):
    """Another user owns the cache directory or can write to it. Refused, because its entries run as code."""


class NoEntryError(StoreError):
    """No entry has the key `key`, or `key` is a prefix of several keys."""

    def __init__(self, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(f"{key!r}: {why}", remedy="`fxpool cache ls` lists the entries")


class CorruptEntryError(StoreError):
    """Bytes on disk have a wrong digest. Never leaves the store: a lookup turns it into a miss."""


class NotAuthenticError(StoreError):
    """No accepted key authenticates bytes from a network or a file. `name` is the name they were requested by."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(
            f"{name} is not authentic: {why}",
            remedy="set FXPOOL_REMOTE_KEY_FILE to the same key for writers and readers",
        )


class _FileError(StoreError):
    """A file cannot be used. `name` is its name, `reason` a word, `why` the details."""

    _failure: str
    _remedies: Mapping[str, str]

    def __init__(self, name: str, reason: str, why: str) -> None:
        self.name, self.reason, self.why = name, reason, why
        super().__init__(f"{self._failure.format(name)}: {why}", remedy=self._remedies.get(reason, ""))


class BundleError(_FileError):
    """A bundle cannot be used, and nothing in it was. `name` is its file, `reason` a word, `why` the details.

    Reasons: `damaged`, `other_version`, `unsealed`, `untrusted`, `needs_earlier`, `unreadable`, `gone`.
    """

    _failure = "cannot use {} as a bundle"
    _remedies = {
        "damaged": "nothing was imported; copy or export the bundle again",
        "other_version": "nothing was imported; export the bundle with the importing version of fxpool",
        "unsealed": "nothing was imported; export the bundle with FXPOOL_REMOTE_KEY_FILE or --key-file",
        "untrusted": "a bundle runs as code: if you know its origin, chown it and chmod go-w; or seal it with a key "
        "file, or pass --trust",
        "needs_earlier": "nothing was imported; import the bundles it builds on first, or list them before it",
    }


class CaptureError(_FileError):
    """A recorded request cannot be used. `name` is its file, `reason` a word, `why` the details.

    Reasons: `damaged`, `other_version`, `unsealed`, `sealed`, `untrusted`, `unreadable`.
    """

    _failure = "cannot build {}"
    _remedies = {
        "damaged": "copy the directory again",
        "other_version": "record and build with the same version of fxpool",
        "unsealed": "record with the same FXPOOL_REMOTE_KEY_FILE",
        "sealed": "set FXPOOL_REMOTE_KEY_FILE, or pass --key-file",
        "untrusted": "a recorded request runs as code: if you know its origin, chown it and chmod go-w; or record it "
        "with a key file, or pass --trust",
    }
