"""Sends random and malformed frames to a server, which goes on serving others."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.client import hosts
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.protocol import HEADER, MAGIC, META_CAP, PAYLOAD_CAP, PROTOCOL_VERSION, encode
from fxpool.version import __version__

from .scene import Report, scene

__all__ = ["run"]

_SAMPLES = (
    m.Submit(job=1, function="x:y", spec=m.JobSpec(label="l")), m.Cancel(job=1), m.Answer(number=1, ok=True),
    m.Pause(seconds=0.01), m.StatusQuery(number=1), m.HistoryQuery(number=1), m.Ping(),
    m.Started(job=1, worker=1, attempt=1), m.Done(job=1, worker=1, attempts=1, seconds=1.0),
    m.Hello(protocol=1, fxpool="x", pid=1),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, float("nan"), float("inf"), 1e-320, "\0" * 70_000, "é" * 100_000,
    b"x" * 100, [], {}, [[]] * 1000, None, True, {"a": {"b": [1] * 1000}},
)  # fmt: skip
_FIELDS = (
    "zz",
    "job",
    "reuse",
    "timeout",
    "memory",
    "levels",
    "environment",
    "priority",
    "retries",
    "dedup_key",
    "spec",
)
_FUNCTIONS = ("os:getcwd", "", "::", ":", "a" * 70_000, "os:abort", "builtins:print", "fxpool.pool.worker.worker:main")
# Connections between two looks at the server.
_LOOK = 50


def run(frames: int, seed: int) -> Report:
    """Send `frames` frames, over as many connections as it takes."""
    report = Report("frames")
    choose = random.Random(seed)
    with scene("f") as stage:
        config = PoolConfig(
            environment=stage.environment, runtime_dir=str(stage.runtime), host="chaos", workers=2, idle_timeout=4.0
        )
        with PoolClient(config) as client:
            client.start(wait=True)
            first = client.status()["server_pid"]
            # The server that learned about the tool chain may still be there.
            link = next(link for link in hosts.links(stage.runtime) if hosts.status(link).get("server_pid") == first)
            while report.figures["frames"] < frames:
                _one_connection(link, choose, report)
                if report.figures["connections"] % _LOOK == 0:
                    _look(link, first, report)
            _settle(link, first, report)
            echoed = client.submit("builtins:bytes", b"still here", JobSpec(label="last")).result(120)
            if echoed != b"still here":
                report.wrong.append("the last job's result")
        report.left = stage.left()
    return report


def _one_connection(link: Path, choose: random.Random, report: Report) -> None:
    report.figures["connections"] += 1
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3)
        sock.connect(str(link.parent / os.readlink(link)))
        hello = m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid(), visitor=choose.random() < 0.5)
        with contextlib.suppress(OSError):
            if choose.random() < 0.85:
                sock.sendall(b"".join(encode(hello)))
            for _ in range(choose.randrange(1, 6)):
                sock.sendall(_frame(choose))
                report.figures["frames"] += 1
            if choose.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
            sock.settimeout(0.02)
            while sock.recv(65536):
                pass


def _frame(choose: random.Random) -> bytes:
    """Return bytes that resemble a frame, more or less."""
    kind = choose.randrange(8)
    if kind == 0:
        return choose.randbytes(choose.randrange(1, 400))
    fields: dict[str, Any] = dict(msgspec.to_builtins(choose.choice(_SAMPLES)))
    if kind in (1, 2, 3):  # one or more fields of another type or an extreme value
        for _ in range(choose.randrange(1, 4)):
            fields[choose.choice([name for name in fields if name != "type"] or ["type"])] = choose.choice(_VALUES)
        return _packed(fields, choose.randbytes(choose.choice([0, 1, 1000])))
    if kind == 4:
        fields[choose.choice(_FIELDS)] = choose.choice(_VALUES)
        return _packed(fields)
    if kind == 5:  # lengths that are not true
        meta = choose.choice([0, 1, 2**32 - 1, META_CAP, META_CAP + 1])
        return _packed(fields, meta=meta, payload=choose.choice([0, 2**64 - 1, PAYLOAD_CAP, PAYLOAD_CAP + 1, 2**40]))
    if kind == 6:
        data = bytearray(_packed(fields, b"pp"))
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        return bytes(data)
    return b"".join(encode(_extreme(choose), choose.randbytes(choose.choice([0, 5, 100_000]))))


def _packed(fields: dict[str, Any], content: bytes = b"", meta: int | None = None, payload: int | None = None) -> bytes:
    data = msgspec.msgpack.encode(fields)
    lengths = (len(data) if meta is None else meta, len(content) if payload is None else payload)
    return HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, *lengths) + data + content


def _extreme(choose: random.Random) -> m.Submit:
    """Return a valid request with extreme values."""
    return m.Submit(
        job=choose.choice([0, -1, 2**63 - 1, 7]),
        function=choose.choice(_FUNCTIONS),
        levels={"x": 2**62},
        disabled=choose.choice([0, -(2**63)]),
        watched=choose.random() < 0.5,
        answers=choose.random() < 0.5,
        spec=m.JobSpec(
            label=choose.choice(["", "x" * 100_000, "\n\r\0<script>"]),
            environment={
                choose.choice(["A", "", "=", "A=B", "PATH", "\0"]): choose.choice([None, "", "x\0y", "v" * 9999])
            },
            sys_path=choose.choice([[], ["/"], [""] * 1000]),
            cwd=choose.choice([None, "/", "/nonexistent", "\0", ""]),
            timeout=choose.choice([None, 0.001, 1e-300, 1e8]),
            retries=choose.choice([0, -5, 3]),
            priority=choose.choice([0, -(2**62), 2**62]),
            dedup_key=choose.choice(["", "f"]),
            memory=choose.choice([None, 0, -1, 1, 2**62]),
            reuse=choose.random() < 0.5,
            exclusive=choose.random() < 0.3,
            best_effort=choose.random() < 0.2,
        ),
    )


def _look(link: Path, first: int, report: Report) -> None:
    started = time.monotonic()
    facts = hosts.status(link)
    report.figures["slowest status, ms"] = max(
        report.figures["slowest status, ms"], round(1000 * (time.monotonic() - started))
    )
    if facts.get("server_pid") != first:
        report.lost.append(f"the server was replaced or does not answer: {facts.get('state')}")


def _settle(link: Path, first: int, report: Report) -> None:
    """Wait until the server has carried out the valid requests: best-effort jobs one by one, each when it is quiet."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        facts = hosts.status(link)
        if facts.get("server_pid") == first and not facts["running"] and not facts["queued"]:
            return
        time.sleep(0.5)
    report.lost.append("the server still has jobs")
