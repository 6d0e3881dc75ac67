"""The asker's side: starts a server of its own, submits jobs, gives their results.

One daemon thread per connection does the reading, and the writing that did not fit into the socket at once, so that
`submit` never waits. What a job logged and warned of is replayed by the thread that asks for its result.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fxpool.pool import exceptions, logs, runtime_dir
from fxpool.pool import messages as m
from fxpool.pool.config import CONFIG, ServerConfig
from fxpool.pool.protocol import PROTOCOL_VERSION, Buffer, FrameDecoder, Outbox, check_peer, encode

from fxpool import __version__
from fxpool.errors import ConfigurationError, JobCancelledError, PoolError, PoolUnavailableError, ProtocolError

__all__ = ["Job", "PoolClient", "PoolConfig"]

log = logging.getLogger("fxpool.pool")

_LOG_TAIL = 2000


@dataclass(frozen=True)
class PoolConfig:
    """What a client's own server is started with.

    `environment` is the whole environment of server and zygote: nothing is inherited. `workers` None means as many as
    CPU affinity and CPU quota allow. `start_timeout` and `job_timeout` (a job's default wall limit) are in seconds.
    """

    workers: int | None = None
    preload: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sys_path: tuple[str, ...] = ()
    runtime_dir: str | None = None
    start_timeout: float = 120.0
    job_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigurationError(f"a pool needs at least one worker, not {self.workers}")


class Job:
    """A submitted job. `worker_pid` and `attempts` are known once it runs, `seconds` (in the worker) at its end."""

    def __init__(self, session: _Session, number: int, label: str, client: PoolClient) -> None:
        self.id = number
        self.label = label
        self.worker_pid: int | None = None
        self.attempts = 0
        self.seconds: float | None = None
        self._session = session
        self._client = client  # who forgets the client and keeps the job still wants its result
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._value: bytes | None = None
        self._error: Callable[[], BaseException] | None = None
        self._records: list[m.LogRecord | m.WarningRecord] = []
        self._callbacks: list[Callable[[Job], object]] = []

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._error is not None else "done"
        return f"<Job {self.id} {self.label!r} {state}>"

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._value is not None or self._error is not None

    def result(self, timeout: float | None = None) -> bytes:
        """What the job's function returned.

        Raises what it raised, with the worker's frames; WorkerDiedError, JobTimeoutError, JobCancelledError,
        PoolUnavailableError; TimeoutError when `timeout` seconds pass first (the job goes on). Logs and warnings of the
        worker are replayed first, by this thread; a warning that this process's filters make an error is raised here,
        once, unless the job failed anyway. KeyboardInterrupt while waiting cancels the job.
        """
        if self._pid != os.getpid() and not self.done():
            raise PoolUnavailableError(f"job {self.label!r} belongs to process {self._pid}, which forked this one")
        try:
            over = self.done() or self._over.wait(timeout)
        except BaseException:
            self.cancel()
            raise
        if not over:
            raise TimeoutError(f"job {self.label!r} is not done after {timeout:g} s")
        with self._lock:
            records, self._records = self._records, []
        raised = logs.replay(records)
        if self._error is not None:
            # Made anew for each caller: a raised exception collects the frames of its way.
            raise self._error()
        if raised is not None:
            raise raised
        assert self._value is not None
        return self._value

    def add_done_callback(self, function: Callable[[Job], object]) -> None:
        """Call `function(job)` when the job is over: at once if it is, else in the connection's thread."""
        with self._lock:
            if not self.done():
                self._callbacks.append(function)
                return
        self._call(function)

    def cancel(self) -> None:
        """Withdraw the job: its worker and all that it started is killed. Nothing happens if it is over."""
        if self._pid != os.getpid():
            return
        if self._finish(None, lambda: JobCancelledError(f"job {self.label!r} was cancelled")):
            self._session.cancel(self.id)

    def _started(self, message: m.Started) -> None:
        self.worker_pid, self.attempts = message.worker, message.attempt
        if message.reason:
            text = f"job {self.label!r} runs again in worker {message.worker} (attempt {message.attempt}): "
            text += f"{message.reason} in the attempt before"
            self._add(
                m.LogRecord(0, log.name, logging.WARNING, text, __file__, 0, "", os.getpid(), "", time.time(), None)
            )

    def _add(self, record: m.LogRecord | m.WarningRecord) -> None:
        with self._lock:
            self._records.append(record)

    def _done(self, message: m.Done, payload: memoryview) -> None:
        self.worker_pid, self.attempts, self.seconds = message.worker, message.attempts, message.seconds
        self._finish(bytes(payload), None)

    def _failed(self, message: m.Failed, payload: memoryview) -> None:
        self.worker_pid = message.worker or self.worker_pid
        self.attempts, self.seconds = message.attempts, message.seconds
        data = bytes(payload)
        self._finish(None, lambda: exceptions.error_of(message, data, self.label))

    def _finish(self, value: bytes | None, error: Callable[[], BaseException] | None) -> bool:
        with self._lock:
            if self.done():
                return False
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
        self._over.set()
        for function in callbacks:
            self._call(function)
        return True

    def _call(self, function: Callable[[Job], object]) -> None:
        try:
            function(self)
        except Exception:
            log.exception("a callback of %r raised", self)


# Sockets of this process that a child forked by other means than exec must not keep: their end means our death.
_sockets: set[socket.socket] = set()
_processes: set[subprocess.Popen[bytes]] = set()
# No fork while they are made. Reentrant: a signal handler may fork.
_making = threading.RLock()


def _after_fork() -> None:
    for sock in list(_sockets):
        sock.close()  # this process's copy; the connection is the parent's
    _sockets.clear()
    for process in _processes:
        process.returncode = 0  # not our child: nothing to wait for
    _processes.clear()
    _making.release()


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_after_fork)


