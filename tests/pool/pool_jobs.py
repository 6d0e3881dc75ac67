"""Job functions of the tests; workers import this module by `sys_path`."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

from fxpool.pool import current_job
from fxpool.pool.client import hosts, pausing


class Holder:
    @staticmethod
    def method(data: bytes) -> bytes:
        return b"method " + data


class CustomError(Exception):
    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class ArgumentError(Exception):
    """Pickles, but can't be built again: __init__ takes more than `args` holds."""

    def __init__(self, text: str, more: int) -> None:
        super().__init__(text)


class LocalError(Exception):
    """Exists in workers only (see `raise_worker_only`)."""


class CustomWarning(UserWarning):
    pass


def echo(data: bytes) -> bytes:
    return data


def context(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    return json.dumps([job.label, job.attempt, job.slots]).encode()


def surroundings(data: bytes) -> bytes:
    facts = {
        "environment": dict(os.environ),
        "path": sys.path,
        "cwd": os.getcwd(),
        "stdin": sys.stdin.read(),
        "threads": threading.active_count(),
        "group": os.getpgid(0) == os.getpid(),
        "descriptors": {
            n: os.readlink(f"/proc/self/fd/{n}")
            for n in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{n}")
        },
    }
    return json.dumps(facts).encode()


def not_bytes(data: bytes) -> str:
    return "text"


def raise_custom(data: bytes) -> bytes:
    deeper(data.decode())
    return b""


def deeper(text: str) -> None:
    try:
        os.environ[text]
    except KeyError as error:
        raise CustomError(text, 7) from error


def raise_unpicklable(data: bytes) -> bytes:
    error = ValueError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def raise_argument(data: bytes) -> bytes:
    raise ArgumentError("odd", 1)


def raise_worker_only(data: bytes) -> bytes:
    module = type(sys)("worker_only")

    class Hidden(Exception):
        pass

    Hidden.__module__, Hidden.__qualname__ = "worker_only", "Hidden"
    module.Hidden = Hidden  # type: ignore[attr-defined]
    sys.modules["worker_only"] = module
    raise Hidden("only here")


def raise_deep(data: bytes) -> bytes:
    return raise_deep(data)


def exit_by(data: bytes) -> bytes:
    sys.exit(int(data))


def interrupt(data: bytes) -> bytes:
    raise KeyboardInterrupt


def chatter(data: bytes) -> bytes:
    log = logging.getLogger("pool_jobs.chatter")
    log.debug("debug %s", 1)
    log.info("info %s", 2)
    log.warning("warning %s", 3)
    quiet = logging.getLogger("pool_jobs.quiet")
    quiet.propagate = False
    quiet.error("not propagated")
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        log.exception("caught")
    return b""


def warn(data: bytes) -> bytes:
    warnings.warn("custom", CustomWarning)
    warnings.warn("old", DeprecationWarning)

    class Inner(RuntimeWarning):
        pass

    warnings.warn("local", Inner)
    return b"warned"


def many_logs(data: bytes) -> bytes:
    for number in range(int(data)):
        logging.getLogger("pool_jobs").warning("line %d", number)
    return b""


def print_on_a_full_disk(data: bytes) -> bytes:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    os.dup2(full, 2)
    print("x" * 100_000)
    print("y", file=sys.stderr, flush=True)
    sys.stdout.buffer.write(b"z" * 100_000)
    sys.stdout.flush()
    return b"printed"


def log_and_fail(data: bytes) -> bytes:
    logging.getLogger("pool_jobs").warning("before")
    raise ZeroDivisionError


def die_once(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return b"attempt %d" % job.attempt


def die(data: bytes) -> bytes:
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def segfault(data: bytes) -> bytes:
    ctypes.string_at(0)
    return b""


def exit_hard(data: bytes) -> bytes:
    os._exit(int(data))


def mute(data: bytes) -> bytes:
    """Closes the connection to the server and goes on."""
    os.closerange(3, 100)
    time.sleep(600)
    return b""


def linger(data: bytes) -> bytes:
    """Leaves a process behind that holds all descriptors."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return b"%d" % pid


def sleep(data: bytes) -> bytes:
    """`data` is a file to make first, or nothing."""
    if data:
        pathlib.Path(data.decode()).touch()
    time.sleep(600)
    return b""


def spin(data: bytes) -> bytes:
    """Takes a CPU until it is killed."""
    while True:
        pass


def prepare(data: bytes) -> bytes:
    """Of `data`, a directory: makes ``mark-begun`` longer, and ``mark-done`` as soon as there is ``mark-go``."""
    place = pathlib.Path(data.decode())
    with open(place / "mark-begun", "a") as file:
        file.write("x")
    while not (place / "mark-go").exists():
        time.sleep(0.01)
    (place / "mark-done").touch()
    return b""


def sleep_once(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    if job.attempt == 1:
        sleep(data)
    return b"again"


def spawn_first(data: bytes) -> bytes:
    """As `spawn`, where the file `data` does not exist yet."""
    if not pathlib.Path(data.decode()).exists():
        spawn(data)
    return b"again"


_EATER = """
import sys, time
held = bytearray(int(sys.argv[1]) << 20)
for place in range(0, len(held), 4096):
    held[place] = 1
time.sleep(float(sys.argv[2]))
"""


def eat_in_a_child(data: bytes) -> bytes:
    """Megabytes and seconds, taken by a process such as a compiler."""
    job = current_job()
    assert job is not None
    job.phase("feeding")
    subprocess.run([sys.executable, "-c", _EATER, *data.decode().split()], check=True)
    return b"full"


def eat_in_a_sub_job(data: bytes) -> bytes:
    return _submit("eat_in_a_child", data).result()


def eat_together(data: bytes) -> bytes:
    """Megabytes that four processes share, for some seconds."""
    megabytes, seconds = data.decode().split()
    held = bytearray(int(megabytes) << 20)
    for place in range(0, len(held), 4096):
        held[place] = 1
    pids = []
    for _ in range(3):
        pids.append(os.fork())
        if not pids[-1]:
            time.sleep(float(seconds))
            os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)
    return b"full"


def segfault_in(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    job.phase(data.decode())
    ctypes.string_at(0)
    return b""


def times(data: bytes) -> bytes:
    """When it ran, on the clock that all processes share."""
    start = time.monotonic()
    time.sleep(0.5)
    return json.dumps([start, time.monotonic()]).encode()


def spawn(data: bytes) -> bytes:
    """Grandchildren: one in the worker's group, one in a session of its own, one orphaned on the way."""
    held = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], start_new_session=True)]
    subprocess.run(["sh", "-c", "setsid sleep 600 & "])
    sleep(data)
    return b"%d" % len(held)


