"""No lock survives a fork held: another thread holds each there is, and a child of that moment does its work."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sources import ROOT, sources

from fxpool import config, counters, forks, notices
from fxpool.watch import events, trace

#: What else waits, and may stay as it is.
ALLOWED = {
    "fxpool/pool/client/job.py:Job._wait.waiter": "made to be held by who waits, who is in no child",
    "fxpool/farm/machine.py:LocalMachine._lock": "of an engine's process, in which no program of a user's runs",
    "fxpool/farm/ray_actors.py:MachineActor._closed": "the same",
    "fxpool/farm/ray_engine.py:RayWorker._stop": "the same",
    "fxpool/farm/ray_engine.py:_connecting": "of a bridge, in which no program of a user's runs",
}
#: Ends a broken test.
SECONDS = 20.0

MAKERS = ("Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier")


def _sites() -> Iterator[tuple[str, str, ast.Call]]:
    """(place, what is called, the call) of everything that makes a lock, but for the module that is for that."""
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if name != "fxpool/forks.py":
            yield from _in_tree(ast.parse(path.read_text()), f"{name}:", "")


def _in_tree(node: ast.AST, place: str, target: str) -> Iterator[tuple[str, str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        here, into = place, target
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            # A class's __init__ makes what is the class's.
            here = place if child.name == "__init__" else f"{place}{child.name}."
        if isinstance(child, (ast.Assign, ast.AnnAssign)):
            first = child.targets[0] if isinstance(child, ast.Assign) else child.target
            into = getattr(first, "id", getattr(first, "attr", ""))
        if isinstance(child, (ast.Attribute, ast.Name)) and isinstance(node, (ast.Call, ast.keyword)):
            made = ast.unparse(child)
            if made in {f"threading.{maker}" for maker in MAKERS} | {"forks.lock", "forks.rlock", "forks.event"}:
                yield place + target, made, node if isinstance(node, ast.Call) else ast.Call(child, [], [])
        yield from _in_tree(child, here, into)


SITES = {place: (made, call) for place, made, call in _sites()}
LOCKS = {place: made for place, (made, _) in SITES.items() if made.startswith("forks.")}


def test_the_walk_finds_what_there_is() -> None:
    made = "a = threading.Lock()\nclass B:\n    def __init__(self): self.c: X = forks.lock(self, 'c')\n"
    made += "    d: E = field(default_factory=forks.event)\n    def f(self):\n        g = threading.Event()\n"
    found = [(place, what) for place, what, _ in _in_tree(ast.parse(made), "m:", "")]
    assert found == [
        ("m:a", "threading.Lock"),
        ("m:B.c", "forks.lock"),
        ("m:B.d", "forks.event"),
        ("m:B.f.g", "threading.Event"),
    ]
    assert len(LOCKS) >= 35


def test_every_lock_is_made_where_forks_are_known() -> None:
    bare = {place for place, (made, _) in SITES.items() if made.startswith("threading.")}
    assert bare == set(ALLOWED)
    text = "".join(path.read_text() for path in sources())
    for other in ("from threading import", "import queue", "import multiprocessing", "_thread.allocate"):
        assert other not in text


@pytest.mark.parametrize("place", [place for place, made in LOCKS.items() if made != "forks.event"])
def test_a_lock_knows_where_it_is_kept(place: str) -> None:
    _, call = SITES[place]
    owner, name = map(ast.unparse, call.args[:2])
    where = place.partition(":")[2].split(".")
    assert ast.literal_eval(name) == where[-1]
    assert owner == ("self" if len(where) > 1 else "__name__")


# ---------------------------------------------------------------- each of them


@dataclass
class Case:
    """`lock` gives the lock (or the event) as it is now; `use` is what takes it."""

    lock: Callable[[], Any]
    use: Callable[[], object]


def _of_module(module: str, name: str, use: Callable[[], object]) -> Callable[[Path], Case]:
    return lambda _: Case(lambda: getattr(sys.modules[module], name), use)


def _of_object(make: Callable[[Path], Any], name: str, use: Callable[[Any], object]) -> Callable[[Path], Case]:
    def case(directory: Path) -> Case:
        one = make(directory)
        return Case(lambda: getattr(one, name), lambda: use(one))

    return case


def _of_part(module: str, kind: str, name: str, use: Callable[[], object]) -> Callable[[Path], Case]:
    """One of a part of the process's runtime."""

    def case(_: Path) -> Case:
        from fxpool.lowering.core.runtime import runtime

        part = runtime.part(getattr(importlib.import_module(module), kind))
        return Case(lambda: getattr(part, name), use)

    return case


