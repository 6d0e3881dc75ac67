"""The zygote: a fresh, single-threaded interpreter with the preloaded modules, from which every worker is forked.

    python -m fxpool.pool.worker.zygote CONTROL_FD SERVER_PID PROTOCOL_VERSION

It receives orders over a SOCK_SEQPACKET socket, one message per packet; a worker's socket is attached to its Fork. When
that socket closes, the zygote ends, with all workers and the processes that they left. It must have only one thread,
because a fork copies the locks of all threads but only the calling thread; this is checked before every fork.

A branch (see `branches`) is such a process too: a copy of a worker after its preparation, with the zygote in the place
of the server.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import NamedTuple, NoReturn

import msgspec
import psutil

from fxpool import standard_streams
from fxpool.pool.host import memory, processes
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import PROTOCOL_VERSION
from fxpool.pool.worker import worker
from fxpool.pool.worker.branches import PACKET, Branch, Branches, Waiting
from fxpool.pool.worker.branching import Branching, close_others, open_descriptors
from fxpool.pool.worker.preparing import Files

# Characters kept of a traceback, which must fit into a packet.
_REASON_KEPT = 32 << 10
# Seconds without an order before the next idle call.
_IDLE_AFTER = 0.05
# Seconds between two looks for a free core while idle calls are left.
_LOOK_AGAIN = 0.2

_SIGNALS: dict[type[m.ToZygote], signal.Signals] = {
    m.Kill: signal.SIGKILL,
    m.Stop: signal.SIGSTOP,
    m.Continue: signal.SIGCONT,
}

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[m.ToZygote] = msgspec.msgpack.Decoder(m.ToZygote)


class Zygote:
    """Carries out the server's orders and reaps workers, in one loop."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.pid = os.getpid()
        self.process = psutil.Process()
        self.workers: dict[int, int] = {}  # worker number by pid
        self.foreign: set[int] = set()
        self.idle: list[str] = []  # idle calls that are still to be made
        self.all_idle: tuple[str, ...] = ()
        self.rests = False
        # In a branch: the files that its preparation read, and the process that sends it orders.
        self.files: Files | None = None
        self.zygote_pid = 0
        self.selector = selectors.PollSelector()
        self.branches = Branches(self.selector, self.send, lambda: memory.warm_up_fits(memory.Host.look()))

    def prepare(self) -> bool:
        """Import the server's preload modules; return whether that succeeded. The server is told the reason if not."""
        packet = self.control.recv(PACKET)
        if not packet:
            return False
        order = _decoder.decode(packet)
        assert isinstance(order, m.Prepare)
        sys.path[:] = list(dict.fromkeys([*order.sys_path, *sys.path]))
        before = open_descriptors()
        start = time.perf_counter()
        failure = ""
        gc.disable()  # a collection scans a million objects to free a few
        try:
            for name in order.preload:
                module, _, function = name.partition(":")
                imported = importlib.import_module(module)
                if function:
                    getattr(imported, function)()
        except BaseException:
            failure = f"a preload module failed:\n{traceback.format_exc()[-_REASON_KEPT:]}{_limits_in_force()}"
        threads = self.process.num_threads()
        if not failure and threads != 1:
            failure = (
                f"the preload modules ({', '.join(order.preload)}) started {threads - 1} threads, which makes it "
                "unsafe to fork; if numpy is among them, set OPENBLAS_NUM_THREADS=1"
            )
        # Workers keep the descriptors that preloaded modules opened, and close all others of the zygote.
        self.foreign = open_descriptors() - before
        self.idle = [name for name in order.idle.split(",") if name]
        self.all_idle = tuple(self.idle)
        _freeze()
        seconds = time.perf_counter() - start
        self.send(m.Prepared(pid=os.getpid(), seconds=seconds, threads=threads, failure=failure))
        return not failure

    def _serve_as_branch(self, control: socket.socket, files: Files) -> NoReturn:
        """Carry out the zygote's orders, in a copy of a worker that called a preparation."""
        self.control, self.files, self.zygote_pid = control, files, self.pid
        self.pid = os.getpid()
        self.process = psutil.Process()
        self.workers = {}
        self.selector = selectors.PollSelector()
        self.branches = Branches(self.selector, self.send, lambda: False)
        _freeze()
        _run(self)

    def is_idle(self) -> bool:
        """Return whether to make the next idle call if no order arrives.

        Running jobs need the cores, and no worker can be forked during a call. So calls are made while jobs run only if
        a core is free: the next worker would take as long for the same.
        """
        if not self.idle or self.rests:
            return False
        return not (self.workers or self.branches.busy) or processes.cores_free() > 0

    def patience(self) -> float | None:
        """Return the seconds to wait for an order before there is something else to do; None if there is not."""
        if self.is_idle():
            return _IDLE_AFTER
        # Cores become free without a message.
        seconds = [_LOOK_AGAIN] if self.idle and not self.rests else []
        if (left := self.branches.seconds_left()) is not None:
            seconds.append(left)
        return min(seconds, default=None)

    def use_idle_time(self) -> None:
        """Make the next idle call, again and again if it returns True. If it fails, workers only start more slowly.

        If it starts a thread, this process ends, and the server starts another zygote without that call.
        """
        name = self.idle.pop(0)
        if not memory.warm_up_fits(memory.Host.look()):
            print(f"zygote {self.pid}: not preloading {name}, memory is short", file=sys.stderr, flush=True)
            return
        start = time.perf_counter()
        module, _, function = name.partition(":")
        gc.disable()
        # The zygote may end during the call. Temporary files in its working directory, the server's private directory,
        # are removed even then.
        tempfile.tempdir = os.getcwd()
        try:
            if getattr(importlib.import_module(module), function)():
                self.idle.insert(0, name)
        except Exception:
            traceback.print_exc()
        finally:
            tempfile.tempdir = None
        if (threads := self.process.num_threads()) != 1:
            print(f"{name} started {threads - 1} threads, so this zygote can no longer be forked", file=sys.stderr)
            self.end()
            sys.stderr.flush()
            os._exit(m.EXIT_IDLE + self.all_idle.index(name))
        _freeze()
        print(f"zygote {self.pid}: {name} took {time.perf_counter() - start:.2f} s", file=sys.stderr, flush=True)

    def serve(self) -> ForkedWorker | None:
        """Carry out orders until the server has ended, then return None; in a forked worker, return its sockets.

        All other descriptors of the zygote are closed in a worker.
        """
        self.control.setblocking(False)
        # Python runs signal handlers between bytecodes; the pipe makes select() return for them.
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.control, selectors.EVENT_READ)
        self.selector.register(wake, selectors.EVENT_READ)
        while True:
            # Orders take precedence over idle calls.
            ready = self.selector.select(self.patience())
            if not ready:
                self.branches.tidy()
                if self.is_idle():
                    self.use_idle_time()
            for key, _ in ready:
                undone: list[Waiting] = []
                if key.fd == wake:
                    os.read(wake, 4096)
                    for branch in self.branches:  # before a branch could be taken for a stray
                        undone += self.branches.read(branch)
                    self.reap()
                elif isinstance(key.data, Branch):
                    undone += self.branches.read(key.data)
                else:
                    try:
                        packet, descriptors, _, _ = socket.recv_fds(self.control, PACKET, 4)
                    except (BlockingIOError, InterruptedError):
                        continue
                    except ConnectionError:
                        return None
                    if not packet:
                        return None
                    ours = self.obey(_decoder.decode(packet), descriptors)
                    if ours is not None:
                        return ours
                for order, descriptor in undone:
                    ours = self.start(order, descriptor)
                    if ours is not None:
                        return ours

    def obey(self, order: m.ToZygote, descriptors: list[int]) -> ForkedWorker | None:
        """Carry out an order; in a forked worker, return its sockets."""
        if isinstance(order, (m.Kill, m.Stop, m.Continue)):
            for pid, number in self.workers.items():
                if number == order.worker:
                    processes.signal_group(pid, _SIGNALS[type(order)])
            self.branches.relay(order)
        elif isinstance(order, m.Fork):
            if not descriptors:  # the kernel drops descriptors that this process has no number left for
                self.refuse(order, "the zygote has no file descriptor left for the worker's socket", errno.EMFILE)
                return None
            return self.start(order, descriptors[0])
        elif isinstance(order, m.WarmUp):
            while self.idle:
                self.use_idle_time()
        elif isinstance(order, m.Suspend):
            self.rests = order.on
            self.branches.relay(order)
            self.send(m.Suspended())
        return None

    def start(self, order: m.Fork, descriptor: int) -> ForkedWorker | None:
        """Fork a worker here or in its branch; in the worker, return its sockets."""
        if self.files is not None:
            if path := self.files.changed():
                self.give_back(order, descriptor, f"{path} was changed")
                return None
            if os.getppid() == self.zygote_pid:  # the worker that made this branch has ended
                processes.die_with_parent(signal.SIGKILL, self.zygote_pid)
        elif order.branch and self.branches.takes(order, descriptor):
            return None
        offer = self.branches.offer(order.branch) if order.branch and self.files is None else None
        return self.fork(order, descriptor, offer)

    def fork(self, order: m.Fork, descriptor: int, offer: socket.socket | None) -> ForkedWorker | None:
        """Fork a worker, which may make a branch if it gets the end of a socket (`offer`) for that.

        Returns the worker's sockets in the worker, and None in the zygote.
        """
        start = time.perf_counter()
        try:
            threads = self.process.num_threads()
            if threads != 1:
                os.close(descriptor)
                self.withdraw(order, offer)
                self.refuse(order, f"the zygote has {threads} threads, so forking it is unsafe")
                return None
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self.withdraw(order, offer)
            self.refuse(order, f"fork failed: {error}", error.errno)
            return None
        if pid == 0:
            return self.become_worker(order, descriptor, offer)
        os.close(descriptor)
        if offer is not None:
            offer.close()
        try:
            os.setpgid(pid, pid)  # the worker does this too, so that it has happened before any kill
        except OSError:
            pass
        self.workers[pid] = order.worker
        prepared = self.files is not None
        self.send(m.Forked(worker=order.worker, pid=pid, seconds=time.perf_counter() - start, prepared=prepared))
        return None

    def withdraw(self, order: m.Fork, offer: socket.socket | None) -> None:
        """Take back the offer to make a branch."""
        if offer is not None:
            offer.close()
            self.branches.withdraw(order.branch)

    def give_back(self, order: m.Fork, descriptor: int, reason: str) -> None:
        """Return an order to the zygote, in a branch."""
        self.control.setblocking(True)
        try:
            socket.send_fds(self.control, [_encode(m.Outdated(order=order, reason=reason))], [descriptor])
        except (BrokenPipeError, ConnectionError):
            pass  # the next read sees the end of the stream
        finally:
            self.control.setblocking(False)
            os.close(descriptor)

    def refuse(self, order: m.Fork, reason: str, number: int | None = None) -> None:
        """Report that no worker was forked; `number` is the errno, if any."""
        code = errno.errorcode.get(number or 0, "")
        self.send(m.Exited(worker=order.worker, failure=reason, code=code))

    def become_worker(self, order: m.Fork, descriptor: int, offer: socket.socket | None) -> ForkedWorker:
        """Set up a forked process as a worker, and return its sockets. Exits if that fails."""
        try:
            self.branches.leave()
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            processes.die_with_parent(signal.SIGKILL, self.pid)
            processes.adopt_orphans()
            processes.name_process("fxpool worker")
            keep = {0, 1, 2, descriptor, *self.foreign}
            branching = None
            if offer is not None:
                branching = Branching(offer, os.dup(1), os.dup(2), self.foreign, self._serve_as_branch)
                keep |= branching.descriptors
            log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self.control.close()
            close_others(keep)  # a copy of another process's socket would hide its death
            os.set_inheritable(descriptor, False)
            return ForkedWorker(socket.socket(fileno=descriptor), branching, self.files is not None)
        except BaseException as error:
            traceback.print_exc()
            sys.stderr.flush()
            worker.say_unable(descriptor, error)
            os._exit(worker.EXIT_SETUP)

    def reap(self) -> None:
        """Report the workers that ended, and kill the processes that they left."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            pid = ended.si_pid
            number = self.workers.get(pid)
            if number is not None:
                # Before the worker is reaped, because its group's number can't be reused until then.
                processes.kill_group(pid)
                del self.workers[pid]
            os.waitpid(pid, 0)
            if number is not None:
                exited, status = ended.si_code == os.CLD_EXITED, ended.si_status
                self.send(m.Exited(number, status if exited else None, None if exited else status))
        processes.reap_strays(set(self.workers) | self.branches.pids)

    def end(self) -> None:
        """Kill all workers and the processes that they started, and all branches."""
        self.branches.leave()
        for pid in list(self.workers):
            processes.kill_group(pid)
        processes.reap_strays(set(), seconds=2.0)

    def send(self, message: m.FromZygote) -> None:
        """Send a message to the server, waiting if its socket is full."""
        self.control.setblocking(True)
        try:
            self.control.send(_encode(message))
        except (BrokenPipeError, ConnectionError):
            pass  # the next read sees the end of the stream
        finally:
            self.control.setblocking(False)


class ForkedWorker(NamedTuple):
    """The result of `serve` in a worker. `prepared`: it was forked from a branch."""

    sock: socket.socket
    branching: Branching | None
    prepared: bool


def _run(zygote: Zygote) -> NoReturn:
    """Carry out orders until the end of the process, which may be that of a worker."""

    def leave(*_: object) -> None:
        zygote.end()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    ours = zygote.serve()
    if ours is not None:
        worker.main(*ours)  # does not return
    zygote.end()
    # Not sys.exit: preloaded modules may have registered slow exit handlers.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _freeze() -> None:
    """Exempt all existing objects from garbage collection in the workers, which would write to the shared pages."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _limits_in_force() -> str:
    """Describe a limit of this process that may have made the preload fail, or return ""."""
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    if size == resource.RLIM_INFINITY:
        return ""
    return f"its address space is limited to {size >> 20} MB: raise the limit (`ulimit -v`), or set FXPOOL_POOL=off"


def main(arguments: list[str]) -> int:
    control_fd, server, version = (int(word) for word in arguments)
    if version != PROTOCOL_VERSION:
        print(f"the server uses version {version} of the protocol, this zygote {PROTOCOL_VERSION}", file=sys.stderr)
        return 2
    standard_streams.drop_unwritable()  # for its workers too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # There are no workers until the preload is done, so SIGTERM may keep its default action, which needs no bytecode.
    processes.die_with_parent(signal.SIGTERM, server)
    processes.adopt_orphans()
    processes.name_process("fxpool zygote")
    # Drop the directory that `-m` added: it is empty, and must not be on a worker's path.
    if sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]
    os.set_inheritable(control_fd, False)
    zygote = Zygote(socket.socket(fileno=control_fd))
    if not zygote.prepare():
        return 1
    _run(zygote)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
