"""Rows about processes and threads: the order of compiles and forks, and the end of a process."""

from __future__ import annotations

import signal

from .row import PLAIN, Row
from .verdict import Expected

__all__ = ["ROWS"]

_HEAD = """WITNESS
import os, sys, torch


def work(x, times=2):
    return (x.sin() * times + 1).sum(dim=-1)


def compile_and_check(times=2):
    x = torch.arange(24.0).reshape(4, 6)
    witness.check(torch.compile(work, backend="fxpool")(x, times), work(x, times))
"""

_THREADS = (
    _HEAD
    + """
import threading

barrier, failed = threading.Barrier(4), []


# A number would be a constant of whichever thread came first, and a symbol for the others.
OPERATIONS = [torch.sin, torch.cos, torch.tanh, torch.sigmoid]


def first(number):
    operation = OPERATIONS[number]
    def own(x):
        return (operation(x) * 2 + 1).sum(dim=-1)
    x = torch.arange(24.0).reshape(4, 6)
    barrier.wait()
    try:
        witness.check(torch.compile(own, backend="fxpool")(x), own(x))
    except BaseException as error:
        failed.append(error)
        raise


threads = [threading.Thread(target=first, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(bool(failed))
"""
)

_EXECUTOR = (
    _HEAD
    + """
from concurrent.futures import ThreadPoolExecutor

compiled = torch.compile(work, backend="fxpool")
batches = [torch.arange(24.0).reshape(4, 6) + number for number in range(8)]
with ThreadPoolExecutor(4) as executor:
    for batch, result in zip(batches, executor.map(compiled, batches)):
        witness.check(result, work(batch))
"""
)

_FORK = """
def in_child(times):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            compile_and_check(times)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child


def end(child):
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"the child ended with status {os.waitstatus_to_exitcode(status)}")
"""

_MULTIPROCESSING = (
    _HEAD
    + """
if __name__ == "__main__":
    import multiprocessing

    compile_and_check(2)
    context = multiprocessing.get_context("METHOD")
    child = context.Process(target=compile_and_check, args=(3,))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
)

_TORCH_SPAWN = (
    _HEAD
    + """
def rank(number):
    compile_and_check(number + 2)


if __name__ == "__main__":
    import torch.multiprocessing

    torch.multiprocessing.spawn(rank, nprocs=2)
"""
)

_DAEMON = (
    _HEAD
    + """
read, write = os.pipe()
if os.fork():
    os.close(write)
    sys.exit(os.read(read, 2) != b"ok")  # the daemon's word, or the end of the pipe
os.setsid()
if os.fork():
    os._exit(0)
os.chdir("/")
os.umask(0)
os.dup2(write, 100)
for descriptor in range(100):
    try:
        os.close(descriptor)
    except OSError:
        pass
compile_and_check()
os.write(100, b"ok")
os._exit(0)
"""
)

_INTERRUPTED = (
    _HEAD
    + """
import signal, threading

# Dynamo is imported, so that it is the compile that is interrupted.
import torch._dynamo
timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
try:
    compile_and_check(5)
except KeyboardInterrupt:
    witness.note("interrupted", True)
timer.join()
torch._dynamo.reset()
compile_and_check(3)
"""
)

_BARE_ENVIRONMENT = (
    _HEAD
    + """
import subprocess

if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, __file__, "child"], env={"PATH": os.environ["PATH"]}))
import fxpool

# Its home is that of the user database, which is not the row's.
fxpool.configure(cache_dir="{home}/cache", runtime_dir="{tmp}/run", idle_timeout=1)
compile_and_check()
"""
)

_PLAIN_END = _HEAD + "compile_and_check()\n"

ROWS = [
    Row(name="plain script", fresh=True),
    Row(name="plain script, tool chain known"),
    Row(name="import fxpool first", program=PLAIN.replace("import torch\n", "import fxpool\nimport torch\n", 1)),
    Row(name="import fxpool last", program=PLAIN.replace("import torch\n", "import torch\nimport fxpool\n", 1)),
    Row(name="four threads compile first at once", program=_THREADS),
    Row(
        name="four threads, fxpool imported first",
        program=_THREADS.replace("import os, sys, torch", "import fxpool, os, sys, torch"),
    ),
    Row(name="ThreadPoolExecutor", program=_EXECUTOR),
    Row(
        name="fork after a compile",
        program=_HEAD + _FORK + "compile_and_check(2)\nend(in_child(3))\ncompile_and_check(4)\n",
        expected=Expected(processes=2, again_processes=2),
    ),
    Row(
        name="fork before a compile",
        program=_HEAD + _FORK + "child = in_child(3)\ncompile_and_check(2)\nend(child)\n",
        expected=Expected(processes=2, again_processes=2),
    ),
    Row(
        name="two forks of one graph",
        program=_HEAD + _FORK + "children = [in_child(3), in_child(3)]\n[end(child) for child in children]\n",
        expected=Expected(processes=2, again_processes=2),
    ),
    *(
        Row(
            name=f"multiprocessing {method}",
            program=_MULTIPROCESSING.replace("METHOD", method),
            expected=Expected(processes=2, again_processes=2),
        )
        for method in ("spawn", "fork", "forkserver")
    ),
    Row(name="torch.multiprocessing", program=_TORCH_SPAWN, expected=Expected(processes=2, again_processes=2)),
    Row(name="daemon: double fork, setsid, closed fds", program=_DAEMON),
    Row(
        name="asyncio",
        program=_HEAD
        + """
import asyncio


async def main():
    await asyncio.get_running_loop().run_in_executor(None, compile_and_check, 2)
    compile_and_check(3)


asyncio.run(main())
""",
    ),
    Row(
        name="sys.exit inside",
        program=_PLAIN_END + "sys.exit(3)\n",
        expected=Expected(status=3, again_status=3),
    ),
    Row(
        name="os._exit after a compile",
        program=_PLAIN_END + "os._exit(4)\n",
        expected=Expected(status=4, again_status=4),
    ),
    Row(
        name="SIGINT while compiling",
        program=_INTERRUPTED,
        again=_HEAD + "compile_and_check(3)\n",
        also=lambda site, run: (
            "" if any(record.notes.get("interrupted") for record in run.records) else "the compile was not interrupted"
        ),
    ),
    Row(
        name="SIGTERM while compiling",
        program=_HEAD
        + "import signal, threading, torch._dynamo\n"
        + "threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGTERM)).start()\ncompile_and_check(5)\n"
        + "import time\ntime.sleep(60)\n",
        again=_PLAIN_END,
        expected=Expected(status=-signal.SIGTERM, processes=0, cache=False),
    ),
    Row(
        name="SIGCHLD ignored",
        program=_HEAD + "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\ncompile_and_check()\n",
    ),
    Row(
        name="SIGPIPE default",
        program=_HEAD + "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\ncompile_and_check()\n",
    ),
    Row(
        name="SIGCHLD with a handler that reaps",
        program=_HEAD
        + """
import signal


def reap(number, frame):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


signal.signal(signal.SIGCHLD, reap)
compile_and_check()
""",
    ),
    Row(
        name="working directory removed",
        # Dynamo asks where it is when it is imported, and fails where that is nowhere.
        program=_HEAD
        + "import torch._dynamo\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\ncompile_and_check()\n",
    ),
    # Without that g++ does not find its own parts, and stock Inductor fails as well.
    Row(name="subprocess with nothing but PATH", program=_BARE_ENVIRONMENT),
]