def fork_child(data: bytes) -> bytes:
    """A process that a job forks is no worker; its logs do not disturb the job's connection."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        logging.getLogger("pool_jobs").error("from the child")
        os.write(write, b"none" if current_job() is None else b"some")
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(read, 10)


def _submit(function: str, data: bytes, label: str = "sub") -> concurrent.futures.Future[bytes]:
    job = current_job()
    assert job is not None
    return job.submit(f"pool_jobs:{function}", data, label=label)


def asks(data: bytes) -> bytes:
    """The answer to what it was given, as the program's literal; asks twice."""
    job = current_job()
    assert job is not None
    return repr([job.ask(data), job.ask(data + b" again")]).encode()


def asks_in_a_sub_job(data: bytes) -> bytes:
    return _submit("asks", data).result()


def asks_and_is_killed_once(data: bytes) -> bytes:
    """Killed while its first attempt's question is open."""
    job = current_job()
    assert job is not None
    if job.attempt == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return repr(job.ask(str(job.attempt).encode())).encode()


def gather(data: bytes) -> bytes:
    """Echo through n sub-jobs."""
    futures = [_submit("echo", b"%d" % n) for n in range(int(data))]
    return b" ".join(future.result() for future in futures)


def gather_by_wait(data: bytes) -> bytes:
    futures = [_submit("echo", b"%d" % n) for n in range(int(data))]
    done, _ = concurrent.futures.wait(futures)
    return b"%d" % len(done)


def gather_by_threads(data: bytes) -> bytes:
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        return b" ".join(threads.map(lambda n: _submit("echo", b"%d" % n).result(), range(int(data))))


