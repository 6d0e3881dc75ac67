"""Messages on the sockets: one Struct per message, one union per direction.

msgspec checks every field's type while it decodes, so that malformed input never runs code. Payloads (job input and
output, pickled exceptions) are not fields: they travel behind the message, untouched (see `protocol`).

| direction         | messages                                                                                |
|-------------------|-----------------------------------------------------------------------------------------|
| client -> server  | Hello, Submit, Cancel, Answer, Pause, StatusQuery, HistoryQuery, Ping, Shutdown         |
| server -> client  | Welcome, Refused, ZygoteState, Started, JobEvent, LogRecord, WarningRecord, Asked, Done, |
|                   | Failed, Paused, GoneOn, Status, History, Pong, Leaving                                  |
| server -> worker  | Run, Granted, SlotsReply, Answered, Started, Done, Failed                               |
| worker -> server  | Begun, Unable, Returned, Phase, Submit, Cancel, Ask, Waiting, Resume, SlotsQuery,       |
|                   | LogRecord, WarningRecord                                                                |
| server -> zygote  | Prepare, Fork, Kill, WarmUp, Stop, GoOn, Rest                                           |
| zygote -> server  | Prepared, Forked, Exited, Resting                                                       |
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

# ---------------------------------------------------------------- handshake


class Hello(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """First frame of a client. A `visitor` submits no jobs: no server is there for it."""

    protocol: int
    fxpool: str
    pid: int
    visitor: bool = False


class Welcome(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """First frame of the server to a client it serves."""

    protocol: int
    fxpool: str
    pid: int
    slots: int


class Refused(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """First and last frame of the server to a client it does not serve."""

    reason: str


# ---------------------------------------------------------------- jobs


class Submit(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Submits a job or (from a worker) a sub-job; the payload is its input.

    `job` is the sender's own number for it. Jobs of equal `flight` (if it is not empty) have equal results: the second
    waits for the first, whoever submits them. `timeout` is in seconds, `memory` in bytes of its processes together;
    None means the server's limit. A sub-job inherits its parent's environment (its own entries win), sys_path, cwd,
    priority, levels and limits; these fields of its own, `flight` and `spare` are ignored. `reuse`: the job leaves its
    process as it found it, and may run in one that others like it ran in, with equal surroundings. `alone`: nothing
    else is to run meanwhile. `spare`: the job belongs to the server, which begins it when there is time to spare.
    `answers`: the client answers what the job asks (`Asked`).
    """

    job: int
    function: str
    label: str
    environment: dict[str, str | None] = {}
    sys_path: list[str] = []
    cwd: str | None = None
    timeout: float | None = None
    retries: int = 1
    priority: int = 0
    levels: dict[str, int] = {}
    disabled: int = 0
    flight: str = ""
    memory: int | None = None
    reuse: bool = False
    watched: bool = False
    alone: bool = False
    spare: bool = False
    answers: bool = False


