"""A connection to a server, from finding or starting the server until either end closes the connection.

A daemon thread reads, and writes the bytes that did not fit into the socket at once, so that `submit` never waits.
"""

from __future__ import annotations

import enum
import itertools
import os
import select
import selectors
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from fxpool import forks, notices, standard_streams
from fxpool.errors import JobCancelledError, PoolError, PoolUnavailableError, ProtocolError, ServerLostError
from fxpool.pool.client import hosts, launch
from fxpool.pool.client.job import Job
from fxpool.pool.host import fork_inheritance, runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.protocol import PROTOCOL_VERSION, Buffer, FrameDecoder, Message, Outbox, encode
from fxpool.version import __version__

__all__ = ["Session", "again"]

log = notices.logger(__name__)

_LOG_TAIL = 2000
# Seconds of silence after which a server with jobs of this session is pinged.
_PING_SECONDS = 1.0


class _State(enum.Enum):
    """The stages of a session. It never returns to an earlier stage."""

    OPEN = enum.auto()
    RETIRING = enum.auto()  # the server accepts no new jobs, but finishes those of this session
    CLOSING_ITSELF = enum.auto()  # closed from its thread, whose loop has yet to tell the server
    CLOSING = enum.auto()

    @property
    def closing(self) -> bool:
        return self in (_State.CLOSING_ITSELF, _State.CLOSING)


