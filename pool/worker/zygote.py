"""The zygote: a fresh, single-threaded interpreter with the preloaded modules, from which every worker is forked.

    python -m fxpool.pool.worker.zygote CONTROL_FD SERVER_PID PROTOCOL_VERSION

It receives orders over a SOCK_SEQPACKET socket, one message per packet; a worker's socket is attached to its Fork. When
that socket closes, the zygote ends, with all workers and the processes that they left. It must have only one thread,
because a fork copies the locks of all threads but only the calling thread; this is checked before every fork.
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

import msgspec
import psutil

from fxpool import descriptors
from fxpool.pool.host import memory, processes
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import PROTOCOL_VERSION
from fxpool.pool.worker import worker

PACKET = 128 << 10
# Characters kept of a traceback, which must fit into a packet.
_REASON_KEPT = 32 << 10
# Seconds without an order before the next idle call.
_IDLE_AFTER = 0.05

_SIGNALS: dict[type[m.ToZygote], signal.Signals] = {
    m.Kill: signal.SIGKILL,
    m.Stop: signal.SIGSTOP,
    m.GoOn: signal.SIGCONT,
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

    def prepare(self) -> bool:
        """Import the server's preload modules; return whether that succeeded. The server is told the reason if not."""
        packet = self.control.recv(PACKET)
        if not packet:
            return False
        order = _decoder.decode(packet)
        assert isinstance(order, m.Prepare)
        sys.path[:] = list(dict.fromkeys([*order.sys_path, *sys.path]))
        before = _descriptors()
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
        self.foreign = _descriptors() - before
        self.idle = [name for name in order.idle.split(",") if name]
        self.all_idle = tuple(self.idle)
        _freeze()
        seconds = time.perf_counter() - start
        self.send(m.Prepared(pid=os.getpid(), seconds=seconds, threads=threads, failure=failure))
        return not failure

    def is_idle(self) -> bool:
        """Return whether to make the next idle call if no order arrives.

        Running jobs need the cores, and no worker can be forked during a call. So only the first call, a short one, is
        also made while jobs run, and only if a core is free.
        """
        if not self.idle or self.rests:
            return False
        spare = self.idle[0] == self.all_idle[0] and len(self.workers) + 1 < len(os.sched_getaffinity(0))
        return spare or not self.workers

    def use_idle_time(self) -> None:
        """Make the next idle call. If it fails, workers only start more slowly.

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
            getattr(importlib.import_module(module), function)()
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

    def serve(self) -> socket.socket | None:
        """Carry out orders until the server has ended, then return None.

        In a forked worker, return its socket; all other descriptors of the zygote are closed.
        """
        self.control.setblocking(False)
        # Python runs signal handlers between bytecodes; the pipe makes select() return for them.
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.PollSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                ready = selector.select(_IDLE_AFTER if self.is_idle() else None)  # orders take precedence
                if not ready:
                    self.use_idle_time()
                for key, _ in ready:
                    if key.fd == wake:
                        os.read(wake, 4096)
                        self.reap()
                        continue
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

    def obey(self, order: m.ToZygote, descriptors: list[int]) -> socket.socket | None:
        """Carry out an order; in a forked worker, return its socket."""
        if isinstance(order, (m.Kill, m.Stop, m.GoOn)):
            for pid, number in self.workers.items():
                if number == order.worker:
                    processes.signal_group(pid, _SIGNALS[type(order)])
        elif isinstance(order, m.Fork):
            if not descriptors:  # the kernel drops descriptors that this process has no number left for
                self.refuse(order, "the zygote has no file descriptor left for the worker's socket", errno.EMFILE)
                return None
            return self.fork(order, descriptors[0])
        elif isinstance(order, m.WarmUp):
            while self.idle:
                self.use_idle_time()
        elif isinstance(order, m.Rest):
            self.rests = order.on
            self.send(m.Resting())
        return None

    def fork(self, order: m.Fork, descriptor: int) -> socket.socket | None:
        """Fork a worker; return its socket in the worker, and None in the zygote."""
        start = time.perf_counter()
        try:
            threads = self.process.num_threads()
            if threads != 1:
                os.close(descriptor)
                self.refuse(order, f"the zygote has {threads} threads, so forking it is unsafe")
                return None
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self.refuse(order, f"fork failed: {error}", error.errno)
            return None
        if pid == 0:
            return self.become_worker(order, descriptor)
        os.close(descriptor)
        try:
            os.setpgid(pid, pid)  # the worker does this too, so that it has happened before any kill
        except OSError:
            pass
        self.workers[pid] = order.worker
        self.send(m.Forked(worker=order.worker, pid=pid, seconds=time.perf_counter() - start))
        return None

    def refuse(self, order: m.Fork, reason: str, number: int | None = None) -> None:
        """Report that no worker was forked; `number` is the errno, if any."""
        self.send(
            m.Exited(
                worker=order.worker,
                exit_code=None,
                signal=None,
                failure=reason,
                code=errno.errorcode.get(number or 0, ""),
            )
        )

    def become_worker(self, order: m.Fork, descriptor: int) -> socket.socket:
        """Set up a forked process as a worker, and return its socket. Exits if that fails."""
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            processes.die_with_parent(signal.SIGKILL, self.pid)
            processes.adopt_orphans()
            processes.name_process("fxpool worker")
            log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self.control.close()
            # A copy of another process's socket would hide its death.
            keep = {0, 1, 2, descriptor, *self.foreign}
            for number in _descriptors() - keep:
                try:
                    os.close(number)
                except OSError:
                    pass
            os.set_inheritable(descriptor, False)
            return socket.socket(fileno=descriptor)
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
                exited = ended.si_code == os.CLD_EXITED
                status = ended.si_status
                self.send(
                    m.Exited(worker=number, exit_code=status if exited else None, signal=None if exited else status)
                )
        processes.reap_strays(set(self.workers))

    def end(self) -> None:
        """Kill all workers and the processes that they started."""
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


def _descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as entries:
        numbers = {int(entry.name) for entry in entries}
    # The listing includes scandir's descriptor, which is closed by now.
    return {number for number in numbers if _is_open(number)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> int:
    control_fd, server, version = (int(word) for word in arguments)
    if version != PROTOCOL_VERSION:
        print(f"the server uses version {version} of the protocol, this zygote {PROTOCOL_VERSION}", file=sys.stderr)
        return 2
    descriptors.drop_unwritable()  # for its workers too
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

    def leave(*_: object) -> None:
        zygote.end()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    ours = zygote.serve()
    if ours is not None:
        worker.main(ours)  # does not return
    zygote.end()
    # Not sys.exit: preloaded modules may have registered slow exit handlers.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
