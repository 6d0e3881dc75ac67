"""What is measured, against whom, and what the goal is; and the arithmetic of pairs.

States of the machine, as the cache directories of a measurement hold them:

    bare          nothing on disk at all
    known host    what is known about processor and compiler, and the precompiled header; no graph
    warm          this graph is in the cache
    steady        warm, and the process has called the compiled function before

Every value is seconds, smaller is better, and every judgement is a ratio taken in one run: fxpool and its rivals in
turn, each in a fresh process, A B A B. In this version no server outlives a process: a cold row starts its workers
inside the measured time, unless the row says that a server is running.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["OURS", "ROWS", "STATES", "Row", "Summary", "problem", "select", "summarise"]

OURS = "fxpool"
STATES = ("bare", "known host", "warm")
CHILD = str(Path(__file__).with_name("child.py"))


@dataclass(frozen=True)
class Row:
    """One line of the table. `goals` maps a rival to the largest ratio that is still a success.

    `limit` is an absolute goal, in the value's unit (seconds, or none for a ratio). `server`: a pool is running, its
    zygote ready, before the clock starts.
    """

    id: str
    title: str
    state: str
    arguments: tuple[str, ...]
    goals: Mapping[str, float] = field(default_factory=dict)
    value: str = "first_call_seconds"
    limit: float | None = None
    server: bool = False

    @property
    def name(self) -> str:
        return f"{self.id} {self.title}"


def _first_call(what: str) -> tuple[str, ...]:
    return ("-m", "fxpool.demo_child", "--model", "gpt2", "--what", what)


_NAMES = {"infer": "inference", "train": "training"}
ROWS: tuple[Row, ...] = (
    *(
        Row("S1", f"GPT-2 {_NAMES[what]}, first call", "warm", _first_call(what), {"inductor": 0.50, "eager": 1.10})
        for what in _NAMES
    ),
    Row("S2", "GPT-2 inference, inside the backend", "warm", (CHILD, "inside"), {"inductor": 0.08}, "backend_seconds"),
    *(
        Row(
            "S3",
            f"GPT-2 {_NAMES[what]}, first call",
            "known host",
            (CHILD, "served", "--what", what),
            {"inductor": 0.35},
            server=True,
        )
        for what in _NAMES
    ),
    *(Row("S4", f"GPT-2 {_NAMES[what]}, first call", "bare", _first_call(what), {"inductor": 0.50}) for what in _NAMES),
    *(
        Row("S7", f"{title}, per call", "warm", (CHILD, "steady", "--what", what), {"inductor": 1.02}, "call_seconds")
        for what, title in (("mlp", "MLP of many small ops"), ("gpt2", "GPT-2 inference"))
    ),
    Row("S8", "600 nodes: capture, key, lookup, guards", "warm", (CHILD, "hit"), {}, "hit_seconds", limit=0.015),
    Row("S8", "600 nodes: key", "warm", (CHILD, "hit"), {}, "key_seconds", limit=0.008),
    Row(
        "ready",
        "a compile that is a rehearsed process's first / second",
        "known host",
        (CHILD, "ready"),
        {},
        "first_over_second",
        limit=1.10,
    ),
)


def select(ids: str) -> list[Row]:
    """The rows of `S1,S7`. Raises ValueError naming the known ones."""
    wanted = [name.strip() for name in ids.split(",") if name.strip()]
    wanted = [name if name in {row.id for row in ROWS} else name.upper() for name in wanted]
    known = list(dict.fromkeys(row.id for row in ROWS))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ValueError(f"unknown rows: {', '.join(unknown) or '(none given)'}; known: {', '.join(known)}")
    return [row for row in ROWS if row.id in wanted]


@dataclass(frozen=True)
class Summary:
    """fxpool against one rival: seconds are medians, ratios are of pairs (ours / theirs)."""

    rival: str
    goal: float
    ours: float
    theirs: float
    ratio: float
    lowest: float
    highest: float
    pairs: int

    @property
    def met(self) -> bool:
        return self.ratio <= self.goal


def summarise(rival: str, goal: float, ours: Sequence[float], theirs: Sequence[float]) -> Summary:
    """Pairs are formed in order: the n-th of ours with the n-th of theirs, which ran right after it."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} of ours and {len(theirs)} of {rival} make no pairs")
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Summary(
        rival,
        goal,
        statistics.median(ours),
        statistics.median(theirs),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        len(ratios),
    )


def problem(row: Row, result: Mapping[str, Any]) -> str:
    """Why one of fxpool's results does not show what the row is about; empty if it does.

    A fast number is worth nothing if the graph was in the cache when it should not have been, was compiled in the
    process unnoticed, or is wrong.
    """
    stats = result.get("stats") or {}
    if not result.get("difference", 0.0) <= 1e-3:
        return f"differs from eager by {result['difference']:.1e}"
    if result.get("graph_lowerings", 0):
        return f"{result['graph_lowerings']} graphs were lowered in the process"
    if row.state == "warm" and (stats.get("misses", 0) or not stats.get("hits", 0)):
        return f"not warm: {stats.get('hits', 0)} hits, {stats.get('misses', 0)} misses"
    if row.state != "warm" and (stats.get("hits", 0) or not stats.get("misses", 0)):
        return f"not cold: {stats.get('hits', 0)} hits, {stats.get('misses', 0)} misses"
    return ""
