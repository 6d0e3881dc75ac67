"""Products that are timed by who has the device: asked once, answered while the worker waits, kept for the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxpool.lowering.cuda import benchmark_cache
from fxpool.lowering.cuda.benchmark_cache import KnownAnswers
from fxpool.torch_compat.cuda import padding
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.cuda.padding import Operand, PaddingQuestion

FACTS = next(iter(COMMON.values()))


def product(rows: int) -> PaddingQuestion:
    return PaddingQuestion("mm", Operand((rows, 7), (7, 1), "float16"), Operand((7, 9), (9, 1), "float16"))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PaddingQuestion, int]]:
    """What is timed, on which device; products of more than ten rows are faster padded."""
    asked: list[tuple[PaddingQuestion, int]] = []

    def measure(question: PaddingQuestion, device: int) -> bool:
        asked.append((question, device))
        return question.first.size[0] > 10

    monkeypatch.setattr(padding, "measure", measure)
    return asked


def test_a_question_is_asked_once_and_kept(tmp_path: Path, timed: list[tuple[PaddingQuestion, int]]) -> None:
    tools = str(tmp_path / "tools")

    def ask(question: bytes) -> bytes:
        return benchmark_cache.answer(question, FACTS, 1, tools)

    answers = KnownAnswers(FACTS, [(product(5), True)], None, ask)
    assert [answers(product(rows)) for rows in (5, 20, 8, 20)] == [True, True, False, True]
    assert timed == [(product(20), 1), (product(8), 1)]
    assert [answer for _, answer in answers.record()] == [True, True, False]
    # Another worker, which finds it on disk, and another asker, which does, too.
    assert KnownAnswers(FACTS, [], tools)(product(8)) is False
    assert KnownAnswers(FACTS, [], None, ask)(product(20)) is True
    assert len(timed) == 2


@pytest.mark.parametrize("said", [None, b"", b"perhaps"])
def test_who_has_no_answer_is_asked_no_more(said: bytes | None) -> None:
    asked: list[bytes] = []

    def ask(question: bytes) -> bytes | None:
        asked.append(question)
        return said

    answers = KnownAnswers(FACTS, [], None, ask)
    assert [answers(product(rows)) for rows in (1, 2)] == [None, None]
    assert len(asked) == 1
    assert answers.record() == []
