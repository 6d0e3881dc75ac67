"""The server's records of jobs and workers, the workers' log files, and the message that reports a job's end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fxpool.pool.host import death_causes
from fxpool.pool.server import decisions as d
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import Message
from fxpool.quantities import signal_name

__all__ = [
    "Client", "Exceeded", "JobLogs", "Work", "Worker", "WorkerResult", "as_part", "branch_of", "describe", "kind_of",
    "order", "result", "why_unable",
]  # fmt: skip

_FAILED_LOGS_KEPT = 50
_LOG_TAIL = 2000
_LOG_SEARCHED = 64 << 10


@dataclass
class Work:
    """One caller's request for a job: the function and input, and the caller. The scheduler has its own record."""

    key: int
    ask: m.Submit
    payload: memoryview
    client: Client | None  # the client that submitted it; None for a sub-job
    worker: Worker | None  # the worker that submitted it, if it is a sub-job
    submitted: float = 0.0  # on the loop's clock
    kind: str | None = None  # of reusable workers that may run it; None: only a new worker
    joined: bool = False  # it joined a job that was submitted before
    dropped: int = 0  # number of log records dropped because the caller does not read
    stayed: str = ""  # the reason why the farm did not run it
    why: str = ""  # its details
    failed: Worker | None = None  # its last worker here, if it waits for the farm only

    @property
    def spec(self) -> m.JobSpec:
        return self.ask.spec


@dataclass(eq=False)
class Client:
    """A connected client, as the server knows it."""

    connection: Connection[m.ToServer]
    number: int
    pid: int
    greeted: bool = False
    visitor: bool = False
    timer: asyncio.TimerHandle | None = None
    started: bytes | None = None  # when its process started, if the server can see that
    keys: dict[int, int] = field(default_factory=dict)  # job key by the client's number


@dataclass(eq=False)
class Worker:
    """A worker process, as the server knows it. The scheduler has its own record."""

    number: int
    job: int
    work: Work
    attempt: int
    log_path: Path
    scratch: Path
    last: object
    connection: Connection[m.FromWorker] | None = None
    pid: int | None = None
    begun: float = 0.0  # on the loop's clock
    reached: float | None = None  # when it reached its job's function, on the loop's clock
    unable: m.Unable | None = None  # the resource that the host refused
    paused: bool = False  # it has ended, and its job waits for the next try
    stopped: bool = False  # suspended, while a client measures
    broken: str = ""  # the protocol error in its messages
    phase: str = ""
    exceeded: Exceeded | None = None
    exited: m.Exited | None = None
    keys: dict[int, int] = field(default_factory=dict)  # sub-job key by the worker's number
    resume: int = 0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    limit_timer: asyncio.TimerHandle | None = None

    @property
    def top(self) -> Worker:
        """The worker of the client's job that this worker's job belongs to."""
        above = self
        while above.work.worker is not None:
            above = above.work.worker
        return above

    def send(self, message: Message, payload: memoryview | bytes = b"") -> None:
        """Send a message, unless the worker is gone. Raises ProtocolError if it is longer than a frame may be."""
        if self.connection is not None and not self.connection.closed:
            self.connection.send(message, payload)

    def cancel_timers(self) -> None:
        """Cancel the timers except that of its job's timeout."""
        for timer in self.timers:
            timer.cancel()
        self.timers = []

    def cancel_limit(self) -> None:
        """Cancel the timer of its job's timeout."""
        if self.limit_timer is not None:
            self.limit_timer.cancel()
            self.limit_timer = None


@dataclass(frozen=True)
class WorkerResult:
    """A worker's answer, or a farm's. With `ok`, the job's function returned; otherwise it raised."""

    ok: bool
    seconds: float
    payload: memoryview
    pid: int
    machine: str = ""


@dataclass(frozen=True)
class Exceeded:
    """The limit at which a worker was killed, as a number and as `text`. `limit` and `used` are in seconds or bytes."""

    kind: m.Limit
    limit: float
    used: float
    phase: str
    text: str


class JobLogs:
    """The files with workers' output, deleted with their workers except for the latest `_FAILED_LOGS_KEPT` failures."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: deque[Path] = deque()
        self.make()

    def make(self) -> None:
        """Create the directory if it is missing, as a user may have deleted it. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)

    def path(self, job: int, attempt: int) -> Path:
        """Return the path of an attempt's log."""
        return self._directory / f"{job}-{attempt}.log"

    def keep(self, path: Path) -> None:
        """Keep a log after its worker has ended."""
        if path not in self._kept:
            self._kept.append(path)
            if len(self._kept) > _FAILED_LOGS_KEPT:
                self.discard(self._kept.popleft())

    def discard(self, path: Path) -> None:
        """Remove a log unless it is kept."""
        if path not in self._kept:
            with contextlib.suppress(OSError):
                path.unlink()


