"""A compile job whose candidates are timed by a list: what there is no GPU for here."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from pathlib import Path

import msgspec

from fxpool.errors import LastAttempt, WorkerDiedError
from fxpool.lowering.cuda import autotune
from fxpool.lowering.worker import jobs
from fxpool.torch_compat.triton.autotuning import Selection
from fxpool.torch_compat.triton.benchmarks import Times

_submit = jobs._submit


def fastest() -> str:
    """Words that the candidate made out to be the fastest has in its source; the fused kernel is fast, too."""
    return os.environ["TORCHINDUCTOR_FASTEST"]


def made_up(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
    """Times by `fastest` for what would be timed; everything else is a job as ever."""
    if function != autotune.TIME_CANDIDATES:
        return _submit(function, payload, label, devices)
    assert devices == "7", "what the request says is to be seen"
    asked = msgspec.msgpack.decode(payload, type=autotune._Asked)
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
    jobs._submit = made_up
    return jobs.compile_job(payload)


_deadly: list[str] = []


def deadly(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
    """Whoever times the third candidate dies of it; the others are equally fast but for the last, which is faster."""
    if function != autotune.TIME_CANDIDATES:
        return _submit(function, payload, label, devices)
    question = msgspec.msgpack.decode(payload, type=autotune._Asked).question
    answer: Future[bytes] = Future()
    identities = [choice.identity for choice in question.choices] if isinstance(question, Selection) else [""]
    if not _deadly:
        _deadly.extend([identities[2], identities[-1]])
    if _deadly[0] in identities:
        answer.set_exception(WorkerDiedError(label, LastAttempt(1), signal=int(signal.SIGSEGV)))
    else:
        times: list[float | None] = [0.5 if identity == _deadly[1] else 1.0 for identity in identities]
        answer.set_result(msgspec.msgpack.encode(Times(times)))
    return answer


def compile_deadly(payload: bytes) -> bytes:
    """Job: `compile_job`, where timing one of the candidates kills who does it."""
    jobs._submit = deadly
    return jobs.compile_job(payload)


def compile_known(payload: bytes) -> bytes:
    """Job: `compile_job`, where nothing is left to compile or to time for a choice."""

    def known(function: str, payload: bytes, label: str, devices: str = "") -> Future[bytes]:
        assert function not in (autotune.TIME_CANDIDATES, autotune.COMPILE_CANDIDATE), label
        return _submit(function, payload, label, devices)

    jobs._submit = known
    return jobs.compile_job(payload)
