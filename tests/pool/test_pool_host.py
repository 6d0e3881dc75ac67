"""One server for all clients of a host: found or started, replaced when it is of no use, gone when nobody needs it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_place import HERE, Place, until

from fxpool.errors import JobCancelledError, ProtocolError
from fxpool.installed_packages import PACKAGES, Package
from fxpool.pool import JobSpec, PoolClient, PoolConfig
from fxpool.pool.client import hosts, identity, pausing
from fxpool.pool.host import runtime_dir

Make = Callable[..., PoolClient]


@pytest.fixture
def join(make_client: Make, place: Place) -> Iterator[Make]:
    """Clients of the host's server; it is gone after the test."""

    def make(**settings: Any) -> PoolClient:
        return make_client(**{"host": "env", "idle_timeout": 60.0, **settings})

    yield make
    for process in place.processes():
        with contextlib.suppress(psutil.Error):
            if process.name() == "fxpool server":
                process.send_signal(signal.SIGCONT)
                process.terminate()
    assert until(lambda: not place.processes())
    (place.runtime / "host.lock").unlink(missing_ok=True)  # empty, and left for the next that starts a server


def pid_of(client: PoolClient) -> int:
    client.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result(timeout=60)
    assert client.server_pid is not None
    return client.server_pid


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def link(place: Place) -> Path:
    return place.runtime / "host-env.socket"


def test_clients_share_it(join: Make) -> None:
    one, two = join(), join()
    assert pid_of(one) == pid_of(two)
    status = two.status()
    assert status["shared"] is True
    assert status["clients"] == [os.getpid(), os.getpid()]
    assert status["counters"]["zygotes"] == 1


