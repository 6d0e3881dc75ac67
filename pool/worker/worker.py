"""A worker: runs one job and ends. It is forked from the zygote, and starts with all modules that the zygote imported.

If the job leaves its process unchanged (`reuse`), the worker waits for another job of the same kind.

`main` is the process. `JobContext` is the job's interface to the pool (`current_job()`): it submits sub-jobs, which run
in other workers, asks the callers, and returns the number of free slots. The thread that receives is started on first
use, so that a job without sub-jobs runs in a single-threaded process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import gc
import importlib
import itertools
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fxpool import forks
from fxpool.errors import PoolUnavailableError, ProtocolError
from fxpool.pool.wire import exceptions, logs
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import Buffer, Channel, Message, decoder_of, encode
from fxpool.pool.worker import preparing

__all__ = ["EXIT_SETUP", "JobContext", "current_job", "say_unable"]

EXIT_SETUP = 71  # the worker could not be set up (os.EX_OSERR)
EXIT_LOST = 75  # the server is gone (os.EX_TEMPFAIL)

# Fills the decoder cache in the zygote, from which all workers inherit it.
decoder_of(m.ToWorker)

_current: JobContext | None = None


def current_job() -> JobContext | None:
    """Return the job that this process runs, or None outside a worker and in a process that a job forked."""
    return _current


class _Link:
    """The worker's connection. Any thread may send; a separate thread receives, started with the first wait."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel: Channel[m.ToWorker] = Channel(sock, m.ToWorker)
        self.lock = forks.lock(self, "lock")
        self.numbers = itertools.count(1)
        self.futures: dict[int, SubJob] = {}
        self.replies: dict[int, concurrent.futures.Future[Any]] = {}
        self._reader: threading.Thread | None = None
        self._waiters = 0
        self.left = False

    def send(self, message: Message, payload: Buffer = b"") -> None:
        if self.left:
            if isinstance(message, (m.LogRecord, m.WarningRecord)):
                if getattr(message, "name", "") not in logs.STREAMS:  # printed text is in the worker's log already
                    print(message.message, file=sys.__stderr__)
                return
            raise PoolUnavailableError("a process that a job forked cannot use the job's connection")
        try:
            self.channel.send(message, payload)
        except ProtocolError:
            raise  # the message is too long, and the server still runs
        except OSError:
            _lost()

    def listen(self) -> None:
        with self.lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._receive, name="fxpool-worker", daemon=True)
                self._reader.start()

    def ask(self, kind: type[m.Resume | m.SlotsQuery | m.Ask], payload: Buffer = b"") -> tuple[Any, memoryview]:
        """Send a message, and return the reply and its payload when they arrive."""
        self.listen()
        number = next(self.numbers)
        reply: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.replies[number] = reply
        try:
            self.send(kind(number), payload)
        except ProtocolError:
            del self.replies[number]
            raise
        return reply.result()

    @contextlib.contextmanager
    def slot_given_back(self) -> Iterator[None]:
        """Release the slot during a wait for sub-jobs. With several threads, it is released while any of them waits: a
        thread that waits for another one (for a pool of threads with a sub-job each, say) must not hold the slot that
        the sub-job needs."""
        with self.lock:
            self._waiters += 1
            if self._waiters == 1:
                self.send(m.Waiting())
        try:
            yield
        finally:
            with self.lock:
                self._waiters -= 1
                last = not self._waiters
            if last:
                self.ask(m.Resume)

    def _receive(self) -> None:
        try:
            while True:
                frame = self.channel.receive()
                if frame is None:
                    _lost()
                self._take(*frame)  # type: ignore[misc]
        except BaseException as error:
            print(f"the connection to the server broke: {error!r}", file=sys.stderr)
            _lost()

    def _take(self, message: m.ToWorker, payload: memoryview) -> None:
        if isinstance(message, (m.Done, m.Failed)):
            future = self.futures.pop(message.job, None)
            if future is None or not future.set_running_or_notify_cancel():
                return
            if isinstance(message, m.Done):
                future.set_result(bytes(payload))
            else:
                future.set_exception(exceptions.error_of(message, payload, future.label))
        elif isinstance(message, (m.Granted, m.SlotsReply, m.Answered)):
            self.replies.pop(message.number).set_result((message, payload))


def _lost() -> None:
    """Kill this process and its compilers, because the server has ended."""
    os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_LOST)


