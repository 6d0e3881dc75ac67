"""Exceptions across processes, without the processes: dump and load."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

import pool_jobs
import pytest

from fxpool.errors import JobCancelledError, JobTimeoutError, PoolUnavailableError, WorkerDiedError
from fxpool.pool import RemoteError
from fxpool.pool.wire import exceptions
from fxpool.pool.wire import messages as m


def raised(function: Callable[[bytes], object], data: bytes = b"x") -> BaseException:
    try:
        function(data)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def across(error: BaseException) -> Exception:
    return exceptions.load(exceptions.dump(error))


def test_type_fields_frames_and_cause() -> None:
    error = across(raised(pool_jobs.raise_custom))
    assert type(error) is pool_jobs.CustomError
    assert error.number == 7
    assert [f.name for f in traceback.extract_tb(error.__traceback__)] == ["raised", "raise_custom", "deeper"]
    assert type(error.__cause__) is KeyError
    assert error.__suppress_context__
    assert "deeper" in "".join(traceback.format_exception(error.__cause__))


def test_context_without_cause_and_cycles() -> None:
    first, second = ValueError("1"), TypeError("2")
    first.__context__, second.__context__ = second, first
    error = across(first)
    assert type(error.__context__) is TypeError
    assert error.__context__.__context__ is error
    error.__context__.__context__ = None  # for the garbage collector's and pytest's sake


def test_what_cannot_be_pickled_is_stood_in_for() -> None:
    error = across(raised(pool_jobs.raise_unpicklable))
    assert isinstance(error, RemoteError)
    assert error.type_name == "ValueError"
    assert error.worker_message == "holds a lock"
    assert "raise_unpicklable" in error.worker_traceback
    assert "raise_unpicklable" in str(error)
    assert "cannot be pickled" in error.reason
    assert traceback.extract_tb(error.__traceback__)[-1].name == "raise_unpicklable"


def test_what_cannot_be_built_again_is_stood_in_for() -> None:
    error = across(raised(pool_jobs.raise_argument))
    assert isinstance(error, RemoteError)
    assert error.type_name == "pool_jobs.ArgumentError"


def test_one_bad_link_costs_only_itself() -> None:
    inner = ValueError("inner")
    inner.lock = threading.Lock()  # type: ignore[attr-defined]
    outer = KeyError("outer")
    outer.__cause__ = inner
    error = across(outer)
    assert type(error) is KeyError
    assert isinstance(error.__cause__, RemoteError)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_the_asker_is_stood_in_for(kind: type[BaseException]) -> None:
    error = across(kind(3))
    assert isinstance(error, RemoteError)
    assert error.type_name == kind.__name__


def test_deep_recursion() -> None:
    error = across(raised(pool_jobs.raise_deep))
    assert type(error) is RecursionError
    assert 50 < len(traceback.extract_tb(error.__traceback__)) <= 200


def test_exceptions_that_misbehave() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

        def __reduce__(self) -> str:
            raise SystemExit(1)

    error = across(Rude())
    assert isinstance(error, RemoteError)
    assert "not available" in error.worker_message


def test_texts_that_are_no_utf_8() -> None:
    assert "\\udcff" in str(across(SystemExit("\udcff")))


def test_garbage_is_an_exception_as_well() -> None:
    for data in (b"", b"\xff\x00", exceptions.dump(ValueError("x"))[:-3]):
        assert isinstance(exceptions.load(data), RemoteError)


def test_remote_errors_travel_on() -> None:
    error = RemoteError("a.B", "text", "frames", "reason")
    for copy in (pickle.loads(pickle.dumps(error)), across(error)):
        assert isinstance(copy, RemoteError)
        assert (copy.type_name, copy.worker_message, copy.worker_traceback, copy.reason) == (
            "a.B",
            "text",
            "frames",
            "reason",
        )


def test_failures_that_are_the_pool_s() -> None:
    died = exceptions.error_of(
        m.Failed(job=1, kind="died", worker=5, attempts=2, signal=11, log_path="/l"), b"", "graph 1"
    )
    assert isinstance(died, WorkerDiedError)
    assert (died.job, died.worker, died.signal, died.attempts, died.log_path) == ("graph 1", 5, 11, 2, "/l")
    late = exceptions.error_of(m.Failed(job=1, kind="timeout", limit=2.5), b"", "g")
    assert isinstance(late, JobTimeoutError)
    assert late.seconds == 2.5
    assert isinstance(exceptions.error_of(m.Failed(job=1, kind="cancelled"), b"", "g"), JobCancelledError)
    assert isinstance(
        exceptions.error_of(m.Failed(job=1, kind="unavailable", reason="r"), b"", "g"), PoolUnavailableError
    )


def test_a_process_that_has_tblib_pickle_exceptions_sends_each_alone() -> None:
    """Importing `distributed` has that effect on the whole process."""
    code = (
        "import distributed, pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', 'not has_tblib', "
        f"{__file__!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
