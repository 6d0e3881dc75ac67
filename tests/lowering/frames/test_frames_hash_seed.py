"""Programs whose result depends on the hash seed or on an address: a frame of another process gives no wrong result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

_SUM = "n = 0\nfor k in {0}:\n    n = n * 7 % 1009 + ord(k)\nreturn x * n"
_ADDRESS = "return x * (int({0}.split('0x')[1][:-1], 16) // 16 % 1000)"
#: The body of a function of `x`, and the program around it, by name.
PROGRAMS = {
    "hash of a text": ("return x * (hash('abc') % 1000)", ""),
    "hash of a global": ("return x * (hash(S) % 1000)", "S = 'abc'"),
    "hash of a tuple": ("return x * (hash(('a', 1)) % 1000)", ""),
    "hash of a frozen set": ("return x * (hash(frozenset(['a'])) % 1000)", ""),
    "hash of a class": ("return x * (hash(C) // 16 % 1000)", "class C: pass"),
    "hash of a member": ("return x * (hash(E.A) % 1000)", "class E(enum.Enum):\n    A = 1"),
    "hash of a data class": (
        "return x * (hash(O) % 1000)",
        "@dataclasses.dataclass(frozen=True)\nclass C:\n    a: str = 'a'\nO = C()",
    ),
    "own hash": ("return x * (hash(O) % 1000)", "class C:\n    def __hash__(self): return hash('abc')\nO = C()"),
    "method of a text": ("return x * ('abc'.__hash__() % 1000)", ""),
    "address of a class": ("return x * (id(C) // 16 % 1000)", "class C: pass"),
    "address of a function": ("return x * (id(f) // 16 % 1000)", "def f(): pass"),
    "address of a module": ("return x * (id(math) // 16 % 1000)", ""),
    "text of a function": (_ADDRESS.format("f'{f}'"), "def f(): pass"),
    "text of a function, by percent": (_ADDRESS.format("('%s' % f)"), "def f(): pass"),
    "literal set": (_SUM.format("{'a', 'b', 'c', 'd', 'e'}"), ""),
    "global set": (_SUM.format("S"), "S = {'a', 'b', 'c', 'd', 'e'}"),
    "frozen set in a tuple": (_SUM.format("S[0]"), "S = (frozenset('abcde'),)"),
    "set of a class": (_SUM.format("list(A.S)"), "class A:\n    S = {'a', 'b', 'c', 'd', 'e'}"),
    "set as a default": (
        "return f(x)",
        "def f(x, s=frozenset('abcde')):\n    n = 0\n    for k in s: n = n * 7 % 1009 + ord(k)\n    return x * n",
    ),
}
_PROGRAM = """
import functools, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import frame_changes
from frame_programs import Kind, function

frame_changes.warm_up()
for number, (name, texts) in enumerate(json.loads(sys.argv[4]).items()):
    folder = Path(sys.argv[2]) / str(number)
    (folder / "program").mkdir(parents=True, exist_ok=True)
    run = functools.partial(frame_changes.run, Kind(function(*texts)), folder)
    report = frame_changes.in_child(run, changed=False, tracing=sys.argv[3] == "tracing")
    print(json.dumps({"program": name, **report}), flush=True)
"""


def _reports(folder: Path, seed: int, *, tracing: bool) -> dict[str, dict[str, Any]]:
    """The outcome of each program in a process with a hash seed, by name."""
    frames = str(Path(__file__).parent)
    arguments = ["-c", _PROGRAM, frames, str(folder), "tracing" if tracing else "", json.dumps(PROGRAMS)]
    printed = run_python(arguments, 280, PYTHONHASHSEED=str(seed), CUDA_VISIBLE_DEVICES="")
    reports = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {report.pop("program"): report for report in reports}


@pytest.mark.timeout(600)
def test_no_frame_of_another_hash_seed_gives_a_wrong_result(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    for seed in (1, 2):
        reports = _reports(folder, seed, tracing=seed == 1)
        assert [*reports] == [*PROGRAMS]
        wrong = {
            name: report for name, report in reports.items() if not report.get("same", report["outcome"] == "missed")
        }
        assert not wrong, "\n".join(f"{name}: {report}" for name, report in wrong.items())