class SubJob(concurrent.futures.Future[bytes]):
    """A sub-job's future. The worker's slot is released during a wait in `result` or `exception`.

    Other ways to wait (`concurrent.futures.wait`, an event set by a callback) work too, but keep the slot. If no slot
    is free then, the sub-job starts only after the server has detected that the pool is stalled.
    """

    def __init__(self, link: _Link, number: int, label: str) -> None:
        super().__init__()
        self.label = label
        self._link = link
        self._number = number

    def result(self, timeout: float | None = None) -> bytes:
        """Return the sub-job's result, waiting at most `timeout` seconds. Raises the same errors as `Job.result`."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the sub-job's exception or None, waiting at most `timeout` seconds."""
        self._wait(timeout)
        return super().exception(0)

    def cancel(self) -> bool:
        """Withdraw the sub-job, and kill its worker if it has one."""
        cancelled = super().cancel()
        if cancelled and self._link.futures.pop(self._number, None) is not None:
            self._link.send(m.Cancel(job=self._number))
        return cancelled

    def _wait(self, timeout: float | None) -> None:
        # Check `done` first, so that a result that has arrived costs no message.
        if not self.done() and timeout != 0:
            over = (concurrent.futures.TimeoutError, concurrent.futures.CancelledError)  # raised again by the caller
            with self._link.slot_given_back(), contextlib.suppress(*over):
                super().exception(timeout)


class JobContext:
    """The running job, and its interface to the pool."""

    def __init__(self, run: m.Run, link: _Link) -> None:
        self.id = run.job
        self.label = run.submit.spec.label
        self.attempt = run.attempt
        self.slots = run.slots
        self.runtime_root = run.runtime_root
        self.tainted = False
        self._link = link

    def submit(
        self,
        function: str,
        payload: bytes,
        *,
        label: str,
        retries: int = 1,
        reuse: bool = False,
        environment: Mapping[str, str | None] | None = None,
        exclusive: bool = False,
    ) -> concurrent.futures.Future[bytes]:
        """Run `function` ("package.module:qualname") on `payload` in another worker; return a `SubJob`.

        The sub-job has this job's environment, to which `environment` is applied, its sys_path, cwd and log levels, and
        ends with it. `reuse` is that of `JobSpec`. `exclusive`: no other job runs at the same time, unless others do
        not end within seconds; this job must wait for it. Raises ProtocolError if the payload exceeds a frame's cap.
        """
        link = self._link
        link.listen()
        number = next(link.numbers)
        future = SubJob(link, number, label)
        link.futures[number] = future
        try:
            spec = m.JobSpec(
                label=label, environment=environment or {}, retries=retries, reuse=reuse, exclusive=exclusive
            )
            link.send(m.Submit(number, function, spec), payload)
        except ProtocolError:
            del link.futures[number]
            raise
        return future

    def phase(self, name: str) -> None:
        """Name the phase that the job enters. The name is reported if the worker dies in it."""
        self._link.send(m.Phase(name=name))

    def spoil(self) -> None:
        """Prevent this process from running another job, because its state has changed."""
        self.tainted = True

    def in_the_background(self) -> contextlib.AbstractContextManager[None]:
        """Release the slot during a ``with`` block, for work that should not count against the slots.

        The job must make sure that this work yields to that of others (`os.nice`).
        """
        return self._link.slot_given_back()

    def slots_free(self) -> int:
        """Return the number of free slots at this moment. Other jobs may take them at any time."""
        free: int = self._link.ask(m.SlotsQuery)[0].free
        return free

    def ask(self, question: bytes) -> bytes | None:
        """Return the answer of a caller of this job to `question`; for a sub-job, of a caller of its parent.

        Returns None if no connected caller answers questions (`on_ask` of `PoolClient.submit`) and has an answer. The
        slot is released during the wait. Raises ProtocolError if the question is over the cap of a frame.
        """
        with self._link.slot_given_back():
            reply, answer = self._link.ask(m.Ask, question)
        return bytes(answer) if reply.ok else None


# ---------------------------------------------------------------- the process


class Branching(Protocol):
    """Makes a copy of this process for later workers with the same preparation; see `branching.Branching`."""

    def decline(self, reason: str) -> None: ...
    def branch(self, files: preparing.Files, payload: memoryview) -> None: ...


