"""Sessions: what passed over real sockets of the pool, and what a fuzzer makes of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import selectors
import socket
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pool_place import Place, until

from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.client import hosts
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import HEADER, MAGIC, META_CAP, PAYLOAD_CAP, PROTOCOL_VERSION, encode

__all__ = ["LENGTHS", "frames_of", "largest_claim", "mutate", "record", "reference", "resized"]

#: What a length field is set to.
LENGTHS = [0, 1, 2, 255, META_CAP, META_CAP + 1, PAYLOAD_CAP, PAYLOAD_CAP + 1, 1 << 31, (1 << 32) - 1, (1 << 64) - 1]

_META_AT, _PAYLOAD_AT = 8, 12


# ---------------------------------------------------------------- recording


def record(place: Place) -> dict[str, bytes]:
    """{direction: bytes} of a real client's and of a real worker's session; "light" is a client's without long jobs."""
    with PoolClient(place.config()) as pool:
        pool.start(wait=True)
        directory = Path(pool.status()["directory"])
        with _tap(place, directory / "socket") as passed:
            _client_session(place)
        light = passed["to server"]
        with _tap(place, directory / "socket") as more:
            _client_session(place, flights=True)
        with _tap(place, directory / "socket") as looked:
            visit = hosts.Visit(place.runtime / "host-tap.socket")
            visit.history()
            visit.close()
        # Who looks on says hello as well, which is heard once.
        light += frames_of(looked["to server"])[-1]
        for way in more:
            more[way] += frames_of(looked[way])[-1]
        out, into = place.mark("mark-out"), place.mark("mark-in")
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            pool.submit("pool_garbage:talk", json.dumps([str(out), str(into)]).encode(), JobSpec(label="talk")).result()
        # The answer is written down before it is sent, and what came was written by the thread that took it.
        spec = JobSpec(label="talk", environment={"A": "1", "B": None}, sys_path=["/x"], cwd="/")
        submit = m.Submit(job=1, function="pool_garbage:talk", spec=spec, levels={"": 30})
        run = m.Run(job=1, attempt=1, slots=2, submit=submit, scratch="/scratch")
        to_worker = b"".join(encode(run, b"[]")) + into.read_bytes()
        return {"light": light, **more, "from worker": out.read_bytes(), "to worker": to_worker}


def _client_session(place: Place, flights: bool = False) -> None:
    with PoolClient(place.config(host="tap")) as client:
        echo = client.submit(
            "pool_jobs:echo", os.urandom(100), JobSpec(label="echo", environment={"A": "1", "B": None})
        )
        assert len(echo.result()) == 100
        sleeper = client.submit("pool_jobs:sleep", b"", JobSpec(label="sleeps", cwd="/", timeout=30.0, priority=-1))
        assert until(lambda: sleeper.worker_pid is not None)
        sleeper.cancel()
        with pytest.raises(Exception, match="MISSING"):
            client.submit("pool_jobs:raise_custom", b"MISSING", JobSpec(label="fails")).result()
        assert client.status()["state"] == "running"
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            client.submit("pool_jobs:warn", b"", JobSpec(label="warns", sys_path=["/nowhere"])).result()
            client.submit("pool_jobs:chatter", b"", JobSpec(label="chatters")).result()
        if flights:
            both = [
                client.submit("pool_jobs:worker_pid_slowly", b"", JobSpec(label="same", dedup_key="one"))
                for _ in range(2)
            ]
            assert both[0].result() == both[1].result()
            assert client.submit("pool_jobs:gather", b"2", JobSpec(label="gathers")).result() == b"0 1"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The worker's records have to pass; nobody needs to see them."""
    logger = logging.getLogger("pool_jobs")
    before, logger.propagate = logger.propagate, False
    handler = logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


@contextlib.contextmanager
def _tap(place: Place, address: Path) -> Iterator[dict[str, bytes]]:
    """A server of the host's, as `host="tap"` finds it, that is a way to `address`; gives what passed, in the end."""
    directory, link = place.runtime / "tap", place.runtime / "host-tap.socket"
    directory.mkdir(0o700)
    (directory / "ready").touch()
    link.symlink_to("tap/socket")
    passed = {"to server": b"", "to client": b""}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen(1)
        thread = threading.Thread(target=_pass_on, args=(listener, str(address), passed))
        thread.start()
        try:
            yield passed
        finally:
            thread.join()
            for path in (link, directory / "socket", directory / "ready"):
                path.unlink()
            directory.rmdir()


def _pass_on(listener: socket.socket, address: str, passed: dict[str, bytes]) -> None:
    client, _ = listener.accept()
    with client, socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.connect(address)
        selector.register(client, selectors.EVENT_READ, (server, "to server"))
        selector.register(server, selectors.EVENT_READ, (client, "to client"))
        while True:
            for key, _ in selector.select():
                other, way = key.data
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not data:
                    return
                passed[way] += data
                other.sendall(data)


# ---------------------------------------------------------------- reading


def frames_of(session: bytes) -> list[bytes]:
    """The frames of a session that is known to be right."""
    frames = []
    while session:
        _, _, _, _, meta, payload = HEADER.unpack_from(session)
        end = HEADER.size + meta + payload
        frames.append(session[:end])
        session = session[end:]
    return frames


def _extension(code: int, data: memoryview) -> Any:
    raise ValueError(code)