def fibonacci(data: bytes) -> bytes:
    n = int(data)
    if n < 2:
        return b"%d" % n
    first, second = _submit("fibonacci", b"%d" % (n - 1)), _submit("fibonacci", b"%d" % (n - 2))
    return b"%d" % (int(first.result()) + int(second.result()))


def meet(data: bytes) -> bytes:
    """Two sub-jobs that can end only if they run at the same time."""
    both = [_submit("rendezvous", data + b" %d" % n) for n in range(2)]
    return b" ".join(future.result() for future in both)


def rendezvous(data: bytes) -> bytes:
    directory, number = data.decode().split()
    mine, other = (pathlib.Path(directory) / f"mark-{n}" for n in (int(number), 1 - int(number)))
    mine.touch()
    while not other.exists():
        time.sleep(0.005)
    return number.encode()


def sub_errors(data: bytes) -> bytes:
    found = []
    for function, argument in (("raise_custom", b"x"), ("die", b""), ("not_bytes", b"")):
        error = _submit(function, argument, label=function).exception()
        found.append(type(error).__name__)
    try:
        _submit("raise_custom", b"through", label="inner").result()
    except CustomError as error:
        raise RuntimeError(" ".join(found)) from error
    return b""


def sub_sleep(data: bytes) -> bytes:
    return _submit("sleep", data).result()


def sub_sleep_and_die(data: bytes) -> bytes:
    _submit("sleep", data)
    while not os.path.exists(data):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def sub_sleep_and_return(data: bytes) -> bytes:
    _submit("sleep", data)
    while not os.path.exists(data):
        time.sleep(0.005)
    return b"returned"


def sub_cancel(data: bytes) -> bytes:
    future = _submit("sleep", data)
    while not os.path.exists(data):
        time.sleep(0.005)
    return b"%d" % future.cancel()


def sub_timeout(data: bytes) -> bytes:
    try:
        _submit("sleep", b"").result(timeout=0.05)
    except concurrent.futures.TimeoutError:
        return b"timed out"
    return b""


def sub_die_once(data: bytes) -> bytes:
    return _submit("die_once", b"").result()


def sub_logs(data: bytes) -> bytes:
    _submit("chatter", b"").result()
    return b""


def sub_surroundings(data: bytes) -> bytes:
    return _submit("surroundings", b"").result()


