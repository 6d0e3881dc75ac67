"""A level that failed in one process is not tried by the next; the levels below it are as good as ever."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx

import fxpool
from fxpool import counters
from fxpool.codecache.store import small_records
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CannotReturnError
from fxpool.lowering.compiling import remote
from fxpool.lowering.core.runtime import runtime
from fxpool.pool import Job
from fxpool.torch_compat.inductor import aot, aot_graph

KEY = "ab" * 32


class Workers:
    """Real ones, but for levels at which they fail; counts how often a level was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, BaseException] = {}
        self.asked: Counter[str] = Counter()
        self._really, self._patch = remote._submit_once, monkeypatch
        monkeypatch.setattr(remote, "_submit_once", self._ask)

    def _ask(self, request: Any, *arguments: Any) -> tuple[bytes, Job]:
        self.asked[request.level] += 1
        if request.level in self.failing:
            raise self.failing[request.level]
        return self._really(request, *arguments)

    def as_a_new_process(self) -> dict[str, int]:
        """Compile a graph; how often each level was asked for."""
        torch._dynamo.reset()
        counters.reset()
        self.asked.clear()
        self._patch.setattr(compile_fx, "_graph_counter", itertools.count())  # graphs after AOTAutograd have a number
        x = torch.linspace(-1, 1, 8)
        found = torch.compile(lambda x: torch.tanh(x) * 3 - 1, backend="fxpool")(x)
        torch.testing.assert_close(found, torch.tanh(x) * 3 - 1)
        return dict(self.asked)


@pytest.fixture
def workers(lone_pool: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setenv("FXPOOL_POOL", "embedded")
    fxpool.config.reset()
    return Workers(monkeypatch)


@pytest.mark.slow
def test_a_level_whose_result_cannot_be_sent_is_not_tried_again(workers: Workers) -> None:
    error = CannotReturnError("unpicklable", "of a kind")
    workers.failing["aot"] = error
    assert workers.as_a_new_process() == {"aot": 1, "fx": 1}
    assert workers.as_a_new_process() == {}  # the graph after AOTAutograd is a hit
    assert sum(fxpool.stats()["fallbacks"].values()) == 1
    workers.failing["fx"] = error
    store = runtime.store()
    assert store is not None
    store.clear()
    assert workers.as_a_new_process() == {"aot": 1, "fx": 1}
    assert workers.as_a_new_process() == {}
    assert fxpool.stats()["compiles"] == {"worker": 0, "in_process": 1}


@pytest.mark.slow
def test_a_level_that_fails_is_not_tried_again(workers: Workers) -> None:
    """The error may be the graph's own, so this process compiles it at once; the next one tries the level below."""
    workers.failing["aot"] = RuntimeError("lost on the way")
    assert workers.as_a_new_process() == {"aot": 1}
    assert fxpool.stats()["compiles"] == {"worker": 0, "in_process": 1}
    assert workers.as_a_new_process() == {"fx": 1}
    assert fxpool.stats()["compiles"] == {"worker": 1, "in_process": 0}
    assert workers.as_a_new_process() == {}


@pytest.mark.slow
def test_what_passes_is_tried_again(workers: Workers) -> None:
    workers.failing["aot"] = OSError("no space left")
    for _ in range(2):
        assert workers.as_a_new_process()["aot"] == 1


def test_a_graph_s_own_error_is_no_level_s(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised in each process, as by the worker; only the first process tries a worker."""
    error = RuntimeError("wrong graph")

    def refuse(*arguments: object, **options: object) -> None:
        raise error

    workers.failing = {"aot": error, "fx": error}
    monkeypatch.setattr(aot_graph, "compile_as_torch_does", refuse)
    monkeypatch.setattr(aot, "compile_graph", refuse)
    for expected in ({"aot": 1}, {}, {}):
        with pytest.raises(Exception, match="wrong graph"):
            workers.as_a_new_process()
        assert dict(workers.asked) == expected


def test_a_shortage_here_says_nothing_about_the_graph(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*arguments: object, **options: object) -> None:
        raise MemoryError("no memory at this moment")

    workers.failing["aot"] = RuntimeError("lost on the way")
    monkeypatch.setattr(aot_graph, "compile_as_torch_does", short)
    monkeypatch.setattr(aot, "compile_graph", short)
    for _ in range(2):
        with pytest.raises(Exception, match="no memory"):
            workers.as_a_new_process()
        assert dict(workers.asked) == {"aot": 1}, "the next process tries a worker again"


def test_records(tmp_path: Path) -> None:
    root = str(tmp_path / "c")
    store = LocalStore(root)
    assert small_records.failed.find(root, KEY) is None
    small_records.failed.add(root, KEY, "unpicklable")
    assert small_records.failed.find(root, KEY) == "unpicklable"
    long_ago = time.time() - 30 * 24 * 3600
    os.utime(tmp_path / "c" / "failed" / KEY, (long_ago, long_ago))
    assert small_records.failed.find(root, KEY) == "unpicklable"
    small_records.failed.add(root, KEY, f"{small_records.COMPILE_ERROR}CppCompileError")
    assert small_records.failed.find(root, KEY)
    os.utime(tmp_path / "c" / "failed" / KEY, (long_ago, long_ago))
    assert small_records.failed.find(root, KEY) is None, "it may have been for want of something"
    small_records.failed.add(root, KEY, "unpicklable")
    store.clear()
    assert small_records.failed.find(root, KEY) is None
    with pytest.raises(ValueError, match="is not a key"):
        small_records.failed.add(root, "../x", "unpicklable")
