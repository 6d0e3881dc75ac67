"""A compile job whose candidates are timed by a list: what there is no GPU for here."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from pathlib import Path

import msgspec

from fxpool.errors import WorkerDiedError
from fxpool.lowering import tuning, worker
from fxpool.torch_compat.autotuning import Selection
from fxpool.torch_compat.benchmarks import Times

_submit = worker._submit


def fastest() -> str:
    """Words that the candidate made out to be the fastest has in its source; the fused kernel is fast, too."""
    return os.environ["TORCHINDUCTOR_FASTEST"]


def made_up(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
    """Times by `fastest` for what would be timed; everything else is a job as ever."""
    if function != tuning.TIME_CANDIDATES:
        return _submit(function, payload, label, devices)
    assert devices == "7"
    asked = msgspec.msgpack.decode(payload, type=tuning._Asked)
    print(f"timed: {asked.question.describe()}", flush=True)
    answer: Future[bytes] = Future()
    if not isinstance(asked.question, Selection):
        answer.set_result(msgspec.msgpack.encode(Times([0.001])))
        return answer
    times: list[float | None] = []
    for choice in asked.question.choices:
        sources = [] if choice.extern else [Path(path).read_text() for path in _paths(choice.request)]
        times.append(1.0 if not any(fastest() in source for source in sources) else 0.01)
    answer.set_result(msgspec.msgpack.encode(Times(times)))
    return answer


def _paths(request: bytes) -> list[str]:
    import pickle

    return [pickle.loads(request).module_path]


def compile_timed(payload: bytes) -> bytes:
    """Job: `compile_job`, with times that are made up."""
    worker._submit = made_up
    return worker.compile_job(payload)


def deadly(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
    """Whoever times the second candidate dies of it."""
    if function != tuning.TIME_CANDIDATES:
        return _submit(function, payload, label, devices)
    asked = msgspec.msgpack.decode(payload, type=tuning._Asked)
    answer: Future[bytes] = Future()
    choices = asked.question.choices if isinstance(asked.question, Selection) else []
    number = 0
    if len(choices) > 1:
        deadly.second = choices[1].identity  # type: ignore[attr-defined]
    if any(choice.identity == getattr(deadly, "second", None) for choice in choices):
        answer.set_exception(WorkerDiedError(label, worker=1, attempts=1, signal=int(signal.SIGSEGV)))
        return answer
    answer.set_result(msgspec.msgpack.encode(Times([1.0 + number] * max(1, len(choices)))))
    return answer