def slots(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    return b"%d of %d" % (job.slots_free(), job.slots)


# -- what a zygote does in its idle time

warmed_up: list[str] = []


def _mark(name: str) -> None:
    (pathlib.Path(os.environ["TMPDIR"]) / name).touch()


def warm_up() -> None:
    warmed_up.append(os.getcwd())
    _mark("mark-warmed-up")


def warm_up_in_steps() -> bool:
    """Take three steps, and two more when the first three are done."""
    warmed_up.append(os.getcwd())
    if len(warmed_up) == 3:
        _mark("mark-warmed-up")
    return len(warmed_up) < 5


def warm_up_at_last() -> None:
    warmed_up.append(os.getcwd())
    _mark("mark-warmed-up-at-last")


def warm_up_and_raise() -> None:
    _mark("mark-warmed-up")
    raise ValueError("no warm-up today")


def warm_up_with_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    _mark("mark-warmed-up")


def warm_up_and_die() -> None:
    _mark("mark-warmed-up")
    os.abort()


def was_warmed_up(data: bytes) -> bytes:
    return str(len(warmed_up)).encode()


# -- jobs that are asked for twice


def worker_pid_slowly(data: bytes) -> bytes:
    time.sleep(0.5)
    return str(os.getpid()).encode()


def raise_value_error_slowly(data: bytes) -> bytes:
    time.sleep(0.5)
    raise ValueError(data.decode())


def log_slowly(data: bytes) -> bytes:
    time.sleep(0.5)
    logging.getLogger("of the job").warning("from a worker")
    return b""


def wait_for_a_sub_job(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    return job.submit("pool_jobs:wait_for_a_mark", data, label="sub-job").result()


def wait_for_a_mark(data: bytes) -> bytes:
    mark = pathlib.Path(data.decode())
    mark.touch()
    go = mark.with_name(mark.name + "-go")
    while not go.exists():
        time.sleep(0.01)
    return b"the sub-job is done"


def worker_pid(data: bytes) -> bytes:
    return b"%d" % os.getpid()


def log_with_extra(data: bytes) -> bytes:
    extra = {"metadata": {"graph": {"nodes": (1, 2.5, None)}}, "payload": "text", "owner": object()}
    logging.getLogger("pool_jobs").warning("", extra=extra)
    return b""


def log_text(data: bytes) -> bytes:
    logging.getLogger("pool_jobs").info(data.decode())
    return b"%d" % os.getpid()


def with_a_device(data: bytes) -> bytes:
    """What a sub-job sees that is given a variable, beside one that is not."""
    job = current_job()
    assert job is not None
    seen = job.submit("pool_jobs:variable", b"FXPOOL_TEST_SEES", label="one", environment={"FXPOOL_TEST_SEES": "7"})
    unseen = job.submit("pool_jobs:variable", b"FXPOOL_TEST_SEES", label="other")
    inherited = job.submit("pool_jobs:variable", b"FXPOOL_TEST_OURS", label="third", environment={"A": "b"})
    return b" ".join(one.result() for one in (seen, unseen, inherited))


def variable(data: bytes) -> bytes:
    return os.environ.get(data.decode(), "-").encode()


def measured(data: bytes) -> bytes:
    """Runs some sub-jobs beside others that run alone; what ran at which time, as ``name begin end`` lines."""
    job = current_job()
    assert job is not None
    count = int(data)
    futures = []
    for number in range(count):
        futures.append(job.submit("pool_jobs:interval", b"any", label=f"any {number}"))
        futures.append(job.submit("pool_jobs:interval", b"alone", label=f"alone {number}", exclusive=True))
    return b"\n".join(future.result() for future in futures)


def interval(data: bytes) -> bytes:
    begin = time.monotonic()
    time.sleep(0.05)
    return f"{data.decode()} {begin} {time.monotonic()}".encode()


def spoil(data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    job.spoil()
    return str(os.getpid()).encode()


# -- what is too much for who asked


def flood(data: bytes) -> bytes:
    """Logs so many records of so many characters each."""
    count, size = map(int, data.split())
    log = logging.getLogger("pool_jobs")
    text = "x" * size
    for _ in range(count):
        log.warning(text)
    return b"through"


def gather_late(data: bytes) -> bytes:
    """A sub-job that is asked for when there is a file of that name."""
    pathlib.Path(data.decode()).touch()
    return _submit("echo", b"x").result()


def zeros(data: bytes) -> bytes:
    return bytes(int(data))


_COUNTER = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[1])
while not (place / "mark-go").exists():
    with open(place / "mark-count", "a") as file:
        file.write("x")
    time.sleep(0.005)
"""


def counts(data: bytes) -> bytes:
    """Of `data`, a directory: makes ``mark-count`` longer until there is ``mark-go``."""
    sys_argv, sys.argv = sys.argv, ["", data.decode()]
    try:
        exec(_COUNTER, {})
    finally:
        sys.argv = sys_argv
    return b"counted"


def counts_in_a_child(data: bytes) -> bytes:
    """The same in a process of the worker's, as a compiler is."""
    subprocess.run([sys.executable, "-c", _COUNTER, data.decode()], check=True)
    return b"counted"


def lends_its_connection(data: bytes) -> bytes:
    """Gives its connection to a server away, and counts. `data`: the server's directory, a socket, as in `counts`."""
    server, to, directory = data.decode().split("\0")
    connection = hosts.connect(pathlib.Path(server), 10.0, visitor=True)
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(to)
        socket.send_fds(other, [b"x"], [connection.fileno()])
    hosts.disconnect(connection)
    return counts(directory.encode())


def pauses_and_counts(data: bytes) -> bytes:
    """Pauses all servers, its own too, and goes on itself. `data`: the runtime directory."""
    paused = pausing.pause(pathlib.Path(data.decode()), 30.0, 20.0)
    time.sleep(0.2)
    paused.end()
    return repr((paused.workers, paused.remarks)).encode()
