"""What switches pool or cache off is said once, of the program's line, and fails nothing."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

import fxpool
from fxpool import notices


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    notices.forget()
    yield
    notices.forget()


def test_once_per_reason_and_place_and_counted_each_time() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            notices.switched_off("cache_not_written", "no room in /a", about="/a")
        notices.switched_off("cache_not_written", "no room in /b", about="/b")
        notices.switched_off("pool_unavailable", "no pool")
    assert [str(one.message) for one in caught] == [
        "fxpool: no room in /a", "fxpool: no room in /b", "fxpool: no pool",
    ]  # fmt: skip
    assert fxpool.stats()["switched_off"] == {"cache_not_written": 4, "pool_unavailable": 1}


def test_it_is_of_the_line_of_the_program() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        notices.switched_off("pool_unavailable", "no pool")
    assert caught[0].filename == __file__


def test_in_a_thread_that_is_nobodys() -> None:
    with pytest.warns(RuntimeWarning, match="no pool"):
        thread = threading.Thread(target=notices.warn, args=("no pool",))
        thread.start()
        thread.join()


def test_a_filter_that_makes_it_an_error_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "fxpool"):
        warnings.simplefilter("error")
        notices.switched_off("pool_unavailable", "no pool")
    assert caplog.messages == ["fxpool: no pool"]
    assert fxpool.stats()["switched_off"] == {"pool_unavailable": 1}


class Broken:
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")

    flush = write


def test_a_stream_that_is_closed_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def refuse(*_: object, **__: object) -> None:
        refused.append(sys.stderr)
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(sys, "stderr", Broken())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", refuse)
        notices.warn("no pool")
        assert len(refused) == 1
        monkeypatch.setattr(sys, "stderr", None)
        notices.warn("no pool")
    assert refused[1:] == [None]
