"""A submitted job in the caller's process: its result or exception, and the worker's log records and warnings."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from fxpool import forks, interruptions, notices
from fxpool.errors import JobCancelledError, PoolUnavailableError
from fxpool.pool.wire import exceptions, logs
from fxpool.pool.wire import messages as m

__all__ = ["Job"]

log = notices.logger(__name__)


class Job:
    """A submitted job.

    `worker_pid` and `attempts` are set when it starts. When it has ended, `seconds` is its time in the worker, and
    `joined` says whether it joined another caller's job. `machine` is the farm's machine that ran it, or empty; then
    `stayed` is the reason, if a farm was to run it, and `why` says more.
    """

    def __init__(
        self,
        withdraw: Callable[[int], None],
        number: int,
        label: str,
        client: object,
        on_event: Callable[[m.JobEvent], object] | None = None,
        on_ask: Callable[[bytes], bytes | None] | None = None,
        on_record: Callable[[m.LogRecord], object] | None = None,
    ) -> None:
        self.id = number
        self.label = label
        self.worker_pid: int | None = None
        self.attempts = 0
        self.seconds: float | None = None
        self.joined = False
        self.machine = self.stayed = self.why = ""
        self._withdraw = withdraw
        self._client = client  # keeps the client alive as long as the job
        self._pid = os.getpid()
        self._lock = forks.lock(self, "_lock")
        self._waiters: list[threading.Lock] = []
        self._value: bytes | None = None
        self._error: Callable[[], BaseException] | None = None
        self._records: list[m.LogRecord | m.WarningRecord] = []
        self._callbacks: list[Callable[[Job], object]] = []
        self.on_event, self.on_ask, self.on_record = on_event, on_ask, on_record

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._error is not None else "done"
        return f"<Job {self.id} {self.label!r} {state}>"

    def done(self) -> bool:
        """Return whether the job has ended, so that `result` does not wait."""
        return self._value is not None or self._error is not None

    def result(self, timeout: float | None = None) -> bytes:
        """Return the result of the job's function, waiting at most `timeout` seconds for it.

        This thread replays the worker's log records, warnings and prints first. An exception that a signal handler or
        another thread raises during the wait cancels the job, and is raised as it is.

        Raises:
            WorkerDiedError, JobTimeoutError, JobMemoryError: the job's worker died, or was killed at a limit.
            JobCancelledError, PoolUnavailableError: the job was cancelled, or the pool can't run it.
            TimeoutError: `timeout` passed first; the job goes on.
            Exception: the exception of the job's function, with the worker's frames. If the job succeeded, but this
                process's filters turn one of the worker's warnings into an error, that error, once.
        """
        if not self.done() and self._pid != os.getpid():
            raise PoolUnavailableError(
                f"job {self.label!r} belongs to process {self._pid}, the parent of this forked process"
            )
        try:
            over = self.done() or self._wait(timeout)
        except BaseException:
            self.cancel()
            raise
        if not over:
            raise TimeoutError(f"job {self.label!r} did not finish within {timeout:g} s")
        with self._lock:
            records, self._records = self._records, []
        raised = logs.replay(records, self.on_record)
        if self._error is not None:
            # A new exception for each caller, because a raised exception collects the frames that it passes.
            raise self._error()
        if raised is not None:
            raise raised
        assert self._value is not None
        return self._value

    def add_done_callback(self, function: Callable[[Job], object]) -> None:
        """Call `function(job)` when the job is done: now if it is already, otherwise in the connection's thread."""
        with self._lock:
            if not self.done():
                self._callbacks.append(function)
                return
        self._call(function)

    def cancel(self) -> None:
        """Withdraw the job. Its worker is killed with its children, unless other callers wait for it. No-op if done."""
        if self._pid != os.getpid():
            return
        if self.finish(None, lambda: JobCancelledError(f"job {self.label!r} was cancelled")):
            self._withdraw(self.id)

    # -- called by the session

    def started(self, message: m.Started) -> None:
        """Record the worker and the attempt, and log a retry with its reason."""
        self.worker_pid, self.attempts = message.worker, message.attempt
        if message.reason:
            text = f"retrying job {self.label!r} in worker {message.worker} (attempt {message.attempt}): "
            text += f"in the previous attempt {message.reason}"
            process, now = os.getpid(), time.time()
            self.add(m.LogRecord(log.name, logging.WARNING, text, pathname=__file__, process=process, created=now))

    def on_job_event(self, message: m.JobEvent) -> None:
        """Pass an event to `on_event`. Exceptions of `on_event` are logged."""
        if self.on_event is not None:
            try:
                self.on_event(message)
            except Exception:
                log.exception("a progress callback of %r raised", self)

    def answer(self, question: bytes) -> bytes | None:
        """Return the answer of `on_ask` to a worker's question, or None. Exceptions of `on_ask` are logged."""
        if self.on_ask is None:
            return None
        try:
            return self.on_ask(question)
        except Exception:
            log.exception("could not answer a worker's question for %r", self)
            return None

    def add(self, record: m.LogRecord | m.WarningRecord) -> None:
        """Keep a record or warning of the worker for `result`."""
        with self._lock:
            self._records.append(record)

    def ended(self, message: m.Done | m.Failed, payload: bytes) -> None:
        """Finish the job with its result, or with the error of `message`."""
        self.attempts, self.seconds = message.attempts, message.seconds
        if isinstance(message, m.Done):
            self.worker_pid = message.worker
            self.joined, self.machine = message.joined, message.machine
            self.stayed, self.why = message.stayed, message.why
            self.finish(payload, None)
        else:
            self.worker_pid = message.worker or self.worker_pid
            self.finish(None, lambda: exceptions.error_of(message, payload, self.label))

    def finish(self, value: bytes | None, error: Callable[[], BaseException] | None) -> bool:
        """Finish the job with a value or an error factory; return False if it was done before."""
        with self._lock:
            if self.done():
                return False
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()
        for function in callbacks:
            self._call(function)
        return True

    def _wait(self, timeout: float | None) -> bool:
        # Not threading.Event: a KeyboardInterrupt at the wrong place in its Python code leaves its lock held forever.
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self.done():
                return True
            self._waiters.append(waiter)
        if not interruptions.acquire(waiter, timeout):
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.done()

    def _call(self, function: Callable[[Job], object]) -> None:
        try:
            function(self)
        except Exception:
            log.exception("a callback of %r raised", self)
