"""What is measured, against whom, and what the goal is; and the arithmetic of pairs.

States of the machine, as the cache directories of a measurement hold them:

    bare          nothing on disk at all
    known host    what is known about processor and compiler, and the precompiled header; no graph
    warm          this graph is in the cache
    steady        warm, and the process has called the compiled function before

Every value is seconds (of S10 megabytes and cores), smaller is better, and every judgement is a ratio taken in one run:
fxpool and its rivals in turn, each in a fresh process, A B A B. Each process has a server of its own, but for S6, whose
processes share one: a cold row starts it inside the measured time, unless the row says that it is running.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fxpool.bench.measurement.statistics import paired

__all__ = ["OURS", "ROWS", "STATES", "Row", "Summary", "problem", "select", "summarise"]

OURS = "fxpool"
STATES = ("bare", "known host", "warm")
CHILD = str(Path(__file__).with_name("child.py"))
POOL_CHILD = str(Path(__file__).with_name("pool_child.py"))


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
    return (CHILD, "first", "--what", what)


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
        Row(
            "S5",
            f"GPT-2 {_NAMES[what]}, first call, compiled in the background",
            state,
            (CHILD, "first", "--background", "--what", what),
            {"inductor": 1.0, "eager": 1.10},
        )
        for what, state in (("infer", "known host"), ("train", "known host"), ("infer", "bare"))
    ),
    Row(
        "S5",
        "GPT-2 inference, compiled in the background and in use",
        "known host",
        (CHILD, "use"),
        {"fxpool-waiting": 1.2},
        "use_seconds",
        server=True,
    ),
    *(
        Row(
            "S6",
            f"GPT-2 inference, {count} processes at once, beyond eager",
            "known host",
            (POOL_CHILD, "together", "--count", str(count)),
            {"inductor": goal},
            "beyond_seconds",
        )
        for count, goal in ((4, 0.25), (8, 0.15))
    ),
    *(
        Row("S7", f"{title}, per call", "warm", (CHILD, "steady", "--what", what), {"inductor": 1.02}, "call_seconds")
        for what, title in (("mlp", "MLP of many small ops"), ("gpt2", "GPT-2 inference"))
    ),
    Row("S8", "600 nodes: capture, key, lookup, guards", "warm", (CHILD, "hit"), {}, "hit_seconds", limit=0.015),
    Row("S8", "600 nodes: key", "warm", (CHILD, "hit"), {}, "key_seconds", limit=0.008),
    *(
        Row(
            "S9",
            f"empty job there and back, {name}",
            "bare",
            (POOL_CHILD, "roundtrip"),
            {"inductor": 1.0},
            value,
        )
        for name, value in (("median", "p50_seconds"), ("99th percentile", "p99_seconds"))
    ),
    Row("S9", "fork of a ready worker", "bare", (POOL_CHILD, "fork"), {}, "fork_seconds", limit=0.015),
    *(
        Row("S10", title, "known host", (POOL_CHILD, "footprint"), {}, value, limit=limit)
        for title, value, limit in (
            ("server and zygote, idle: PSS, MB", "idle_megabytes", 400.0),
            ("server and zygote, idle: cores", "idle_cpu", 0.005),
            ("worker that compiles GPT-2: own memory, MB", "worker_megabytes", 200.0),
        )
    ),
    Row(
        "S11",
        "16 graphs of one call, compiled in the background and in use",
        "known host",
        (CHILD, "graphs"),
        {"inductor": 0.35},
        "graphs_seconds",
    ),
    *(
        Row(
            "S14",
            "small graphs, each after the first",
            state,
            (CHILD, "small", "--operator", "none", *more),
            {"inductor": 0.7},
            "graph_seconds",
            server=bool(more),
        )
        for state, more in (("bare", ()), ("known host", ("--served",)))
    ),
    Row(
        "S15",
        "small graphs with an operator of a module that takes 4 s to import, each after the first",
        "known host",
        (CHILD, "small", "--operator", "slow", "--served"),
        {"fxpool-quick": 1.15, "inductor": 0.7},
        "graph_seconds",
        server=True,
    ),
    *(
        Row(
            "S16",
            f"GPT-2 {_NAMES[what]} after an edit of its head, first call",
            "known host",
            (CHILD, "edited", "--what", what),
            {"inductor": 0.5},
            server=True,
        )
        for what in _NAMES
    ),
    *(
        Row(
            "R3",
            f"GPT-2 inference, first call, {who} killed in its middle: beyond an undisturbed one",
            "known host",
            (POOL_CHILD, "killed"),
            {},
            f"{who}_seconds",
            limit=15.0,
            server=True,
        )
        for who in ("worker", "zygote", "server")
    ),
    *(
        Row(
            "R10",
            f"a process's end beyond eager's, its compile {what}",
            "known host",
            (POOL_CHILD, "exit"),
            {},
            value,
            limit=0.1,
        )
        for what, value in (("done", "exit_seconds"), ("under way", "pending_exit_seconds"))
    ),
    *(
        Row(
            "home",
            f"six blocks with a custom operator, first training step, its backward {proven}",
            "warm",
            (CHILD, "custom", "--operator", operator),
            {"inductor": goal},
        )
        for operator, proven, goal in (("proven", "proven", 0.5), ("listed", "traced at home", 1.2))
    ),
    Row(
        "ready",
        "a compile that is a warmed-up process's first / second",
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
    """Return our side against a rival, of samples in the order of time. Raises ValueError if they make no pairs."""
    ratios = paired(ours, theirs)
    return Summary(
        rival,
        goal,
        statistics.median(ours),
        statistics.median(theirs),
        ratios.value,
        ratios.low,
        ratios.high,
        len(ours),
    )


def problem(row: Row, result: Mapping[str, Any]) -> str:
    """Why one of fxpool's results does not show what the row is about; empty if it does.

    A fast number is worth nothing if the graph was in the cache when it should not have been, was compiled in the
    process unnoticed, or is wrong.
    """
    stats = result.get("stats") or {}
    if result.get("compiled", 1) != result.get("graphs", 1):
        return f"compiled {result['compiled']} times"
    if result.get("graph_lowerings", 0) == 0 and "stats" not in result:
        return ""  # no graph is part of it
    if not result.get("difference", 0.0) <= 1e-3:
        return f"differs from eager by {result['difference']:.1e}"
    if result.get("graph_lowerings", 0):
        return f"{result['graph_lowerings']} graphs were lowered in the process"
    if row.state == "warm" and (stats.get("misses", 0) or not stats.get("hits", 0)):
        return f"not warm: {stats.get('hits', 0)} hits, {stats.get('misses', 0)} misses"
    if row.state != "warm" and (stats.get("hits", 0) or not stats.get("misses", 0)):
        return f"not cold: {stats.get('hits', 0)} hits, {stats.get('misses', 0)} misses"
    return ""
