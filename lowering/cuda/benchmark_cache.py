"""Decisions that need measurements: made by a process that has the device, stored beside the host's other facts.

worker: lowering asks ──▶ `KnownAnswers` ──▶ stored result, or a query to the client ──▶ `answer`
                                             one at a time ──▶ stored ──▶ the waiting worker continues

A client that cannot answer queries gets them as the compile's result. It measures, and submits the job again with the
answers (`measure`).

<tools>/measured/<digest of device, torch and question>    "1" or "0"; times of candidates (`tuning`)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import torch

from fxpool import forks, notices
from fxpool.bench.measurement import exclusive
from fxpool.codecache.store import blobs
from fxpool.errors import FxpoolError, StoreError
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import Measured
from fxpool.torch_compat.cuda import padding
from fxpool.torch_compat.cuda.device_facts import DeviceFacts
from fxpool.torch_compat.cuda.padding import PaddingQuestion

log = notices.logger(__name__)

_BYTES = {True: b"1", False: b"0"}
_ANSWERS = {content: answer for answer, content in _BYTES.items()}
# The longest wait, in seconds, for another process that measures.
_PATIENCE = 30.0


class _Measuring:
    """The lock for one measurement at a time in this process."""

    def __init__(self) -> None:
        self.lock = forks.lock(self, "lock")

    def after_fork_in_child(self) -> None:
        pass  # `forks.lock` gives the child a new lock

    def reset(self) -> None:
        pass


#: Queries another process; None if it gives no answer.
Ask = Callable[[bytes], "bytes | None"]


class KnownAnswers:
    """Answers about one kind of device: from the request, from the facts stored under `toolchain_dir`, and from `ask`,
    which is no longer called once it gives no answer."""

    def __init__(
        self, facts: DeviceFacts, answers: Measured, toolchain_dir: str | None, ask: Ask | None = None
    ) -> None:
        self._facts, self._tools, self._ask = facts, toolchain_dir, ask
        self._known = dict(answers)
        #: Questions of this compile, with their answers.
        self.answered: dict[PaddingQuestion, bool] = {}

    def __call__(self, question: PaddingQuestion) -> bool | None:
        answer = self._known.get(question)
        if answer is None:
            answer = _kept(self._tools, self._facts, question)
        if answer is None and self._ask is not None:
            said = self._ask(msgspec.msgpack.encode(question))
            answer = _ANSWERS.get(said) if said is not None else None
            if answer is None:
                self._ask = None  # a client that does not answer one query will not answer the next
            else:
                self._known[question] = answer
        if answer is not None:
            self.answered[question] = answer
        return answer

    def record(self) -> list[Any]:
        """Return the answers, for people who look at the entry."""
        return msgspec.to_builtins(list(self.answered.items()))


def answer(question: bytes, facts: DeviceFacts, index: int, toolchain_dir: str | None) -> bytes:
    """Answer a query of `KnownAnswers`: the stored answer, or a measurement on device `index`."""
    asked = msgspec.msgpack.decode(question, type=PaddingQuestion)
    ((_, found),) = measure([asked], facts, index, toolchain_dir)
    return _BYTES[found]


def measure(
    questions: Iterable[PaddingQuestion], facts: DeviceFacts, index: int, toolchain_dir: str | None
) -> Measured:
    """Answer `questions`; those without a stored answer are measured on device `index`, one at a time on this host."""
    answers = []
    with runtime.part(_Measuring).lock, alone_on(index):
        for question in questions:
            answer = _kept(toolchain_dir, facts, question)
            if answer is None:
                answer = padding.measure(question, index)
                log.info("padding %s is %s", question, "faster" if answer else "not faster")
                keep(toolchain_dir, facts, question, _BYTES[answer])
            answers.append((question, answer))
    return answers


@contextlib.contextmanager
def alone_on(index: int, root: str | None = None) -> Iterator[None]:
    """Wait until no other process measures on a device of this host, at most `_PATIENCE` seconds: a disturbed
    measurement is better than a failure. `root` is the runtime directory, in a worker."""
    with contextlib.ExitStack() as stack:
        try:
            # Compiles are not paused: a compile is waiting for this measurement.
            device = torch.device("cuda", index)
            turn = exclusive.measuring(device, patience=_PATIENCE, pause=False, runtime_dir=root)
            stack.enter_context(turn)
        except (
            FxpoolError,
            RuntimeError,
            AssertionError,
        ) as error:  # another process measures for too long, or no such device
            log.warning("measuring while other processes may be measuring: %s", error)
        yield


def _path(toolchain_dir: str, facts: DeviceFacts, question: Any) -> str:
    version: Any = torch.version
    about = [facts.described(), str(torch.__version__), version.git_version, msgspec.to_builtins(question)]
    return os.path.join(toolchain_dir, "measured", hashlib.sha256(repr(about).encode()).hexdigest()[:32])


def find(toolchain_dir: str | None, facts: DeviceFacts, question: Any) -> bytes | None:
    """Return the stored answer to `question` (plain data) for this kind of device, or None."""
    if toolchain_dir is None:
        return None
    try:
        return blobs.read_stored(_path(toolchain_dir, facts, question))[0]
    except (OSError, StoreError):
        return None


def keep(toolchain_dir: str | None, facts: DeviceFacts, question: Any, answer: bytes) -> None:
    """Store an answer. Never raises: after a failure, it is measured again."""
    if toolchain_dir is None:
        return
    try:
        blobs.write_private(_path(toolchain_dir, facts, question), answer)
    except StoreError as error:
        log.warning("could not store a measurement, the next process will measure again: %s", error)


def _kept(toolchain_dir: str | None, facts: DeviceFacts, question: PaddingQuestion) -> bool | None:
    content = find(toolchain_dir, facts, question)
    return _ANSWERS.get(content) if content is not None else None
