"""Messages on the sockets: one Struct per message, one union per direction.

msgspec checks the type of every field while it decodes, so that malformed input never runs code. Payloads (a job's
input and output, pickled exceptions) are not fields: they follow the message as opaque bytes (see `protocol`). The
unions are at the end. A branch receives from the zygote what the zygote receives from the server.
"""

from __future__ import annotations

import errno
from typing import Any, Literal

import msgspec

from fxpool.pool.wire.job_spec import JobSpec as JobSpec
from fxpool.pool.wire.job_spec import Limit as Limit
from fxpool.pool.wire.job_spec import Preparation as Preparation
from fxpool.pool.wire.protocol import Message

# ---------------------------------------------------------------- handshake


class Hello(Message):
    """First frame of a client. A `visitor` only queries or measures; it does not keep a server alive."""

    protocol: int
    fxpool: str
    pid: int
    visitor: bool = False


class Welcome(Message):
    """First frame of the server to a client that it accepts."""

    protocol: int
    fxpool: str
    pid: int
    slots: int


class Refused(Message):
    """First and last frame of the server to a client that it refuses."""

    reason: str


# ---------------------------------------------------------------- jobs


class Submit(Message):
    """Submits a job or (from a worker) a sub-job; the payload is its input.

    `job` is the sender's number for it. `levels` and `disabled` are the caller's log levels, which a sub-job inherits.
    `watched`: the client receives a `JobEvent` at each step. `answers`: the client answers the job's questions
    (`Question`).
    """

    job: int
    function: str
    spec: JobSpec
    levels: dict[str, int] = {}
    disabled: int = 0
    watched: bool = False
    answers: bool = False


class Cancel(Message):
    """Withdraws `job`. If no other caller waits for it, its worker's process group is killed."""

    job: int


class Started(Message):
    """Reports that `job` has a worker. From the second attempt on, `reason` says how the previous worker ended."""

    job: int
    worker: int
    attempt: int
    reason: str = ""


EventKind = Literal["queued", "begun", "phase", "ended", "away", "returned"]


class JobEvent(Message):
    """Reports progress of a watched job or one of its sub-jobs: it is queued, has a worker, names a phase or has ended.

    `part` distinguishes the job (0) and its sub-jobs. `at` is `time.monotonic()`, the same clock for all processes of a
    host. `worker` is the worker's pid. "away": a farm has the job; "returned": it has the result, and `name` is its
    machine.
    """

    job: int
    part: int
    kind: EventKind
    label: str
    at: float
    worker: int | None = None
    name: str = ""  # the phase, or the machine


class Question(Message):
    """Asks a caller of `job` a question of its worker, which only a caller can answer; the payload is the question.

    The client replies with an `Answer` of the same number. If several callers share the job, one of them is asked.
    """

    job: int
    number: int


class Answer(Message):
    """Answers Question; the payload is the answer. Without `ok` this caller has no answer: the next one is asked."""

    number: int
    ok: bool


class Done(Message):
    """The job's function returned; the payload is its result. `joined`: another caller had started the job.

    `machine`: the function of `Away` returned on this machine of the farm. `stayed` is the reason why a job that may
    run away did not, and `why` its details.
    """

    job: int
    worker: int
    attempts: int
    seconds: float
    joined: bool = False
    machine: str = ""
    stayed: str = ""
    why: str = ""


class Failed(Message):
    """The job has no result. For kind "exception" the payload is the exception (see `exceptions`).

    For kind "no_worker", `attempts` workers were started for it, but no worker reached its function; `code` is the name
    of the errno with which the host refused a resource, or empty.
    """

    job: int
    kind: Literal["exception", "died", "cancelled", "unavailable", "no_worker", Limit]
    worker: int | None = None
    attempts: int = 0
    seconds: float | None = None
    signal: int | None = None
    exit_code: int | None = None
    limit: float = 0.0  # seconds or bytes
    used: float = 0.0
    phase: str = ""  # the worker's last phase
    log_path: str | None = None
    reason: str = ""
    code: str = ""


