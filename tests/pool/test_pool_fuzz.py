"""A fuzzer on the frames: recorded sessions, cut, flipped, spliced and lied about, end a connection and nothing else.

The parser alone first, against a plain second one; then a server, from a client's side and from a worker's.
POOL_FUZZ_ROUNDS and POOL_FUZZ_SEED in the environment make it longer or another.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool_place import Place, until
from pool_sessions import LENGTHS, frames_of, largest_claim, mutate, record, reference, resized

from fxpool import __version__
from fxpool.errors import ProtocolError, WorkerDiedError
from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.wire import messages as m
from fxpool.pool.wire import protocol
from fxpool.pool.wire.protocol import (
    HANDSHAKE_CAP,
    HEADER,
    MAGIC,
    META_CAP,
    PAYLOAD_CAP,
    PROTOCOL_VERSION,
    Channel,
    FrameDecoder,
    encode,
)

SEED = int(os.environ.get("POOL_FUZZ_SEED", "1"))
ROUNDS = int(os.environ.get("POOL_FUZZ_ROUNDS", "300"))

UNIONS: dict[str, Any] = {
    "to server": m.ToServer,
    "to client": m.ToClient,
    "to worker": m.ToWorker,
    "from worker": m.FromWorker,
}
# What the server's memory may grow by, and how long a body a mutant may promise (it is allocated at once).
GROWTH = 50 << 20
CLAIM = 1 << 18
NOBODY = 65534

both_ways = pytest.mark.parametrize("way", list(UNIONS))
fuzz = settings(
    deadline=None,
    derandomize=True,
    max_examples=ROUNDS,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

_recorded: dict[str, bytes] = {}


@pytest.fixture
def sessions(place: Place) -> dict[str, bytes]:
    """One session in each direction, as they passed."""
    if not _recorded:
        _recorded.update(record(place))
    return _recorded


# ---------------------------------------------------------------- the parser


def parse(
    data: bytes, kinds: Any, cap: int = HANDSHAKE_CAP, portions: list[int] | None = None
) -> tuple[list[tuple[Any, bytes]], bool]:
    """What a FrameDecoder makes of `data`: (frames, whether it refused). Whatever else it raises is a failed test."""
    decoder: FrameDecoder[Any] = FrameDecoder(kinds, cap=cap)
    found: list[tuple[Any, bytes]] = []
    at = number = 0
    view = memoryview(data)
    try:
        while at < len(data):
            # One call each: what comes before the refusal counts.
            limit = portions[number % len(portions)] if portions else len(data)
            target = decoder.buffer()
            count = min(len(target), len(data) - at, limit)
            assert count > 0
            target[:count] = view[at : at + count]
            at, number = at + count, number + 1
            frame = decoder.received(count)
            if frame is not None:
                found.append((frame[0], bytes(frame[1])))
    except ProtocolError:
        return found, True
    return found, False


def same(one: Any, other: Any) -> bool:
    """Equal, and NaN equals itself."""
    return repr(one) == repr(other)


def holds(data: bytes, kinds: Any, portions: list[int] | None = None, cap: int = HANDSHAKE_CAP) -> None:
    found = parse(data, kinds, cap, portions)
    assert same(found, reference(data, kinds, cap)), data.hex()
    assert all(isinstance(message, kinds) for message, _ in found[0])


def test_the_recorded_sessions_say_everything(sessions: dict[str, bytes]) -> None:
    for way, names in {
        "to server": "Hello Submit Cancel StatusQuery HistoryQuery",
        "light": "Hello Submit Cancel StatusQuery HistoryQuery",
        "to client": "Welcome ZygoteState Started LogRecord WarningRecord Done Failed Status History",
        "from worker": "Returned Phase Submit Cancel Waiting Resume SlotsQuery LogRecord WarningRecord",
        "to worker": "Run Granted SlotsReply Done Failed",
    }.items():
        kinds = UNIONS.get(way, m.ToServer)
        found, refused = parse(sessions[way], kinds, PAYLOAD_CAP)
        assert not refused
        assert {type(message).__name__ for message, _ in found} >= set(names.split())
        assert b"".join(b"".join(encode(*frame)) for frame in found) == sessions[way]
        assert len(sessions[way]) < 20_000
    flights = [x.spec.dedup_key for x, _ in parse(sessions["to server"], m.ToServer)[0] if isinstance(x, m.Submit)]
    assert flights.count("one") == 2
    assert any(x.joined for x, _ in parse(sessions["to client"], m.ToClient)[0] if isinstance(x, m.Done))


@both_ways
def test_cut_at_every_byte(way: str, sessions: dict[str, bytes]) -> None:
    session, kinds = sessions[way], UNIONS[way]
    ends, whole = [0], parse(session, kinds)[0]
    for frame in frames_of(session):
        ends.append(ends[-1] + len(frame))
    for cut in range(len(session)):
        complete = sum(end <= cut for end in ends) - 1
        # From the frame before on: the others were seen to be read.
        start = max(0, complete - 1)
        decoder: FrameDecoder[Any] = FrameDecoder(kinds)
        found = decoder.feed(session[ends[start] : cut])
        assert [message for message, _ in found] == [message for message, _ in whole[start:complete]]
        assert decoder.mid_frame == (cut not in ends)


@both_ways
def test_every_byte_flipped(way: str, sessions: dict[str, bytes]) -> None:
    """Every bit of the headers, the first, the last and another of what follows."""
    kinds, frames = UNIONS[way], frames_of(sessions[way])
    refused = 0
    for number, frame in enumerate(frames):
        after = b"".join(frames[number + 1 : number + 3])
        for at in range(len(frame)):
            for bit in range(8) if at < HEADER.size else (0, 1 + at % 6, 7):
                flipped = bytearray(frame + after)
                flipped[at] ^= 1 << bit
                result = parse(bytes(flipped), kinds)
                assert same(result, reference(bytes(flipped), kinds, HANDSHAKE_CAP)), flipped.hex()
                refused += result[1]
    # All of magic, version, flags and reserved; much of the rest.
    assert refused >= 8 * 8 * len(frames)


@both_ways
@fuzz
@given(data=st.binary(max_size=2000), meta=st.binary(max_size=300), portions=st.lists(st.integers(1, 70), max_size=5))
def test_arbitrary_bytes(way: str, data: bytes, meta: bytes, portions: list[int]) -> None:
    holds(data, UNIONS[way], portions)
    head = HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(meta), len(data))
    holds(head + meta + data, UNIONS[way], portions)


@both_ways
@fuzz
@given(source=st.randoms(use_true_random=False), portions=st.lists(st.integers(1, 900), max_size=5))
def test_mutated_sessions(way: str, sessions: dict[str, bytes], source: random.Random, portions: list[int]) -> None:
    holds(mutate(sessions[way], source), UNIONS[way], portions)
    holds(sessions[way], UNIONS[way], portions)


@both_ways
@fuzz
@given(data=st.data())
def test_spliced_sessions(way: str, sessions: dict[str, bytes], data: st.DataObject) -> None:
    one, other = sessions[way], sessions[data.draw(st.sampled_from(list(UNIONS)))]
    at, start = data.draw(st.integers(0, len(one))), data.draw(st.integers(0, len(other)))
    holds(one[:at] + other[start:], UNIONS[way])
    frames, others = frames_of(one), frames_of(other)
    at, start = data.draw(st.integers(0, len(frames))), data.draw(st.integers(0, len(others)))
    holds(b"".join(frames[:at] + others[start:]), UNIONS[way])


@both_ways
@pytest.mark.parametrize("cap", [HANDSHAKE_CAP, PAYLOAD_CAP])
def test_other_lengths(way: str, cap: int, sessions: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is allocated for a header than the cap, whatever it promises. Nothing is, when it is refused."""
    asked: list[int] = []

    def watched(size: int) -> bytearray:
        asked.append(size)
        return bytearray(min(size, 1 << 16))

    monkeypatch.setattr(protocol, "bytearray", watched, raising=False)
    monkeypatch.setattr(protocol, "mmap", SimpleNamespace(mmap=lambda _, size: watched(size)))
    # A session's longest frame, with the lengths of its header changed.
    frame = max(frames_of(sessions[way]), key=len)
    _, _, _, _, right_meta, right_payload = HEADER.unpack_from(frame)
    lengths = [*LENGTHS, right_meta, right_payload, right_meta + 1, cap - 1, cap, cap + 1, (1 << 63) - 1, 1 << 63]
    for meta in {length for length in lengths if length < 1 << 32}:
        for payload in lengths:
            decoder: FrameDecoder[Any] = FrameDecoder(UNIONS[way], cap=cap)
            asked.clear()  # the header's own place
            head = resized(frame, meta=meta, payload=payload)[: HEADER.size]
            if 0 < meta <= META_CAP and (payload <= cap if cap == PAYLOAD_CAP else meta + payload <= cap):
                decoder.feed(head)
                assert asked == [meta + payload]
            else:
                with pytest.raises(ProtocolError):
                    decoder.feed(head)
                assert not asked


