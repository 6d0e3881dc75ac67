"""Files of compilers are looked at once in an examination, and again in the next one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from torch._inductor import config as inductor

from fxpool.codecache.key import compiler_examination, toolchain


class Question:
    """A question about a file, and how often it was asked."""

    def __init__(self) -> None:
        self.times = 0
        self.error: Exception | None = None
        self.ask = compiler_examination.once(self._ask)

    def _ask(self, path: str) -> str:
        self.times += 1
        if self.error is not None:
            raise self.error
        return path.upper()


def test_a_question_is_asked_once() -> None:
    question = Question()
    assert [question.ask("a"), question.ask("a")] == ["A", "A"] and question.times == 2
    with compiler_examination.under_way():
        assert [question.ask("a"), question.ask("b"), question.ask("a")] == ["A", "B", "A"] and question.times == 4
        with compiler_examination.under_way():  # within another one
            question.ask("b")
    assert question.times == 4 and compiler_examination.current() is None


def test_errors_are_not_remembered() -> None:
    question = Question()
    with compiler_examination.under_way():
        question.error = OSError("gone")
        with pytest.raises(OSError, match="gone"):
            question.ask("a")
        question.error = None
        assert question.ask("a") == "A" and question.times == 2


def test_an_examination_goes_on_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question()
    with compiler_examination.under_way():
        question.ask("a")
        earlier = compiler_examination.current()
    with compiler_examination.under_way(earlier):
        question.ask("a")
        assert question.times == 1
    monkeypatch.setenv("EXAMINED", "another environment")
    with compiler_examination.under_way(earlier):
        question.ask("a")
        assert question.times == 2
        current = compiler_examination.current()
    monkeypatch.setattr(compiler_examination, "_LASTS", -1.0)
    with compiler_examination.under_way(current):
        question.ask("a")
        assert question.times == 3


def test_a_compiler_that_changes_counts_in_the_next_examination(tmp_path: Path) -> None:
    original = shutil.which("g++")
    assert original is not None
    script = tmp_path / "g++"
    script.write_text(f'#!/bin/sh\nexec {original} "$@"\n')
    script.chmod(0o755)
    with inductor.patch({"cpp.cxx": (str(script),)}):
        with compiler_examination.under_way():
            first = toolchain.key_facts()
            script.write_text(f'#!/bin/sh\n# another text\nexec {original} "$@"\n')
            assert toolchain.key_facts() == first
        with compiler_examination.under_way():
            assert toolchain.key_facts()["compiler_files"] != first["compiler_files"]
