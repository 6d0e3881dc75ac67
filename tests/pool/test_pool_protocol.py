"""Frames: what was sent arrives, and nothing else is ever taken for a message."""

from __future__ import annotations

import os
import socket
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpool.errors import ProtocolError
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import (
    HANDSHAKE_CAP,
    HEADER,
    MAGIC,
    META_CAP,
    PAYLOAD_CAP,
    PROTOCOL_VERSION,
    Channel,
    FrameDecoder,
    Message,
    Outbox,
    check_peer,
    encode,
)

SAMPLE = m.Submit(
    job=3,
    function="a.b:c",
    levels={"": 30},
    disabled=0,
    spec=m.JobSpec(
        label="graph 1",
        environment={"A": "1", "B": None},
        sys_path=["/x"],
        cwd="/y",
        timeout=1.5,
        retries=2,
        priority=1,
    ),
)


def frame_of(message: Message, payload: bytes = b"") -> bytes:
    return b"".join(encode(message, payload))


def decoder(cap: int = PAYLOAD_CAP) -> FrameDecoder[m.ToServer]:
    return FrameDecoder(m.ToServer, cap=cap)


@settings(deadline=None)
@given(st.binary(max_size=5000), st.lists(st.integers(1, 700), min_size=1), st.text(max_size=50))
def test_round_trip_in_any_portions(payload: bytes, portions: list[int], label: str) -> None:
    label = label.encode("utf-8", "ignore").decode()
    sent = [m.Submit(job=1, function="f:g", spec=m.JobSpec(label=label)), m.Cancel(job=2), SAMPLE]
    data = b"".join(frame_of(message, payload) for message in sent)
    under_test, got, at = decoder(), [], 0
    while at < len(data):
        size = portions[at % len(portions)]
        got += under_test.feed(data[at : at + size])
        at += size
    assert [message for message, _ in got] == sent
    assert all(bytes(received) == payload for _, received in got)
    assert not under_test.mid_frame


def test_payload_is_not_copied_on_its_way_out() -> None:
    payload = b"x" * 1000
    assert encode(m.Cancel(job=1), payload)[1] is payload


def test_stream_cut_at_every_byte() -> None:
    data = frame_of(SAMPLE, b"payload")
    for cut in range(len(data)):
        under_test = decoder()
        assert under_test.feed(data[:cut]) == []
        assert under_test.mid_frame == (cut > 0)
        assert len(under_test.feed(data[cut:])) == 1


def test_channel_tells_a_cut_from_an_end() -> None:
    data = frame_of(SAMPLE, b"payload")
    for cut in (0, 1, HEADER.size, HEADER.size + 1, len(data) - 1, len(data)):
        ours, theirs = socket.socketpair()
        channel: Channel[m.ToServer] = Channel(ours, m.ToServer)
        theirs.sendall(data[:cut])
        theirs.close()
        if cut == len(data):
            assert channel.receive() is not None
        if cut in (0, len(data)):
            assert channel.receive() is None
        else:
            with pytest.raises(ProtocolError, match="inside a frame"):
                channel.receive()
        channel.close()


def test_every_bit_flip_is_a_message_or_a_protocol_error() -> None:
    data = frame_of(SAMPLE, b"pay")
    refused = 0
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        under_test = decoder(cap=HANDSHAKE_CAP)
        try:
            for message, payload in under_test.feed(flipped):
                assert isinstance(message, m.ToServer)
                assert len(payload) <= HANDSHAKE_CAP
        except ProtocolError:
            refused += 1
    # All of magic, version, flags and reserved; much of the rest.
    assert refused >= 8 * 8


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_meta_is_a_message_or_a_protocol_error(meta: bytes) -> None:
    data = HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(meta), 0) + meta
    try:
        for message, _ in decoder().feed(data):
            assert isinstance(message, m.ToServer)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ((b"HTTP", PROTOCOL_VERSION, 0, 0, 1, 0), "not a frame of fxpool"),
        ((MAGIC, PROTOCOL_VERSION + 1, 0, 0, 1, 0), f"version {PROTOCOL_VERSION + 1}"),
        ((MAGIC, PROTOCOL_VERSION, 1, 0, 1, 0), "flags 1"),
        ((MAGIC, PROTOCOL_VERSION, 0, 9, 1, 0), "reserved 9"),
        ((MAGIC, PROTOCOL_VERSION, 0, 0, 0, 5), "0 bytes of message"),
        ((MAGIC, PROTOCOL_VERSION, 0, 0, META_CAP + 1, 0), "exceeds the max"),
        ((MAGIC, PROTOCOL_VERSION, 0, 0, 1, 1 << 62), "exceeds the max"),
    ],
)
def test_headers_that_are_refused(header: tuple[object, ...], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decoder().feed(HEADER.pack(*header))


def test_unknown_peers_may_send_little() -> None:
    header = HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, 10, HANDSHAKE_CAP)
    with pytest.raises(ProtocolError, match="exceeds the max"):
        decoder(cap=HANDSHAKE_CAP).feed(header)
    decoder().feed(header)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Unheard"},
        {"type": "Cancel"},
        {"type": "Cancel", "job": "one"},
        {"type": "Cancel", "job": 1, "more": 2},
        {"job": 1},
        [1, 2],
        {"type": "Welcome", "protocol": 1, "fxpool": "0", "pid": 1, "slots": 1},
    ],
)
def test_bodies_that_are_refused(body: object) -> None:
    meta = msgspec.msgpack.encode(body)
    with pytest.raises(ProtocolError, match="known message"):
        decoder().feed(HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(meta), 0) + meta)


def test_extensions_are_refused_even_among_any_values() -> None:
    """A flipped bit makes one of a number, and nothing that prints facts or writes them as JSON expects it."""
    meta = msgspec.msgpack.encode(m.Status(number=1, facts={"clients": [msgspec.msgpack.Ext(-51, b"x")]}))
    client: FrameDecoder[m.ToClient] = FrameDecoder(m.ToClient)
    with pytest.raises(ProtocolError, match="extension type -51"):
        client.feed(HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(meta), 0) + meta)


def test_senders_keep_to_the_cap() -> None:
    with pytest.raises(ProtocolError, match="maximum size"):
        encode(m.Submit(job=1, function="f:g", spec=m.JobSpec(label="x" * (META_CAP + 1))))


def test_outbox_sends_what_fits_and_the_rest_later() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox, payload = Outbox(), os.urandom(5 << 20)
        for number in range(40):
            outbox.push(encode(m.Cancel(job=number)))
        outbox.push(encode(m.Cancel(job=99), payload))
        assert not outbox.flush(ours)
        channel: Channel[m.ToServer] = Channel(theirs, m.ToServer)
        got: list[tuple[m.ToServer, memoryview]] = []

        def receive() -> None:
            for _ in range(41):
                frame = channel.receive()
                assert frame is not None
                got.append(frame)

        thread = threading.Thread(target=receive)
        thread.start()
        while not outbox.flush(ours):
            pass
        thread.join()
        assert not outbox
        assert bytes(got[-1][1]) == payload
        assert [message.job for message, _ in got] == [*range(40), 99]  # type: ignore[union-attr]


def test_peers_of_other_users_are_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert check_peer(ours, os.getuid()) == os.getpid()
        with pytest.raises(ProtocolError, match="user"):
            check_peer(ours, os.getuid() + 1)
