"""The server: accepts clients, keeps a zygote running, and passes jobs to the dispatcher. Never imports torch.

    python -m fxpool.pool.server.server --directory DIR --listen FD     (started by a client; see `launch`)

A private server ends with its client, on Shutdown and on SIGTERM. The host's server (`PoolConfig.host`) ends after
`idle_timeout` seconds without a client. On Shutdown, on SIGTERM, or when another server has replaced it, it accepts no
new clients and ends when the jobs of its clients are done. Best-effort jobs (`JobSpec.best_effort`) postpone the idle
timeout, but not such an end. All workers, the zygote and the private directory go with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from fxpool import failures, temporary
from fxpool.errors import ProtocolError
from fxpool.pool.host import limits, measurement_lock, memory, processes, runtime_dir
from fxpool.pool.server import report, stale_server
from fxpool.pool.server.clients import HANDSHAKE_SECONDS, Clients
from fxpool.pool.server.dispatcher import Dispatcher
from fxpool.pool.server.measurement_pause import Pauses
from fxpool.pool.server.results import Client
from fxpool.pool.server.workers import GRACE_SECONDS
from fxpool.pool.server.zygote_link import ZygoteLink
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import ServerConfig
from fxpool.pool.wire.protocol import PROTOCOL_VERSION
from fxpool.version import __version__

__all__ = ["Server", "main"]

# Seconds to wait between attempts to start a zygote.
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0)
_MEASURE_SECONDS = 0.5
# Seconds that a server without clients spends on its best-effort jobs, and between two checks that they are done.
_SPARE_SECONDS, _LOOK_SECONDS = 600.0, 0.2
# Seconds between two looks at the size of the log.
_LOG_SECONDS = 10.0
# Seconds that the start of the zygote waits for other processes' measurements.
_OTHERS_MEASURE_SECONDS = 30.0

log = logging.getLogger(__name__)


class Server:
    """Clients, a zygote and a dispatcher on one event loop."""

    def __init__(self, directory: Path, listener: socket.socket, config: ServerConfig) -> None:
        self.directory = directory
        self.root = directory.parent
        self.config = config
        self.link = runtime_dir.link_of(self.root, config.host) if config.host else None
        self.slots, self.rule = min(limits.default_workers(), memory.workers(memory.Host.look()))
        if config.workers:
            self.slots, self.rule = config.workers, "configured"
        self.listener = listener
        self._soft_limit = limits.raise_descriptors()
        self.zygotes = 0
        self.zygote: ZygoteLink | None = None
        self.zygote_facts: dict[str, Any] = {"state": "starting"}
        self._idle_calls = [name for name in config.idle.split(",") if name]
        self._had_client = False
        self._failed_starts = 0  # consecutive failures to start a zygote
        self._killed_before = memory.Host.look().killed()
        self._draining = False
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._ending = False
        self._measured: tuple[float, dict[int, int]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until `end` is set, then shut everything down."""
        self.loop = asyncio.get_running_loop()
        self._begun = self.loop.time()
        self.end = asyncio.Event()
        self.dispatcher = Dispatcher(self.directory, self.slots, self.config, self._to_zygote)
        self.pauses = Pauses(self.dispatcher, self._to_zygote)
        if self.config.farm:
            self.dispatcher.farms.start(self.config.farm)
        self.loop.add_signal_handler(signal.SIGTERM, self._asked_to_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.loop.add_signal_handler(signal.SIGCHLD, self._child_ended)
        processes.adopt_orphans()  # processes that are left when the zygote is killed
        self.clients = Clients(self.listener, self)
        self.clients.listen()
        # End if the client that started this server never connects.
        self.loop.call_later(max(HANDSHAKE_SECONDS, self.config.start_timeout), self._leave_without_clients)
        if measuring := measurement_lock.of_others(self.root, self.config.client):
            self._spawn(self._start_zygote_after(measuring))
        else:
            self._start_zygote()
        (self.directory / runtime_dir.READY).touch(mode=0o600)
        self._spawn(self._sweep())
        self._spawn(self._rotate_log())
        self._seen_off = self.loop.create_task(self._see_off())
        if self.link is not None:
            self._spawn(self._watch_link())
        try:
            await self.end.wait()
        finally:
            await self._shut_down()
            await self._seen_off  # no other process would kill the predecessor

    # ------------------------------------------------------------ clients

    def on_message(self, client: Client, message: m.ToServer, payload: memoryview) -> None:
        """Carry out a client's request. Raises ProtocolError for an invalid one."""
        if isinstance(message, m.Submit):
            self.dispatcher.submit(client, message, payload)
        elif isinstance(message, m.Cancel):
            self.dispatcher.cancel(client, message.job)
        elif isinstance(message, m.Answer):
            self.dispatcher.callers.answer(client, message, payload)
        elif isinstance(message, m.Pause):
            self.pauses.begin(client, message.seconds, self._zygote_obeys)
        elif isinstance(message, m.StatusQuery):
            client.connection.send(m.Status(number=message.number, facts=self.status()))
        elif isinstance(message, m.HistoryQuery):
            client.connection.send(self.dispatcher.past(message))
        elif isinstance(message, m.Ping):
            client.connection.send(m.Pong())
        elif isinstance(message, m.Shutdown):
            self._asked_to_end()
        else:
            raise ProtocolError("a second hello")

    def on_greeted(self, client: Client) -> None:
        """Welcome a client."""
        if not client.visitor:
            self._had_client = True
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
        client.connection.send(
            m.Welcome(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid(), slots=self.slots)
        )
        if self.zygote_facts["state"] in ("ready", "broken"):
            self._tell_zygote_state(client)

    def on_left(self, client: Client) -> None:
        """Withdraw what a client asked for. A server without clients may end."""
        self.dispatcher.client_left(client)
        self.pauses.end(client)
        if not client.visitor:
            self._leave_if_alone()

    def _leave_without_clients(self) -> None:
        if not self._had_client:
            self.end.set()

    def _leave_if_alone(self) -> None:
        """End a private server when its client has left, and the host's after `idle_timeout` without clients."""
        if any(not client.visitor for client in self.clients.greeted()) or not self._had_client:
            return
        if self.link is None or self._draining:
            self.end.set()
        elif self._idle is None:
            self._idle_since = self.loop.time()
            self._idle = self.loop.call_later(self.config.idle_timeout, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        """End an idle server. It finishes its best-effort jobs first, for at most `_SPARE_SECONDS`."""
        waited = self.loop.time() - self._idle_since - self.config.idle_timeout
        if self.dispatcher.busy and waited < _SPARE_SECONDS:
            self._idle = self.loop.call_later(_LOOK_SECONDS, self._leave_if_idle)
        else:
            self.end.set()

    # ------------------------------------------------------------ the host's server

    def _asked_to_end(self) -> None:
        """End at once if the server is private or was asked before, otherwise when its jobs are done."""
        if self.link is None or self._draining:
            self.end.set()
        else:
            self._drain("the server was asked to end")

    def _drain(self, reason: str) -> None:
        log.info("accepting no new clients: %s", reason)
        self._draining = True
        with contextlib.suppress(OSError):  # the directory was removed, so no client can find this server
            (self.directory / runtime_dir.LEAVING).touch(mode=0o600)
        self._remove_link()
        self.clients.accept_no_more()
        for client in self.clients.greeted():
            client.connection.send(m.Leaving())
        self._spawn(self._end_when_done())

    async def _end_when_done(self) -> None:
        while self.dispatcher.awaited:
            await asyncio.sleep(0.05)
        self.end.set()

    async def _watch_link(self) -> None:
        """Leave when another server has replaced this one."""
        while not self._draining:
            await asyncio.sleep(stale_server.LINK_SECONDS)
            if not self._link_is_ours():
                if not self._draining:
                    self._drain("another server replaced this one")
                return

    async def _see_off(self) -> None:
        if self.config.predecessor:
            await stale_server.retire(Path(self.config.predecessor))

    def _link_is_ours(self) -> bool:
        try:
            return self.link is not None and os.readlink(self.link) == f"{self.directory.name}/{runtime_dir.SOCKET}"
        except OSError:
            return False

    def _remove_link(self) -> None:
        if self.link is not None and self._link_is_ours():
            with contextlib.suppress(OSError):
                self.link.unlink()

    # ------------------------------------------------------------ the zygote

    async def _start_zygote_after(self, measuring: list[Path]) -> None:
        """Start the zygote once running measurements finish, because its start keeps a core busy for seconds."""
        end = self.loop.time() + min(_OTHERS_MEASURE_SECONDS, self.config.start_timeout / 4)
        while self.loop.time() < end and not all(map(measurement_lock.is_over, measuring)):
            await asyncio.sleep(_LOOK_SECONDS)
        self._start_zygote()

    def _start_zygote(self) -> None:
        if self._ending:
            return
        host = memory.Host.look()
        if memory.too_little(host):
            self._give_up(memory.advice(host))
            return
        self.zygote_facts = {"state": "starting"}
        order = m.Prepare(preload=self.config.preload, sys_path=self.config.sys_path, idle=",".join(self._idle_calls))
        try:
            self.zygote = ZygoteLink(self, order)
            limits.set_descriptors(self.zygote.pid, self._soft_limit)
        except OSError as error:
            self._zygote_refused(error)
            return
        self.zygotes += 1
        self._failed_starts = 0

    def _zygote_refused(self, error: OSError) -> None:
        """Try again after a temporary shortage. After several attempts, give up, so that another server can try."""
        reason = f"the zygote could not be started: {error}"
        if errno.errorcode.get(error.errno or 0) not in failures.ERRNOS:
            self._zygote_broken(reason)
        elif self._failed_starts < len(_PAUSES):
            log.warning("%s", reason)
            self.loop.call_later(_PAUSES[self._failed_starts], self._start_zygote)
            self._failed_starts += 1
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """Report a broken zygote and leave. The host is out of a resource, which a later server may get."""
        self._zygote_broken(reason)

        def leave() -> None:
            if self.link is None:
                self.end.set()
            elif not self._draining:
                self._drain(reason)

        self.loop.call_later(GRACE_SECONDS, leave)  # after the answers, also to clients that are connecting now

    def on_prepared(self, message: m.Prepared) -> None:
        """Record that the zygote is ready or has failed, tell the clients, and start jobs."""
        facts = {"pid": message.pid, "preload_seconds": message.seconds, "threads": message.threads}
        if message.failure:
            self.zygote_facts = {"state": "broken", **facts}
            self._zygote_broken(message.failure)
            return
        self.zygote_facts = {"state": "ready", **facts}
        log.info("zygote %d is ready after %.2f s", message.pid, message.seconds)
        for client in self.clients.greeted():
            self._tell_zygote_state(client)
        self.pauses.zygote_is_new()
        self.dispatcher.zygote_ready()

    def on_suspended(self) -> None:
        self.pauses.suspended()

    def on_forked(self, message: m.Forked) -> None:
        self.dispatcher.on_forked(message)
        self.pauses.on_forked(message.worker)

    def on_exited(self, message: m.Exited) -> None:
        self.dispatcher.on_exited(message)

    @property
    def _zygote_obeys(self) -> bool:
        return self.zygote is not None and self.zygote_facts["state"] in ("starting", "ready")

    def _to_zygote(self, message: m.ToZygote, attached: socket.socket | None) -> None:
        if self.zygote is not None:
            self.zygote.send(message, attached)
        elif attached is not None:
            attached.close()

    def on_zygote_end(self, zygote: ZygoteLink, reason: str) -> None:
        """Handle the end of a zygote, which has been reaped."""
        late = zygote.late
        if zygote is not self.zygote or self._ending:
            return
        if self.dispatcher.broken is not None:
            self.zygote = None
            return
        self.dispatcher.counters["deaths"] += 1
        host = memory.Host.look()
        if zygote.code == -signal.SIGKILL and (host.killed() > self._killed_before or memory.too_little(host)):
            reason = f"{memory.advice(host)}; {reason}"
        log.warning("%s", reason)
        # An idle call may have ended the zygote: drop the call that the exit code names, or else all calls.
        guilty = zygote.code - m.EXIT_IDLE
        self._idle_calls = [
            name
            for number, name in enumerate(self._idle_calls)
            if 0 <= guilty < len(self._idle_calls) and number != guilty
        ]
        self.zygote = None
        self.dispatcher.zygote_gone(reason)
        self.pauses.suspended()  # its workers have ended as well
        if late:
            self.dispatcher.zygote_broken(reason)
        if self.dispatcher.broken is not None:
            self.zygote_facts = {"state": "broken"}
            self._zygote_broken(self.dispatcher.broken)
        else:
            self._start_zygote()

    def _zygote_broken(self, reason: str) -> None:
        log.error("%s", reason)
        self.zygote_facts = {**self.zygote_facts, "state": "broken", "reason": reason}
        self.dispatcher.zygote_broken(reason)
        for client in self.clients.greeted():
            self._tell_zygote_state(client)

    def _tell_zygote_state(self, client: Client) -> None:
        facts = self.zygote_facts
        client.connection.send(
            m.ZygoteState(
                state=facts["state"], seconds=facts.get("preload_seconds", 0.0), reason=facts.get("reason", "")
            )
        )

    # ------------------------------------------------------------ status and shutdown

    def status(self) -> dict[str, Any]:
        """Return plain data about server, jobs, zygote, memory and counters."""
        return {
            "state": "running",
            "server_pid": os.getpid(),
            "directory": str(self.directory),
            "fxpool": __version__,
            "seconds": round(self.loop.time() - self._begun, 3),
            "cgroup": report.cgroup(),
            "shared": self.link is not None,
            "draining": self._draining,
            "clients": [client.pid for client in self.clients.greeted() if not client.visitor],
            "paused": bool(self.pauses),
            "slots": self.slots,
            "slots_rule": self.rule,
            **self.dispatcher.status(self._taken()),
            "zygote": dict(self.zygote_facts),
            "memory": report.shares(self._taken(), self.zygote.pid if self.zygote is not None else 0),
            "counters": {**self.dispatcher.counters, "zygotes": self.zygotes},
        }

    def _taken(self) -> dict[int, int]:
        """Return the bytes (proportional set size) of this process and its descendants, by pid.

        Measured at most every `_MEASURE_SECONDS`: it takes milliseconds, and frequent queries must not delay jobs.
        """
        if not self._measured or self.loop.time() - self._measured[0] >= _MEASURE_SECONDS:
            taken = {pid: memory.proportional([pid]) for pid in memory.tree(os.getpid())}
            self._measured = (self.loop.time(), taken)
        return self._measured[1]

    def _child_ended(self) -> None:
        """Reap the zygote, or an orphan that the server adopted because its zygote died."""
        if self.zygote is not None:
            self.zygote.poll()
        if not self._ending:
            zygote = {self.zygote.pid} if self.zygote is not None else set()
            processes.reap_strays(zygote | self.dispatcher.farms.pids)

    async def _sweep(self) -> None:
        await asyncio.sleep(1.0)  # not during the start, for which a client waits
        for directory in runtime_dir.sweep(self.root, older_than=self.config.start_timeout):
            log.info("removed %s of a server that ended", directory)
        temporary.sweep()

    async def _rotate_log(self) -> None:
        while True:
            await asyncio.sleep(_LOG_SECONDS)
            with contextlib.suppress(OSError):
                runtime_dir.rotate_log(self.directory)

    def _spawn(self, coroutine: Any) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut_down(self) -> None:
        self._ending = True
        for task in list(self._tasks):
            task.cancel()
        self._remove_link()
        self.clients.accept_no_more()
        self.listener.close()
        self.dispatcher.farms.close()
        if self.zygote is not None:
            await self.zygote.stop(GRACE_SECONDS)
        processes.reap_strays(set(), seconds=GRACE_SECONDS)
        self.dispatcher.forget_all()
        runtime_dir.remove(self.directory)
        # Last, so that nothing is left when a client that waits for the server's end continues.
        self.clients.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="fxpool.pool.server.server", description="The pool's server. Started by clients."
    )
    parser.add_argument(
        "--directory", type=Path, required=True, help="the server's private directory, with its configuration"
    )
    parser.add_argument("--listen", type=int, required=True, help="file descriptor of the listening socket")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    start = time.perf_counter()
    processes.name_process("fxpool server")
    listener = socket.socket(fileno=options.listen)
    os.set_inheritable(options.listen, False)
    config = msgspec.json.decode(runtime_dir.read_config(options.directory), type=ServerConfig)
    if config.host and os.fork():
        os._exit(0)  # so that the server is not a child of the client that started it
    lock = runtime_dir.hold(options.directory)
    server = Server(options.directory, listener, config)
    log.info("server %d with %d slots (%s)", os.getpid(), server.slots, server.rule)
    asyncio.run(server.run())
    log.info("ended after %.1f s", time.perf_counter() - start)
    os.close(lock)
    logging.shutdown()
    # A client that closes the pool waits for this exit. The interpreter's normal exit takes 20 ms for nothing.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