def main(sock: socket.socket, branching: Branching | None = None, prepared: bool = False) -> None:
    """Receive a job over `sock`, run it, send the answer, and end the process. Does not return.

    With `branching`, run the job's preparation before the job. `prepared`: this process is a copy of one that did.
    """
    global _current
    code = 0
    try:
        faulthandler.enable()  # a segfault leaves the Python frames in the log
        # A job creates many objects before its process ends, so few garbage collections are enough.
        gc.set_threshold(50_000, 20, 50)
        link = _Link(sock)
        os.register_at_fork(after_in_child=lambda: _leave_pool(link))
        first = stays = True
        while stays:
            frame = link.channel.receive()
            if frame is None:
                os._exit(EXIT_LOST if first else 0)
            run, payload = frame
            if not isinstance(run, m.Run):
                raise ProtocolError(f"a worker expects Run, not {type(run).__name__}")
            if first:
                _settle(run.submit.spec, prepared)
            try:
                if first and run.scratch:
                    _use_for_temporary_files(run.scratch)
            except OSError as error:
                link.channel.send(m.Unable.of("cannot create a directory for temporary files", error))
                os._exit(EXIT_SETUP)
            answer, result = _run(run, payload, link, branching if first else None, first=first)
            del payload, frame
            _flush()
            # A process with other threads, such as the one that receives, is not clean enough for another job.
            stays = answer.stays = (
                run.submit.spec.reuse and answer.ok and threading.active_count() == 1 and not _spoiled()
            )
            try:
                link.channel.send(answer, result)
            except ProtocolError as error:
                stays = False
                link.channel.send(m.Returned(ok=False, seconds=answer.seconds, pid=answer.pid), exceptions.dump(error))
            first = False
    except BaseException:
        code = EXIT_SETUP
        traceback.print_exc()
    finally:
        _flush()
        # Not sys.exit: exit handlers registered by the zygote's modules must run only in the zygote.
        os._exit(code)


def _run(
    run: m.Run, payload: memoryview, link: _Link, branching: Branching | None, *, first: bool
) -> tuple[m.Returned, bytes]:
    global _current
    start = time.perf_counter()
    runner = sys._getframe()
    submit = run.submit
    try:
        if first:
            logs.Forwarder(link.send).install(submit.levels, submit.disabled)
            if submit.spec.cwd is not None:
                os.chdir(submit.spec.cwd)
        link.channel.send(m.Begun())
        _current = JobContext(run, link)
        if branching is not None and submit.spec.preparation is not None:
            _prepare(submit.spec.preparation, run.scratch, branching, payload)
        data = bytes(payload)
        payload.release()
        result = _resolve(submit.function)(data)
        if type(result) is not bytes:
            raise TypeError(f"{submit.function} returned {type(result).__qualname__}; a job must return bytes")
        return m.Returned(ok=True, seconds=time.perf_counter() - start, pid=os.getpid()), result
    except BaseException as error:
        seconds = time.perf_counter() - start
        trace = error.__traceback__
        # The frame of `_run` does not help; keep it only if it is the only frame.
        skip = 1 if trace is not None and trace.tb_frame is runner else 0
        return m.Returned(ok=False, seconds=seconds, pid=os.getpid()), exceptions.dump(error, skip=skip)


def _prepare(preparation: m.Preparation, scratch: str, branching: Branching, payload: memoryview) -> None:
    """Run the job's preparation, and let the process be copied before the job changes it, without the job's payload."""
    files, reason = preparing.prepare(
        lambda argument: _resolve(preparation.function)(argument), preparation.argument, scratch
    )
    if files is None:
        branching.decline(reason)
    else:
        branching.branch(files, payload)


def _spoiled() -> bool:
    return _current is not None and _current.tainted


def say_unable(descriptor: int, error: BaseException) -> None:
    """Tell the server over a worker's socket that the worker can't start. Called just before the process ends."""
    try:
        for part in encode(m.Unable.of("the worker could not be set up", error)):
            os.write(descriptor, part)
    except OSError:
        pass  # the server gets the exit code


def _use_for_temporary_files(scratch: str) -> None:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = scratch
    tempfile.tempdir = None


def _settle(spec: m.JobSpec, prepared: bool) -> None:
    """Apply the job's environment and import path.

    A copy of a process that is `prepared` has them, with what the preparation changed there.
    """
    if prepared:
        return
    for name, value in spec.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "TZ" in spec.environment:
        time.tzset()
    if spec.sys_path:
        sys.path[:] = list(dict.fromkeys([*spec.sys_path, *sys.path]))
    # Forget directories that did not exist when the zygote searched them. Not invalidate_caches: it visits, and so
    # copies, the finders of all directories (3 ms after torch), which notice changed directories by themselves.
    for path in sys.path:
        if sys.path_importer_cache.get(path, sys) is None or path in spec.sys_path:
            sys.path_importer_cache.pop(path, None)


def _resolve(function: str) -> Callable[[bytes], Any]:
    module, colon, qualname = function.partition(":")
    if not colon:
        raise ValueError(f"{function!r} is not of the form package.module:qualname")
    resolved: Any = importlib.import_module(module)
    for part in qualname.split("."):
        resolved = getattr(resolved, part)
    return resolved


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def _leave_pool(link: _Link) -> None:
    """Leave the pool in a process that the job forked: it is not a worker, and must not keep the worker's socket."""
    global _current
    _current = None
    link.left = True
    link.channel.sock.close()