def _runtime(directory: Path) -> Any:
    from fxpool.lowering.core.runtime import runtime

    return runtime


def _of_event(directory: Path) -> Case:
    """One that lives in a function, for as long as that runs."""
    event = forks.event()
    return Case(lambda: event, event.set)


STATE = events.State(0.0, "graph", "queued")


def _store(directory: Path) -> Any:
    from fxpool.codecache.store.store import LocalStore

    return LocalStore(str(directory))


def _verify_blob(directory: Path) -> Case:
    from fxpool.codecache.store import blobs

    content = b"content"
    directory.chmod(0o700)
    path = directory / "blob"
    path.write_bytes(content)
    path.chmod(0o600)
    ref = blobs.BlobRef.of(content)
    return Case(lambda: blobs._verified_lock, lambda: blobs.verify_blob_file(str(path), ref))


_sockets: list[socket.socket] = []


def _socket() -> socket.socket:
    """One that is closed after the test."""
    _sockets.extend(socket.socketpair())
    return _sockets[-1]


def _spans(_: Path) -> Any:
    pytest.importorskip("opentelemetry.trace")
    from fxpool.integrations.opentelemetry import CompileSpans

    spans = CompileSpans()
    spans.close()  # no other test's events are for it
    return spans


def _terminal(_: Path) -> Any:
    from fxpool.watch.display import Terminal

    return Terminal(io.StringIO())


def _lines(_: Path) -> Any:
    from fxpool.watch.display import Lines

    return Lines(io.StringIO())


def _swap(_: Path) -> Any:
    from fxpool.lowering.background.swap import Swap

    return Swap("graph", lambda *args: args)


def _trial(_: Path) -> Any:
    from fxpool.lowering.background.swap import Trial, Version

    return Trial(Version(tuple), Version(tuple), 3, lambda *_: None)


def _client(directory: Path) -> Any:
    from fxpool.pool import PoolClient, PoolConfig

    return PoolClient(PoolConfig(runtime_dir=str(directory / "no" / ("x" * 200))))


def _job(_: Path) -> Any:
    from fxpool.pool.client.job import Job

    job = Job(None, 1, "job", None)  # type: ignore[arg-type]
    job._value = b"x"
    return job


def _session(_: Path) -> Any:
    """One whose server is not there; what is asked of it in a child is not the child's either."""
    from fxpool.pool.client.session import Session
    from fxpool.pool.wire.protocol import Outbox

    session = Session.__new__(Session)
    session.pid, session.error, session._outbox = os.getpid(), None, Outbox()
    session.sock = _socket()
    session._wake = -1
    session._lock = forks.lock(session, "_lock")
    session.over, session.zygote_known = forks.event(), forks.event()
    return session


def _reply(_: Path) -> Any:
    from fxpool.pool.client.session import _Reply

    return _Reply()


def _channel(_: Path) -> Any:
    from fxpool.pool.wire import messages as m
    from fxpool.pool.wire.protocol import Channel

    return Channel(_socket(), m.ToClient)


def _link(_: Path) -> Any:
    from fxpool.pool.worker.worker import _Link

    link = _Link(_socket())
    link._reader = threading.current_thread()
    return link


def _library(_: Path) -> Any:
    from fxpool.lowering.cuda.triton_library import TritonLibrary

    return TritonLibrary([], {}, lambda _: None)


def _kernel(_: Path) -> Any:
    from fxpool.lowering.cuda.triton_library import LaunchedKernel

    kernel = LaunchedKernel(None, "t0", None)  # type: ignore[arg-type]
    kernel.run = lambda *args, stream: args  # type: ignore[method-assign]
    return kernel


