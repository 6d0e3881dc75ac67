"""Jobs that go through the phases of a compile and crash on the way, and processes that ask for them and crash, too.

Workers import this module by `sys_path`; as a program it is a client that does what it is told, one line each:

    python -m pool_crashes client '{"workers": 2, ...}'   settings of its PoolConfig
    {"submit": {...}}                                  arguments of `PoolClient.submit`; "payload" is text
    {"result": 0}                                      of which of its jobs
    {"server": 0}                                      the pid of its server, or null
    {"die": "segfault"}                                see `crash`

and `many` and `chaos`: see `Client` and `Chaos`.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fxpool.errors import ServerLostError
from fxpool.pool import Job, JobSpec, PoolClient, PoolConfig, current_job
from fxpool.pool.client import hosts

__all__ = ["KINDS", "RETRIES", "Asker", "Chaos", "Client", "Plan", "Sour", "compile_like", "crash", "kernel", "small"]

#: How a process can end a job, or be of no use to it.
KINDS = ("exit", "os._exit", "segfault", "kill", "abort", "hang", "memory", "unpicklable", "unpickling")


class _Leave(Exception):
    """Return `value` from the job's function, from wherever that is now."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Sour(Exception):
    """Can be pickled, and unpickled where that was done; anywhere else its rebuilding asks for the process's end."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.args[0], os.getpid())


def _rebuild(text: str, pid: int) -> Sour:
    if os.getpid() != pid:
        sys.exit("unpickled elsewhere")
    return Sour(text)


def crash(kind: str) -> NoReturn:
    if kind == "exit":
        sys.exit(3)
    elif kind == "os._exit":
        os._exit(4)
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "abort":
        os.abort()
    elif kind == "hang":
        time.sleep(600)
    elif kind == "memory":
        held = []
        while True:
            held.append(bytearray(b"x" * (16 << 20)))
            time.sleep(0.03)
    elif kind == "unpicklable":
        raise _Leave(threading.Lock())
    elif kind == "unpickling":
        raise Sour("sour")
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    raise AssertionError(f"{kind!r} did not end this process")


# ---------------------------------------------------------------- jobs


@dataclass
class Plan:
    """What a job does at a place (`when`, and of kernels `where`): crash by `kind`, or, without one, wait for `go`.

    It waits when it comes there first. Each time it comes there is a line in `directory`/came.
    """

    directory: str
    text: str
    when: str = ""
    where: str = "sub-job"
    kind: str = ""
    number: int = 0

    @property
    def came(self) -> int:
        """How often the job came to its place."""
        try:
            return len((pathlib.Path(self.directory) / "came").read_text().splitlines())
        except OSError:
            return 0

    @property
    def published(self) -> str:
        try:
            return (pathlib.Path(self.directory) / "published").read_text()
        except OSError:
            return ""

    def go(self) -> None:
        (pathlib.Path(self.directory) / "go").touch()

    def dump(self, **changed: Any) -> bytes:
        return json.dumps({**self.__dict__, **changed}).encode()

    @property
    def result(self) -> bytes:
        return f"{self.text}: 0+1".encode()


def _come(plan: Plan, when: str, where: str = "") -> None:
    if plan.when != when or (where and plan.where != where):
        return
    before = plan.came
    with open(pathlib.Path(plan.directory) / "came", "a") as file:
        file.write(f"{when} {os.getpid()}\n")
    if plan.kind:
        crash(plan.kind)
    while not before and not (pathlib.Path(plan.directory) / "go").exists():
        time.sleep(0.005)


def compile_like(data: bytes) -> Any:
    plan = Plan(**json.loads(data))
    try:
        return _compile(plan, data)
    except _Leave as leave:
        return leave.value


def _compile(plan: Plan, data: bytes) -> bytes:
    job = current_job()
    assert job is not None
    job.phase("lowering")
    _come(plan, "lowering")
    job.phase("kernels")
    if plan.where == "parent":
        # In the main thread, while that waits.
        mark = pathlib.Path(plan.directory) / "kernel"
        mark.unlink(missing_ok=True)
        signal.signal(signal.SIGALRM, lambda *_: _come(plan, "kernels", "parent"))
        threading.Thread(target=_interrupt_when, args=(mark,), daemon=True).start()
    kernels = [
        job.submit("pool_crashes:kernel", plan.dump(number=n), label=f"kernel {n} of {plan.text}") for n in range(2)
    ]
    parts = [kernel.result() for kernel in kernels]
    job.phase("publishing")
    published = pathlib.Path(plan.directory) / "published"
    mine = published.with_name(f"being-published-{os.getpid()}")
    with open(mine, "w") as file:
        file.write(plan.text[:1])
        file.flush()
        _come(plan, "publishing")
        file.write(plan.text[1:])
    mine.replace(published)
    return f"{plan.text}: ".encode() + b"+".join(parts)


def _interrupt_when(mark: pathlib.Path) -> None:
    while not mark.exists():
        time.sleep(0.005)
    time.sleep(0.05)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGALRM)


def kernel(data: bytes) -> Any:
    plan = Plan(**json.loads(data))
    job = current_job()
    assert job is not None
    job.phase("compiler")
    try:
        if plan.number == 0:
            _come(plan, "kernels", "sub-job")
        if plan.where == "parent" and plan.number == 0:  # it is interrupted while it waits for this
            (pathlib.Path(plan.directory) / "kernel").touch()
            time.sleep(600)
        return str(plan.number).encode()
    except _Leave as leave:
        return leave.value


def neighbour(data: bytes) -> bytes:
    """Runs until it is told to end, every time."""
    plan = Plan(**json.loads(data))
    job = current_job()
    assert job is not None
    job.phase("lowering")
    with open(pathlib.Path(plan.directory) / "came", "a") as file:
        file.write(f"{os.getpid()}\n")
    while not (pathlib.Path(plan.directory) / "go").exists():
        time.sleep(0.005)
    return plan.result


# ---------------------------------------------------------------- many jobs, and what kills their workers


def small(data: bytes) -> bytes:
    """One of the many: sleeps, computes, or has parts of it done by sub-jobs. Leaves a line when it is through."""
    job = current_job()
    assert job is not None
    plan = json.loads(data)
    if plan["kind"] == "sleeps":
        time.sleep(plan["seconds"])
    elif plan["kind"] == "computes":
        end = time.process_time() + plan["seconds"]
        while time.process_time() < end:
            sum(range(1000))
    else:
        parts = [
            job.submit("pool_crashes:small", json.dumps({**plan, "kind": kind}).encode(), label="part", retries=9)
            for kind in ("sleeps", "computes")
        ]
        for part in parts:
            assert json.loads(part.result())["number"] == plan["number"]
    token = os.urandom(8).hex()
    return json.dumps({"number": plan["number"], "token": token, "pid": os.getpid()}).encode()


class Client:
    """Asks for its share of the many jobs from several threads; what it got is in lines of a file."""

    def __init__(self, config: dict[str, Any], plans: list[dict[str, Any]], results: str) -> None:
        self.client = PoolClient(PoolConfig(**config))
        self.plans, self.results = list(reversed(plans)), results
        self.lock = threading.Lock()

    def run(self, threads: int) -> None:
        them = [threading.Thread(target=self._ask) for _ in range(threads)]
        for one in them:
            one.start()
        for one in them:
            one.join()
        self.client.close()

    def _ask(self) -> None:
        while True:
            with self.lock:
                some = [self.plans.pop() for _ in range(min(4, len(self.plans)))]
            if not some:
                return
            self._see_through([(plan, self._submit(plan)) for plan in some])

    def _submit(self, plan: dict[str, Any]) -> Job:
        job = self.client.submit(
            "pool_crashes:small", json.dumps(plan).encode(), JobSpec(label=f"job {plan['number']}", retries=RETRIES)
        )
        job.add_done_callback(self._done)
        return job

    def _done(self, job: Job) -> None:
        self._write({"over": job.label})

    def _see_through(self, asked: list[tuple[dict[str, Any], Job]]) -> None:
        for plan, job in asked:
            lost = 0
            while True:
                try:
                    self._write({**json.loads(job.result(timeout=120)), "attempts": job.attempts, "lost": lost})
                    break
                except ServerLostError:
                    lost += 1
                    job = self._submit(plan)
                except Exception as error:
                    self._write({"number": plan["number"], "error": repr(error), "lost": lost})
                    break

    def _write(self, found: dict[str, Any]) -> None:
        with self.lock, open(self.results, "a") as file:
            file.write(json.dumps(found) + "\n")


#: A job of the many is not killed more often than this.
RETRIES = 5


class Chaos:
    """Kills workers as jobs get done: one for every three; at fractions of all jobs, a zygote or a server."""

    def __init__(self, runtime: str, results: str, jobs: int, seed: int, also: list[tuple[float, str]]) -> None:
        self.runtime, self.results, self.jobs = pathlib.Path(runtime), pathlib.Path(results), jobs
        self.random = random.Random(seed)
        self.also = sorted(((share, who) for share, who in also), reverse=True)
        self.killed = {"worker": 0, "zygote": 0, "server": 0}

    def run(self) -> None:
        while (done := self._done()) < self.jobs:
            time.sleep(self.random.uniform(0.01, 0.03))
            for link in hosts.links(self.runtime):
                facts = hosts.status(link)
                if facts["state"] == "running":
                    self._strike(facts, done)
        print(json.dumps(self.killed))

    def _done(self) -> int:
        try:
            return sum('"number"' in line for line in self.results.read_text().splitlines())
        except OSError:
            return 0

    def _strike(self, facts: dict[str, Any], done: int) -> None:
        workers = [one for one in facts["running"] if one["attempt"] <= RETRIES and one["pid"]]
        if self.also and done >= self.also[-1][0] * self.jobs and workers and facts["zygote"]["state"] == "ready":
            _, who = self.also.pop()
            self._kill(who, facts["zygote"]["pid"] if who == "zygote" else facts["server_pid"], signal.SIGKILL)
        elif workers and self.killed["worker"] < (done + 6) / 3:
            how = self.random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
            self._kill("worker", self.random.choice(workers)["pid"], how)

    def _kill(self, who: str, pid: int, how: int) -> None:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return
        self.killed[who] += 1


# ---------------------------------------------------------------- clients


@dataclass
class Asker:
    """A client in a process of its own."""

    config: dict[str, Any]
    environment: dict[str, str]
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pool_crashes", "client", json.dumps(self.config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parent,
            env={**os.environ, **self.environment},
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def ask(self, **order: Any) -> Any:
        self.tell(**order)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended: {self.process.wait()}"
        return json.loads(line)

    def submit(self, function: str, payload: bytes, **settings: Any) -> int:
        """The number of the job."""
        number = self.ask(submit={"function": function, "payload": payload.decode(), **settings})
        assert isinstance(number, int)
        return number

    def result(self, job: int) -> dict[str, Any]:
        found = self.ask(result=job)
        assert isinstance(found, dict)
        return found

    def end(self) -> int:
        """Kill it; its exit status."""
        self.process.kill()
        self.process.communicate()
        return self.process.returncode


def _serve(config: dict[str, Any]) -> None:
    client = PoolClient(PoolConfig(**config))
    jobs = []
    for line in sys.stdin:
        ((order, argument),) = json.loads(line).items()
        if order == "submit":
            function, payload = argument.pop("function"), argument.pop("payload").encode()
            jobs.append(client.submit(function, payload, JobSpec(**argument)))
            answer: Any = len(jobs) - 1
        elif order == "result":
            job = jobs[argument]
            try:
                answer = {"result": job.result(timeout=50).decode(), "attempts": job.attempts, "joined": job.joined}
            except Exception as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            answer["server"] = client.server_pid
        elif order == "server":
            answer = client.server_pid
        else:
            crash(argument)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    arguments = [json.loads(word) for word in sys.argv[2:]]
    if sys.argv[1] == "many":
        Client(*arguments[:-1]).run(arguments[-1])
    elif sys.argv[1] == "chaos":
        Chaos(*arguments).run()
    else:
        _serve(*arguments)
