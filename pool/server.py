"""The server: asyncio around the scheduler. Owns the zygote, knows every worker, imports no torch.

    python -m fxpool.pool.server --directory DIR --listen FD     (what a client starts; see `client`)

An embedded server ends when its last client is gone, on Shutdown and on SIGTERM; all workers, the zygote and the
private directory go with it. Every decision is the scheduler's; this module carries them out (`_carry_out`) and turns
what happens on sockets, timers and processes into its events.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from fxpool import __version__
from fxpool.errors import ProtocolError
from fxpool.pool import limits, processes, runtime_dir
from fxpool.pool import messages as m
from fxpool.pool import scheduler as s
from fxpool.pool.config import CONFIG, ServerConfig
from fxpool.pool.connection import Connection
from fxpool.pool.outcomes import Answer, Client, JobLogs, Work, Worker, describe, outcome
from fxpool.pool.protocol import HANDSHAKE_CAP, PAYLOAD_CAP, PROTOCOL_VERSION, check_peer
from fxpool.pool.zygote_link import ZygoteLink

__all__ = ["Server", "main"]

HANDSHAKE_SECONDS = 10.0
# A worker that answered, or whose socket closed, is killed if it is not gone after this.
GRACE_SECONDS = 2.0
STALL_SECONDS = 0.5

log = logging.getLogger("fxpool.pool.server")


class Server:
    """One event loop's worth of clients, workers and a zygote."""

    def __init__(self, directory: Path, listener: socket.socket, config: ServerConfig) -> None:
        self.directory = directory
        self.config = config
        self.slots, self.rule = limits.default_workers()
        if config.workers:
            self.slots, self.rule = config.workers, "configured"
        self.scheduler = s.Scheduler(self.slots)
        self.listener = listener
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, Worker] = {}
        self.jobs: dict[int, Work] = {}
        self.counters = {"jobs": 0, "sub_jobs": 0, "forks": 0, "retries": 0, "deaths": 0, "zygotes": 0}
        self.fork_seconds = 0.0
        self.zygote: ZygoteLink | None = None
        self.zygote_facts: dict[str, Any] = {"state": "starting"}
        self._numbers = 0
        self.logs = JobLogs(directory / "logs")
        self._had_client = False
        self._ending = False
        self._stall: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.end = asyncio.Event()
        self.loop.add_signal_handler(signal.SIGTERM, self.end.set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.loop.add_signal_handler(signal.SIGCHLD, self._child_ended)
        processes.adopt_orphans()  # what is left of the workers when the zygote was killed
        self.listener.setblocking(False)
        self._listen()
        # Somebody started us; nobody came.
        self.loop.call_later(max(HANDSHAKE_SECONDS, self.config.start_timeout), self._leave_if_alone)
        self._start_zygote()
        self._spawn(self._sweep())
        try:
            await self.end.wait()
        finally:
            await self._shut_down()

    # ------------------------------------------------------------ clients

    def _listen(self) -> None:
        if not self._ending:
            self.loop.add_reader(self.listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            # Out of descriptors, say: the listener stays readable, so look away for a moment.
            log.error("can't accept a connection: %s", error)
            self.loop.remove_reader(self.listener.fileno())
            self.loop.call_later(0.5, self._listen)
            return
        try:
            pid = check_peer(sock, os.getuid())
        except (ProtocolError, OSError) as error:
            log.warning("refused a connection: %s", error)
            sock.close()
            return
        number = self._next_number()
        client: Client

        def on_frame(message: m.ToServer, payload: memoryview) -> None:
            self._from_client(client, message, payload)

        def on_end(error: Exception | None) -> None:
            self._client_left(client, error)

        client = Client(Connection(sock, m.ToServer, on_frame, on_end, cap=HANDSHAKE_CAP), number, pid)
        self.clients[number] = client
        client.timer = self.loop.call_later(HANDSHAKE_SECONDS, self._drop_client, client, "it did not say hello")

    def _from_client(self, client: Client, message: m.ToServer, payload: memoryview) -> None:
        if not client.greeted:
            return self._greet(client, message)
        if isinstance(message, m.Submit):
            if message.job in client.keys:
                raise ProtocolError(f"job number {message.job} is in use")
            if message.timeout is None:
                message.timeout = self.config.job_timeout
            self.counters["jobs"] += 1
            self._submit(Work(self._next_number(), message, payload, client, None, message.job, message.timeout))
        elif isinstance(message, m.Cancel):
            if message.job in client.keys:
                self._do(self.scheduler.cancel(client.keys[message.job], "by its asker"))
        elif isinstance(message, m.StatusQuery):
            client.connection.send(m.Status(message.number, self.status()))
        elif isinstance(message, m.Shutdown):
            self.end.set()
        else:
            raise ProtocolError("a second hello")

    def _greet(self, client: Client, message: m.ToServer) -> None:
        if not isinstance(message, m.Hello):
            raise ProtocolError(f"a client's first message is Hello, not {type(message).__name__}")
        ours = (PROTOCOL_VERSION, __version__)
        if (message.protocol, message.fxpool) != ours:
            reason = (
                f"the server runs fxpool {ours[1]} (protocol {ours[0]}), "
                f"the client fxpool {message.fxpool} (protocol {message.protocol})"
            )
            raise ProtocolError(reason)
        client.greeted = self._had_client = True
        assert client.timer is not None
        client.timer.cancel()
        client.connection.raise_cap(PAYLOAD_CAP)
        client.connection.send(m.Welcome(PROTOCOL_VERSION, __version__, os.getpid(), self.slots))
        # A child that the client forked past Python's hooks keeps its end open: watch the process, too.
        if client.pid > 0 and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                client.pidfd = os.pidfd_open(client.pid)
                self.loop.add_reader(client.pidfd, self._drop_client, client, None)
        if self.zygote_facts["state"] in ("ready", "broken"):
            self._tell_zygote_state(client)

    def _drop_client(self, client: Client, reason: str | None) -> None:
        self._client_left(client, ProtocolError(reason) if reason else None)
        client.connection.close(after_sending=True)

    def _client_left(self, client: Client, error: Exception | None) -> None:
        if self.clients.pop(client.number, None) is None:
            return
        if error is not None:
            log.warning("closed the connection of process %d: %s", client.pid, error)
            if not client.greeted:
                client.connection.send(m.Refused(str(error)))
        if client.timer is not None:
            client.timer.cancel()
        if client.pidfd >= 0:
            self.loop.remove_reader(client.pidfd)
            os.close(client.pidfd)
        self._do(self.scheduler.owner_left(client.number))
        self._leave_if_alone(only_after_one=True)

    def _leave_if_alone(self, only_after_one: bool = False) -> None:
        if not any(client.greeted for client in self.clients.values()) and (self._had_client or not only_after_one):
            self.end.set()

    # ------------------------------------------------------------ jobs

    def _submit(self, work: Work) -> None:
        self.jobs[work.key] = work
        keys, parent = work.client.keys, None
        if work.worker is not None:
            keys, parent = work.worker.keys, work.worker.number
        keys[work.ask.job] = work.key
        self._do(
            self.scheduler.submit(
                work.key,
                owner=work.client.number,
                parent=parent,
                retries=max(0, work.ask.retries),
                priority=work.ask.priority,
            )
        )

    def _do(self, actions: list[s.Action]) -> None:
        """Carry out what the scheduler decided."""
        for action in actions:
            if isinstance(action, s.Fork):
                self._fork(action)
            elif isinstance(action, s.Deliver):
                self._deliver(action)
            elif action.worker not in self.workers:
                continue
            elif isinstance(action, s.Kill):
                if self.zygote is not None:
                    self.zygote.send(m.Kill(action.worker))
            else:
                worker = self.workers[action.worker]
                self._to_worker(worker, m.Granted(worker.resume))
        self._watch_for_stall()

    def _watch_for_stall(self) -> None:
        if not self.scheduler.stalled:
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None
        elif self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self._relieve)

    def _relieve(self) -> None:
        self._stall = None
        self._do(self.scheduler.relieve())

    def _deliver(self, action: s.Deliver) -> None:
        work = self.jobs.pop(action.job)
        keys = work.worker.keys if work.worker is not None else work.client.keys
        keys.pop(work.ask.job, None)
        worker = self.workers.get(action.worker) if action.worker is not None else None
        message, payload = outcome(action, work, worker)
        if worker is not None:
            for timer in worker.timers:
                timer.cancel()
            worker.timers = [self.loop.call_later(GRACE_SECONDS, self._kill, worker.number)]
            if isinstance(message, m.Failed) and message.kind != "cancelled":
                self.logs.keep(worker.log_path)
        if work.worker is not None:
            self._to_worker(work.worker, message, payload)
        else:
            work.client.connection.send(message, payload)

    # ------------------------------------------------------------ workers

    def _fork(self, action: s.Fork) -> None:
        work = self.jobs[action.job]
        path = self.logs.path(work.key, action.attempt)
        scratch = self.directory / "scratch" / path.stem
        worker = Worker(action.worker, work, action.attempt, path, scratch, action.last)
        self.workers[action.worker] = worker
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            failed = m.Exited(action.worker, None, None, f"no socket for a worker: {error}")
            self.loop.call_soon(self.on_exited, failed)
            return

        def on_frame(message: m.FromWorker, payload: memoryview) -> None:
            self._from_worker(worker, message, payload)

        def on_end(error: Exception | None) -> None:
            self._worker_silent(worker, error)

        worker.connection = Connection(ours, m.FromWorker, on_frame, on_end)
        assert self.zygote is not None
        self.zygote.send(m.Fork(action.worker, str(path)), theirs)
        self.counters["forks"] += 1
        ask = work.ask
        run = m.Run(
            work.key,
            ask.function,
            ask.label,
            action.attempt,
            self.slots,
            ask.environment,
            ask.sys_path,
            ask.cwd,
            ask.levels,
            ask.disabled,
            str(scratch),
        )
        self._to_worker(worker, run, work.payload)

    def _to_worker(self, worker: Worker, message: msgspec.Struct, payload: memoryview | bytes = b"") -> None:
        if worker.connection is not None and not worker.connection.closed:
            worker.connection.send(message, payload)

    def _from_worker(self, worker: Worker, message: m.FromWorker, payload: memoryview) -> None:
        work = worker.work
        if isinstance(message, (m.LogRecord, m.WarningRecord)):
            if work.key in self.jobs:
                message.job = work.root
                work.client.connection.send(message)
        elif isinstance(message, m.Answer):
            worker.pid = message.pid  # the zygote's word on it may still be on the way
            answer = Answer(message.ok, message.seconds, payload, message.pid)
            self._do(self.scheduler.answered(worker.number, answer))
        elif isinstance(message, m.Submit):
            if message.job in worker.keys:
                raise ProtocolError(f"sub-job number {message.job} is in use")
            above = work.ask
            message = m.Submit(
                message.job,
                message.function,
                message.label,
                above.environment,
                above.sys_path,
                above.cwd,
                None,
                message.retries,
                above.priority,
                above.levels,
                above.disabled,
            )
            self.counters["sub_jobs"] += 1
            self._submit(Work(self._next_number(), message, payload, work.client, worker, work.root))
        elif isinstance(message, m.Cancel):
            if message.job in worker.keys:
                self._do(self.scheduler.cancel(worker.keys[message.job], "by its asker"))
        elif isinstance(message, m.Waiting):
            self._do(self.scheduler.waiting(worker.number))
        elif isinstance(message, m.Resume):
            worker.resume = message.number
            self._do(self.scheduler.resume(worker.number))
        elif isinstance(message, m.SlotsQuery):
            self._to_worker(worker, m.SlotsReply(message.number, self.scheduler.free))

    def _worker_silent(self, worker: Worker, error: Exception | None) -> None:
        """Its socket ended: normally because the process did, which the zygote will tell."""
        if error is not None:
            log.warning("worker %s: %s", worker.pid, error)
            self._kill(worker.number)
        if worker.exited is not None:
            self._worker_gone(worker)
        else:
            worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._kill, worker.number))

    def _kill(self, number: int) -> None:
        self._do(self.scheduler.lost(number))

    def on_forked(self, message: m.Forked) -> None:
        self.fork_seconds = message.seconds
        worker = self.workers.get(message.worker)
        if worker is None:
            return
        worker.pid = message.pid
        self._do(self.scheduler.forked(worker.number))
        work = worker.work
        if work.key not in self.jobs:
            return
        if work.limit is not None:
            worker.timers.append(
                self.loop.call_later(work.limit, lambda: self._do(self.scheduler.timed_out(worker.number)))
            )
        reason = ""
        if worker.last is not None:
            self.counters["retries"] += 1
            reason = describe(worker.last)
        started = m.Started(work.ask.job, message.pid, worker.attempt, reason)
        if work.worker is None:
            work.client.connection.send(started)

    def on_exited(self, message: m.Exited) -> None:
        worker = self.workers.get(message.worker)
        if worker is None:
            return
        worker.exited = message
        if message.failure:
            self._do(self.scheduler.forked(worker.number))  # trying for ever is no answer to a machine that is full
        if worker.connection is None or worker.connection.closed:
            self._worker_gone(worker)
        else:
            # Its last words may still be in the socket; they are over when the socket is.
            worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._worker_gone, worker))

    def _worker_gone(self, worker: Worker) -> None:
        if worker.number not in self.workers:
            return
        assert worker.exited is not None
        if worker.work.key in self.jobs:
            self.counters["deaths"] += 1
            self.logs.keep(worker.log_path)
        # The worker is known until the scheduler has spoken: its facts are part of what the asker is told.
        self._do(self.scheduler.exited(worker.number, worker.exited))
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self.workers.pop(worker.number, None)
        for timer in worker.timers:
            timer.cancel()
        worker.timers = []
        if worker.connection is not None:
            worker.connection.close()
        self.logs.discard(worker.log_path)
        # A worker that was killed could not tidy up, nor could the compilers it had started.
        shutil.rmtree(worker.scratch, ignore_errors=True)

    # ------------------------------------------------------------ the zygote

    def _start_zygote(self) -> None:
        self.counters["zygotes"] += 1
        self.zygote_facts = {"state": "starting"}
        # What a zygote does in its idle time may be what ended the one before.
        idle = self.config.idle if self.counters["zygotes"] == 1 else ""
        order = m.Prepare(self.config.preload, self.config.sys_path, idle)
        try:
            self.zygote = ZygoteLink(self, order)
        except OSError as error:
            self._zygote_broken(f"the zygote could not be started: {error}")

    def on_prepared(self, message: m.Prepared) -> None:
        facts = {"pid": message.pid, "preload_seconds": message.seconds, "threads": message.threads}
        if message.failure:
            self.zygote_facts = {"state": "broken", **facts}
            self._zygote_broken(message.failure)
            return
        self.zygote_facts = {"state": "ready", **facts}
        log.info("zygote %d is ready after %.2f s", message.pid, message.seconds)
        for client in self.clients.values():
            if client.greeted:
                self._tell_zygote_state(client)
        self._do(self.scheduler.zygote_ready())

    def on_zygote_end(self, zygote: ZygoteLink, reason: str) -> None:
        """It is dead and reaped."""
        late = zygote.late
        if zygote is not self.zygote or self._ending:
            return
        if self.scheduler.broken is not None:
            self.zygote = None
            return
        self.counters["deaths"] += 1
        log.warning("%s", reason)
        # Its workers got SIGKILL from the kernel and became our children; their compilers did not and may have.
        for worker in self.workers.values():
            if worker.pid is not None:
                processes.kill_group(worker.pid)
        processes.reap_strays(set(), seconds=2.0)
        for worker in list(self.workers.values()):
            if worker.connection is not None:
                worker.connection.drain()
        self.zygote = None
        for worker in self.workers.values():
            if worker.pid is not None and worker.work.key in self.jobs:
                self.logs.keep(worker.log_path)
        how = m.Exited(0, None, int(signal.SIGKILL), f"{reason}, and its workers with it")
        self._do(self.scheduler.zygote_lost(how, reason))
        for worker in list(self.workers.values()):
            self._forget(worker)
        if late:
            self._do(self.scheduler.zygote_broken(reason))
        if self.scheduler.broken is not None:
            self.zygote_facts = {"state": "broken"}
            self._zygote_broken(self.scheduler.broken)
        else:
            self._start_zygote()

    def _zygote_broken(self, reason: str) -> None:
        log.error("%s", reason)
        self.zygote_facts = {**self.zygote_facts, "state": "broken", "reason": reason}
        self._do(self.scheduler.zygote_broken(reason))
        for client in self.clients.values():
            if client.greeted:
                self._tell_zygote_state(client)

    def _tell_zygote_state(self, client: Client) -> None:
        facts = self.zygote_facts
        client.connection.send(
            m.ZygoteState(facts["state"], facts.get("preload_seconds", 0.0), facts.get("reason", ""))
        )

    # ------------------------------------------------------------ the rest

    def status(self) -> dict[str, Any]:
        return {
            "state": "running",
            "server_pid": os.getpid(),
            "directory": str(self.directory),
            "fxpool": __version__,
            "clients": [client.pid for client in self.clients.values() if client.greeted],
            "slots": self.slots,
            "slots_rule": self.rule,
            "slots_free": self.scheduler.free,
            "queued": self.scheduler.queued,
            "running": [
                {
                    "label": worker.work.ask.label,
                    "pid": worker.pid,
                    "attempt": worker.attempt,
                    "sub_job": worker.work.worker is not None,
                }
                for worker in self.workers.values()
                if worker.work.key in self.jobs
            ],
            "workers": [worker.pid for worker in self.workers.values() if worker.pid is not None],
            "zygote": dict(self.zygote_facts),
            "fork_seconds": self.fork_seconds,
            "counters": dict(self.counters),
        }

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _child_ended(self) -> None:
        """The zygote, or an orphan that we adopted because it has no zygote any more."""
        if self.zygote is not None:
            self.zygote.poll()
        if not self._ending:
            processes.reap_strays({self.zygote.pid} if self.zygote is not None else set())

    async def _sweep(self) -> None:
        await asyncio.sleep(1.0)  # after the start, which somebody waits for
        for directory in runtime_dir.sweep(Path(self.config.runtime_root)):
            log.info("removed %s, whose server is gone", directory)

    def _spawn(self, coroutine: Any) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut_down(self) -> None:
        self._ending = True
        for task in list(self._tasks):
            task.cancel()
        self.loop.remove_reader(self.listener.fileno())
        self.listener.close()
        if self.zygote is not None:
            await self.zygote.stop(GRACE_SECONDS)
        processes.reap_strays(set(), seconds=GRACE_SECONDS)
        for worker in list(self.workers.values()):
            self._forget(worker)
        runtime_dir.remove(self.directory)
        # Last, so that who waits for our end finds nothing of us.
        for client in list(self.clients.values()):
            client.connection.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="fxpool.pool.server", description="The pool's server; clients start it.")
    parser.add_argument("--directory", type=Path, required=True, help="its private directory, with the configuration")
    parser.add_argument("--listen", type=int, required=True, help="descriptor of the listening socket")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    start = time.perf_counter()
    processes.name_process("fxpool server")
    listener = socket.socket(fileno=options.listen)
    os.set_inheritable(options.listen, False)
    lock = runtime_dir.hold(options.directory)
    config = msgspec.json.decode((options.directory / CONFIG).read_bytes(), type=ServerConfig)
    server = Server(options.directory, listener, config)
    log.info("server %d with %d slots (%s)", os.getpid(), server.slots, server.rule)
    asyncio.run(server.run())
    log.info("ended after %.1f s", time.perf_counter() - start)
    os.close(lock)
    logging.shutdown()
    # Who closes the pool waits for our end: the interpreter's own takes 20 ms, and nothing is left to do in it.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