def _run_kernel(kernel: Any) -> None:
    from fxpool.lowering.cuda.triton_library import LaunchedKernel

    LaunchedKernel.run(kernel, stream=0)


def _kernel_pool(_: Path) -> Any:
    from fxpool.lowering.inductor.pools import KernelPool

    return KernelPool(None)  # type: ignore[arg-type]


def _call_here(pool: Any) -> None:
    import pickle
    from concurrent.futures import Future

    future: Future[Any] = Future()
    pool._call(pickle.dumps(os.getpid), future)
    assert future.result(0) == os.getpid()


def _work(_: Path) -> Any:
    from fxpool.lowering.background.compiles import _Work
    from fxpool.lowering.background.swap import Version

    work = _Work.__new__(_Work)
    work._lock = forks.lock(work, "_lock")
    work._sizes, work._swap = set(), _swap(Path())
    work._swap.begin()
    work.best = Version(tuple)  # type: ignore[attr-defined]
    return work


def _load_library() -> None:
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.cpp import library

    runtime.part(library._Loaded).modules["digest"] = "module"
    assert library.Library("digest", None).load() == "module"  # type: ignore[arg-type]


def _standalone(_: Path) -> Any:
    import torch

    from fxpool.lowering.core import options
    from fxpool.lowering.core.attempt import Attempt
    from fxpool.lowering.standalone import StandaloneGraph

    gm = torch.fx.symbolic_trace(torch.nn.Identity())
    made = StandaloneGraph(gm, [], lambda call: call, Attempt("graph", options.parse()), None)
    made._take(gm.forward)
    return made


def _loading_pieces(_: Path) -> Any:
    from fxpool.lowering.regions.compile_pieces import _Loading

    return _Loading()


def _load_a_piece(loading: Any) -> None:
    with loading.lock:
        pass  # what is done under it takes a graph in pieces


def _load_in_background() -> None:
    from fxpool.lowering.background import compiles

    with compiles._background().loading:
        pass  # what is done under it takes a graph, which a child of this process has no time for


def _end_background() -> None:
    from fxpool.lowering.background import compiles

    compiles._background().end()
    compiles._background().ending.clear()  # this process goes on


def _end_borrowing() -> None:
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.inductor.pools import Interpreter

    runtime.part(Interpreter).ending.set()
    runtime.part(Interpreter).reset()


def _report_counters() -> None:
    from fxpool.lowering.core import host_report

    host_report.report()


def _show_misses() -> None:
    from fxpool.lowering.artifact import miss_records

    assert miss_records.misses_so_far() == []


def _measure() -> None:
    from fxpool.lowering.cuda import benchmark_cache

    assert benchmark_cache.measure([], None, 0, None) == []  # type: ignore[arg-type]


def _use_store() -> None:
    from fxpool.lowering.core.runtime import runtime

    runtime.store()


def _compiler() -> None:
    from fxpool.codecache.key import toolchain

    toolchain.toolchain_facts()


def _headers() -> None:
    from fxpool.codecache.key import headers, toolchain
    from fxpool.torch_compat.cpp import included_headers

    listing = headers._Listing("digest", "", [], [])
    asked = mock.patch.object(headers, "_asked", lambda kind, compiler: (listing, 0.0))  # the compiler takes a second
    with mock.patch.dict(headers._known, clear=True), asked:  # other tests may have asked the real one
        assert toolchain.key_facts(None, [included_headers.KERNELS])[headers.KERNELS] == "digest"


def _digest() -> None:
    from fxpool.codecache.code import source_files

    assert source_files.digest_file(__file__)


def _in_process() -> None:
    from fxpool.torch_compat.inductor import aot

    with aot.in_process_only():
        pass


def _attach() -> None:
    from fxpool.watch import configured_watchers

    configured_watchers._attached = ()  # what the settings ask for is attached when they change
    configured_watchers.attach()