class _Session:
    """One server process and the connection to it, from start to end. A new server is a new session."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.pid = os.getpid()
        self.jobs: dict[int, Job] = {}
        self.replies: dict[int, _Reply] = {}
        self.zygote: m.ZygoteState | None = None
        self.zygote_known = threading.Event()
        self.error: PoolError | None = None
        self.over = threading.Event()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # the outbox, the jobs and `error`
        self._outbox = Outbox()
        self._welcome: m.Welcome | None = None
        self._decoder: FrameDecoder[m.ToClient] = FrameDecoder(m.ToClient)
        self._closing = False
        self._leave = False
        self._deadline = time.monotonic() + config.start_timeout
        self.directory = runtime_dir.make_private(runtime_dir.runtime_root(config.runtime_dir))
        self._thread = threading.Thread(target=self._serve, name="fxpool-client", daemon=True)
        self._wake = -1
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            with _making:
                self._spawn()
            self.send(m.Hello(PROTOCOL_VERSION, __version__, os.getpid()))
            self._thread.start()
        except BaseException as error:
            self._abandon()
            if isinstance(error, (OSError, RuntimeError)):  # RuntimeError: no thread can be started (any more)
                raise PoolUnavailableError(f"the server could not be started: {error}") from error
            raise

    def _spawn(self) -> None:
        config = self.config
        facts = ServerConfig(
            config.workers,
            list(config.preload),
            list(config.sys_path),
            config.start_timeout,
            config.job_timeout,
            str(self.directory.parent),
        )
        (self.directory / CONFIG).write_bytes(msgspec.json.encode(facts))
        path = str(self.directory / runtime_dir.SOCKET)
        # We listen and connect, then start who will accept: nobody has to poll, and if we die at any moment from here
        # on, the server finds a connection that has ended.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _sockets.update((listener, self.sock))
        try:
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen(64)
            self.sock.connect(path)
            check_peer(self.sock, os.getuid())
            self.sock.setblocking(False)
            arguments = ["--directory", str(self.directory), "--listen", str(listener.fileno())]
            with open(self.directory / "server.log", "wb") as output:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "fxpool.pool.server", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # A file of the user's working directory must not shadow a module.
                    cwd=self.directory,
                    env=dict(config.environment),
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,  # Ctrl-C in a terminal is for the client alone
                )
            _processes.add(self.process)
        finally:
            _sockets.discard(listener)
            listener.close()  # our copy would keep the end of a server that never accepted from being seen

    def _abandon(self) -> None:
        """Undo a start that got stuck half-way."""
        if self._wake >= 0:
            os.close(self._wake)
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()
            _processes.discard(self.process)
        if hasattr(self, "sock"):
            self._close_socket()
        runtime_dir.remove(self.directory)

    # ------------------------------------------------------------ any thread

    @property
    def alive(self) -> bool:
        return self.pid == os.getpid() and self.error is None and not self._closing

    def submit(self, client: PoolClient, label: str, make: Callable[[int], m.Submit], payload: bytes) -> Job | None:
        """None if the session ended meanwhile. Raises ProtocolError if the payload is too long."""
        number = next(self._numbers)
        job = Job(self, number, label, client)
        with self._lock:
            if self.error is not None or self._closing:
                return None
            self.jobs[number] = job
        try:
            self.send(make(number), payload)
        except BaseException:
            self.jobs.pop(number, None)
            raise
        return job

    def cancel(self, number: int) -> None:
        if self.jobs.pop(number, None) is not None:
            self.send(m.Cancel(number))

    def ask_status(self, timeout: float) -> dict[str, Any] | None:
        reply = _Reply()
        number = next(self._numbers)
        self.replies[number] = reply
        self.send(m.StatusQuery(number))
        reply.event.wait(timeout)
        self.replies.pop(number, None)
        return reply.facts

    def send(self, message: msgspec.Struct, payload: Buffer = b"") -> None:
        parts = encode(message, payload)
        with self._lock:
            if self.error is not None:
                return
            waiting = bool(self._outbox)
            self._outbox.push(parts)
            if waiting:
                return
            try:
                done = self._outbox.flush(self.sock)
            except OSError:
                return  # the thread sees the end, too
        if not done:
            self._wake_up()

    def close(self, timeout: float) -> None:
        """End the server and all it runs, and this session. Returns when its processes are gone."""
        if self.pid != os.getpid():
            return
        if threading.current_thread() is self._thread:
            # From a callback, or as the last reference to the client went. Possibly in the middle of anything, as the
            # garbage collector calls finalizers wherever it runs: the loop does the rest.
            self._closing = self._leave = True
            self._wake_up()
            return
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            self.over.wait(timeout)
            return
        if self.error is None:
            if self._welcome is None:
                self.process.kill()  # still starting; a zygote dies with it
            else:
                self.send(m.Shutdown())
            if not self.over.wait(timeout):
                self.process.kill()
        self._thread.join(timeout)

    def _wake_up(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:
            pass  # closed: the thread is through

    # ------------------------------------------------------------ the thread

    def _serve(self) -> None:
        error: PoolError
        try:
            error = self._loop()
        except ProtocolError as broken:
            error = broken
        except Exception as broken:
            error = PoolUnavailableError(f"the connection to the server broke: {broken!r}")
        self._end(error)

    def _loop(self) -> PoolError:
        """Until the server is gone; returns why."""
        with selectors.PollSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                timeout = None
                if self._leave:
                    self._leave = False
                    if self._welcome is None:
                        self.process.kill()
                    self.send(m.Shutdown())
                if self._welcome is None:
                    timeout = self._deadline - time.monotonic()
                    if timeout <= 0:
                        limit = self.config.start_timeout
                        return PoolUnavailableError(f"the server did not answer within {limit:g} s of its start")
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
                selector.modify(self.sock, events)
                for key, mask in selector.select(timeout):
                    if key.fd == self._wake:
                        os.eventfd_read(self._wake)
                        continue
                    if mask & selectors.EVENT_WRITE:
                        with self._lock:
                            try:
                                self._outbox.flush(self.sock)
                            except OSError:
                                self._outbox.clear()
                    if mask & selectors.EVENT_READ and not self._read():
                        return PoolUnavailableError("the server ended")

    def _read(self) -> bool:
        while True:
            try:
                count = self.sock.recv_into(self._decoder.buffer())
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                count = 0
            if not count:
                return False
            frame = self._decoder.received(count)
            if frame is not None:
                self._take(*frame)

    def _take(self, message: m.ToClient, payload: memoryview) -> None:
        if isinstance(message, (m.LogRecord, m.WarningRecord, m.Started)):
            job = self.jobs.get(message.job)
            if job is not None and isinstance(message, m.Started):
                job._started(message)
            elif job is not None:
                job._add(message)  # type: ignore[arg-type]
        elif isinstance(message, m.Done):
            job = self.jobs.pop(message.job, None)
            if job is not None:
                job._done(message, payload)
        elif isinstance(message, m.Failed):
            job = self.jobs.pop(message.job, None)
            if job is not None:
                job._failed(message, payload)
        elif isinstance(message, m.Welcome):
            if (message.protocol, message.fxpool) != (PROTOCOL_VERSION, __version__):
                raise ProtocolError(f"the server runs fxpool {message.fxpool}, this process {__version__}")
            self._welcome = message
        elif isinstance(message, m.Refused):
            raise ProtocolError(f"the server refused this client: {message.reason}")
        elif isinstance(message, m.ZygoteState):
            self.zygote = message
            self.zygote_known.set()
        else:
            reply = self.replies.get(message.number)
            if reply is not None:
                reply.facts = message.facts
                reply.event.set()

    def _end(self, error: PoolError) -> None:
        if not self._closing:
            # Its socket has ended: so has the server, or it is of no use.
            _ended(self.process, 0.5)
        if self.process.poll() is None and (not self._closing or self._welcome is None):
            self.process.kill()
        if not _ended(self.process, 5.0):
            self.process.kill()
        code = self.process.wait()
        _processes.discard(self.process)
        if not isinstance(error, ProtocolError) and not self._closing:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            error = PoolUnavailableError(f"{error}: server {self.process.pid} {how}", remedy=self._log_tail())
        with self._lock:
            self.error = error
            jobs, self.jobs = self.jobs, {}
            self._outbox.clear()
        self._close_socket()
        os.close(self._wake)
        # The server removes it when it leaves in peace.
        runtime_dir.remove(self.directory)
        cancelled = self._closing
        for job in jobs.values():
            if cancelled:
                text = f"the pool was closed while job {job.label!r} ran or waited"
                job._finish(None, lambda text=text: JobCancelledError(text))  # type: ignore[misc]
            else:
                job._finish(None, lambda: _again(error))
        for reply in list(self.replies.values()):
            reply.event.set()
        self.zygote_known.set()
        self.over.set()

    def _log_tail(self) -> str:
        try:
            text = (self.directory / "server.log").read_text("utf-8", "replace")[-_LOG_TAIL:].strip()
        except OSError:
            return ""
        return f"the end of its log:\n{text}" if text else ""

    def _close_socket(self) -> None:
        _sockets.discard(self.sock)
        self.sock.close()


@dataclass
class _Reply:
    event: threading.Event = field(default_factory=threading.Event)
    facts: dict[str, Any] | None = None


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of `process`. Popen.wait with a limit looks every 50 ms, which is most of what `close` takes."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        pidfd = -1  # an old kernel, or it was reaped by somebody else
    if pidfd >= 0:
        try:
            waiter = select.poll()
            waiter.register(pidfd, select.POLLIN)
            if not waiter.poll(seconds * 1000):
                return False
        finally:
            os.close(pidfd)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _again(error: PoolError) -> PoolError:
    return type(error)(error.message, remedy=error.remedy)


@dataclass
class _Holder:
    """What a PoolClient's finalizer needs: no reference to the client itself."""

    session: _Session | None = None