def test_a_pool_that_is_closed_while_a_thread_starts_the_server_starts_none(join: Make, place: Place) -> None:
    client, errors = join(), []

    def ask() -> None:
        try:
            client.submit("pool_jobs:echo", b"x", JobSpec(label="echo"))
        except JobCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    with open(place.runtime / "host.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process that starts one: the thread waits for it
        thread.start()
        assert until(lambda: client._lock.locked())
        client.close()
    thread.join()
    assert [str(error) for error in errors] == ["the pool was closed while job 'echo' was submitted"]
    assert not client.started
    assert pid_of(client)  # the next job has a server again


def test_it_is_found_where_the_name_of_the_link_is_too_long_for_a_socket(join: Make, place: Place) -> None:
    # As long as a private directory's may be; that of the link is longer.
    longest = 107 - len("/pool-12345678/socket")
    runtime = place.runtime / ("x" * (longest - len(str(place.runtime)) - 1))
    runtime.mkdir(0o700)
    try:
        one, two = (join(host="e" * 32, runtime_dir=str(runtime)) for _ in range(2))
        assert pid_of(one) == pid_of(two)
        (found,) = hosts.links(runtime)
        assert hosts.status(found)["state"] == "running"
        assert hosts.stop(found)
        one.close()
        two.close()
        assert until(lambda: not list(runtime.glob("pool-*")))
    finally:
        shutil.rmtree(runtime)


def test_another_environment_has_another(join: Make) -> None:
    assert pid_of(join()) != pid_of(join(host="other"))


def test_it_outlives_its_starter(join: Make, place: Place) -> None:
    starter = join()
    pid = pid_of(starter)
    starter.close()
    assert pid_of(join()) == pid
    assert psutil.Process(pid).ppid() != os.getpid()  # nobody's child, so nobody's zombie


def test_those_who_start_it_at_once_get_one(place: Place, join: Make) -> None:
    config = {"environment": place.environment, "sys_path": (str(HERE),), "runtime_dir": str(place.runtime)}
    program = f"""
        import sys
        from fxpool.pool import JobSpec, PoolClient, PoolConfig
        client = PoolClient(PoolConfig(host="env", workers=2, **{config!r}))
        sys.stdin.readline()
        job = client.submit("pool_jobs:worker_pid_slowly", b"", JobSpec(label="same", dedup_key="f"))
        print(client.server_pid or job.result() and client.server_pid, job.result().decode(), flush=True)
        sys.stdin.readline()
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **place.environment},
        )
        for _ in range(6)
    ]  # fmt: skip
    try:
        time.sleep(1.0)  # their imports
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        lines = [child.stdout.readline().split() for child in children if child.stdout is not None]
        assert len({server for server, _ in lines}) == 1
        assert len({worker for _, worker in lines}) == 1, "the job ran more than once"
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_a_stale_link_is_replaced(join: Make, place: Place) -> None:
    link(place).symlink_to("pool-gone/socket")
    first = pid_of(join())
    os.kill(first, signal.SIGKILL)
    assert until(lambda: ended(first))
    assert pid_of(join()) != first


def test_a_server_that_hangs_is_replaced(join: Make, place: Place) -> None:
    hanging = join()
    first = pid_of(hanging)
    os.kill(first, signal.SIGSTOP)
    second = join()
    assert pid_of(second) != first
    os.kill(first, signal.SIGCONT)
    hanging.close()
    assert until(lambda: ended(first), 30.0), "it did not see that another took its place"
    assert pid_of(join()) == second.server_pid


@pytest.mark.slow
def test_a_server_that_hangs_for_ever_is_killed_by_its_successor(join: Make, place: Place) -> None:
    """Also when that has nothing else to do any more; the zygote and the directory go with it."""
    hanging = join()
    first = pid_of(hanging)
    directory = (place.runtime / os.readlink(link(place))).parent
    zygote = hanging.status()["zygote"]["pid"]
    os.kill(first, signal.SIGSTOP)
    successor = join(idle_timeout=0.1)
    second = pid_of(successor)
    successor.close()
    assert until(lambda: ended(first) and ended(zygote) and not directory.exists(), 30.0)
    assert until(lambda: ended(second), 30.0)


@pytest.mark.slow
def test_a_server_that_leaves_slowly_is_not_killed(join: Make, place: Place) -> None:
    """It was replaced, has said that it leaves, and a job goes on for longer than who hangs is given."""
    client = join(patience=60.0)  # it does not turn to the successor with its job
    mark = place.mark("mark-long")
    first = pid_of(client)
    job = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="long"))
    assert until(mark.exists)
    os.kill(first, signal.SIGSTOP)
    successor = join()
    assert pid_of(successor) != first
    os.kill(first, signal.SIGCONT)
    time.sleep(11.0)
    assert not ended(first)
    place.mark("mark-long-go").touch()
    assert job.result(timeout=60) == b"the sub-job is done"
    assert until(lambda: ended(first))


def test_the_number_of_another_process_is_not_killed(tmp_path: Path) -> None:
    from fxpool.pool.server import stale_server

    with subprocess.Popen(["sleep", "60"]) as innocent:
        lock = runtime_dir.hold(tmp_path)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(innocent.pid).encode(), 0)
        assert runtime_dir.holder(tmp_path) == innocent.pid
        assert not stale_server._kill(tmp_path)
        assert innocent.poll() is None
        os.close(lock)
        assert runtime_dir.holder(tmp_path) is None
        innocent.kill()


def test_it_leaves_when_it_is_alone(join: Make, place: Place) -> None:
    client = join(idle_timeout=0.5)
    pid = pid_of(client)
    time.sleep(1.0)
    assert not ended(pid)  # somebody is there
    client.close()
    assert until(lambda: ended(pid))
    assert not os.path.lexists(link(place))
    assert until(lambda: not list(place.runtime.glob("pool-*")))


def test_a_client_that_comes_in_time_keeps_it(join: Make) -> None:
    first = join(idle_timeout=2.0)
    pid = pid_of(first)
    first.close()
    second = join(idle_timeout=2.0)
    assert pid_of(second) == pid
    time.sleep(2.5)
    assert pid_of(second) == pid


def test_it_drains_before_it_ends(join: Make, place: Place) -> None:
    client = join()
    mark = place.mark("mark-busy")
    pid = pid_of(client)
    job = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="busy"))
    assert until(mark.exists)
    os.kill(pid, signal.SIGTERM)
    assert until(lambda: not os.path.lexists(link(place)))
    other = join()
    assert pid_of(other) != pid
    place.mark("mark-busy-go").touch()
    assert job.result(timeout=60) == b"the sub-job is done"
    assert until(lambda: ended(pid))


def test_what_a_client_asked_for_ends_with_it(join: Make, place: Place) -> None:
    leaving, staying = join(), join()
    mark = place.mark("mark-alone")
    alone = leaving.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="alone"))
    assert until(mark.exists)
    shared = place.mark("mark-shared")
    theirs = leaving.submit("pool_jobs:wait_for_a_mark", str(shared).encode(), JobSpec(label="shared", dedup_key="f"))
    mine = staying.submit("pool_jobs:wait_for_a_mark", str(shared).encode(), JobSpec(label="shared", dedup_key="f"))
    assert until(shared.exists) and until(lambda: mine.worker_pid is not None)
    leaving.close()
    for job in (alone, theirs):
        with pytest.raises(JobCancelledError):
            job.result(timeout=60)
    assert until(lambda: len(staying.status()["workers"]) == 1)
    place.mark("mark-shared-go").touch()
    assert mine.result(timeout=60) == b"the sub-job is done"


def test_a_client_that_is_killed_leaves_the_others_alone(join: Make, place: Place) -> None:
    client = join()
    pid = pid_of(client)
    config = {"environment": place.environment, "sys_path": (str(HERE),), "runtime_dir": str(place.runtime)}
    program = f"""
        import time
        from fxpool.pool import JobSpec, PoolClient, PoolConfig
        client = PoolClient(PoolConfig(host="env", workers=2, **{config!r}))
        job = client.submit("pool_jobs:sleep", {str(place.mark("mark-killed"))!r}.encode(), JobSpec(label="sleeping"))
        time.sleep(600)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, **place.environment})
    try:
        assert until(place.mark("mark-killed").exists)
    finally:
        child.kill()
        child.wait()
    assert until(lambda: client.status()["workers"] == [])
    assert pid_of(client) == pid


