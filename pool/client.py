"""The asker's side: comes to a server when there is a job, and gives jobs to it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxpool import forks
from fxpool.errors import PoolUnavailableError
from fxpool.pool import logs
from fxpool.pool import messages as m
from fxpool.pool.config import PoolConfig
from fxpool.pool.job import Job
from fxpool.pool.job_spec import JobSpec
from fxpool.pool.session import Session, again

__all__ = ["PoolClient"]


@dataclass
class _Holder:
    """What a PoolClient's finalizer needs: no reference to the client itself."""

    session: Session | None = None


def _close_held(holder: _Holder, timeout: float) -> None:
    session, holder.session = holder.session, None
    if session is not None:
        session.close(timeout)


class PoolClient:
    """A pool: its server is found or started with the first job.

    A server of this process's own ends with this process; one of the host's (`PoolConfig.host`) serves others, too.
    Thread-safe. A forked child comes to a server by itself and leaves the parent's connection alone. When the server
    was lost, its jobs fail with PoolUnavailableError and the next `submit` finds or starts another.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self._holder = _Holder()
        self._pid = os.getpid()
        self._lock = forks.lock(self, "_lock")
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
        return session.server_pid if session is not None and session.alive else None

    @property
    def joined(self) -> bool:
        """Whether the server it is connected to was there before it came."""
        session = self._holder.session
        return session is not None and session.joined

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
    ) -> Job:
        """Have `function` ("package.module:qualname", bytes to bytes) run on `payload` in a worker of its own.

        `on_event` is told what becomes of the job and of its sub-jobs, in the connection's thread. Returns at once.

        Raises:
            PoolUnavailableError: no server can be started.
            ProtocolError: `payload` is over the cap of a frame.
        """
        levels, disabled = logs.level_map()

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
            )

        for _ in range(3):
            job = self._session().submit(self, spec.label, make, payload, on_event)
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
        return {"state": "starting", "server_pid": session.server_pid, "directory": str(session.directory)}

    def close(self, timeout: float = 2.0) -> None:
        """Let go of the server, or kill it with its zygote and all workers if it is our own. Idempotent.

        Jobs that are not done get JobCancelledError.
        """
        self._check_process()
        _close_held(self._holder, timeout)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._holder.session = None

    def _session(self) -> Session:
        self._check_process()
        with self._lock:
            session = self._holder.session
            if session is None or not session.alive:
                if not self._finalizer.alive:
                    raise PoolUnavailableError("the interpreter is shutting down")
                self._holder.session = session = Session(self.config)
            return session