@both_ways
def test_memory_while_parsing(way: str, sessions: dict[str, bytes]) -> None:
    """Lists and maps that promise more items than there are bytes cost nothing either."""
    lies = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    source = random.Random(SEED)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(ROUNDS):
            frames = frames_of(sessions[way])
            chosen = source.randrange(len(frames))
            size = HEADER.unpack_from(frames[chosen])[4]
            meta = frames[chosen][HEADER.size : HEADER.size + size]
            at = source.randrange(len(meta))
            meta = meta[:at] + lies[number % 4] * source.choice([1, 2000]) + meta[at:]
            parse(resized(frames[chosen][: HEADER.size], meta=len(meta), payload=0) + meta, UNIONS[way])
        assert tracemalloc.get_traced_memory()[1] - before < 4 * HANDSHAKE_CAP
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- a server


class Watch:
    """A server and what it may not lose. Leaving the block checks it; `work` inside is a neighbour's, all the time."""

    def __init__(self, client: PoolClient, place: Place) -> None:
        client.start(wait=True)
        self.client, self.place = client, place
        self.directory = Path(client.status()["directory"])
        self.address = str(self.directory / "socket")
        self.process = psutil.Process(client.server_pid)
        self.answered = 0

    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    def __enter__(self) -> Watch:
        self._one_job(0)
        # A connection that comes and goes makes what is made once.
        throw(
            self.address,
            b"".join(encode(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=1))),
            random.Random(0),
        )
        assert until(self._idle)
        self.zygote = self.client.status()["zygote"]["pid"]
        self.descriptors = self._descriptors()
        self.memory = self.process.memory_info().rss
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # It goes on when the block was short.
        until(lambda: kind is not None or self._error is not None or self.answered >= 5)
        self._stop.set()
        self._thread.join(60)
        if kind is not None:
            return
        assert self._error is None, f"a neighbour's job: {self._error!r}"
        assert self.answered >= 5
        assert until(self._idle), self.client.status()
        status = self.client.status()
        assert status["server_pid"] == self.process.pid
        assert (status["zygote"]["pid"], status["counters"]["zygotes"]) == (self.zygote, 1)
        assert until(lambda: not self._descriptors() - self.descriptors), self._descriptors() - self.descriptors
        assert not list(self.directory.glob("scratch/*"))
        assert len(self.place.processes()) == 2  # server and zygote
        assert "Traceback" not in self.log()
        grown = self.process.memory_info().rss - self.memory
        assert grown < GROWTH, f"the server has grown by {grown >> 20} MB"

    def _idle(self) -> bool:
        status = self.client.status()
        busy = status["running"] or status["queued"] or status["workers"] or status["slots_free"] < status["slots"]
        return not busy and len(status["clients"]) == 1

    def _descriptors(self) -> Counter[str]:
        """How many the server holds of each kind."""
        found: Counter[str] = Counter()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[os.readlink(entry).split(":[")[0]] += 1
        return found

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self.answered += 1
                self._one_job(self.answered)
        except BaseException as error:
            self._error = error

    def _one_job(self, number: int) -> None:
        data = random.Random(number).randbytes(number % 5000)
        assert (
            self.client.submit("pool_jobs:echo", data, JobSpec(label="neighbour", priority=9)).result(timeout=30)
            == data
        )


