"""What a job gets, and what its asker gets back."""

from __future__ import annotations

import json
import logging
import os
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pool_jobs
import pytest
from pool_place import HERE, Place, until

from fxpool.errors import ProtocolError
from fxpool.pool import Job, JobSpec, PoolClient, RemoteError, current_job


def run(client: PoolClient, function: str, data: bytes = b"", **settings: Any) -> Job:
    settings.setdefault("label", function)
    return client.submit(f"pool_jobs:{function}", data, JobSpec(**settings))


def test_result_and_what_is_known_of_the_job(client: PoolClient) -> None:
    job = run(client, "echo", b"hello", label="graph 7")
    assert job.result() == b"hello"
    assert job.done()
    assert job.result() == b"hello"
    assert job.label == "graph 7"
    assert job.attempts == 1
    assert job.worker_pid not in (None, os.getpid(), client.server_pid)
    assert job.seconds is not None
    assert "done" in repr(job)


def test_the_job_s_own_view(client: PoolClient) -> None:
    assert current_job() is None
    assert json.loads(run(client, "context", label="seen").result()) == ["seen", 1, 2]
    assert run(client, "slots").result() == b"1 of 2"
    assert run(client, "fork_child").result() == b"none"


def test_qualified_names(client: PoolClient) -> None:
    assert run(client, "Holder.method", b"x").result() == b"method x"


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("pool_jobs:missing", AttributeError),
        ("no_such_module:f", ModuleNotFoundError),
        ("pool_jobs", ValueError),
        ("pool_jobs:not_bytes", TypeError),
    ],
)
def test_functions_that_are_none(client: PoolClient, function: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        client.submit(function, b"", JobSpec(label="x")).result()


def test_environment_is_not_inherited(client: PoolClient, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CLIENT", "1")
    monkeypatch.setenv("LD_PRELOAD_OF_OURS", "1")
    seen = json.loads(run(client, "surroundings").result())
    # What Python itself sets when there is no locale (PEP 538).
    seen["environment"].pop("LC_CTYPE", None)
    # The job's own place for temporary files, which the server removes.
    scratch = seen["environment"].pop("TMPDIR")
    assert "scratch" in scratch
    assert seen["environment"] == {k: v for k, v in place.environment.items() if k != "TMPDIR"}


def test_surroundings_of_a_job(make_client: Callable[..., PoolClient], place: Place) -> None:
    client = make_client(extra={"REMOVED": "was here"})
    extra = place.mark("mark-path")
    extra.mkdir()
    job = run(
        client,
        "surroundings",
        environment={"ADDED": "yes", "REMOVED": None},
        sys_path=[str(extra)],
        cwd=str(extra),
    )
    seen = json.loads(job.result())
    assert seen["environment"]["ADDED"] == "yes"
    assert "REMOVED" not in seen["environment"]
    assert seen["environment"]["TMPDIR"].startswith(str(place.runtime)), "what a worker leaves, the server removes"
    assert seen["path"][:2] == [str(extra), str(HERE)]
    assert "" not in seen["path"]
    assert seen["cwd"] == str(extra)
    assert seen["stdin"] == ""
    assert seen["threads"] == 1
    assert seen["group"] is True
    # Nothing of another process's: standard streams and the one socket.
    sockets = [target for target in seen["descriptors"].values() if target.startswith("socket:")]
    assert len(sockets) == 1
    assert len(seen["descriptors"]) <= 5
    # And nothing of it stays.
    again = json.loads(run(client, "surroundings").result())
    assert "ADDED" not in again["environment"]
    assert again["environment"]["REMOVED"] == "was here"


def test_a_working_directory_that_is_not_there(client: PoolClient) -> None:
    with pytest.raises(FileNotFoundError):
        run(client, "echo", cwd="/no/such/place").result()


def test_exceptions_arrive_with_the_worker_s_frames(client: PoolClient) -> None:
    job = run(client, "raise_custom", b"missing", label="graph 3")
    for _ in range(2):
        with pytest.raises(pool_jobs.CustomError) as caught:
            job.result()
        error = caught.value
        assert error.number == 7
        assert isinstance(error.__cause__, KeyError)
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[-2:] == ["raise_custom", "deeper"]
        assert "_run" not in names
        assert error.fxpool_job == "graph 3"  # type: ignore[attr-defined]
        assert error.fxpool_worker == job.worker_pid  # type: ignore[attr-defined]
        assert f"worker {job.worker_pid}" in error.__notes__[0]
    assert "failed" in repr(job)


def test_exceptions_of_types_that_only_the_worker_knows(client: PoolClient) -> None:
    with pytest.raises(RemoteError, match="only here") as caught:
        run(client, "raise_worker_only").result()
    assert caught.value.type_name == "worker_only.Hidden"
    assert "raise_worker_only" in caught.value.worker_traceback


@pytest.mark.parametrize(("function", "name"), [("exit_by", "SystemExit"), ("interrupt", "KeyboardInterrupt")])
def test_a_job_cannot_end_the_asker(client: PoolClient, function: str, name: str) -> None:
    with pytest.raises(RemoteError) as caught:
        run(client, function, b"3").result()
    assert caught.value.type_name == name


def test_logs_are_replayed_through_the_asker_s_loggers(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pool_jobs.chatter")
    job = run(client, "chatter")
    job.result()
    records = [r for r in caplog.records if r.name.startswith("pool_jobs")]
    assert [r.getMessage() for r in records] == ["info 2", "warning 3", "not propagated", "caught"]
    assert {r.process for r in records} == {job.worker_pid}
    assert records[0].filename == "pool_jobs.py"
    assert records[0].funcName == "chatter"
    assert "ZeroDivisionError" in (records[3].exc_text or "")
    job.result()
    assert len([r for r in caplog.records if r.name.startswith("pool_jobs")]) == 4


def test_what_a_formatter_reads_of_a_record_comes_with_it(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    run(client, "log_with_extra").result()
    (record,) = [r for r in caplog.records if r.name == "pool_jobs"]
    # As torch's trace does, whose formatter takes no record without.
    assert vars(record)["metadata"] == {"graph": {"nodes": [1, 2.5, None]}}
    assert vars(record)["payload"] == "text"
    assert vars(record)["owner"].startswith("<object object")


def test_logs_are_replayed_in_the_thread_that_asks(client: PoolClient) -> None:
    seen: list[int] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(threading.get_ident())

    handler = Handler()
    logging.getLogger("pool_jobs").addHandler(handler)
    try:
        with ThreadPoolExecutor(1) as threads:
            job = run(client, "chatter")
            asker = threads.submit(lambda: (job.result(), threading.get_ident())[1]).result()
    finally:
        logging.getLogger("pool_jobs").removeHandler(handler)
    assert set(seen) == {asker}


def test_levels_are_the_asker_s(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.WARNING)
    try:
        run(client, "chatter").result()
    finally:
        logging.disable(logging.NOTSET)
    assert [r.getMessage() for r in caplog.records] == ["not propagated", "caught"]


def test_logs_of_a_failed_job_come_before_its_exception(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        run(client, "log_and_fail").result()
    assert [r.getMessage() for r in caplog.records] == ["before"]


def test_a_flood_of_logs_is_cut(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    run(client, "many_logs", b"10500").result()
    assert len(caplog.records) == 10_000
    assert "dropping further records" in caplog.records[-1].getMessage()


def test_warnings_are_replayed_with_their_category(client: PoolClient) -> None:
    job = run(client, "warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert job.result() == b"warned"
    assert [(type(w.message), str(w.message)) for w in caught] == [
        (pool_jobs.CustomWarning, "custom"),
        (DeprecationWarning, "old"),
        (UserWarning, "local"),
    ]
    assert os.path.basename(caught[0].filename) == "pool_jobs.py"


def test_the_asker_s_filters_decide(client: PoolClient) -> None:
    job = run(client, "warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=DeprecationWarning, module="pool_jobs")
        job.result()
    assert [str(w.message) for w in caught] == ["old"]


def test_a_warning_that_is_an_error_is_raised_by_result(client: PoolClient) -> None:
    job = run(client, "warn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", pool_jobs.CustomWarning)
        with pytest.raises(pool_jobs.CustomWarning):
            job.result()
    assert job.result() == b"warned"
    assert run(client, "echo", b"alive").result() == b"alive"


def test_a_handler_that_raises_is_not_a_failure_of_the_job(client: PoolClient) -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("I/O operation on closed file")

    handler = Raises()
    logging.getLogger("pool_jobs").addHandler(handler)
    try:
        assert run(client, "many_logs", b"3").result() == b""
    finally:
        logging.getLogger("pool_jobs").removeHandler(handler)


def test_what_a_job_prints_may_be_lost(client: PoolClient) -> None:
    assert run(client, "print_on_a_full_disk").result() == b"printed"


def test_callbacks(client: PoolClient) -> None:
    called: list[Job] = []
    came = threading.Event()
    job = run(client, "echo", b"x")

    def note(job: Job) -> None:
        called.append(job)
        came.set()

    job.add_done_callback(note)
    assert came.wait(20)
    job.add_done_callback(called.append)
    assert called == [job, job]
    job.add_done_callback(lambda j: 1 / 0)  # logged, not raised
    assert job.result() == b"x"


def test_waiting_with_a_limit(client: PoolClient) -> None:
    job = run(client, "sleep")
    with pytest.raises(TimeoutError):
        job.result(timeout=0.05)
    assert not job.done()
    job.cancel()


def test_many_small_jobs_from_many_threads(make_client: Callable[..., PoolClient]) -> None:
    client = make_client(workers=4)

    def ask(number: int) -> bool:
        return run(client, "echo", b"%d" % number).result() == b"%d" % number

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(200)))
    counters = client.status()["counters"]
    assert counters["jobs"] == counters["forks"] == 200
    assert counters["deaths"] == 0


def test_big_payloads_both_ways(client: PoolClient) -> None:
    data = os.urandom(1 << 20) * 50
    jobs = [run(client, "echo", data) for _ in range(2)]
    assert all(job.result() == data for job in jobs)


def test_payloads_over_the_cap(client: PoolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from fxpool.pool.wire import protocol

    monkeypatch.setattr(protocol, "PAYLOAD_CAP", 1000)
    with pytest.raises(ProtocolError, match="maximum size"):
        run(client, "echo", b"x" * 1001)
    assert run(client, "echo", b"x").result() == b"x"


def test_a_process_left_behind_is_killed_and_does_not_hold_up_the_answer(client: PoolClient) -> None:
    pid = int(run(client, "linger").result())
    assert run(client, "echo", b"x").result() == b"x"
    assert until(lambda: not os.path.exists(f"/proc/{pid}"))
