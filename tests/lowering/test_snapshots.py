"""`fxpool.quiesce`: what a process holds afterwards, and how it goes on: from a checkpoint, on another machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import HERE, run_python
from remote_servers import free_port, redis_server
from tiers import first_tier

from fxpool.commands.main import main
from fxpool.pool.client import hosts

CHILD = HERE / "snapshot_child.py"


def _result(program: str, /, **settings: str) -> Any:
    printed = run_python(["-c", program], **settings)
    return json.loads(printed.strip().splitlines()[-1])


# ------------------------------------------------------------------------------------------------ afterwards

WITHOUT_TORCH = """
import json, sys, fxpool
reports = [fxpool.quiesce(), fxpool.quiesce(0, stop_server=True)]
print(json.dumps([reports, "torch" in sys.modules]))
"""


def test_a_process_that_compiled_nothing_has_nothing_to_end() -> None:
    (first, second), imported = _result(WITHOUT_TORCH)
    assert first == second and first["clean"] and not imported
    assert first["others"] == {"threads": [], "children": [], "descriptors": []}


WHAT_IS_LEFT = """
import json
from snapshot_child import Program, held
program = Program()
program.step(program.model)  # eager: torch's own threads
before = held()
import fxpool
shown = fxpool.progress("progress.log")
call = program.compiled()
program.step(call)
program.adds(0.5)
program.adds(0.5)
program.adds(7.5, mode="async+subprocess")
product = fxpool.once("a product of another JIT", lambda path: open(path + "/kernel", "w").close())
busy = held()
report = fxpool.quiesce(100)
after = held()
states = [row["state"] for row in fxpool.wait(0)]
again = fxpool.quiesce()
program.adds(1.5)
program.step(call)
stats = fxpool.stats()
last = fxpool.quiesce()
lines = len(open("progress.log").readlines())
print(json.dumps([before, busy, after, held(), [report, again, last], states, stats["compiles"], stats["remote"],
                  stats["fallbacks"], stats["hits"], lines]))