def _surrounded() -> None:
    from fxpool.torch_compat.frames import frame_conversion

    before = frame_conversion._original
    frame_conversion._original = before or frame_conversion.hand_over  # as if it were done: frames are not touched
    try:
        frame_conversion.surround(lambda call, trace: trace(None))
    finally:
        frame_conversion._original = before


def _uninstall() -> None:
    from fxpool.torch_compat.inductor import hooks

    hooks.uninstall()


def _entered_and_left() -> None:
    from fxpool.torch_compat.state import configs

    with configs.entered(configs.capture()):
        pass


def _bystanders(_: Path) -> Any:
    from fxpool.bench.bystanders import Bystanders

    made = Bystanders(Path(tempfile.mkdtemp(prefix="fxpb-", dir="/tmp")), list)  # a socket's path has to be short
    _to_end.append(made)
    return made


_to_end: list[Any] = []


def _remote_level(_: Path) -> Any:
    from fxpool.codecache.bundle.authentication import KEY_BYTES, Keyring
    from fxpool.codecache.remote.remote_level import RemoteLevel

    connect: Any = lambda seconds: io.BytesIO()  # noqa: E731  it has `close`, and nobody asks for more
    return RemoteLevel(connect, Keyring([bytes(KEY_BYTES)]), delay=1.0)


def _access(directory: Path) -> Any:
    return _remote_level(directory)._access


def _look(directory: Path) -> Any:
    from fxpool.codecache.remote import remote_level

    return remote_level._Look(_remote_level(directory), [], bool, (), 1.0)


def _uploads(directory: Path) -> Any:
    return _remote_level(directory).uploads


def _leases(directory: Path) -> Any:
    return _remote_level(directory).leases


def _question(_: Path) -> Any:
    from fxpool.codecache.remote.leases import _Question

    return _Question(lambda client, deadline: True, 1.0)


def _shared_level() -> None:
    from fxpool.lowering.core import shared_remote
    from fxpool.lowering.core.runtime import runtime

    runtime.part(shared_remote.SharedLevel).level("redis://127.0.0.1:1/0", config.current())


def _take_a_turn() -> None:
    from fxpool.jits import turns

    turns.take("forks", "a product", None).release()


def _let_go() -> None:
    from fxpool.codecache.store import held_directories

    held_directories.let_go()


