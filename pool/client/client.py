"""The pool from a caller's point of view: connects to a server for the first job, and submits jobs to it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxpool import forks
from fxpool.errors import JobCancelledError, PoolUnavailableError
from fxpool.pool.client import pausing
from fxpool.pool.client.job import Job
from fxpool.pool.client.session import Session, again
from fxpool.pool.wire import logs
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.job_spec import JobSpec

__all__ = ["PoolClient"]

_CLOSE_SECONDS = 2.0


@dataclass
class _Holder:
    """Holds the session for a PoolClient's finalizer, which must not refer to the client itself."""

    session: Session | None = None


def _close_held(holder: _Holder, timeout: float) -> None:
    session, holder.session = holder.session, None
    if session is not None:
        session.close(timeout)


class PoolClient:
    """A pool. The first job finds or starts its server.

    A private server ends with this process; the host's server (`PoolConfig.host`) serves other clients too.
    Thread-safe. A forked child opens a separate connection and does not touch its parent's. If the server is lost, its
    jobs fail with PoolUnavailableError, and the next `submit` finds or starts another server.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self._holder = _Holder()
        self._pid = os.getpid()
        self._lock = forks.lock(self, "_lock")
        self._era = object()  # replaced at each close
        # Also runs when the interpreter exits.
        self._finalizer = weakref.finalize(self, _close_held, self._holder, _CLOSE_SECONDS)

    def __enter__(self) -> PoolClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def started(self) -> bool:
        """True while this client's server is running or starting."""
        session = self._holder.session
        return session is not None and session.alive

    @property
    def server_pid(self) -> int | None:
        """The server's pid; None without a server, or before the host's server has sent it."""
        session = self._holder.session
        return session.server_pid if session is not None and session.alive else None

    @property
    def joined(self) -> bool:
        """True if the server was already running when this client connected."""
        session = self._holder.session
        return session is not None and session.joined

    def start(self, wait: bool = False) -> None:
        """Start server and zygote if they are not running; with `wait`, return once workers can be forked.

        Raises:
            PoolUnavailableError: no server can be started, or (with `wait`) the preload failed or took more than
                `PoolConfig.start_timeout` seconds.
            JobCancelledError: another thread closed the pool during the call.
        """
        session = self._session(self._era, "it was started")
        if not wait:
            return
        if not session.zygote_known.wait(self.config.start_timeout):
            raise PoolUnavailableError(f"the zygote was not ready within {self.config.start_timeout:g} s")
        if session.error is not None:
            raise again(session.error)
        if session.zygote is not None and session.zygote.state == "broken":
            raise PoolUnavailableError(f"the pool cannot run jobs: {session.zygote.reason}")

    def submit(
        self,
        function: str,
        payload: bytes,
        spec: JobSpec,
        *,
        on_event: Callable[[m.JobEvent], object] | None = None,
        on_ask: Callable[[bytes], bytes | None] | None = None,
        on_record: Callable[[m.LogRecord], object] | None = None,
    ) -> Job:
        """Run `function` ("package.module:qualname", bytes to bytes) on `payload` in a worker. Returns at once.

        `on_event` is called in the connection's thread with each event of the job and its sub-jobs. `on_ask` is called
        in a new thread with each question of the job or a sub-job (`JobContext.ask`), and returns the answer or None;
        an exception is logged, and counts as None. `on_record` is called with each log record before `Job.result`
        replays it.

        Raises:
            PoolUnavailableError: no server can be started.
            ProtocolError: `payload` is over the cap of a frame.
            JobCancelledError: another thread closed the pool during the call.
        """
        era = self._era
        levels, disabled = logs.level_map()
        if not spec.best_effort:
            pausing.give_up_ours(f"{spec.label} was compiled while this process measured: call it once before")

        submit = m.Submit(0, function, spec, levels, disabled, watched=on_event is not None, answers=on_ask is not None)
        for _ in range(3):
            session = self._session(era, f"job {spec.label!r} was submitted")
            job = Job(session.cancel, session.number(), spec.label, self, on_event, on_ask, on_record)
            if session.submit(job, submit, payload):
                return job
        raise PoolUnavailableError("the server ended after each start")

    def status(self, timeout: float = 10.0) -> dict[str, Any]:
        """Return plain data about the server: pids, slots, running and queued jobs, zygote, counters.

        Without a server `state` is "stopped"; if the server does not answer within `timeout` seconds, "starting".
        """
        session = self._holder.session
        if session is None or not session.alive:
            return {"state": "stopped"}
        facts = session.ask_status(timeout)
        if facts is not None:
            return facts
        if not session.alive:
            return {"state": "stopped"}
        return {"state": "starting", "server_pid": session.server_pid, "directory": str(session.directory)}

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Disconnect from the server; a private server ends, with its zygote and all workers. Idempotent.

        Unfinished jobs fail with JobCancelledError. `timeout` is in seconds.
        """
        self._check_process()
        # First, so that a thread that is starting a session notices, and closes its session.
        self._era = object()
        _close_held(self._holder, timeout)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._holder.session = None

    def _session(self, era: object, action: str) -> Session:
        """Return the current session, or start a session. `era` is the value of `_era` before the `action` began.

        Raises PoolUnavailableError, and JobCancelledError if the pool was closed after that: otherwise the new session
        would outlive the close.
        """
        self._check_process()
        with self._lock:
            if self._era is era:
                session = self._holder.session
                if session is not None and session.alive:
                    return session
                if not self._finalizer.alive:
                    raise PoolUnavailableError("the interpreter is shutting down")
                self._holder.session = session = Session.start(self.config)
                if self._era is era:
                    return session
                _close_held(self._holder, _CLOSE_SECONDS)  # `close` may have run before there was a session
        raise JobCancelledError(f"the pool was closed while {action}")
