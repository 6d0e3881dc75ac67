"""The dashboard's decisions, without a server: who may ask, what a job waits for, what is kept over time."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from fxpool.codecache.store.entry import Component, Entry, Metadata, Origin
from fxpool.codecache.store.quarantine import Record
from fxpool.dashboard import entry_view, pool_view, web
from fxpool.dashboard.application import Samples, failures
from fxpool.dashboard.pool_view import Jobs
from fxpool.dashboard.web import Refused, Request, parse
from fxpool.pool.wire import messages as m


@pytest.mark.parametrize(
    "head, expected",
    [
        (b"GET / HTTP/1.1\r\nHost: localhost:80", Request("GET", ("",), "localhost:80")),
        (b"GET /a/b%2Fc/?q=/x HTTP/1.0\r\nhost:  x ", Request("GET", ("a", "b/c", ""), "x")),
        (b"POST /a HTTP/1.1\r\nContent-Length: 0", Request("POST", ("a",), None)),
        (b"GET /../../etc/passwd HTTP/1.1", Request("GET", ("..", "..", "etc", "passwd"), None)),
        (b"GET /%00 HTTP/1.1", Request("GET", ("\0",), None)),
    ],
)
def test_a_request_is_parsed(head: bytes, expected: Request) -> None:
    assert parse(head) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"", b"GET", b"GET / HTTP/2", b"get / HTTP/1.1", b"GET http://x/ HTTP/1.1", b"GET /a b HTTP/1.1",
        b"GET /\xff HTTP/1.1", b"GET / HTTP/1.1\r\nno colon", b"GET / HTTP/1.1\r\nbad name: x",
        b"GET / HTTP/1.1\r\n folded", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", b"GET / HTTP/1.1\r\nContent-Length: 3",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked", b"GET / HTTP/1.1\r\nHost: a\nX: b",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(head: bytes) -> None:
    found = parse(head)
    assert isinstance(found, Refused) and found.status == 400


def test_hosts_of_this_machine() -> None:
    for good in ("127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"):
        assert web.allowed_host(good, 8000)
    for bad in ("evil.example:8000", "127.0.0.1.evil.example:8000", "127.0.0.1:8001", "127.0.0.1", "", None, "a:b:c"):
        assert not web.allowed_host(bad, 8000)
    assert web.allowed_host("localhost", 80)


def test_the_secret() -> None:
    token = web.new_token()
    assert (
        len(base64.urlsafe_b64decode(token)) == 192 // 8 and web.right_token(token, token) and token != web.new_token()
    )
    for wrong in ("", token[:-1], token + "x", token.swapcase(), "\udcff", "é"):
        assert not web.right_token(wrong, token)


def facts(**changes: Any) -> dict[str, Any]:
    usual = {
        "running": [{"job": 1, "pid": 50, "label": "graph 1", "alone": False}],
        "zygote": {"state": "ready"},
        "paused": False,
        "limits": {"pressed": False, "host_mark": 0.9},
        "slots_free": 0,
    }
    return {**usual, **changes}


def ask(**changes: Any) -> dict[str, Any]:
    usual = {"job": 2, "position": 1, "alone": False, "spare": False, "joined": False, "running": False}
    return {**usual, **changes}


@pytest.mark.parametrize(
    "server, row, expected",
    [
        (facts(), ask(), "a free worker: graph 1 (50) runs"),
        (facts(), ask(position=3), "a free worker, after 2 others in the queue: graph 1 (50) runs"),
        (facts(), ask(job=1, running=True, position=0), "the result of worker 50"),
        (
            facts(),
            ask(job=1, running=True, joined=True, position=0),
            "the result of worker 50, which compiles it for another process",
        ),
        (facts(paused=True), ask(), "a measurement of another process"),
        (facts(zygote={"state": "starting"}), ask(), "the pool to start: the zygote imports torch"),
        (facts(zygote={"state": "broken", "reason": "x"}), ask(), "nothing: the pool cannot fork workers (x)"),
        (facts(limits={"pressed": True, "host_mark": 0.9}), ask(), "memory: more than 90% is in use"),
        (
            facts(running=[{"job": 1, "pid": 50, "label": "g", "alone": True}]),
            ask(),
            "an exclusive job: g (50) runs",
        ),
        (facts(slots_free=1), ask(alone=True), "all running jobs, because it runs exclusively: graph 1 (50) runs"),
        (facts(slots_free=1, running=[]), ask(spare=True), "idle time: it runs when no other job runs or waits"),
        (facts(slots_free=1, running=[]), ask(), "the next free moment: it starts now"),
    ],
)
def test_what_a_job_waits_for(server: dict[str, Any], row: dict[str, Any], expected: str) -> None:
    assert pool_view.wait_reason(server, row) == expected


def test_samples_stay_few_and_cover_all_of_the_time() -> None:
    samples = Samples(1.0, most=10)
    for at in range(1000):
        samples.add(float(at), {"n": float(at)})
    assert len(samples.taken) <= 10 and samples.taken[0]["at"] == 0.0 and samples.taken[-1]["at"] >= 800
    assert samples.age > 0 and samples.interval > 1.0
    assert samples.since(samples.taken[-2]["at"]) == samples.taken[-1:]
    assert not samples.add(samples.taken[-1]["at"], {})


def test_jobs_of_servers_that_end() -> None:
    jobs = Jobs(most=3)
    for number in range(5):
        ended = None if number == 0 else 2.0
        record = m.JobRecord(job=number, change=1, label="g", queued=1.0, ended=ended, result="done" if ended else "")
        jobs.put("one", record, 100.0)
    assert [job["job"] for job in jobs.all()] == [0, 3, 4], "a job that goes on stays"
    assert [job["queued"] for job in jobs.all()] == [101.0] * 3
    latest = jobs.latest
    jobs.server_ended("another", 110.0)
    assert jobs.since(latest) == []
    jobs.server_ended("one", 110.0)
    assert [(job["job"], job["how"], job["ended"]) for job in jobs.since(latest)] == [(0, "lost", 110.0)]


def test_what_failed_is_told_once_and_the_latest_first() -> None:
    usual = {"label": "g", "part_of": 0, "reason": "", "phases": []}
    jobs = [
        {**usual, "how": "done", "ended": 9.0},
        {**usual, "how": "cancelled", "ended": 9.0},
        {**usual, "how": "died", "ended": 5.0, "reason": "killed by SIGSEGV", "phases": [["kernels", 1.0]]},
        {**usual, "how": "died", "ended": 5.0, "part_of": 3},
        {**usual, "how": "timeout", "ended": 7.0},
    ]
    store = {"unreadable": 2, "parts": {"set aside": {"files": 1}}}
    record = Record("ab" * 32, "bad graph", "WorkerDiedError", 6.0, function="f, a.py:2")
    found = failures(jobs, [record], store)
    assert [row["at"] for row in found] == [7.0, 6.0, 5.0, 0.0, 0.0]
    assert found[1]["label"] == "bad graph, f, a.py:2"
    assert "`fxpool cache quarantine --release abababababab`" in found[1]["what"]
    assert found[2]["why"] == "killed by SIGSEGV (in phase kernels)"


def test_an_entry_beside_the_one_before() -> None:
    def entry(size: int) -> Entry:
        text = f"first\nsize = {size}\nlast"
        return Entry(
            key="ab" * 32,
            components=[Component("graph", "cd" * 32, text), Component("inputs", "ef" * 32, "none overlap")],
            metadata=Metadata("g", 1.0, 2.0, "2.13.0", origin=Origin(function="f", inputs=[f"float32[{size}]"])),
        )

    found = entry_view.details(entry(8), entry(4), ["graph", "inputs"])
    assert found["before"]["differs"] == [
        {"name": "graph", "lines": ["- size = 4", "+ size = 8"]},
        {"name": "inputs", "lines": ["- float32[4]", "+ float32[8]"]},
    ]
    assert entry_view.details(entry(8))["before"] is None
    assert len(entry_view.changed_lines("", "\n".join(map(str, range(10_000))))) == 60