def _close_held(holder: _Holder, timeout: float) -> None:
    session, holder.session = holder.session, None
    if session is not None:
        session.close(timeout)


class PoolClient:
    """A pool of this process's own: its server is started with the first job and ends with this process.

    Thread-safe. In a forked child it starts a server of the child's own and leaves the parent's alone. When the server
    was lost, its jobs fail with PoolUnavailableError and the next `submit` starts another.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self._holder = _Holder()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # Runs at the interpreter's end, too.
        self._finalizer = weakref.finalize(self, _close_held, self._holder, 2.0)

    def __enter__(self) -> PoolClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def started(self) -> bool:
        """Whether a server of this process is running or starting."""
        session = self._holder.session
        return session is not None and session.alive

    @property
    def server_pid(self) -> int | None:
        session = self._holder.session
        return session.process.pid if session is not None and session.alive else None

    def start(self, wait: bool = False) -> None:
        """Start server and zygote if they are not running; with `wait`, return when workers can be forked.

        Raises PoolUnavailableError: nothing can be started, or (with `wait`) the preload failed or took too long.
        """
        session = self._session()
        if not wait:
            return
        if not session.zygote_known.wait(self.config.start_timeout):
            raise PoolUnavailableError(f"the zygote is not ready after {self.config.start_timeout:g} s")
        if session.error is not None:
            raise _again(session.error)
        if session.zygote is not None and session.zygote.state == "broken":
            raise PoolUnavailableError(f"the pool can't run jobs: {session.zygote.reason}")

    def submit(
        self,
        function: str,
        payload: bytes,
        *,
        label: str,
        environment: Mapping[str, str | None] | None = None,
        sys_path: Sequence[str] = (),
        cwd: str | None = None,
        timeout: float | None = None,
        retries: int = 1,
        priority: int = 0,
    ) -> Job:
        """Have `function` ("package.module:qualname", bytes to bytes) run on `payload` in a worker of its own.

        `environment` is applied over the zygote's (None removes a variable), `sys_path` is put before its import path,
        `cwd` None is a directory of the pool's, with nothing in it that a job should look at.
        `timeout` is the wall limit in seconds of one attempt; `retries` is how many deaths of workers are forgiven.
        Returns at once. Raises PoolUnavailableError if no server can be started, ProtocolError if `payload` is over the
        cap of a frame.
        """
        levels, disabled = logs.level_map()

        def make(number: int) -> m.Submit:
            return m.Submit(
                number,
                function,
                label,
                dict(environment or {}),
                list(sys_path),
                cwd,
                timeout,
                retries,
                priority,
                levels,
                disabled,
            )

        for _ in range(3):
            job = self._session().submit(self, label, make, payload)
            if job is not None:
                return job
        raise PoolUnavailableError("the server ended as often as it was started")

    def status(self, timeout: float = 10.0) -> dict[str, Any]:
        """Plain data about the server: pids, slots, what runs and waits, zygote, counters.

        {"state": "stopped"} without a server, {"state": "starting"} if it does not answer within `timeout` seconds.
        """
        session = self._holder.session
        if session is None or not session.alive:
            return {"state": "stopped"}
        facts = session.ask_status(timeout)
        if facts is not None:
            return facts
        if not session.alive:
            return {"state": "stopped"}
        return {"state": "starting", "server_pid": session.process.pid, "directory": str(session.directory)}

    def close(self, timeout: float = 2.0) -> None:
        """Kill all workers, the zygote and the server; jobs that are not done get JobCancelledError. Idempotent."""
        self._check_process()
        _close_held(self._holder, timeout)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            # Forked: the locks may be held by threads that do not exist here.
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._holder.session = None

    def _session(self) -> _Session:
        self._check_process()
        with self._lock:
            session = self._holder.session
            if session is None or not session.alive:
                if not self._finalizer.alive:
                    raise PoolUnavailableError("the interpreter is shutting down")
                self._holder.session = session = _Session(self.config)
            return session