class Cancel(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Withdraws `job`. If no other caller wants it, its worker's process group is killed."""

    job: int


class Started(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Reports that `job` has a worker; from the second attempt on, `reason` says how the previous one ended."""

    job: int
    worker: int
    attempt: int
    reason: str = ""


What = Literal["queued", "begun", "phase", "ended"]


class JobEvent(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Reports progress of a watched job or a sub-job of it: it waits, has a worker, names a phase, is over.

    `part` tells the job and its sub-jobs apart. `at` is `time.monotonic()`, one clock for all processes of a host;
    `worker` is the worker's pid.
    """

    job: int
    part: int
    what: What
    label: str
    at: float
    worker: int | None = None
    name: str = ""  # the phase


class Asked(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker of `job` asks its caller what only that can know; the payload is the question.

    To be answered with `Answer` of the same number. Where several callers share a job, one is asked.
    """

    job: int
    number: int


class Answer(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Answers Asked; the payload is the answer. Without `ok` there is none: another caller is asked, if there is."""

    number: int
    ok: bool


class Done(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The job's function returned; the payload is its result. `joined`: it was begun for another caller."""

    job: int
    worker: int
    attempts: int
    seconds: float
    joined: bool = False


class Failed(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The job has no result. For kind "exception" the payload is the exception (see `exceptions`).

    Kind "no_worker": `attempts` workers were begun for it and none reached it; `code` is the name of the errno with
    which the host refused something, if there is one.
    """

    job: int
    kind: Literal["exception", "died", "timeout", "memory", "cancelled", "unavailable", "no_worker"]
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


class LogRecord(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A log record of a worker. The server fills in `job`; `extra` holds the call's `extra` as plain data."""

    job: int
    name: str
    level: int
    message: str
    pathname: str
    lineno: int
    function: str
    process: int
    thread: str
    created: float
    exc_text: str | None
    extra: dict[str, Any] = {}


class WarningRecord(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A warning of a worker. `category` is "module:qualname"."""

    job: int
    message: str
    category: str
    filename: str
    lineno: int
    module: str


# ---------------------------------------------------------------- about the pool


class Pause(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The client measures: no job is to begin, and workers stand still, for `seconds` at most.

    Ends with the connection. Answered by Paused. A worker that is itself the client goes on.
    """

    seconds: float


class Paused(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Nothing of the server's runs any more; `workers` were stopped."""

    workers: int


class GoneOn(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The client's pause lasted as long as it may: workers run again."""


class StatusQuery(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Answered by Status with the same number."""

    number: int


class Status(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Plain data about the server."""

    number: int
    facts: dict[str, Any]


class HistoryQuery(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Asks for the jobs that changed after `since` (0: all that are remembered). Answered by History, same number."""

    number: int
    since: int = 0


class JobRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is remembered of a job, in `History`. Times are `time.monotonic()`.

    `change` numbers its latest change. `askers` are the pids of all that asked for it, `part_of` is the job that it is
    a sub-job of, or 0. `phases` are (name, since). `memory` is the most that its processes were seen to take, in bytes,
    with shared pages in full. `how` is "done" or a kind of `Failed`.
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
    how: str = ""
    reason: str = ""


class History(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The jobs that changed, the latest last. `latest` numbers the latest change of all; `now` is the time there."""

    number: int
    latest: int
    now: float
    jobs: list[JobRecord]


class Ping(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Asks whether the peer is alive. Answered by Pong."""


class Pong(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Answers Ping."""


class Shutdown(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Tells the server to end: a client's own at once, with all that runs in it; the host's when its jobs are done."""


class Leaving(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The server ends when its jobs are done; for new jobs, find another one."""


class ZygoteState(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The zygote is ready for the first time ("ready") or will never be ("broken", with the reason)."""

    state: Literal["ready", "broken"]
    seconds: float = 0.0
    reason: str = ""


# ---------------------------------------------------------------- server and worker


class Run(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Gives a job to a worker; the payload is its input. Only a worker's first Run sets `environment` to `scratch`."""

    job: int
    function: str
    label: str
    attempt: int
    slots: int
    environment: dict[str, str | None] = {}
    sys_path: list[str] = []
    cwd: str | None = None
    levels: dict[str, int] = {}
    disabled: int = 0
    scratch: str = ""  # a directory the worker makes for temporary files; the server removes it
    runtime_root: str = ""  # where this user's servers are found, and turns to measure
    reuse: bool = False


class Begun(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The worker reached the job's function: an end from here on is the job's doing."""


class Unable(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker can't begin and ends: the host refused something (`code`: the errno's name)."""

    reason: str
    code: str = ""


class Returned(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The job's function returned (`ok`; the payload is its result) or raised (the payload is the exception)."""

    ok: bool
    seconds: float
    pid: int
    stays: bool = False  # the worker waits for another Run


class Phase(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Names what the worker does from now on, in the job's own words; reported if it dies of it."""

    name: str


class Waiting(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The worker waits for its sub-jobs and gives its slot back."""


class Resume(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker has what it waited for and asks for a slot; answered by Granted with the same number."""

    number: int


class Granted(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker holds a slot again."""

    number: int


class SlotsQuery(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Asks how many slots are free. Answered by SlotsReply with the same number."""

    number: int


class SlotsReply(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Answers SlotsQuery."""

    number: int
    free: int


class Ask(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Asks a caller of the job; the payload is the question. Answered by Answered with the same number."""

    number: int


class Answered(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Answers Ask; the payload is the answer. Without `ok` there is none: no caller knows, or none is left."""

    number: int
    ok: bool


# ---------------------------------------------------------------- server and zygote


#: The zygote exits with this code plus n (from 0) if its n-th idle call left it unsafe to fork.
EXIT_IDLE = 100


class Prepare(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """First message to the zygote: import `preload` in this order; call `idle` (``module:function``, several with
    commas between) once nobody waits."""

    preload: list[str]
    sys_path: list[str]
    idle: str = ""


class Prepared(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The zygote can fork, or (with `failure`) says why it never will."""

    pid: int
    seconds: float
    threads: int
    failure: str = ""


class Fork(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Fork a worker; the worker's end of its socket travels with this message."""

    worker: int
    log_path: str


class WarmUp(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Make the idle calls now: many more workers will be forked than run, and each gains from it."""


class Stop(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Stop a worker's process group (SIGSTOP)."""

    worker: int


class GoOn(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Let a worker's process group that was stopped go on."""

    worker: int


class Rest(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Make no idle call until told otherwise (`on`), and answer with Resting: what came before has been done."""

    on: bool


class Resting(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Answers Rest."""


class Kill(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Kill a worker's process group. The zygote does it, as it alone knows that the pid has not been reaped."""

    worker: int


class Forked(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A worker was forked; `seconds` is what that took."""

    worker: int
    pid: int
    seconds: float


class Exited(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A worker process is gone and reaped, its process group killed. With `failure` it was never forked, and why;
    `code` is the errno's name."""

    worker: int
    exit_code: int | None
    signal: int | None
    failure: str = ""
    code: str = ""


ToServer = Hello | Submit | Cancel | Answer | Pause | StatusQuery | HistoryQuery | Ping | Shutdown
ToClient = (
    Welcome
    | Refused
    | ZygoteState
    | Started
    | JobEvent
    | LogRecord
    | WarningRecord
    | Asked
    | Done
    | Failed
    | Paused
    | GoneOn
    | Status
    | History
    | Pong
    | Leaving
)
ToWorker = Run | Granted | SlotsReply | Answered | Started | Done | Failed
FromWorker = (
    Begun
    | Unable
    | Returned
    | Phase
    | Submit
    | Cancel
    | Ask
    | Waiting
    | Resume
    | SlotsQuery
    | LogRecord
    | WarningRecord
)
ToZygote = Prepare | Fork | Kill | WarmUp | Stop | GoOn | Rest
FromZygote = Prepared | Forked | Exited | Resting
