"""What is said over the sockets: one Struct per message, one union per direction.

msgspec checks every field's type while it decodes, so that malformed input never runs code. Payloads (job input and
output, pickled exceptions) are no fields: they travel behind the message, untouched (see `protocol`).

| direction         | messages                                                                                |
|-------------------|-----------------------------------------------------------------------------------------|
| client -> server  | Hello, Submit, Cancel, StatusQuery, Ping, Shutdown                                      |
| server -> client  | Welcome, Refused, ZygoteState, Started, JobEvent, LogRecord, WarningRecord, Done,       |
|                   | Failed, Status, Pong, Leaving                                                           |
| server -> worker  | Run, Granted, SlotsReply, Started, Done, Failed                                         |
| worker -> server  | Begun, Unable, Returned, Phase, Submit, Cancel, Waiting, Resume, SlotsQuery, LogRecord, |
|                   | WarningRecord                                                                           |
| server -> zygote  | Prepare, Fork, Kill, WarmUp                                                             |
| zygote -> server  | Prepared, Forked, Exited                                                                |
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

# ---------------------------------------------------------------- handshake


class Hello(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """First frame of a client."""

    protocol: int
    fxpool: str
    pid: int


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
    """A job, or (from a worker) a sub-job; the payload is its input.

    `job` is the asker's own number for it. Jobs of equal `flight` (if it is not empty) have equal results: the second
    waits for the first, whoever asks. `timeout` is in seconds, `memory` in bytes of its processes together; None: the
    server's. A sub-job inherits environment (what it names itself is put over it), sys_path, cwd, levels and limits
    from its parent; what a worker writes into the other fields is ignored. `reuse`: the job leaves its process as it
    found it, and may run in one that others like it ran in, with equal surroundings. `alone`: nothing else is to run
    meanwhile. `spare`: it is the server's, whoever asked for it, and begun when there is time to spare.
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


class Cancel(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The asker no longer wants `job`; its worker's process group is killed."""

    job: int


class Started(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A worker was forked for `job`; from the second attempt on, `reason` says how the one before ended."""

    job: int
    worker: int
    attempt: int
    reason: str = ""


What = Literal["queued", "begun", "phase", "ended"]


class JobEvent(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """What has become of a watched job, or of a sub-job of it: it waits, has a worker, says what it does, is over.

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


class Done(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The job's function returned; the payload is its result. `joined`: it was begun for somebody else."""

    job: int
    worker: int
    attempts: int
    seconds: float
    joined: bool = False


class Failed(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The job has no result. For kind "exception" the payload is the exception (see `exceptions`).

    Kind "no_worker": `attempts` workers were begun for it and none reached it; `code` is the errno's name, if there is
    one, of what the host refused.
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
    phase: str = ""  # what the worker said it was doing
    log_path: str | None = None
    reason: str = ""
    code: str = ""


class LogRecord(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A logging record of a worker. `job` is filled in by the server; `extra` is what the call gave as that, plain."""

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


class StatusQuery(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Answered by Status with the same number."""

    number: int


class Status(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Plain data about the server."""

    number: int
    facts: dict[str, Any]


class Ping(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Are you there? Answered by Pong."""


class Pong(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Yes."""


class Shutdown(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Ends an embedded server at once, with everything that runs in it."""


class Leaving(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The server ends when it has done what it was asked for. Who wants more finds another."""


class ZygoteState(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The zygote is ready for the first time ("ready") or will never be ("broken", with the reason)."""

    state: Literal["ready", "broken"]
    seconds: float = 0.0
    reason: str = ""


# ---------------------------------------------------------------- server and worker


class Run(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job for a worker; the payload is its input. `environment` to `scratch` are those of its first."""

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
    reuse: bool = False


class Begun(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The worker is at the job's function: what ends it from here on is the job's doing."""


class Unable(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker can't begin and ends: the host refused something (`code`: the errno's name)."""

    reason: str
    code: str = ""


class Returned(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The job's function returned (`ok`; the payload is its result) or raised (the payload is the exception)."""

    ok: bool
    seconds: float
    pid: int
    stays: bool = False  # and waits for another Run


class Phase(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """What the worker does from now on, in the job's own words; told when it dies of it."""

    name: str


class Waiting(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The worker is blocked in waiting for its sub-jobs and gives its slot back."""


class Resume(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker has what it waited for and wants a slot again; answered by Granted with the same number."""

    number: int


class Granted(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The worker holds a slot again."""

    number: int


class SlotsQuery(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """How many slots are free? Answered by SlotsReply with the same number."""

    number: int


class SlotsReply(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    number: int
    free: int


# ---------------------------------------------------------------- server and zygote


#: A zygote that can't be forked any more after the n-th of its idle calls, from 0, ends with this code and n.
EXIT_IDLE = 100


class Prepare(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """First message to the zygote: import these, in this order; call `idle` (``module:function``, several with
    commas between) once nobody waits."""

    preload: list[str]
    sys_path: list[str]
    idle: str = ""


class Prepared(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The zygote can fork, or (`failure`) says why it never will."""

    pid: int
    seconds: float
    threads: int
    failure: str = ""


class Fork(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Fork a worker; the worker's end of its socket travels with this message."""

    worker: int
    log_path: str


class WarmUp(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Do now what is for idle time: many more workers will be forked than run, and each is better for it."""


class Kill(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Kill a worker's process group. The zygote does it, as it alone knows that the pid was not reaped yet."""

    worker: int


class Forked(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    worker: int
    pid: int
    seconds: float


class Exited(msgspec.Struct, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A worker process is gone and reaped, its process group killed. `failure`: it was never forked, and why; `code`
    is the errno's name."""

    worker: int
    exit_code: int | None
    signal: int | None
    failure: str = ""
    code: str = ""


ToServer = Hello | Submit | Cancel | StatusQuery | Ping | Shutdown
ToClient = (
    Welcome
    | Refused
    | ZygoteState
    | Started
    | JobEvent
    | LogRecord
    | WarningRecord
    | Done
    | Failed
    | Status
    | Pong
    | Leaving
)
ToWorker = Run | Granted | SlotsReply | Started | Done | Failed
FromWorker = (
    Begun | Unable | Returned | Phase | Submit | Cancel | Waiting | Resume | SlotsQuery | LogRecord | WarningRecord
)
ToZygote = Prepare | Fork | Kill | WarmUp
FromZygote = Prepared | Forked | Exited