CASES: dict[str, Callable[[Path], Case]] = {
    "fxpool/config.py:_lock": _of_module("fxpool.config", "_lock", lambda: config.configure(workers=1)),
    "fxpool/watch/display.py:Lines._lock": _of_object(_lines, "_lock", lambda one: one.on_state(STATE)),
    "fxpool/watch/display.py:Terminal._lock": _of_object(_terminal, "_lock", lambda one: one._say(last=False)),
    "fxpool/watch/display.py:Terminal._news": _of_object(_terminal, "_news", lambda one: one.close()),
    "fxpool/watch/display.py:Terminal._over": _of_object(_terminal, "_over", lambda one: one.close()),
    "fxpool/watch/events.py:_lock": _of_module("fxpool.watch.events", "_lock", lambda: events.unlisten(None)),  # type: ignore
    "fxpool/watch/configured_watchers.py:_lock": _of_module("fxpool.watch.configured_watchers", "_lock", _attach),
    "fxpool/notices.py:_lock": _of_module("fxpool.notices", "_lock", lambda: notices.once("forks", "said by a test")),
    "fxpool/commands/server.py:_serve.ended": _of_event,
    "fxpool/dashboard/metrics.py:in_background.started": _of_event,
    "fxpool/counters.py:_lock": _of_module("fxpool.counters", "_lock", lambda: counters.count("hits")),
    "fxpool/torch_compat/inductor/aot.py:_PATCHING": _of_module(
        "fxpool.torch_compat.inductor.aot", "_PATCHING", _in_process
    ),
    "fxpool/torch_compat/state/configs.py:_muted": _of_module(
        "fxpool.torch_compat.state.configs", "_muted", lambda: _entered_and_left()
    ),
    "fxpool/torch_compat/frames/frame_conversion.py:_lock": _of_module(
        "fxpool.torch_compat.frames.frame_conversion", "_lock", lambda: _surrounded()
    ),
    "fxpool/torch_compat/inductor/hooks.py:_lock": _of_module(
        "fxpool.torch_compat.inductor.hooks", "_lock", _uninstall
    ),
    "fxpool/watch/trace.py:TraceFile._lock": _of_object(
        lambda directory: trace.TraceFile(directory / "trace"), "_lock", lambda one: one.on_state(STATE)
    ),
    "fxpool/integrations/opentelemetry.py:CompileSpans._lock": _of_object(
        _spans, "_lock", lambda one: one.on_state(STATE)
    ),
    "fxpool/codecache/store/blobs.py:_verified_lock": _verify_blob,
    "fxpool/codecache/remote/access.py:RemoteAccess.lock": _of_object(_access, "lock", lambda one: one.allowance()),
    "fxpool/codecache/remote/access.py:BackgroundThread._lock": _of_object(_leases, "_lock", lambda one: one._wake()),
    "fxpool/codecache/remote/access.py:BackgroundThread._more": _of_object(
        _leases, "_more", lambda one: one._more.set()
    ),
    "fxpool/codecache/remote/remote_level.py:_Look.over": _of_object(_look, "over", lambda one: one.over.set()),
    "fxpool/codecache/remote/leases.py:Leases._released": _of_object(
        _leases, "_released", lambda one: one._released.set()
    ),
    "fxpool/codecache/remote/leases.py:_Question.over": _of_object(
        _question, "over", lambda one: one.answer(lambda: None)
    ),
    "fxpool/codecache/remote/uploads.py:Uploads._idle": _of_object(_uploads, "_idle", lambda one: one._idle.set()),
    "fxpool/jits/turns.py:_lock": _of_module("fxpool.jits.turns", "_lock", _take_a_turn),
    "fxpool/jits/turns.py:_Flight.over": _of_event,
    "fxpool/codecache/store/held_directories.py:_lock": _of_module(
        "fxpool.codecache.store.held_directories", "_lock", _let_go
    ),
    "fxpool/lowering/core/shared_remote.py:SharedLevel._lock": _of_part(
        "fxpool.lowering.core.shared_remote", "SharedLevel", "_lock", _shared_level
    ),
    "fxpool/codecache/code/source_files.py:_files_lock": _of_module(
        "fxpool.codecache.code.source_files", "_files_lock", _digest
    ),
    "fxpool/codecache/store/store.py:LocalStore._lock": _of_object(_store, "_lock", lambda one: one.counters()),
    "fxpool/codecache/key/headers.py:_lock": _of_module("fxpool.codecache.key.headers", "_lock", _headers),
    "fxpool/codecache/key/toolchain.py:_known_lock": _of_module(
        "fxpool.codecache.key.toolchain", "_known_lock", _compiler
    ),
    "fxpool/lowering/background/compiles.py:_Background.ending": _of_part(
        "fxpool.lowering.background.compiles", "_Background", "ending", _end_background
    ),
    "fxpool/lowering/background/compiles.py:_Background.loading": _of_part(
        "fxpool.lowering.background.compiles", "_Background", "loading", _load_in_background
    ),
    "fxpool/lowering/background/compiles.py:_Work._lock": _of_object(
        _work, "_lock", lambda one: one._outside(one.best, ())
    ),
    "fxpool/lowering/inductor/pools.py:KernelPool._here": _of_object(_kernel_pool, "_here", _call_here),
    "fxpool/lowering/inductor/pools.py:Interpreter.ending": _of_part(
        "fxpool.lowering.inductor.pools", "Interpreter", "ending", _end_borrowing
    ),
    "fxpool/lowering/cuda/devices.py:library_ahead.ending": _of_event,
    "fxpool/lowering/cpp/library.py:_Loaded.loading": _of_part(
        "fxpool.lowering.cpp.library", "_Loaded", "loading", _load_library
    ),
    "fxpool/lowering/cuda/benchmark_cache.py:_Measuring.lock": _of_part(
        "fxpool.lowering.cuda.benchmark_cache", "_Measuring", "lock", _measure
    ),
    "fxpool/lowering/core/host_report.py:_Reports._lock": _of_part(
        "fxpool.lowering.core.host_report", "_Reports", "_lock", _report_counters
    ),
    "fxpool/lowering/artifact/miss_records.py:_Misses._lock": _of_part(
        "fxpool.lowering.artifact.miss_records", "_Misses", "_lock", _show_misses
    ),
    "fxpool/lowering/core/runtime.py:Runtime._lock": _of_object(_runtime, "_lock", lambda _: _use_store()),
    "fxpool/lowering/background/swap.py:Swap._lock": _of_object(_swap, "_lock", lambda one: one()),
    "fxpool/lowering/background/swap.py:Swap.over": _of_object(_swap, "over", lambda one: (one.begin(), one.end())),
    "fxpool/lowering/background/swap.py:Swap.settled": _of_object(_swap, "settled", lambda one: one.settled.set()),
    "fxpool/lowering/background/swap.py:Trial._lock": _of_object(_trial, "_lock", lambda one: one.run([()])),
    "fxpool/lowering/cuda/triton_library.py:LaunchedKernel._lock": _of_object(_kernel, "_lock", _run_kernel),
    "fxpool/lowering/cuda/triton_library.py:TritonLibrary._lock": _of_object(
        _library, "_lock", lambda one: one.keep_choices()
    ),
    "fxpool/lowering/regions/compile_pieces.py:_Loading.lock": _of_object(_loading_pieces, "lock", _load_a_piece),
    "fxpool/lowering/standalone.py:StandaloneGraph._finishing": _of_object(
        _standalone, "_finishing", lambda one: one.wait()
    ),
    "fxpool/bench/bystanders.py:Bystanders._lock": _of_object(_bystanders, "_lock", lambda one: one.came(0)),
    "fxpool/pool/client/client.py:PoolClient._lock": _of_object(_client, "_lock", lambda one: _raises(one.start)),
    "fxpool/pool/client/job.py:Job._lock": _of_object(_job, "_lock", lambda one: one.result()),
    "fxpool/pool/wire/protocol.py:Channel._lock": _of_object(_channel, "_lock", lambda one: _raises(one.send, None)),
    "fxpool/pool/client/session.py:Session._lock": _of_object(_session, "_lock", lambda one: _raises(one.send, None)),
    "fxpool/pool/client/session.py:Session.over": _of_object(_session, "over", lambda one: one.over.set()),
    "fxpool/pool/client/session.py:Session.zygote_known": _of_object(
        _session, "zygote_known", lambda one: one.zygote_known.set()
    ),
    "fxpool/pool/client/session.py:_Reply.event": _of_object(_reply, "event", lambda one: one.event.set()),
    "fxpool/pool/worker/worker.py:_Link.lock": _of_object(_link, "lock", lambda one: one.listen()),
}