def verdict(data: bytes) -> bool | None:
    """Whether the server has to close a connection with `data`; None where its semantics decide."""
    frames, refused = reference(data, m.ToServer, HANDSHAKE_CAP)
    if not frames:
        return refused
    first = frames[0][0]
    if not isinstance(first, m.Hello) or (first.protocol, first.fxpool) != (PROTOCOL_VERSION, __version__):
        return True
    frames, refused = reference(data, m.ToServer, PAYLOAD_CAP)
    if refused or any(isinstance(message, m.Hello) for message, _ in frames[1:]):
        return True
    return None


def throw(address: str, data: bytes, source: random.Random) -> bytes:
    """Send `data` on a connection of its own, in any portions; returns what came back, if that was waited for."""
    must_close, got = verdict(data), b""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(address)
        with contextlib.suppress(ConnectionError):
            at = 0
            while at < len(data):
                size = source.choice([1, 7, 100, 4096, 1 << 20])
                sock.sendall(data[at : at + size])
                at += size
        ending = "wait" if must_close else source.choice(["close", "close", "shut", "linger"])
        if ending == "linger":
            time.sleep(source.uniform(0, 0.05))
        if ending == "shut":
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        if ending in ("wait", "shut"):
            with contextlib.suppress(ConnectionError):
                while piece := sock.recv(1 << 16):
                    got += piece
            assert not parse(got, m.ToClient, PAYLOAD_CAP)[1]
        if ending == "wait":
            # Whole frames, to the end.
            assert sum(map(len, frames_of(got))) == len(got)
    return got