class LogRecord(Message):
    """A log record of a worker. The server fills in `job`; `extra` holds the call's `extra` as plain data."""

    name: str
    level: int
    message: str
    job: int = 0
    pathname: str = ""
    lineno: int = 0
    function: str = ""
    process: int = 0
    thread: str = ""
    created: float = 0.0
    exc_text: str | None = None
    extra: dict[str, Any] = {}


class WarningRecord(Message):
    """A warning of a worker. `category` is "module:qualname"."""

    message: str
    category: str
    filename: str
    lineno: int
    module: str
    job: int = 0


# ---------------------------------------------------------------- about the pool


class Pause(Message):
    """The client measures: suspend all workers and start no jobs, for at most `seconds`.

    Ends with the connection. Answered by Paused. If the client runs in a worker, that worker is not suspended.
    """

    seconds: float


class Paused(Message):
    """Reply to `Pause`: all jobs are suspended. `workers` is the number of stopped workers."""

    workers: int


class Resumed(Message):
    """The client's pause has reached its time limit: workers run again."""


class StatusQuery(Message):
    """Asks for the server's state. Answered by Status with the same number."""

    number: int


class Status(Message):
    """Answers StatusQuery with plain data about the server."""

    number: int
    facts: dict[str, Any]


class HistoryQuery(Message):
    """Asks for the jobs that changed after `since` (0: all known jobs). Answered by History with the same number."""

    number: int
    since: int = 0


class JobRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job in `History`. Times are `time.monotonic()`.

    `change` is the number of its latest change. `askers` are the pids of the clients that requested it. `part_of` is
    its parent if it is a sub-job, or 0. `phases` are (name, start). `memory` is the observed maximum of its processes'
    memory in bytes, with shared pages counted in full. `result` is "done" or a kind of `Failed`. `machine` is the
    farm's machine that ran the job.
    """

    job: int
    change: int
    label: str
    queued: float
    begun: float | None = None
    ended: float | None = None
    worker: int | None = None
    attempts: int = 0
    part_of: int = 0
    askers: list[int] = []
    phases: list[tuple[str, float]] = []
    memory: int = 0
    result: str = ""
    reason: str = ""
    machine: str = ""


class History(Message):
    """Answers HistoryQuery with the jobs that changed, the latest last.

    `latest` is the number of the latest change of any job; `now` is the server's time.
    """

    number: int
    latest: int
    now: float
    jobs: list[JobRecord]


class Ping(Message):
    """Asks whether the peer is alive. Answered by Pong."""


class Pong(Message):
    """Answers Ping."""


class Shutdown(Message):
    """Tells the server to end. A private server ends at once, with its jobs; the host's ends when its jobs are done."""


class Leaving(Message):
    """The server ends when its jobs are done. A client with new jobs must connect to another server."""


class ZygoteState(Message):
    """The zygote is ready for the first time ("ready"), or will never be ("broken", with the reason)."""

    state: Literal["ready", "broken"]
    seconds: float = 0.0
    reason: str = ""


# ---------------------------------------------------------------- server and worker


class Run(Message):
    """Gives a job to a worker; the payload is its input.

    A worker applies environment, import path, directory, log levels and `scratch` only for its first job.
    """

    job: int
    attempt: int
    slots: int
    submit: Submit
    scratch: str = ""  # the worker creates this directory for temporary files; the server removes it
    runtime_root: str = ""  # holds the directories of this user's servers, and the measurement locks


class Begun(Message):
    """The worker calls the job's function now: if it dies later, the job is blamed."""


class Unable(Message):
    """The worker could not start its job and exits: the host refused a resource (`code`: the errno's name)."""

    reason: str
    code: str = ""

    @classmethod
    def of(cls, action: str, error: BaseException) -> Unable:
        """Return the message about an operating system error; `action` says which action failed."""
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM if isinstance(error, MemoryError) else None
        return cls(f"{action}: {error or type(error).__name__}", errno.errorcode.get(number or 0, ""))


class Returned(Message):
    """The job's function returned (`ok`; the payload is its result) or raised (the payload is the exception)."""

    ok: bool
    seconds: float
    pid: int
    stays: bool = False  # the worker waits for another Run