def _raises(function: Callable[..., object], *arguments: object) -> None:
    """It gets past its lock; what it was given is nothing that it could do more with."""
    with contextlib.suppress(Exception):
        function(*arguments)


@pytest.fixture(autouse=True)
def _settings_as_they_were() -> Iterator[None]:
    yield
    config.reset()
    while _sockets:
        _sockets.pop().close()
    while _to_end:
        made = _to_end.pop()
        made.end()
        made._directory.parent.rmdir()


@pytest.fixture
def no_compiler_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)


def test_there_is_a_case_for_every_lock() -> None:
    assert set(CASES) == set(LOCKS)


@pytest.mark.parametrize("place", LOCKS)
def test_a_child_of_a_moment_in_which_it_was_held(place: str, tmp_path: Path, no_compiler_is_asked: None) -> None:
    import importlib

    path = place.partition(":")[0]
    importlib.import_module(".".join((path if path.startswith("fxpool/") else f"fxpool/{path}")[:-3].split("/")))
    directory = tmp_path / "of-the-case"
    directory.mkdir(0o700)
    case = CASES[place](directory)
    case.use()  # what it needs is imported, and it works at all
    with held_elsewhere(case.lock()):
        assert ended_well(forked(case.use)), "the child waits for a lock that nobody holds"