"""


@pytest.mark.parametrize("pool", first_tier(["host", "embedded"], "host"))
@pytest.mark.timeout(280)
def test_nothing_is_left_of_a_process_that_compiled_hit_and_trained(pool: str, cache: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    main(["cache", "key", str(key)], standalone_mode=False)
    with redis_server(tmp_path) as address:
        settings = {"FXPOOL_REMOTE_CACHE": address, "FXPOOL_REMOTE_KEY_FILE": str(key), "FXPOOL_POOL": pool}
        program = WHAT_IS_LEFT.replace("progress.log", str(tmp_path / "progress.log"))
        before, busy, after, last, reports, states, compiles, remote, fallbacks, hits, lines = _result(
            program, **settings
        )
    extra = set(busy["descriptors"].values()) - set(before["descriptors"].values())
    assert any(f"{cache}/directories/" in target for target in extra), "held for the process"
    assert "fxpool-client" in busy["threads"] and any(target.startswith("socket:") for target in extra)
    for report, state in ((reports[0], after), (reports[2], last)):
        assert report["clean"] and report["pending"] == [] and report["uploads_left"] == 0, report
        assert not any(report["remaining"].values())
        for name in ("descriptors", "threads", "tasks", "children"):
            assert state[name] == before[name], (name, before, state)
        assert report["mapped"] and all(path.startswith(os.path.realpath(cache)) for path in report["mapped"])
    assert states == ["ready"] and hits == 1
    assert compiles == {"worker": 4, "in_process": 0} and fallbacks == {} and remote["writes"], (compiles, fallbacks)
    assert lines >= 8, "the display goes on after the first quiesce"


WITHDRAWN = """
import json, sys, time, fxpool, torch
from snapshot_child import Program, held
program = Program()
program.adds(7.5, mode="async+subprocess")
report = fxpool.quiesce(0)
after = held()
program.adds(3.5)
program.adds(8.5, mode="async+subprocess")
later = [row["state"] for row in fxpool.wait(200)]
print(json.dumps([report, after, later, fxpool.stats()["compiles"], fxpool.stats()["fallbacks"]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_background_compile_is_withdrawn_after_the_timeout(cache: Path) -> None:
    report, after, later, compiles, fallbacks = _result(WITHDRAWN)
    assert report["clean"] and len(report["pending"]) == 1, report
    assert after["threads"] == ["MainThread"] and not after["children"]
    assert "ready" in later and compiles == {"worker": 2, "in_process": 0} and fallbacks == {}


AWAY = """
import json, os, subprocess, sys, time, fxpool
from snapshot_child import Program, held
program = Program()
program.adds(0.5)
report = fxpool.quiesce(20)
command = json.loads(sys.argv[1])
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
while "ccept connections" not in server.stdout.readline():
    pass
program.adds(1.5)
fxpool.wait(60)
writes = fxpool.stats()["remote"]["writes"]
last = fxpool.quiesce()
server.terminate()
server.communicate()
print(json.dumps([report, writes, last["clean"], last["others"]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_what_an_unreachable_remote_did_not_take_is_uploaded_later(cache: Path, tmp_path: Path) -> None:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("no redis-server (as root: apt-get install redis-server)")
    key, port = tmp_path / "key", free_port()
    main(["cache", "key", str(key)], standalone_mode=False)
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    settings = {"FXPOOL_REMOTE_CACHE": f"redis://127.0.0.1:{port}/0", "FXPOOL_REMOTE_KEY_FILE": str(key)}
    printed = run_python(["-c", AWAY, json.dumps(command)], **settings)
    report, writes, clean, others = json.loads(printed.strip().splitlines()[-1])
    assert report["clean"] and report["uploads_left"] == 1, report
    assert writes == 2 and clean
    assert len(others["children"]) == 1 and str(port) in others["children"][0], "the program's own"


CHILD_OF_A_BUSY_PROCESS = """
import json, os, fxpool
from snapshot_child import Program, held
program = Program()
program.adds(0.5)

def connection():
    state = held()
    sockets = [target for target in state["descriptors"].values() if target.startswith("socket:")]
    return sockets, [name for name in state["threads"] if name == "fxpool-client"]

busy = connection()
pid = os.fork()
if not pid:
    os._exit(0 if fxpool.quiesce()["clean"] else 1)
status = os.waitpid(pid, 0)[1]
still = connection()
program.adds(1.5)
print(json.dumps([status, busy, still, fxpool.stats()["compiles"], fxpool.quiesce()["clean"]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_child_that_is_quiesced_leaves_its_parent_alone(cache: Path) -> None:
    status, busy, still, compiles, clean = _result(CHILD_OF_A_BUSY_PROCESS)
    assert status == 0 and len(busy[0]) == len(busy[1]) == 1 and still == busy
    assert compiles == {"worker": 2, "in_process": 0} and clean


ADOPTS = """
import ctypes, json, fxpool
from snapshot_child import Program, held
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: like the first process of a container
program = Program()
program.adds(0.5)
busy = held()
report = fxpool.quiesce()
after = held()
program.adds(1.5)
kept = fxpool.stats()["compiles"]
print(json.dumps([busy, report, after, kept, fxpool.quiesce()["servers_ended"]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_server_in_the_tree_of_the_process_ends(cache: Path, tmp_path: Path) -> None:
    busy, report, after, compiles, ended = _result(ADOPTS)
    assert busy["children"] and report["servers_ended"] == [int(pid) for pid in busy["children"]]
    assert report["clean"] and after["children"] == []
    assert compiles == {"worker": 2, "in_process": 0} and len(ended) == 1
    assert not hosts.links(tmp_path / "r")


# ------------------------------------------------------------------------------------------------ how it goes on


@contextlib.contextmanager
def _program(directory: Path, rounds: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program of snapshot_child.py, in its own session and without descriptors of the test's."""
    directory.mkdir(exist_ok=True)
    with open(directory / "output", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), str(directory), str(rounds)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=directory,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # a restored process has its number, but another parent
            restored = psutil.Process(process.pid)
            if str(directory) in restored.cmdline():
                restored.kill()
        process.wait(30)
        _end_servers(Path(os.environ["FXPOOL_RUNTIME_DIR"]))


def _end_servers(runtime: Path) -> None:
    for link in hosts.links(runtime):
        hosts.end(link)


def _lose(runtime: Path) -> None:
    """End servers and remove their directory, in which one that is ending may still write."""
    _end_servers(runtime)
    while runtime.exists():
        shutil.rmtree(runtime, ignore_errors=True)


def _read(directory: Path, name: str, seconds: float = 200) -> Any:
    """Return the content of a file that the program writes."""
    end = time.monotonic() + seconds
    while not (directory / name).exists():
        if time.monotonic() > end:
            pytest.fail(f"no {name}:\n{(directory / 'output').read_text()[-4000:]}")
        time.sleep(0.05)
    return json.loads((directory / name).read_text())


def _check_round(directory: Path, number: int) -> float:
    (directory / f"go-{number}").touch()
    done = _read(directory, f"done-{number}")
    assert (done["hits"], done["workers"], done["in_process"]) == (1, 1, 0), done
    assert done["fallbacks"] == done["switched_off"] == {}, done
    return float(done["loss"])


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_stopped_process_goes_on_without_its_server_and_directories(cache: Path, tmp_path: Path) -> None:
    """All but the process is gone: what a checkpoint is restored to on another machine, as far as this shows it."""
    directory = tmp_path / "p"
    with _program(directory, 3) as process:
        assert _read(directory, "ready-1")["clean"]
        process.send_signal(signal.SIGSTOP)
        _lose(tmp_path / "r")
        shutil.rmtree(tmp_path / "t")
        (tmp_path / "t").mkdir(mode=0o700)
        process.send_signal(signal.SIGCONT)
        losses = [_check_round(directory, 1)]
        # The cache is gone as well: the graph of the hits is compiled again, and loaded graphs work on.
        assert _read(directory, "ready-2")["clean"]
        process.send_signal(signal.SIGSTOP)
        cache.rename(tmp_path / "c-before")
        process.send_signal(signal.SIGCONT)
        (directory / "go-2").touch()
        done = _read(directory, "done-2")
        assert (done["hits"], done["workers"], done["in_process"]) == (0, 2, 0), done
        losses.append(done["loss"])
        assert _read(directory, "ready-3")["clean"]
        shutil.rmtree(cache)
        (tmp_path / "c-before").rename(cache)
        losses.append(_check_round(directory, 3))
        assert losses == sorted(losses, reverse=True) and process.wait(60) == 0


TEMPLATE = """
import json, os, sys, fxpool
from snapshot_child import Program, held
rounds = int(sys.argv[1])
program = Program()
call = program.compiled()
program.step(call)
program.adds(0.5)
report = fxpool.quiesce()
counts = []
for number in range(rounds):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        before = fxpool.stats()
        program.step(call)
        program.adds(0.5)
        program.adds(number + 1)
        after = fxpool.stats()
        counted = [after["hits"] - before["hits"], after["compiles"]["worker"] - before["compiles"]["worker"],
                   after["compiles"]["in_process"], fxpool.quiesce()["clean"]]
        os.write(writing, json.dumps(counted).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        counts.append(json.loads(file.read()))
    os.waitpid(pid, 0)
print(json.dumps([report["clean"], counts, held()["threads"], sorted(set(fxpool.stats()["host"]["compiles"].items()))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [20])
@pytest.mark.timeout(280)
def test_children_of_a_quiesced_template_compile_and_hit(rounds: int, cache: Path) -> None:
    printed = run_python(["-c", TEMPLATE, str(rounds)])
    clean, counts, threads, host = json.loads(printed.strip().splitlines()[-1])
    assert clean and threads == ["MainThread"]
    assert counts == [[1, 1, 0, True]] * rounds
    assert dict(host)["worker"] == 2 + rounds, "each process has added its counts"


# ------------------------------------------------------------------------------------------------ another machine

OTHER_MACHINE = """
import json, os, re, subprocess, sys, fxpool
from snapshot_child import Program
from fxpool.codecache.key import system_facts

def cover(path, text):
    with open(os.environ["COVER"] + os.path.basename(path), "w") as file:
        file.write(text)
    subprocess.run(["mount", "--bind", file.name, path], check=True)

def counted():
    stats = fxpool.stats()
    return [stats["hits"], stats["compiles"]["worker"], stats["graphs"][-1]["key"]]

def fresh():
    code = "import json, fxpool; from snapshot_child import Program; Program().adds(0.5); s = fxpool.stats();"
    code += "print(json.dumps([s['hits'], s['graphs'][-1]['key']]))"
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)

program = Program()
program.adds(0.5)
before = counted()
flags = system_facts.cpu_extensions()
if sys.argv[1] == "quiesced":
    fxpool.quiesce(stop_server=True)
else:
    cover(system_facts.BOOT_ID, "00000000-0000-0000-0000-000000000000\\n")
    subprocess.run([sys.executable, "-m", "fxpool", "stop"], check=True, capture_output=True)
cpuinfo = open("/proc/cpuinfo").read()
cover("/proc/cpuinfo", re.sub(rf" {flags[-1]}\\b", "", cpuinfo))
fewer = system_facts.cpu_extensions()
program.adds(0.5)
print(json.dumps([flags, fewer, before, counted(), fresh()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["quiesced", "restored"])
@pytest.mark.timeout(280)
def test_the_facts_of_another_processor_are_read_after_a_restore(way: str, cache: Path, tmp_path: Path) -> None:
    """/proc/cpuinfo is covered by that of a processor without one extension, in the program's mount namespace."""
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace may be made here (root may)")
    program = tmp_path / "program.py"
    program.write_text(OTHER_MACHINE)
    done = subprocess.run(
        [*unshare, sys.executable, str(program), way], capture_output=True, text=True, check=False, timeout=250,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
             "COVER": str(tmp_path / "cover-")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    flags, fewer, before, after, (hits, key) = json.loads(done.stdout.strip().splitlines()[-1])
    assert fewer == flags[:-1], "the processor is another one"
    assert before[:2] == [0, 1] and after[:2] == [0, 2], "the other processor's code was not served"
    assert before[2] != after[2]
    assert (hits, key) == (1, after[2]), "the entry belongs to the machine that compiled it"


# ------------------------------------------------------------------------------------------------ CRIU


def _criu() -> str:
    """The program `criu` (or the one that CRIU names); skips the test where it or the kernel refuses."""
    program = os.environ.get("CRIU") or shutil.which("criu") or "/usr/sbin/criu"
    if os.geteuid() != 0:
        pytest.skip("CRIU needs root")
    if not os.path.exists(program):
        pytest.skip("no criu (as root: apt-get install criu)")
    check = subprocess.run([program, "check"], capture_output=True, text=True, check=False)
    if check.returncode:
        said = [line for line in (check.stdout + check.stderr).splitlines() if "Error" in line]
        pytest.skip(f"`criu check`: {said[0] if said else check.returncode}")
    return program


def _call_criu(program: str, action: str, images: Path, *arguments: str) -> None:
    done = subprocess.run(
        [program, action, "--images-dir", str(images), "--log-file", f"{action}.log", "-v3", *arguments],
        capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    log = images / f"{action}.log"
    errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line] if log.exists() else []
    assert done.returncode == 0, "\n".join([done.stdout + done.stderr, *errors[-10:]])


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until the dump has killed a program, and its number is free. A restored program is init's child."""
    process.wait(30)
    end = time.monotonic() + 30
    while psutil.pid_exists(process.pid):
        assert time.monotonic() < end, psutil.Process(process.pid).status()
        time.sleep(0.02)


@pytest.mark.parametrize("rounds", first_tier([1, 20], 1))
@pytest.mark.timeout(400)
def test_criu_dumps_and_restores_a_program(rounds: int, cache: Path, tmp_path: Path) -> None:
    """Each second time on a host without its server, runtime directory and temporary files."""
    program, directory = _criu(), tmp_path / "p"
    losses = []
    with _program(directory, rounds) as process:
        for number in range(1, rounds + 1):
            assert _read(directory, f"ready-{number}")["clean"]
            images = tmp_path / f"images-{number}"
            images.mkdir()
            _call_criu(program, "dump", images, "--tree", str(process.pid))
            _wait_for_end(process)
            if number % 2 == 1:
                _lose(tmp_path / "r")
            _call_criu(program, "restore", images, "--restore-detached")
            losses.append(_check_round(directory, number))
            shutil.rmtree(images)
    assert losses == sorted(losses, reverse=True), "the training went on where it was"