def test_a_server_among_mutants(client: PoolClient, sessions: dict[str, bytes], place: Place) -> None:
    with Watch(client, place) as watch:
        failures: list[str] = []
        numbers = iter(range(2 * ROUNDS))

        def some() -> None:
            for number in numbers:
                source = random.Random(f"{SEED}-{number}")
                data = mutate(sessions[source.choice(["light", "to server"])], source)
                if largest_claim(data) > CLAIM:
                    continue
                try:
                    throw(watch.address, data, source)
                except BaseException as error:
                    failures.append(f"seed {SEED}, round {number}: {error!r}, with {data.hex()}")

        threads = [threading.Thread(target=some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
    assert "not a frame of fxpool" in watch.log()
    assert "exceeds the max" in watch.log()


def test_lengths_on_the_socket(client: PoolClient, sessions: dict[str, bytes], place: Place) -> None:
    """Before hello and after it, a body over the cap is refused at its header."""
    hello, submit, *_ = frames_of(sessions["light"])
    with Watch(client, place) as watch:
        refused = 0
        for length in [*LENGTHS, HANDSHAKE_CAP, HANDSHAKE_CAP + 1]:
            for lengths in ({"meta": length}, {"payload": length}):
                for data in (resized(hello, **lengths), hello + resized(submit, **lengths)):
                    if verdict(data):
                        throw(watch.address, data, random.Random(length))
                        refused += 1
        assert refused > len(LENGTHS)


def test_a_client_that_reads_nothing(client: PoolClient, place: Place) -> None:
    """Its answers wait for it, it is refused, it goes: nothing stays behind."""
    with Watch(client, place) as watch:
        for number in range(5):
            with greeted(watch.client) as channel:
                channel.send(
                    m.Submit(job=number, function="pool_jobs:echo", spec=m.JobSpec(label="much")), bytes(4 << 20)
                )
                assert until(partial(_is_unread, channel.sock, 100_000))
                channel.sock.sendall(b"garbage that is long enough for a header")
    assert watch.log().count("not a frame of fxpool") == 5


def _is_unread(sock: socket.socket, more_than: int) -> bool:
    """Whether more bytes than that wait to be read."""
    (count,) = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))
    return bool(count > more_than)