class Phase(Message):
    """Names the current phase of the job. The name is reported if the worker dies in this phase."""

    name: str


class Waiting(Message):
    """The worker releases its slot while it waits for its sub-jobs."""


class Resume(Message):
    """The worker's wait is over, and it requests a slot. Answered by Granted with the same number."""

    number: int


class Granted(Message):
    """The worker holds a slot again."""

    number: int


class SlotsQuery(Message):
    """Asks how many slots are free. Answered by SlotsReply with the same number."""

    number: int


class SlotsReply(Message):
    """Answers SlotsQuery."""

    number: int
    free: int


class Ask(Message):
    """Asks a caller of the job; the payload is the question. Answered by Answered with the same number."""

    number: int


class Answered(Message):
    """Answers Ask; the payload is the answer. Without `ok`, no caller could answer."""

    number: int
    ok: bool


# ---------------------------------------------------------------- server and zygote


#: If the zygote's n-th idle call (from 0) left it unsafe to fork, it exits with this code plus n.
EXIT_IDLE = 100


class Prepare(Message):
    """First message to the zygote: import `preload` in this order, and call the functions of `idle`
    (``module:function``, separated by commas) once no client waits."""

    preload: tuple[str, ...]
    sys_path: tuple[str, ...]
    idle: str = ""


class Prepared(Message):
    """Reply to `Prepare`: the zygote can fork, or (`failure`) why it never will."""

    pid: int
    seconds: float
    threads: int
    failure: str = ""


class Fork(Message):
    """Fork a worker. The worker's end of its socket is attached to this message.

    Workers of one `branch` have the same preparation, environment, import path and directory.
    """

    worker: int
    log_path: str
    branch: str = ""


class WarmUp(Message):
    """Make the idle calls now, because many workers will be forked and each of them will start faster."""


class Stop(Message):
    """Stop a worker's process group (SIGSTOP)."""

    worker: int


class Continue(Message):
    """Resume a worker's process group (SIGCONT)."""

    worker: int


class Suspend(Message):
    """Suspend the idle calls (`on`), or allow them again. Answered by Suspended."""

    on: bool


class Suspended(Message):
    """Reply to `Suspend`: earlier orders have been carried out."""


class Kill(Message):
    """Kill a worker's process group. The zygote does this, because only it knows that the pid has not been reaped."""

    worker: int


class Forked(Message):
    """A worker was forked, which took `seconds`. `prepared`: from a branch, so that it needs no preparation."""

    worker: int
    pid: int
    seconds: float
    prepared: bool = False


class Deferred(Message):
    """A worker is forked later, from a branch that another worker is making."""

    worker: int


class NoBranch(Message):
    """A worker could not make a branch, and no other worker could either."""

    reason: str


class Outdated(Message):
    """A branch returns `order` with its socket, and ends: a file that its preparation read has changed (`reason`)."""

    order: Fork
    reason: str


class Exited(Message):
    """A worker has ended: it was reaped, and its process group killed. `failure` says why it could not be forked, if
    that is the reason; `code` is the errno's name."""

    worker: int
    exit_code: int | None = None
    signal: int | None = None
    failure: str = ""
    code: str = ""


ToServer = Hello | Submit | Cancel | Answer | Pause | StatusQuery | HistoryQuery | Ping | Shutdown
ToClient = (
    Welcome | Refused | ZygoteState | Started | JobEvent | LogRecord | WarningRecord | Question | Done | Failed |
    Paused | Resumed | Status | History | Pong | Leaving
)  # fmt: skip
ToWorker = Run | Granted | SlotsReply | Answered | Started | Done | Failed
FromWorker = (
    Begun | Unable | Returned | Phase | Submit | Cancel | Ask | Waiting | Resume | SlotsQuery | LogRecord |
    WarningRecord
)  # fmt: skip
ToZygote = Prepare | Fork | Kill | WarmUp | Stop | Continue | Suspend
FromZygote = Prepared | Forked | Deferred | Exited | Suspended
FromBranch = Prepared | NoBranch | Forked | Outdated | Exited | Suspended
