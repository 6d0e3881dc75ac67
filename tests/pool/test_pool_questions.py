"""A job asks its caller what only that process can know, and goes on with the answer, or without one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from pool_place import Place, until

from fxpool.errors import JobCancelledError
from fxpool.pool import Job, JobSpec, PoolClient

Answer = Callable[[bytes], "bytes | None"]


def submit(client: PoolClient, function: str, answer: Answer | None, data: bytes = b"?", dedup_key: str = "") -> Job:
    return client.submit(f"pool_jobs:{function}", data, JobSpec(label=function, dedup_key=dedup_key), on_ask=answer)


class Open:
    """Answers when it is told what."""

    def __init__(self) -> None:
        self.questions: list[bytes] = []
        self._told = threading.Event()
        self._answer: bytes | None = None

    def __call__(self, question: bytes) -> bytes | None:
        self.questions.append(question)
        assert self._told.wait(50)
        return self._answer

    def tell(self, answer: bytes | None) -> None:
        self._answer = answer
        self._told.set()


@pytest.mark.parametrize("function", ["asks", "asks_in_a_sub_job"])
def test_the_caller_answers(client: PoolClient, function: str) -> None:
    threads = []

    def answer(question: bytes) -> bytes:
        threads.append(threading.current_thread())
        return question.upper() + b"!" if b"again" in question else b""

    assert submit(client, function, answer).result(timeout=50) == repr([b"", b"? AGAIN!"]).encode()
    assert threading.main_thread() not in threads


def test_long_ones_arrive_whole(client: PoolClient) -> None:
    data = os.urandom(9 << 20)
    found = submit(client, "asks", lambda question: question[: len(data)][::-1], data).result(timeout=50)
    assert found == repr([data[::-1]] * 2).encode()


def test_who_does_not_answer_questions_is_not_asked(client: PoolClient) -> None:
    assert submit(client, "asks", None).result(timeout=50) == b"[None, None]"


def test_a_caller_that_does_not_know(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    def answer(question: bytes) -> bytes | None:
        if b"again" in question:
            raise RuntimeError("no clock here")
        return None

    with caplog.at_level(logging.ERROR):
        assert submit(client, "asks", answer).result(timeout=50) == b"[None, None]"
    assert "no clock here" in caplog.text


def test_others_run_meanwhile(make_client: Callable[..., PoolClient]) -> None:
    client, asked = make_client(workers=1), Open()
    job = submit(client, "asks", asked)
    assert until(lambda: asked.questions)
    assert submit(client, "echo", None, b"x").result(timeout=50) == b"x"
    asked.tell(b"yes")
    assert job.result(timeout=50) == b"[b'yes', b'yes']"


def test_another_attempt_asks_again(client: PoolClient) -> None:
    first, asked = Open(), []

    def answer(question: bytes) -> bytes | None:
        asked.append(question)
        return first(question) if len(asked) == 1 else b"second"

    job = submit(client, "asks_and_is_killed_once", answer)
    assert job.result(timeout=50) == b"b'second'"
    first.tell(b"first")  # nobody waits for it any more
    assert asked == [b"1", b"2"]
    assert submit(client, "echo", None, b"x").result(timeout=50) == b"x"


@pytest.fixture
def clients(place: Place, make_client: Callable[..., PoolClient]) -> Iterator[list[PoolClient]]:
    """Three clients of the host's server, which is gone after the test."""
    clients = [make_client(host="env", idle_timeout=1.0) for _ in range(3)]
    yield clients
    for client in clients:
        client.close()
    assert until(lambda: not place.processes())
    (place.runtime / "host.lock").unlink(missing_ok=True)


@pytest.mark.parametrize("leaves", ["does not know", "withdraws", "is gone"])
def test_of_several_callers_the_next_is_asked(clients: list[PoolClient], leaves: str) -> None:
    asked = [Open(), Open(), Open()]
    jobs = [submit(clients[0], "asks", asked[0], dedup_key="f")]
    assert until(lambda: asked[0].questions)
    jobs += [submit(clients[1], "asks", None, dedup_key="f"), submit(clients[2], "asks", asked[2], dedup_key="f")]
    assert until(lambda: clients[0].status()["counters"]["joined"] == 2)
    if leaves == "withdraws":
        jobs[0].cancel()
    elif leaves == "is gone":
        clients[0].close()
    else:
        asked[0].tell(None)
    assert until(lambda: asked[2].questions)
    asked[2].tell(b"third")
    assert [job.result(timeout=50) for job in jobs[1:]] == [b"[b'third', b'third']"] * 2
    if leaves == "does not know":
        assert asked[0].questions == [b"?", b"? again"], "who does not know one answer may know the next"
    else:
        with pytest.raises(JobCancelledError):
            jobs[0].result(timeout=50)
    asked[0].tell(b"late")


def test_a_job_that_is_withdrawn_has_no_question_any_more(client: PoolClient) -> None:
    asked = Open()
    job = submit(client, "asks", asked)
    assert until(lambda: asked.questions)
    job.cancel()
    assert until(lambda: not client.status()["workers"])
    asked.tell(b"late")
    assert submit(client, "asks", lambda question: b"1").result(timeout=50) == b"[b'1', b'1']"