# ---------------------------------------------------------------- whose server is whose


def installed(place: Path) -> None:
    """A distribution `thing` with a package in it, as pip leaves it."""
    (place / "thing").mkdir(parents=True)
    (place / "thing" / "__init__.py").write_text("x = 1\n")
    (place / "thing-1.dist-info").mkdir()
    (place / "thing-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
    (place / "thing-1.dist-info" / "RECORD").write_text("thing/__init__.py,sha256=abc,6\n")
    long_ago = time.time() - 1000
    for path in place.rglob("*"):
        os.utime(path, (long_ago, long_ago))


def test_an_edited_file_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest(environment: dict[str, str] | None = None, preload: tuple[str, ...] = ("a",)) -> str:
        packages = [Package("thing", ("thing",), ("thing",)), Package("none", ("not_there",), ("not there",))]
        return identity.digest(environment or {}, preload, packages)

    first = digest()
    assert digest() == first
    assert digest({"LD_PRELOAD": "x.so"}) != first
    assert digest({"USER": "somebody"}) == first
    assert digest(preload=("b",)) != first
    (tmp_path / "thing" / "__init__.py").write_text("x = 2\n")
    edited = digest()
    assert edited != first
    (tmp_path / "thing" / "__init__.py").write_text("x = 3\n")
    assert digest() not in (first, edited)


@pytest.mark.parametrize(
    ("name", "edited"),
    [
        ("torch", "torch/_inductor/scheduler.py"),
        ("torch", "torch/_dynamo/guards.py"),
        ("triton", "triton/compiler/code_generator.py"),
    ],
)
def test_an_edited_torch_or_triton_has_another_server(
    join: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, edited: str
) -> None:
    """Copies of the builds installed here: an edit of one file is another environment, putting it back is none."""
    copied = copy_of(name, tmp_path)
    if copied is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)  # what is imported is what counts
    packages = [package_of(name)]
    as_installed = identity.digest({}, (), packages)
    assert pid_of(first := join(host=as_installed)) == pid_of(join(host=identity.digest({}, (), packages)))
    path = tmp_path / edited
    before, stamps = path.read_bytes(), path.stat()
    path.write_bytes(before + b"\n# edited\n")
    assert (other := identity.digest({}, (), packages)) != as_installed
    assert pid_of(join(host=other)) != first.server_pid
    path.write_bytes(before)
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert identity.digest({}, (), packages) == as_installed


def package_of(name: str) -> Package:
    return next(package for package in PACKAGES if package.name == name)