@contextlib.contextmanager
def greeted(client: PoolClient) -> Iterator[Channel[m.ToClient]]:
    """Another client's connection."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(Path(client.status()["directory"]) / "socket"))
        channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
        channel.send(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=1))
        assert channel.receive() is not None
        yield channel


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_another_user_is_refused(client: PoolClient, place: Place) -> None:
    """By the server: the modes that would keep it away are opened first."""
    client.start(wait=True)
    directory = Path(client.status()["directory"])
    for path in (place.runtime.parent, place.runtime, directory):
        path.chmod(0o711)
    (directory / "socket").chmod(0o666)
    program = """if True:
        import os, socket, sys
        user = int(sys.argv[2])
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            sock.connect(sys.argv[1])
            print("connected", flush=True)
            got = b""
            try:
                sock.sendall(bytes.fromhex(sys.argv[3]))
                got = sock.recv(4096)
            except ConnectionError:
                pass
            print(len(got))
    """
    hello = b"".join(encode(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=1))).hex()

    def said_to(user: int) -> list[str]:
        command = [sys.executable, "-c", program, str(directory / "socket"), str(user), hello]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()

    assert said_to(NOBODY) == ["connected", "0"]
    assert f"the peer runs as user {NOBODY}" in (directory / "server.log").read_text()
    assert said_to(0)[1] != "0"
    assert client.submit("pool_jobs:echo", b"x", JobSpec(label="x")).result() == b"x"
    assert until(lambda: client.status()["clients"] == [os.getpid()])


# ---------------------------------------------------------------- workers


def broken_answers(session: bytes) -> Iterator[tuple[bytes, str]]:
    """What no worker says, and the words for it in the server's log."""
    answer = b"".join(encode(m.Returned(ok=True, seconds=0.0, pid=1), b"wrong"))
    size = HEADER.unpack_from(answer)[4]
    yield b"HTTP/1.1 200 OK and more\r\n", "not a frame of fxpool"
    yield b"\0" * 5000, "not a frame of fxpool"
    yield resized(answer, meta=0), "0 bytes of message"
    yield resized(answer, meta=META_CAP + 1), "exceeds the max"
    yield resized(answer, payload=1 << 62), "exceeds the max"
    yield resized(answer, meta=size - 1), "known message"
    yield resized(answer, payload=100_000), "inside a frame"
    yield answer[: HEADER.size - 1], "not a frame of fxpool"  # the rest of the header is that of the real answer
    yield b"".join(encode(m.Granted(number=1))), "known message"
    yield b"".join(encode(m.Submit(job=1, function="pool_jobs:sleep", spec=m.JobSpec(label="x")))) * 2, "already in use"
    yield session[: session.index(MAGIC, 1)] + b"garbage" * 9, "not a frame of fxpool"


def test_workers_that_answer_garbage(client: PoolClient, sessions: dict[str, bytes], place: Place) -> None:
    with Watch(client, place) as watch:
        for data, words in broken_answers(sessions["from worker"]):
            job = client.submit("pool_garbage:say", data, JobSpec(label="garbage", retries=1))
            with pytest.raises(WorkerDiedError) as caught:
                job.result(timeout=30)
            assert caught.value.attempts == 2
            # Which of the two was killed by us and which had left before does not matter.
            assert words in watch.log(), words


def test_workers_among_mutants(client: PoolClient, sessions: dict[str, bytes], place: Place) -> None:
    with Watch(client, place):
        mutants: list[bytes] = []
        number = 0
        while len(mutants) < ROUNDS // 3:
            number += 1
            mutant = mutate(sessions["from worker"], random.Random(f"{SEED}-worker-{number}"))
            if largest_claim(mutant) <= CLAIM:
                mutants.append(mutant)
        for start in range(0, len(mutants), 20):
            jobs = [
                client.submit("pool_garbage:say", data, JobSpec(label="mutant", retries=0))
                for data in mutants[start : start + 20]
            ]
            for data, job in zip(mutants[start:], jobs, strict=False):
                # Whatever it is, there is an answer; a mutant may be one itself.
                try:
                    job.result(timeout=30)
                except TimeoutError:
                    pytest.fail(f"seed {SEED}: no answer after {data.hex()}")
                except Exception:
                    pass


# ---------------------------------------------------------------- found by it


def alive(client: PoolClient) -> bool:
    return client.submit("pool_jobs:echo", b"x", JobSpec(label="x")).result(timeout=3) == b"x"