def as_part(ask: m.Submit, above: m.Submit) -> m.Submit:
    """Return a worker's request for a sub-job, completed with the fields inherited from its parent `above`."""
    spec = msgspec.structs.replace(
        ask.spec,
        environment={**above.spec.environment, **ask.spec.environment},
        sys_path=above.spec.sys_path,
        cwd=above.spec.cwd,
        timeout=None,
        memory=None,
        priority=above.spec.priority,
        dedup_key="",
        best_effort=False,
    )
    return msgspec.structs.replace(ask, spec=spec, levels=above.levels, disabled=above.disabled)


def order(worker: Worker, slots: int) -> m.Run:
    """Return the message that gives a worker its job."""
    scratch = worker.scratch
    return m.Run(worker.job, worker.attempt, slots, worker.work.ask, str(scratch), str(scratch.parents[2]))


def kind_of(ask: m.Submit) -> str:
    """Return a name that is equal for jobs that one worker may run: they agree in all that its first job sets up."""
    spec = ask.spec
    environment, levels = sorted(spec.environment.items()), sorted(ask.levels.items())
    return repr((environment, spec.sys_path, spec.cwd, levels, ask.disabled, spec.preparation))


def branch_of(ask: m.Submit) -> str:
    """Return a name that is equal for jobs whose preparation leads to the same process; "" without a preparation."""
    if ask.spec.preparation is None:
        return ""
    return hashlib.sha256(kind_of(ask).encode()).hexdigest()


def result(action: d.Deliver, work: Work, worker: Worker | None) -> tuple[m.Done | m.Failed, memoryview]:
    """Return (message, payload) that tells a caller how its job ended."""
    number, outcome = work.ask.job, action.outcome
    pid = worker.pid if worker is not None else None
    log_path = str(worker.log_path) if worker is not None else None
    failed = m.Failed(job=number, kind="cancelled", worker=pid, attempts=action.attempts, log_path=log_path)
    if isinstance(outcome, d.Answered):
        answer = outcome.answer
        assert isinstance(answer, WorkerResult)
        if answer.ok:
            facts = (work.joined, answer.machine, work.stayed, work.why)
            return m.Done(number, answer.pid, action.attempts, answer.seconds, *facts), answer.payload
        failed.kind, failed.seconds, failed.worker = "exception", answer.seconds, answer.pid
        return failed, answer.payload
    if isinstance(outcome, d.Died):
        failed.phase = worker.phase if worker is not None else ""
        exited = outcome.exit_info
        if isinstance(exited, Exceeded):
            failed.kind, failed.limit, failed.used = exited.kind, exited.limit, exited.used
            failed.reason = describe(exited)
        else:
            assert isinstance(exited, m.Exited)
            failed.kind, failed.signal, failed.exit_code = "died", exited.signal, exited.exit_code
            said = (worker.broken or death_causes.sentence(tail(worker.log_path))) if worker is not None else ""
            failed.reason = exited.failure or said
    elif isinstance(outcome, d.NoWorker):
        failed.kind, failed.attempts = "no_worker", outcome.tries
        failed.reason, failed.code = why_unable(outcome.exit_info, worker)
    elif isinstance(outcome, d.Unavailable):
        failed.kind, failed.reason = "unavailable", outcome.reason
    else:
        failed.reason = outcome.reason
    return failed, memoryview(b"")


def why_unable(exit_info: object, worker: Worker | None) -> tuple[str, str]:
    """Return (the reason why a worker did not reach its job's function, the errno's name or "")."""
    if worker is not None and worker.unable is not None:
        return worker.unable.reason, worker.unable.code
    said = death_causes.sentence(tail(worker.log_path)) if worker is not None else ""
    code = exit_info.code if isinstance(exit_info, m.Exited) else ""
    return describe(exit_info) + (f": {said}" if said else ""), code


def describe(exit_info: object) -> str:
    """Return a sentence that says how a worker ended."""
    if isinstance(exit_info, Exceeded):
        return f"the worker was killed at its limit of {exit_info.text}"
    if not isinstance(exit_info, m.Exited):
        return str(exit_info)
    if exit_info.failure:
        return exit_info.failure
    if exit_info.signal is not None:
        return f"the worker was killed by {signal_name(exit_info.signal)}"
    if exit_info.exit_code is None:
        return "the worker ended before it answered"
    return f"the worker exited with code {exit_info.exit_code} before it answered"


def tail(path: Path) -> str:
    """Return the end of a worker's output, which may say why it died (faulthandler writes to it)."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_SEARCHED))
            text = file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
    fatal = text.rfind(death_causes.FATAL)
    return text[-_LOG_TAIL:] if fatal < 0 else text[fatal : fatal + _LOG_TAIL]
