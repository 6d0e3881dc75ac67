"""Kinds of change that are another number: each way to come by it, and each piece that uses it.

``read_<reading>`` fixes the way and draws the piece, ``use_<piece>`` the other way round; both between two processes.
``live_<reading>`` changes the number between the calls of one process.
"""

from __future__ import annotations

from .drawing import Drawn, case_of, kind, numbers_of, program_of, steps_of
from .pieces import PIECES
from .program import Case
from .readings import READINGS

__all__: list[str] = []


def _between_processes(drawn: Drawn, name: str) -> Case:
    what, _, which = name.partition("_")
    program = program_of(drawn, reading=which) if what == "read" else program_of(drawn, piece=which)
    one, other = numbers_of(drawn, program)
    return case_of(drawn, name, program, steps_of(drawn, program, one, other))


def _between_calls(drawn: Drawn, name: str) -> Case:
    program = program_of(drawn, reading=name.partition("_")[2])
    one, other = numbers_of(drawn, program)
    anew = drawn.choose("anew", [True, True, False])
    live = program.reading.live
    changes = [program.reading.put(live, other), program.reading.put(live, one)]
    steps = [
        program.step("between calls", one, calls=["", *changes]),
        program.step("another process", other),
    ]
    return case_of(drawn, name, program, steps, anew=anew)


for _reading in READINGS.values():
    kind(f"read_{_reading.name}")(_between_processes)
    if _reading.live:
        kind(f"live_{_reading.name}")(_between_calls)
for _piece in PIECES.values():
    kind(f"use_{_piece.name}")(_between_processes)