@contextlib.contextmanager
def held_elsewhere(one: Any) -> Iterator[None]:
    """A thread holds a lock, or that of an event."""
    inner: Any = one._event if isinstance(one, forks.Event) else one
    inner = getattr(inner, "_cond", inner)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with inner:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(SECONDS)
        yield
    finally:
        go.set()
        thread.join()


def forked(use: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        use()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def ended_well(pid: int) -> bool:
    """Whether a child ends by itself within the limit, and with 0."""
    pidfd = os.pidfd_open(pid)
    try:
        over = bool(select.select([pidfd], [], [], SECONDS)[0])
        if not over:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return over and status == 0
    finally:
        os.close(pidfd)


# ---------------------------------------------------------------- what they guard


def test_settings_are_not_half_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    config.configure(workers=3, strict=True)
    config.current()

    def use() -> None:
        assert (config.current().workers, config.current().strict) == (3, True)
        counters.count("hits")
        assert counters.snapshot()["quarantined"] == 0

    counters._numbers.clear()  # as far as another thread had come in setting them to zero
    with held_elsewhere(config._lock), held_elsewhere(counters._lock):
        child = forked(use)
    counters.reset()
    assert ended_well(child)


def test_what_was_replaced_in_torch_is_put_back_in_the_child() -> None:
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    from fxpool.torch_compat.inductor import aot

    before = AOTAutogradCache.save
    inside, go = threading.Event(), threading.Event()

    def compile_here() -> None:
        with aot._result_taken(aot.Compiled()):
            inside.set()
            go.wait()

    def use() -> None:
        assert AOTAutogradCache.save == before
        with aot._result_taken(aot.Compiled()):
            assert AOTAutogradCache.save != before
        assert AOTAutogradCache.save == before

    thread = threading.Thread(target=compile_here)
    thread.start()
    try:
        assert inside.wait(SECONDS)
        assert AOTAutogradCache.save != before
        assert ended_well(forked(use))
    finally:
        go.set()
        thread.join()
    assert AOTAutogradCache.save == before


def test_who_forks_with_a_lock_held_goes_on_in_the_child() -> None:
    class Keeper:
        def __init__(self) -> None:
            self.mended = 0
            self.plain = forks.lock(self, "plain")
            self.again = forks.rlock(self, "again", self.mend)

        def mend(self) -> None:
            self.mended += 1

    def use(keeper: Keeper) -> None:
        with keeper.plain, keeper.again, keeper.again:
            pass
        assert not keeper.mended

    keeper = Keeper()
    with keeper.plain, keeper.again:
        child = forked(functools.partial(use, keeper))
    assert ended_well(child)


def test_what_is_gone_is_forgotten() -> None:
    class Keeper:
        def __init__(self) -> None:
            self.lock, self.event = forks.lock(self, "lock"), forks.event()

    gc.collect()  # what other tests left
    before = len(forks._places), len(forks._events)
    keepers = [Keeper() for _ in range(10)]
    assert (len(forks._places), len(forks._events)) == (before[0] + 10, before[1] + 10)
    del keepers
    assert (len(forks._places), len(forks._events)) == before


def test_nobody_forks_in_what_is_not_to_be_torn_apart() -> None:
    inside, go, order = threading.Event(), threading.Event(), []

    def hold() -> None:
        with forks.held_off():
            inside.set()
            go.wait()
            order.append("over")

    def fork() -> None:
        child = forked(lambda: None)
        order.append("forked")
        assert ended_well(child)

    holder, forker = threading.Thread(target=hold), threading.Thread(target=fork)
    holder.start()
    assert inside.wait(SECONDS)
    forker.start()
    go.set()
    holder.join()
    forker.join()
    assert order == ["over", "forked"]


def test_an_event_of_a_child_is_as_it_was() -> None:
    over, pending = forks.event(), forks.event()
    over.set()

    def use() -> None:
        assert over.is_set() and over.wait(0) and not pending.is_set()
        pending.set()

    assert ended_well(forked(use))
    assert not pending.is_set()
