"""One sentence out of the end of a worker's output."""

from __future__ import annotations

import pytest

from fxpool.errors import JobTimeoutError, LastAttempt, WorkerDiedError
from fxpool.pool.host.death_causes import sentence

CRASH = """some chatter
Fatal Python error: Segmentation fault

Current thread 0x00007f0d (most recent call first):
  File "/home/me/models/deep.py", line 12 in eat
  File "/usr/lib/python3.11/threading.py", line 975 in run
""" + "".join(f'  File "/x/{n}.py", line {n} in f{n}\n' for n in range(60))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (CRASH, "Fatal Python error: Segmentation fault, in eat (deep.py:12)"),
        ("Fatal Python error: Aborted\n", "Fatal Python error: Aborted"),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no room\n"
            'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n',
            "uncaught C++ exception 'std::runtime_error': no room",
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: not so\n\n',
            "ValueError: not so",
        ),
        ("last words\n", "last words"),
        ("\n \n", ""),
        ("", ""),
    ],
)
def test_the_cause_in_one_line(output: str, said: str) -> None:
    assert sentence(output) == said


def test_a_long_line_is_cut_between_words() -> None:
    found = sentence("word " * 1000)
    assert len(found) < 220 and found.endswith("word ...")
    assert "\n" not in sentence("x" * 5000 + "\n" + "y" * 5000)


def test_what_is_not_known_is_not_said() -> None:
    for error in (WorkerDiedError("graph 1"), JobTimeoutError("graph 1", 3.0)):
        assert "None" not in str(error) and "worker" in str(error)
    assert "signal 11 (SIGSEGV)" in str(WorkerDiedError("graph 1", LastAttempt(5), signal=11))
    assert "signal 99 while" in str(WorkerDiedError("graph 1", LastAttempt(5), signal=99))