class Session:
    """A connection to one server; another server needs a new session. `alive` until the server ends, or until `close`.

    `Session.start` finds or starts the server. A private server ends with the session; the host's server goes on.
    """

    def __init__(self, config: PoolConfig, server: launch.Server, wake: int) -> None:
        """Take ownership of the connection to `server` and of the eventfd `wake`. The caller starts the thread."""
        self.config = config
        self.sock, self.directory = server.sock, server.directory
        self.process, self.shared = server.process, server.shared
        self.joined = server.process is None
        self.pid = os.getpid()
        self.jobs: dict[int, Job] = {}
        self.replies: dict[int, _Reply] = {}
        self.zygote: m.ZygoteState | None = None
        self.zygote_known = forks.event()
        self.error: PoolError | None = None
        self.over = forks.event()
        self._numbers = itertools.count(1)
        self._lock = forks.lock(self, "_lock")  # the outbox, the jobs and `error`
        self._outbox = Outbox()
        self._welcome: m.Welcome | None = None
        self._decoder: FrameDecoder[m.ToClient] = FrameDecoder(m.ToClient)
        self._state = _State.OPEN  # written under the lock
        self._pinged: float | None = None
        self._asleep = False  # the thread waits without a timeout
        self._deadline = time.monotonic() + config.start_timeout  # of the server's first message
        self._thread = threading.Thread(target=self._serve, name="fxpool-client", daemon=True)
        self._wake = wake

    @classmethod
    def start(cls, config: PoolConfig) -> Session:
        """Find the host's server or start one, as `config` says, and serve the connection in a thread.

        Raises:
            PoolUnavailableError: no server can be found or started, or no thread.
        """
        wake, server = -1, None
        standard_streams.keep_standard()  # so that printed text cannot end up in the connection
        try:
            wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            server = launch.find_or_start(config) if config.host else launch.start(config)
            session = cls(config, server, wake)
            session._thread.start()
        except BaseException as error:
            if wake >= 0:
                os.close(wake)
            if server is not None:
                _abandon(server)
            if isinstance(error, (OSError, RuntimeError)):  # RuntimeError: no thread can be started
                raise PoolUnavailableError(f"the server could not be started: {error}") from error
            raise
        return session

    # ------------------------------------------------------------ any thread

    @property
    def alive(self) -> bool:
        """True while the session can take jobs."""
        return self.pid == os.getpid() and self.error is None and self._state is _State.OPEN

    def number(self) -> int:
        """Return a new number for a job or a query."""
        return next(self._numbers)

    def submit(self, job: Job, submit: m.Submit, payload: bytes) -> bool:
        """Submit a job; return False if the session has ended. Raises ProtocolError if the payload is too long."""
        with self._lock:
            if self.error is not None or self._state is not _State.OPEN:
                return False
            self.jobs[job.id] = job
        if self._asleep:
            self._wake_up()  # from now on the thread checks that the server responds
        submit.job = job.id
        try:
            self.send(submit, payload)
        except BaseException:
            self.jobs.pop(job.id, None)
            raise
        return True

    def cancel(self, number: int) -> None:
        """Withdraw a job of this session by its number."""
        if self.jobs.pop(number, None) is not None:
            self.send(m.Cancel(job=number))

    def ask_status(self, timeout: float) -> dict[str, Any] | None:
        """Return the server's status, or None if it does not answer within `timeout` seconds."""
        reply = _Reply()
        number = self.number()
        self.replies[number] = reply
        self.send(m.StatusQuery(number=number))
        reply.event.wait(timeout)
        self.replies.pop(number, None)
        return reply.facts

    def send(self, message: Message, payload: Buffer = b"") -> None:
        """Send without waiting; the thread sends what does not fit. Raises ProtocolError if the frame is too long."""
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
                return  # the thread sees the end as well
        if not done:
            self._wake_up()

    @property
    def server_pid(self) -> int | None:
        """The server's pid; None until the host's server has sent it."""
        if self._welcome is not None:
            return self._welcome.pid
        return self.process.pid if self.process is not None and not self.shared else None

    def close(self, timeout: float) -> None:
        """End this session. A private server ends with it, and on return all its processes have ended.

        Jobs on the host's server end too, unless other clients wait for them. `timeout` is in seconds.
        """
        if self.pid != os.getpid():
            return
        if threading.current_thread() is self._thread:
            # Called from a callback, or from the client's finalizer. The garbage collector may call that at any point,
            # even while this thread holds the lock, so the loop does the work.
            if not self._state.closing:
                self._state = _State.CLOSING_ITSELF
            self._wake_up()
            return
        with self._lock:
            first = not self._state.closing
            if first:
                self._state = _State.CLOSING
        if not first:
            self.over.wait(timeout)
            return
        if self.error is None:
            if self.shared:
                self._wake_up()
            elif self._welcome is None:
                self._kill()  # still starting; a zygote dies with it
            else:
                self.send(m.Shutdown())
            if not self.over.wait(timeout):
                self._kill()
        self._thread.join(timeout)

    def _kill(self) -> None:
        if self.process is not None and not self.shared:
            self.process.kill()

    def _wake_up(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:
            pass  # closed: the thread has ended

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
        """Serve the connection until it ends; return the reason as an error."""
        with selectors.PollSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                timeout = None
                if self._state is _State.RETIRING and not self.jobs:
                    self._advance(_State.CLOSING)
                if self._state.closing and self.shared:
                    return PoolUnavailableError("the connection was closed")
                if self._state is _State.CLOSING_ITSELF:
                    self._advance(_State.CLOSING)
                    if self._welcome is None:
                        self._kill()
                    self.send(m.Shutdown())
                if self._welcome is None:
                    timeout = self._deadline - time.monotonic()
                    if timeout <= 0:
                        limit = self.config.start_timeout
                        return PoolUnavailableError(f"the server did not answer within {limit:g} s after its start")
                elif not self._asleep or self.jobs:
                    timeout = _PING_SECONDS
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
                selector.modify(self.sock, events)
                ready = selector.select(timeout)
                if ready:
                    self._asleep = False
                elif self._welcome is not None and not self.jobs:
                    self._asleep = True  # `submit` checks this after it has added to `jobs`
                elif self._welcome is not None and self._is_silent():
                    return PoolUnavailableError(f"the server has not answered for {self.config.patience:g} s")
                for key, mask in ready:
                    if key.fd == self._wake:
                        os.eventfd_read(self._wake)
                        continue
                    if mask & selectors.EVENT_WRITE:
                        with self._lock:
                            try:
                                self._outbox.flush(self.sock)
                            except OSError:
                                self._outbox.clear()
                    if mask & selectors.EVENT_READ:
                        self._pinged = None
                        if not self._read():
                            return PoolUnavailableError("the server ended")

    def _advance(self, state: _State) -> None:
        """Move the session to a later stage. No-op if it has reached that stage."""
        with self._lock:
            if state.value > self._state.value:
                self._state = state

    def _is_silent(self) -> bool:
        """Return whether a server with jobs of this session hangs: it has not answered a ping for too long."""
        if self._pinged is None:
            self._pinged = time.monotonic()
            self.send(m.Ping())
        return time.monotonic() - self._pinged > self.config.patience

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
        if isinstance(message, (m.LogRecord, m.WarningRecord, m.Started, m.JobEvent)):
            job = self.jobs.get(message.job)
            if job is not None and isinstance(message, m.Started):
                job.started(message)
            elif isinstance(message, m.JobEvent):
                if job is not None:
                    job.on_job_event(message)
            elif job is not None:
                job.add(message)  # type: ignore[arg-type]
        elif isinstance(message, m.Question):
            self._answer(message.number, self.jobs.get(message.job), bytes(payload))
        elif isinstance(message, (m.Done, m.Failed)):
            job = self.jobs.pop(message.job, None)
            if job is not None:
                job.ended(message, bytes(payload))
        elif isinstance(message, m.Welcome):
            if (message.protocol, message.fxpool) != (PROTOCOL_VERSION, __version__):
                raise ProtocolError(f"the server runs fxpool {message.fxpool}, this process runs {__version__}")
            self._welcome = message
            if self.shared and self.process is not None:
                self.process.wait()  # it only started the server, which runs now
                fork_inheritance.processes.discard(self.process)
                self.process = None
        elif isinstance(message, m.Refused):
            raise ProtocolError(f"the server refused this client: {message.reason}")
        elif isinstance(message, m.Leaving):
            self._advance(_State.RETIRING)
        elif isinstance(message, m.Pong):
            pass  # any message shows that the server responds
        elif isinstance(message, m.ZygoteState):
            self.zygote = message
            self.zygote_known.set()
        elif isinstance(message, m.Status):
            reply = self.replies.get(message.number)
            if reply is not None:
                reply.facts = message.facts
                reply.event.set()
        else:
            raise ProtocolError(f"the server sent {type(message).__name__}, which matches no pending request")

    def _answer(self, number: int, job: Job | None, question: bytes) -> None:
        """Answer a worker's question in a new thread, because that may take seconds."""

        def answer() -> None:
            answered = job.answer(question) if job is not None else None
            try:
                self.send(m.Answer(number=number, ok=answered is not None), answered or b"")
            except ProtocolError as error:
                log.warning("could not send the answer to a question of %r: %s", job, error)
                self.send(m.Answer(number=number, ok=False))

        try:
            threading.Thread(target=answer, name="fxpool-answer", daemon=True).start()
        except RuntimeError:  # no thread can be started
            self.send(m.Answer(number=number, ok=False))

    def _end(self, error: PoolError) -> None:
        error = self._of_the_host(error) if self.shared else self._of_our_own(error)
        with self._lock:
            self.error = error
            jobs, self.jobs = self.jobs, {}
            self._outbox.clear()
        hosts.disconnect(self.sock)
        os.close(self._wake)
        if not self.shared:  # the host's server removes its directory when it leaves
            runtime_dir.remove(self.directory)
        cancelled = self._state.closing
        for job in jobs.values():
            if cancelled:
                text = f"the pool was closed while job {job.label!r} ran or waited"
                job.finish(None, lambda text=text: JobCancelledError(text))  # type: ignore[misc]
            else:
                job.finish(None, lambda: again(error))
        for reply in list(self.replies.values()):
            reply.event.set()
        self.zygote_known.set()
        self.over.set()

    def _of_our_own(self, error: PoolError) -> PoolError:
        """Make sure that the private server has ended; return the error, completed by how it ended."""
        assert self.process is not None
        if not self._state.closing:
            # Its socket is closed, so the server has ended, or is useless.
            _ended(self.process, 0.5)
        if self.process.poll() is None and (not self._state.closing or self._welcome is None):
            self.process.kill()
        if not _ended(self.process, 5.0):
            self.process.kill()
        code = self.process.wait()
        fork_inheritance.processes.discard(self.process)
        if isinstance(error, ProtocolError) or self._state.closing:
            return error
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        kind = ServerLostError if self._welcome is not None else PoolUnavailableError
        return kind(f"{error}: server {self.process.pid} {how}", remedy=self._log_tail())

    def _of_the_host(self, error: PoolError) -> PoolError:
        if self.process is not None:
            self.process.wait()
            fork_inheritance.processes.discard(self.process)
        if isinstance(error, ProtocolError) or self._state.closing:
            return error
        # A server that was already running may have been leaving.
        kind = ServerLostError if self._welcome is not None or self.process is None else PoolUnavailableError
        who = f"server {self._welcome.pid} of this host" if self._welcome is not None else "the host's new server"
        return kind(f"{error}: {who}", remedy=self._log_tail())

    def _log_tail(self) -> str:
        try:
            text = (self.directory / runtime_dir.LOG).read_text("utf-8", "replace")[-_LOG_TAIL:].strip()
        except OSError:
            return ""
        return f"the end of its log:\n{text}" if text else ""


def _abandon(server: launch.Server) -> None:
    """Undo a start that failed halfway. The host's server leaves by itself."""
    hosts.disconnect(server.sock)
    if server.process is not None:
        if not server.shared:
            server.process.kill()
        server.process.wait()
        fork_inheritance.processes.discard(server.process)
    if not server.shared:
        runtime_dir.remove(server.directory)


@dataclass
class _Reply:
    event: forks.Event = field(default_factory=forks.event)
    facts: dict[str, Any] | None = None


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for `process` to end; return whether it has. Popen.wait polls every 50 ms, most of the time of `close`."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        pidfd = -1  # an old kernel, or the process was reaped elsewhere
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


def again(error: PoolError) -> PoolError:
    """Return a new copy of an error, because a raised error collects frames."""
    return type(error)(error.message, remedy=error.remedy)
