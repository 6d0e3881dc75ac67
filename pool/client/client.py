"""The client's side of the pool: connects to a server when there is a job, and submits jobs to it."""

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
from fxpool.pool.client.job_spec import JobSpec
from fxpool.pool.client.session import Session, again
from fxpool.pool.wire import logs
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig

__all__ = ["PoolClient"]

_CLOSE_SECONDS = 2.0


@dataclass
class _Holder:
    """Holds what a PoolClient's finalizer needs, without a reference to the client itself."""

    session: Session | None = None


def _close_held(holder: _Holder, timeout: float) -> None:
    session, holder.session = holder.session, None
    if session is not None:
        session.close(timeout)


class PoolClient:
    """A pool: its server is found or started with the first job.

    A server of this process's own ends with this process; one of the host's (`PoolConfig.host`) serves other clients,
    too. Thread-safe. A forked child makes a connection of its own and leaves its parent's alone. When the server is
    lost, its jobs fail with PoolUnavailableError and the next `submit` finds or starts another.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self._holder = _Holder()
        self._pid = os.getpid()
        self._lock = forks.lock(self, "_lock")
        self._era = object()  # another one after each close
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
        """The server's pid; None without a server, or before the host's has told it."""
        session = self._holder.session
        return session.server_pid if session is not None and session.alive else None

    @property
    def joined(self) -> bool:
        """True if the server was already running when this client connected."""
        session = self._holder.session
        return session is not None and session.joined

    def start(self, wait: bool = False) -> None:
        """Start server and zygote if they are not running; with `wait`, return when workers can be forked.

        Raises:
            PoolUnavailableError: no server can be started, or (with `wait`) the preload failed or took more than
                `PoolConfig.start_timeout` seconds.
            JobCancelledError: another thread closed the pool meanwhile.
        """
        session = self._session(self._era, "it was started")
        if not wait:
            return
        if not session.zygote_known.wait(self.config.start_timeout):
            raise PoolUnavailableError(f"the zygote is not ready after {self.config.start_timeout:g} s")
        if session.error is not None:
            raise again(session.error)
        if session.zygote is not None and session.zygote.state == "broken":
            raise PoolUnavailableError(f"the pool can't run jobs: {session.zygote.reason}")

    def submit(
        self,
        function: str,
        payload: bytes,
        spec: JobSpec,
        *,
        on_event: Callable[[m.JobEvent], object] | None = None,
        on_ask: Callable[[bytes], bytes | None] | None = None,
    ) -> Job:
        """Have a worker run `function` ("package.module:qualname", bytes to bytes) on `payload`. Returns at once.

        `on_event` is called in the connection's thread with each event of the job and of its sub-jobs. `on_ask` is
        called, in a thread of its own, with what the job or a sub-job asks (`JobContext.ask`) and returns the answer,
        or None; an exception of it is logged, and counts as None.

        Raises:
            PoolUnavailableError: no server can be started.
            ProtocolError: `payload` is over the cap of a frame.
            JobCancelledError: another thread closed the pool meanwhile.
        """
        era = self._era
        levels, disabled = logs.level_map()
        if not spec.spare:
            pausing.give_up_ours(f"{spec.label} was compiled while this process measured")

        def make(number: int) -> m.Submit:
            return m.Submit(
                job=number,
                function=function,
                label=spec.label,
                environment=dict(spec.environment),
                sys_path=list(spec.sys_path),
                cwd=spec.cwd,
                timeout=spec.timeout,
                retries=spec.retries,
                priority=spec.priority,
                levels=levels,
                disabled=disabled,
                flight=spec.flight,
                memory=spec.memory,
                reuse=spec.reuse,
                watched=on_event is not None,
                spare=spec.spare,
                answers=on_ask is not None,
            )

        for _ in range(3):
            job = self._session(era, f"job {spec.label!r} was submitted").submit(
                self, spec.label, make, payload, on_event, on_ask
            )
            if job is not None:
                return job
        raise PoolUnavailableError("the server ended as often as it was started")

    def status(self, timeout: float = 10.0) -> dict[str, Any]:
        """Return plain data about the server: pids, slots, running and waiting jobs, zygote, counters.

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
        return {"state": "starting", "server_pid": session.server_pid, "directory": str(session.directory)}

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Leave the server, or kill it with its zygote and all workers if it is this client's own. Idempotent.

        Jobs that are not done fail with JobCancelledError. `timeout` is in seconds.
        """
        self._check_process()
        # First: a thread that is starting a session sees it when it has one, and closes that itself.
        self._era = object()
        _close_held(self._holder, timeout)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._holder.session = None

    def _session(self, era: object, what: str) -> Session:
        """Return the session in force, starting one if there is none. `era` is the caller's from before `what` began.

        Raises PoolUnavailableError, and JobCancelledError if the pool was closed since: a server that a closed pool
        started would be left to run.
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
                _close_held(self._holder, _CLOSE_SECONDS)  # whoever closed the pool may have found no session yet
        raise JobCancelledError(f"the pool was closed while {what}")