def test_no_payload_is_longer_than_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PAYLOAD_CAP", 1 << 16)
    meta = b"".join(encode(m.Returned(ok=True, seconds=0.0, pid=1)))[HEADER.size :]
    decoder: FrameDecoder[Any] = FrameDecoder(m.FromWorker, cap=1 << 16)
    with pytest.raises(ProtocolError):
        decoder.feed(HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(meta), (1 << 16) + 1))


# Not 0 or 1: what is done to the process groups of these would be done to us.
@pytest.mark.parametrize("pid", [1 << 40, -5])
def test_a_pid_that_is_no_pid(client: PoolClient, pid: int) -> None:
    answer = b"".join(encode(m.Returned(ok=True, seconds=0.0, pid=pid), b"said"))
    job = client.submit("pool_garbage:say_and_stay", answer, JobSpec(label="lies", retries=0))
    with contextlib.suppress(WorkerDiedError):
        assert job.result(timeout=20) == b"said"
    os.kill(client.status()["zygote"]["pid"], signal.SIGKILL)
    assert alive(client)


def test_the_longest_submit(client: PoolClient, place: Place) -> None:
    marks = [place.mark(f"mark-{number}") for number in range(2)]
    client.start(wait=True)
    busy = [client.submit("pool_jobs:wait_for_a_mark", str(mark).encode(), JobSpec(label="busy")) for mark in marks]
    assert until(lambda: all(mark.exists() for mark in marks))
    short = (
        len(
            b"".join(
                encode(
                    m.Submit(
                        job=1, function="pool_jobs:echo", spec=m.JobSpec(label="x", environment={"A": "a" * 70_000})
                    )
                )
            )
        )
        - HEADER.size
    )
    text = "a" * (70_000 + META_CAP - short)
    with greeted(client) as channel:
        channel.send(m.Submit(job=1, function="pool_jobs:echo", spec=m.JobSpec(label="x", environment={"A": text})))
        assert until(lambda: client.status()["queued"] == 1)
        for mark in marks:
            mark.with_name(mark.name + "-go").touch()
        for job in busy:
            job.result(timeout=20)
        channel.sock.settimeout(2)
        while (frame := channel.receive()) is not None:  # refused and closed, or
            if isinstance(frame[0], (m.Done, m.Failed)):
                break
    assert alive(client)
    assert until(lambda: not client.status()["workers"], 5)
    assert "Traceback" not in (Path(client.status()["directory"]) / "server.log").read_text()


def test_a_status_with_long_labels(client: PoolClient) -> None:
    client.start(wait=True)
    server = client.server_pid
    with greeted(client) as channel:
        for number in range(2):
            channel.send(m.Submit(job=number, function="pool_jobs:sleep", spec=m.JobSpec(label="x" * (9 << 20))))
        started = 0
        while started < 2:
            frame = channel.receive()
            assert frame is not None
            started += isinstance(frame[0], m.Started)
        assert client.status()["state"] == "running"
        assert client.server_pid == server


def test_a_buffer_goes_with_its_connection(client: PoolClient) -> None:
    client.start(wait=True)
    assert client.server_pid is not None
    process = psutil.Process(client.server_pid)
    before = process.memory_info().rss
    with greeted(client) as channel:
        channel.sock.sendall(HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, 20, 4 * GROWTH))
        channel.sock.sendall(b"x" * (GROWTH // 2))  # what is only promised takes nothing
        assert process.memory_info().rss - before < GROWTH
        channel.sock.sendall(b"x" * (2 * GROWTH))
        assert until(lambda: process.memory_info().rss - before > GROWTH, 5)
    assert until(lambda: process.memory_info().rss - before < GROWTH, 2)


def test_a_limit_that_is_no_number(client: PoolClient) -> None:
    client.start(wait=True)
    with greeted(client) as channel:
        fields = msgspec.to_builtins(
            m.Submit(job=1, function="pool_jobs:sleep", spec=m.JobSpec(label="x", timeout=1.0))
        )
        fields["spec"]["timeout"] = math.nan
        data = msgspec.msgpack.encode(fields)
        channel.sock.sendall(HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(data), 0) + data)
        channel.sock.settimeout(2)
        while (frame := channel.receive()) is not None:  # refused and closed, or
            if isinstance(frame[0], m.Failed):
                assert frame[0].kind != "timeout"
                break