def copy_of(name: str, to: Path) -> Path | None:
    """Copy what counts of an installed distribution: its RECORD, and the sources that compile."""
    places = [*sys.path, str(Path(sys.prefix, "triton"))]  # where `make test` puts Triton
    found = next(iter(importlib.metadata.distributions(name=name, path=places)), None)
    if found is None:
        return None
    for root in package_of(name).roots:
        source = Path(str(found.locate_file(root)))
        only = shutil.ignore_patterns("*.so*", "*.pyc", "*.h", "*.a", "bin", "lib", "include", "_C", "backends")
        shutil.copytree(source, to / root, ignore=only, dirs_exist_ok=True)
    record = Path(str(found.locate_file("."))) / f"{name}-{found.version}.dist-info"
    shutil.copytree(record, to / record.name)
    return to


def test_the_environment_of_these_tests_has_a_name() -> None:
    name = identity.digest({}, ())
    assert len(name) == 32
    assert identity.digest({}, ()) == name
    assert {package.name for package in PACKAGES} >= {"torch", "triton"}


def test_a_config_knows_no_host_by_default() -> None:
    assert PoolConfig().host == ""


# ---------------------------------------------------------------- from outside


def test_a_look_from_outside(join: Make, place: Place) -> None:
    client = join()
    pid = pid_of(client)
    mark = place.mark("mark-seen")
    job = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="graph 7", dedup_key="f"))
    assert until(mark.exists)
    (found,) = hosts.links(place.runtime)
    facts = hosts.status(found)
    assert (facts["state"], facts["server_pid"], facts["draining"]) == ("running", pid, False)
    assert [(one["label"], one["wanted_by"]) for one in facts["running"]] == [("graph 7", [os.getpid()])]
    assert hosts.stop(found)
    assert hosts.links(place.runtime) == []
    place.mark("mark-seen-go").touch()
    assert job.result(timeout=60) == b"the sub-job is done"
    assert until(lambda: ended(pid))


def test_looks_do_not_keep_it(join: Make, place: Place) -> None:
    client = join(idle_timeout=1.5)
    pid = pid_of(client)
    client.close()
    assert until(lambda: hosts.status(link(place)) == {"state": "gone"}), "it is asked all the time"
    assert until(lambda: ended(pid))


def test_a_server_that_leaves_takes_no_more_and_its_clients_find_another(join: Make, place: Place) -> None:
    client = join()
    pid = pid_of(client)
    mark = place.mark("mark-seen")
    job = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="graph 7"))
    assert until(mark.exists)
    assert hosts.stop(link(place))
    assert until(lambda: not client.started), "it was told"
    assert pid_of(client) != pid
    place.mark("mark-seen-go").touch()
    assert job.result(timeout=60) == b"the sub-job is done"
    assert until(lambda: ended(pid))


def test_a_look_at_one_that_is_gone_or_hangs(join: Make, place: Place) -> None:
    link(place).symlink_to("pool-gone/socket")
    assert hosts.status(link(place)) == {"state": "gone"}
    assert not hosts.stop(link(place))
    pid = pid_of(join())
    os.kill(pid, signal.SIGSTOP)
    assert hosts.status(link(place)) == {"state": "silent"}
    os.kill(pid, signal.SIGCONT)
    assert hosts.status(link(place))["state"] == "running"


FAST = """
import asyncio
real = asyncio.BaseEventLoop.call_later
def call_later(self, delay, *arguments, **more):
    # What is waited for in tens of seconds comes in a tenth of that; an hour stays an hour.
    return real(self, delay / 10 if 9 < delay < 100 else delay, *arguments, **more)
asyncio.BaseEventLoop.call_later = call_later
"""


def test_who_came_and_went_may_come_again_for_as_long_as_is_set(join: Make, place: Place) -> None:
    """Not only for as long as a start may take."""
    modules = place.mark("mark-modules")
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(FAST)
    client = join(idle_timeout=3600.0, start_timeout=10.0, extra={"PYTHONPATH": str(modules)})
    pid = pid_of(client)
    client.close()
    # Longer than it waits for the first to come.
    assert until(lambda: time.time() - psutil.Process(pid).create_time() > 2.5 or ended(pid))
    assert hosts.status(link(place)).get("server_pid") == pid