def reference(data: bytes, kinds: Any, cap: int) -> tuple[list[tuple[Any, bytes]], bool]:
    """(frames, whether the stream was refused): what `FrameDecoder` has to find, written down as plainly as can be."""
    found: list[tuple[Any, bytes]] = []
    at = 0
    while len(data) - at >= 20:
        magic, version, flags, reserved, meta, payload = struct.unpack(">4sBBHIQ", data[at : at + 20])
        # Whoever is known may send the longest message with the longest payload.
        fits = payload <= PAYLOAD_CAP if cap == PAYLOAD_CAP else meta + payload <= cap
        if (magic, version, flags, reserved) != (MAGIC, PROTOCOL_VERSION, 0, 0) or not 0 < meta <= META_CAP or not fits:
            return found, True
        if len(data) - at - 20 < meta + payload:
            break
        body = data[at + 20 : at + 20 + meta + payload]
        try:
            found.append((msgspec.msgpack.decode(body[:meta], type=kinds, ext_hook=_extension), body[meta:]))
        except Exception:
            return found, True
        at += 20 + meta + payload
    return found, False


# ---------------------------------------------------------------- changing


def resized(frame: bytes, *, meta: int | None = None, payload: int | None = None) -> bytes:
    """`frame` with other lengths in its header."""
    changed = bytearray(frame)
    if meta is not None:
        struct.pack_into(">I", changed, _META_AT, meta & 0xFFFFFFFF)
    if payload is not None:
        struct.pack_into(">Q", changed, _PAYLOAD_AT, payload)
    return bytes(changed)


def _flip(session: bytes, source: random.Random) -> bytes:
    changed = bytearray(session)
    for _ in range(source.choice([1, 1, 2, 8])):
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def _flip_a_header(session: bytes, source: random.Random) -> bytes:
    frames = frames_of(session)
    number = source.randrange(len(frames))
    head = _flip(frames[number][: HEADER.size], source)
    frames[number] = head + frames[number][HEADER.size :]
    return b"".join(frames)


def _cut(session: bytes, source: random.Random) -> bytes:
    return session[: source.randrange(len(session))]


def _remove(session: bytes, source: random.Random) -> bytes:
    start = source.randrange(len(session))
    return session[:start] + session[start + source.choice([1, 2, 20, 200]) :]


def _insert(session: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(session))
    return session[:at] + source.randbytes(source.choice([1, 2, 20, 200])) + session[at:]


def _splice(session: bytes, source: random.Random) -> bytes:
    return session[: source.randrange(len(session))] + session[source.randrange(len(session)) :]


def _shuffle(session: bytes, source: random.Random) -> bytes:
    """Frames left out, said twice, in another order; often the first stays, so that the rest is heard at all."""
    first, *rest = frames = frames_of(session)
    rest = [source.choice(frames) for _ in rest]
    return b"".join([first, *rest] if source.random() < 0.8 else [*rest, first])


def _resize(session: bytes, source: random.Random) -> bytes:
    frames = frames_of(session)
    number, length = source.randrange(len(frames)), source.choice(LENGTHS)
    if source.random() < 0.5:
        frames[number] = resized(frames[number], meta=length)
    else:
        frames[number] = resized(frames[number], payload=length)
    return b"".join(frames)


# Of every type, and at the edges of each.
_VALUES: list[Any] = [
    *(0, 1, -1, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1),
    *(0.0, -1.0, 1e-9, 1e308, float("inf"), float("-inf")),
    *(None, True, b"", "", "x", ":", "pool_jobs:", "pool_jobs:Holder.method", "no.module:f", "\0:\0", "\U0010ffff"),
    *("x" * 70_000, [], [[]], ["", "\0"], ["x"] * 500, {}, {"": ""}, {"\0": None}, {"=": "x"}, {"A": 1}, {1: "A"}),
]  # fmt: skip


def _change_a_field(session: bytes, source: random.Random) -> bytes:
    """One field of one message gets another value: what gets past the parser more often than any flip."""
    frames = frames_of(session)
    number = source.randrange(len(frames))
    frame = frames[number]
    meta = struct.unpack_from(">I", frame, _META_AT)[0]
    fields = msgspec.msgpack.decode(frame[HEADER.size : HEADER.size + meta])
    # A worker's word on its own pid is believed; see test_a_pid_that_is_no_pid.
    names = [name for name in fields if name not in ("type", "pid")]
    if names:
        fields[source.choice(names)] = source.choice(_VALUES)
    body = msgspec.msgpack.encode(fields)
    frames[number] = resized(frame[: HEADER.size], meta=len(body)) + body + frame[HEADER.size + meta :]
    return b"".join(frames)


_CHANGES: list[Callable[[bytes, random.Random], bytes]] = [
    _flip, _flip_a_header, _cut, _remove, _insert, _splice, _shuffle, _resize, _change_a_field, _change_a_field
]  # fmt: skip


def mutate(session: bytes, source: random.Random) -> bytes:
    """A session that went wrong in one or two ways. The changes that read frames come first: later there are none."""
    readable = {_flip_a_header, _shuffle, _resize, _change_a_field}
    chosen = source.sample(_CHANGES, source.choice([1, 1, 2]))
    if sum(change in readable for change in chosen) > 1:
        chosen = chosen[:1]
    for change in sorted(chosen, key=lambda change: change not in readable):
        session = change(session, source) or b"\0"
    return session


def largest_claim(session: bytes) -> int:
    """The longest body that a header in `session`, right or not, promises to a peer that accepts it."""
    claims = [0]
    at = session.find(MAGIC)
    while at >= 0 and len(session) - at >= HEADER.size:
        meta, payload = struct.unpack_from(">IQ", session, at + _META_AT)
        if meta <= META_CAP and meta + payload <= PAYLOAD_CAP + META_CAP:
            claims.append(meta + payload)
        at = session.find(MAGIC, at + 1)
    return max(claims)