def test_one_that_is_stopped_goes_on_and_ends_as_if_it_had_been_told(join: Make, place: Place) -> None:
    client = join()
    mark = place.mark("mark-busy")
    pid = pid_of(client)
    job = client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="busy"))
    assert until(mark.exists)
    os.kill(pid, signal.SIGSTOP)
    found = hosts.end(link(place))
    assert (found.result, found.pid) == ("told", pid) and "was stopped" in found.detail
    place.mark("mark-busy-go").touch()
    assert job.result(timeout=60) == b"the sub-job is done"
    assert until(lambda: ended(pid))
    assert hosts.end(link(place)) == hosts.Ended("gone")


HANGING = """
    import asyncio, os, time
    real = asyncio.BaseEventLoop._run_once
    def run_once(self):
        while os.path.exists(os.path.join(os.environ["TMPDIR"], "mark-hang")):
            time.sleep(0.1)
        real(self)
    asyncio.BaseEventLoop._run_once = run_once
"""


def test_one_that_takes_no_notice_is_killed_with_all_that_is_its(join: Make, place: Place) -> None:
    modules = place.mark("mark-modules")
    modules.mkdir()
    # As a loop that never comes back would: nothing that arrives on the socket or as a signal is looked at.
    (modules / "sitecustomize.py").write_text("import sys\nif 'fxpool.pool.server.server' in sys.orig_argv:" + HANGING)
    client = join(extra={"PYTHONPATH": str(modules)})
    pid = pid_of(client)
    directory = (place.runtime / os.readlink(link(place))).parent
    place.mark("mark-hang").touch()
    assert until(lambda: hosts.status(link(place)) == {"state": "silent"})
    found = hosts.end(link(place), patience=1.0)
    assert (found.result, found.pid) == ("killed", pid) and "was killed" in found.detail
    assert until(lambda: not place.processes())
    assert not directory.exists() and not os.path.lexists(link(place))


def test_what_a_killed_one_left_is_removed(join: Make, place: Place) -> None:
    pid = pid_of(join())
    directory = (place.runtime / os.readlink(link(place))).parent
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: not place.processes())
    assert hosts.end(link(place)) == hosts.Ended("gone")
    assert not directory.exists() and not os.path.lexists(link(place))


def test_one_that_can_t_be_found_is_not_said_to_be_ended(place: Place) -> None:
    directory = place.runtime / "pool-elsewhere"
    directory.mkdir(0o700)
    link(place).symlink_to("pool-elsewhere/socket")
    with subprocess.Popen(["sleep", "60"]) as innocent:
        held = runtime_dir.hold(directory)
        os.ftruncate(held, 0)
        os.pwrite(held, str(innocent.pid).encode(), 0)
        found = hosts.end(link(place))
        assert (found.result, found.pid) == ("failed", innocent.pid) and "another container" in found.detail
        assert innocent.poll() is None
        innocent.kill()
    os.close(held)
    shutil.rmtree(directory)
    link(place).unlink()


OF_ANOTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listens", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            print(connection.recv(4096), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_a_server_of_another_user_is_told_nothing(join: Make, place: Place) -> None:
    """By no client: neither by those that submit jobs nor by those that only ask."""
    directory = place.runtime / "pool-theirs"
    directory.mkdir()
    opened = {place.runtime.parent: 0o711, place.runtime: 0o711, directory: 0o777}
    for path, mode in opened.items():
        path.chmod(mode)
    command = [sys.executable, "-c", OF_ANOTHER_USER, str(directory / "socket")]
    theirs = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert theirs.stdout is not None and theirs.stdout.readline() == "listens\n"
        for path in opened:
            path.chmod(0o700)
        link(place).symlink_to(f"{directory.name}/socket")
        lock = runtime_dir.hold(directory)
        assert hosts.status(link(place)) == {"state": "gone"} and not hosts.stop(link(place))
        with pytest.raises(ProtocolError, match="the peer runs as user 65534"):
            hosts.Visit(link(place))
        pausing.pause(place.runtime, 60.0, 5.0).end()
        os.close(lock)
        assert pid_of(join()) not in (theirs.pid, os.getpid())
    finally:
        theirs.kill()
        said, _ = theirs.communicate()
    assert len(said.splitlines()) >= 5 and set(said.splitlines()) == {"b''"}


def test_who_joined_a_server_knows_that_it_was_there(join: Make) -> None:
    first, second = join(), join()
    assert pid_of(first) == pid_of(second)
    assert (first.joined, second.joined) == (False, True)
